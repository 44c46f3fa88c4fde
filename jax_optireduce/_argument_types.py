"""Types of arguments, for type checkers and their users' editors.

The values of each `Literal` are those of the extension module, and the fields of both
dictionaries are those of `Options` and `Advanced`: tests/unit/test_argument_types.py
compares them.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TypedDict, TypeVar

if TYPE_CHECKING:
    from jax_optireduce._session.options import Advanced

# The type of a tree, which a call returns as it got it.
Tree = TypeVar("Tree")

Backend = Literal["optireduce", "xla"]

# Policies for late data: see `psum`.
Mode = Literal["exact", "bounded", "agreed", "lossy"]

# Formats of float32 values on the wire: see `psum`.
WireFormat = Literal["float32", "bfloat16", "int8", "auto"]

# Ways from a program to this package: see `Advanced.host_call`.
HostCall = Literal["direct", "host_computation", "callback"]


class AdvancedArguments(TypedDict, total=False):
    """The fields of `Advanced`."""

    authenticate: bool
    lanes: int
    incast: int
    receive_buffer_bytes: int
    datagram_bytes_max: int
    mismatch_timeout_s: float
    late_budget: float
    hadamard: bool
    host_call: Literal["", HostCall]
    rendezvous_timeout_s: float
    heartbeat_timeout_s: int
    shutdown_timeout_s: int
    status_socket: bool
    faults: Mapping[str, float]


class OptionArguments(TypedDict, total=False):
    """The fields of `Options`: the arguments of `init`."""

    backend: Backend
    mode: Literal["", Mode]
    bind_address: str
    interface: str
    port_range: str
    encrypt: bool
    deadline_s: float
    deadline_max_s: float
    max_lag: int
    peer_timeout_s: float
    processes_per_slice: int
    call_timeout_s: float
    bucket_bytes: int
    stall_timeout_s: float
    flight_record_dir: str
    advanced: "Advanced | AdvancedArguments"
