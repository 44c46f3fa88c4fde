"""Types of arguments, for type checkers and their users' editors.

The values of each `Literal` are those of the extension module, and the fields of the
dictionary are those of `Options`: tests/unit/test_argument_types.py compares them.
"""

from collections.abc import Mapping
from typing import Literal, TypedDict, TypeVar

# The type of a tree, which a call returns as it got it.
Tree = TypeVar("Tree")

Backend = Literal["optireduce", "xla"]

# Policies for late data: see `CallArguments`.
Mode = Literal["exact", "bounded", "agreed", "lossy"]

# Formats of float32 values on the wire: see `CallArguments`.
WireFormat = Literal["float32", "bfloat16", "int8", "auto"]

# Protection of datagrams: see `Options.security`.
Security = Literal["authenticated", "encrypted", "none"]

# Ways from a program to this package: see `Internal.host_call`.
HostCall = Literal["direct", "host_computation", "callback"]


class OptionArguments(TypedDict, total=False):
    """The fields of `Options`: the arguments of `init`."""

    backend: Backend
    mode: Literal["", Mode]
    bind_address: str
    interface: str
    port_range: str
    security: Security
    deadline_s: float
    deadline_max_s: float
    max_lag: int
    peer_timeout_s: float
    processes_per_slice: int
    call_timeout_s: float
    bucket_bytes: int
    stall_timeout_s: float
    flight_record_dir: str
    lanes: int
    receive_buffer_bytes: int
    rendezvous_timeout_s: float
    shutdown_timeout_s: int
    faults: Mapping[str, float]
