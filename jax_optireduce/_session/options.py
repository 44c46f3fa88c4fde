"""Settings of a communicator: frozen and validated.

The order of precedence is: the argument of `init`, the environment variable
`JAX_OPTIREDUCE_<FIELD>`, the default below.
"""

import dataclasses
import math
import re
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Self, get_args, get_origin

from jax_optireduce._argument_types import Backend, Mode, Security
from jax_optireduce._errors import UsageError, did_you_mean

ENVIRONMENT_PREFIX = "JAX_OPTIREDUCE_"

# See `Internal.host_call`.
HOST_COMPUTATION = "host_computation"

# Largest UDP payload on a network, in bytes.
# Chosen: 9000 (the largest Ethernet MTU in common use) - 20 (IPv4) - 8 (UDP).
DATAGRAM_BYTES_MAX = 8972

# Largest UDP payload between processes of one host, in bytes.
# Chosen: the largest payload of UDP, 65507, in whole elements of 8 bytes.
DATAGRAM_BYTES_MAX_ON_ONE_HOST = 65_504

# Datagrams to one process that its receive buffer must hold, of each peer.
# Chosen: twice the least window.
DATAGRAMS_OF_BUFFER = 16

# Smallest IPv4 datagram that every host must accept, less 28 bytes of headers.
# Source: RFC 791, section 3.1 (576 bytes).
DATAGRAM_BYTES_MIN = 548

# Longest name of a replica, in characters. Chosen: longer than a host's name.
_REPLICA_NAME_MAX = 255

# Source: RFC 768: a port has 16 bits.
PORT_MAX = 65_535


def _option(
    default: Any,
    between: tuple[float, float] | None = None,
    *,
    zero: bool = False,
    of_process: bool = False,
) -> Any:
    """States an option.

    Args:
      default: its default.
      between: least and greatest value of a number.
      zero: whether 0, too, is a value, with a meaning of its own.
      of_process: whether it may differ between processes: it describes one host, not
        the session.
    """
    facts = {"between": between, "zero": zero, "of_process": of_process}
    return dataclasses.field(default=default, metadata=facts)


# Least and greatest value of a time, in seconds.
# Chosen: longer times indicate a wrong unit.
_TIME_S = (1e-3, 86_400)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a communicator. All ranks must agree, unless noted otherwise.

    Attributes:
      backend: "optireduce", or "xla", which turns every call into that of `jax.lax`,
        for comparisons without a change of code. Default "optireduce".
      mode: mode of all calls without `mode=`: "exact", "bounded", "agreed" or "lossy",
        see `psum`; "" means "bounded" for gradients and "exact" for `psum` and `pmean`.
        If the gradients are "bounded" and the loss is "exact", a step waits for the
        slowest rank in the call of the loss. Default "".
      coordinator: "host:port" of `python -m jax_optireduce coordinator`, with which any
        process may die; "": process 0 hosts JAX's coordination service, and its death
        ends all others. Default "".
      replica: name of this process among replicas: processes that JAX does not connect,
        each with devices and a mesh of its own. Their number may change while they
        run; needs a `coordinator` that was started with --replicas. May differ between
        ranks. Default "": the processes are those of JAX.
      replicas_min: number of replicas with which a job begins; more of them join it
        later. Default 1.
      token_file: file with the secret that coordinator and replicas share, without
        which a stranger could join them; "": none. May differ between ranks. Default
        "".
      bind_address: IPv4 or IPv6 address of this host that all ranks can reach; "" takes
        the address on the route to the coordinator. May differ between ranks. Default
        "".
      interface: the network interface of that address, instead of `bind_address`, as in
        NCCL_SOCKET_IFNAME: "eth,ib" names beginnings, "=eth0" a whole name, "^docker"
        all others. May differ between ranks. Default "".
      port_range: UDP ports for the sockets of this host, for a firewall:
        "41000-41063"; each process takes one for each of its lanes. "" lets the kernel
        choose. May differ between ranks. Default "".
      security: "authenticated": every datagram has a tag (AES-128-GCM), which receivers
        verify. "encrypted": payloads are encrypted as well; headers stay readable.
        "none", for measurements, lets any host that can send UDP change the sums, and
        logs a warning at every start. Default "authenticated".
      deadline_s: deadline of a bounded, agreed or lossy call, in seconds, both stages
        together; 0 learns it from the times of the calls. Default 0.
      deadline_max_s: upper bound of a learned deadline, and the deadline while it is
        being learned, in seconds. Default 10: the gradients of a large model take
        seconds.
      max_lag: number of calls of one collective by which a rank may be ahead of
        another before bounded calls go on without that one, or with two processes wait
        for it. Default 2.
      peer_timeout_s: longest silence of a peer, in seconds. Then exact and agreed calls
        that wait for it fail, and bounded ones continue without it. Default 30.
      processes_per_slice: number of consecutive processes that live and die together,
        because XLA reduces over a network of their own: the hosts of a TPU slice, or
        those along the other axes of a mesh. A dead process then takes its slice with
        it: the others continue without the whole slice, while more than half of the
        slices remain. 0 takes the slices of TPU devices, elsewhere 1. Default 0.
      call_timeout_s: longest duration of a waiting call (exact, agreed, a drain) while
        all peers answer, in seconds: the bound for a rank with a hanging program. Then
        the call fails on all ranks, and the error names that rank and its last call.
        Also the longest wait of the devices of one process for each other. 0 means
        unlimited. Default 1800.
      bucket_bytes: largest bucket of several leaves, in bytes; a larger leaf is a
        separate bucket. Default 25 MiB.
      stall_timeout_s: age of a call, in seconds, at which a line of the log names the
        ranks for which it waits and the flight record is written to a file; 0 means
        never. May differ between ranks. Default 60.
      flight_record_dir: folder for these files; "" means the system's folder for
        temporary files. May differ between ranks. Default "".
      lanes: network threads with a socket each; calls are spread over them. 1 to 64; 0
        takes as many as the cores and links of all hosts allow (docs/deploy.md).
        Default 0.
      receive_buffer_bytes: requested socket buffer per lane, in bytes; the kernel may
        grant less. May differ between ranks. Default 8 MiB.
      rendezvous_timeout_s: longest wait of `init` for the other processes, in seconds.
        May differ between ranks. Default 120.
      shutdown_timeout_s: longest duration of a call after the end of the program, in
        seconds, until all calls are given up; also the longest wait of process 0 for
        the end of the others. May differ between ranks. Default 60.
      faults: faults to inject into this process's datagrams, for tests, by name (for
        example {"loss": 0.01}); in the environment "loss=0.01,seed=7". May differ
        between ranks. Default none.
    """

    backend: Backend = "optireduce"
    mode: Literal["", Mode] = ""
    coordinator: str = ""
    replica: str = _option("", of_process=True)
    replicas_min: int = _option(1, (1, 65_535))
    token_file: str = _option("", of_process=True)
    bind_address: str = _option("", of_process=True)
    interface: str = _option("", of_process=True)
    port_range: str = _option("", of_process=True)
    security: Security = "authenticated"
    deadline_s: float = _option(0.0, _TIME_S, zero=True)
    # Chosen: several times a bucket of 25 MiB at 1 Gbit/s (0.3 s).
    deadline_max_s: float = _option(10.0, _TIME_S)
    # Chosen: the buffers of a call for two steps ahead.
    max_lag: int = _option(2, (1, 1024))
    # Chosen: longer than a paused virtual machine or a garbage collection.
    peer_timeout_s: float = _option(30.0, _TIME_S)
    processes_per_slice: int = _option(0, (1, 1024), zero=True)
    # Source: torch.distributed waits 30 min with Gloo, 10 min with NCCL. Evaluation, a
    # checkpoint and compilation on one rank take less.
    call_timeout_s: float = _option(1800.0, _TIME_S, zero=True)
    # Source: PyTorch's DistributedDataParallel (bucket_cap_mb=25), where it was tuned.
    bucket_bytes: int = _option(25 << 20, (1, 1 << 40))
    # Chosen: longer than compilation, evaluation or a checkpoint on one rank.
    stall_timeout_s: float = _option(60.0, _TIME_S, zero=True, of_process=True)
    flight_record_dir: str = _option("", of_process=True)
    # Chosen: more flows than a network card has queues to spread them over.
    lanes: int = _option(0, (1, 64), zero=True)
    # Chosen: the data of 3 peers in 25 ms at 1 Gbit/s. Linux grants less unless
    # net.core.rmem_max is raised.
    receive_buffer_bytes: int = _option(8 << 20, (64 << 10, 1 << 30), of_process=True)
    rendezvous_timeout_s: float = _option(120.0, _TIME_S, of_process=True)
    # Chosen: as `stall_timeout_s`. It excludes waits for dead ranks.
    shutdown_timeout_s: int = _option(60, (1, 86_400), of_process=True)
    faults: Mapping[str, float] = dataclasses.field(
        default_factory=dict, metadata={"of_process": True}
    )

    if not TYPE_CHECKING:  # A checker has the names of `__init__`.

        def __new__(cls, **given: Any) -> Self:
            """Checks the names; the generated `__init__` takes the values.

            Raises:
              UsageError: a name is unknown.
            """
            for name in given.keys() - _kinds().keys():
                raise UsageError(
                    f"{name!r} is not an option."
                    + did_you_mean(name, tuple(_kinds()))
                    + f" Options are: {', '.join(_kinds())}."
                )
            return super().__new__(cls)

    def __post_init__(self) -> None:
        """Validates every field, and the combinations of fields.

        Raises:
          UsageError: a field has a wrong type or is out of its range, or fields
            contradict each other.
        """
        for field in dataclasses.fields(self):
            value = _checked(field, getattr(self, field.name))
            object.__setattr__(self, field.name, value)
        if self.bind_address and self.interface:
            raise UsageError(
                f"bind_address={self.bind_address!r} and interface={self.interface!r} "
                "both choose the address of this host. Give one of them."
            )
        self.ports()
        if self.coordinator and not re.fullmatch(r"\S+:\d+", self.coordinator):
            raise UsageError(
                "coordinator must be an address and a port, like '10.0.0.1:1234', got "
                f"{self.coordinator!r}."
            )

        self._check_replica()

    def _check_replica(self) -> None:
        if not self.replica:
            return
        if not self.replica.isprintable() or len(self.replica) > _REPLICA_NAME_MAX:
            raise UsageError(
                f"replica must be 1 to {_REPLICA_NAME_MAX} printable characters, got "
                f"{self.replica!r}."
            )
        if not self.coordinator:
            raise UsageError(
                f"replica={self.replica!r} needs the coordinator of the replicas: "
                "start python -m jax_optireduce coordinator --replicas --port 1234, "
                "and give coordinator='host:1234'."
            )
        if self.backend != "optireduce":
            raise UsageError(
                f"replica={self.replica!r} needs backend='optireduce': JAX has no "
                "collectives between processes that it does not connect."
            )

    def ports(self) -> tuple[int, int]:
        """Returns the first and the last port of `port_range`; 0, 0 without one."""
        if not self.port_range:
            return 0, 0
        found = re.fullmatch(r"(\d+)-(\d+)", self.port_range.replace(" ", ""))
        first, last = map(int, found.groups()) if found else (0, 0)
        if not 1 <= first <= last <= PORT_MAX:
            raise UsageError(
                "port_range must be two ports from 1 to 65535, the smaller one first, "
                f"like '41000-41063', got {self.port_range!r}."
            )
        return first, last

    def values(self) -> dict[str, Any]:
        """Returns the fields by name."""
        return {name: getattr(self, name) for name in _kinds()}

    def agreed(self) -> dict[str, Any]:
        """Returns the fields on which all ranks of a session must agree."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if not field.metadata.get("of_process")
        }

    def __hash__(self) -> int:
        """Hashes all fields; a mapping has no hash of its own."""
        values = self.values() | {"faults": frozenset(self.faults.items())}
        return hash(tuple(values.values()))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Internal:
    """Settings for the tests of this package, from JAX_OPTIREDUCE_<FIELD> alone.

    They are no options: they may change without notice.

    Attributes:
      datagram_bytes_max: largest UDP payload, in bytes; 0 takes the largest one that
        all paths carry.
      mismatch_timeout_s: time for which two ranks may wait for each other in different
        calls before both fail, in seconds.
      heartbeat_timeout_s: time after which JAX's coordination service declares a
        process dead, in seconds; used when `init` initialises `jax.distributed`.
      host_call: "host_computation" makes the calls of programs for CPU devices host
        computations, as they are for other devices.
    """

    datagram_bytes_max: int = 0
    # Chosen: longer than two ranks may be apart that start independent calls in
    # different orders.
    mismatch_timeout_s: float = _option(10.0, _TIME_S)
    # Chosen: a third of JAX's 100 s, and as `peer_timeout_s`, after which the survivors
    # know of a dead process.
    heartbeat_timeout_s: int = 30
    host_call: Literal["", "host_computation"] = ""

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Self:
        """Reads the variables.

        Raises:
          UsageError: a value does not fit.
        """
        given: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            variable = ENVIRONMENT_PREFIX + field.name.upper()
            if variable in environment:
                value = _parse(variable, environment[variable], field.type)
                given[field.name] = _checked(field, value)
        return cls(**given)


def _kinds(of: type[Options | Internal] = Options) -> dict[str, Any]:
    """Returns the types of the options, or of the other settings, by name."""
    return {field.name: field.type for field in dataclasses.fields(of)}


def _checked(field: dataclasses.Field[Any], value: Any) -> Any:
    """Returns a value as the type of its field; raises unless it fits."""
    name = field.name
    kind: Any = field.type
    if name == "faults":
        return _checked_faults(value)
    if kind is float and type(value) is int:
        value = float(value)
    known = _choices(kind)
    kind = str if known else kind
    if type(value) is not kind:
        raise UsageError(
            f"{name} must be of type {kind.__name__}, got {value!r} of type "
            f"{type(value).__name__}."
        )
    if known and value not in known:
        raise UsageError(
            f"{name} must be {' or '.join(map(repr, known))}, got {value!r}."
            + did_you_mean(value, known)
        )
    if field.metadata.get("between"):
        _check_range(field, value)
    return value


def _choices(kind: Any) -> tuple[str, ...]:
    """Returns the values of a `Literal`; of another type none."""
    return get_args(kind) if get_origin(kind) is Literal else ()


def _check_range(field: dataclasses.Field[Any], value: float) -> None:
    name, zero = field.name, field.metadata["zero"]
    low, high = field.metadata["between"]
    if math.isfinite(value) and (low <= value <= high or (zero and value == 0)):
        return
    unit = {"s": " seconds", "bytes": " bytes"}.get(name.rsplit("_", 1)[-1], "")
    raise UsageError(
        f"{name} must be {'0 or ' if zero else ''}between {low:g} and {high:g}{unit}, "
        f"got {value!r}."
    )


def _checked_faults(faults: Any) -> Mapping[str, float]:
    example = "faults must map names to numbers, like {'loss': 0.01}, got "
    if not isinstance(faults, Mapping):
        raise UsageError(f"{example}{faults!r}.")
    for name, value in faults.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not isinstance(name, str) or not number or not math.isfinite(value):
            raise UsageError(f"{example}{name!r}: {value!r}.")
    return types.MappingProxyType({k: float(v) for k, v in faults.items()})


def resolve(
    arguments: Mapping[str, Any], environment: Mapping[str, str]
) -> tuple[Options, dict[str, str]]:
    """Makes options from arguments, the environment and the defaults, in this order.

    Args:
      arguments: fields given to `init`, by name.
      environment: usually `os.environ`; names without our prefix are ignored.

    Returns:
      The options, and the origin of every field other than defaults.

    Raises:
      UsageError: a name is unknown (with a suggestion), or a value is invalid.
    """
    values = dict(arguments)
    origins = dict.fromkeys(values, "argument")
    known = {ENVIRONMENT_PREFIX + name.upper(): name for name in _kinds()}
    internal = {ENVIRONMENT_PREFIX + name.upper() for name in _kinds(Internal)}
    for variable in sorted(environment.keys() - internal):
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        if variable not in known:
            raise UsageError(
                f"the environment sets {variable}, which is not an option."
                + did_you_mean(variable, known)
                + f" Known are: {', '.join(known)}."
            )
        name = known[variable]
        if name not in values:
            values[name] = _parse(variable, environment[variable], _kinds()[name])
            origins[name] = variable
    return Options(**values), origins


def _parse(variable: str, text: str, kind: Any) -> object:
    """Reads one environment variable as the type of its field."""
    if kind is str or _choices(kind):
        return text
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            expected = "a whole number" if kind is int else "a number"
            raise UsageError(f"{variable} must be {expected}, got {text!r}.") from None
    faults: dict[str, float] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        fault, _, number = item.partition("=")
        try:
            faults[fault.strip()] = float(number)
        except ValueError:
            raise UsageError(
                f"{variable} must look like 'loss=0.01,seed=7', got {text!r}."
            ) from None
    return faults


def describe_difference(records: Mapping[int, Mapping[str, object]]) -> str:
    """Describes the options in which ranks differ; empty when they agree.

    Args:
      records: `Options.agreed()` by rank.
    """
    differences = []
    first = min(records)
    for name in sorted({key for record in records.values() for key in record}):
        wanted = records[first].get(name)
        for rank, record in records.items():
            if (value := record.get(name)) != wanted:
                differences.append(
                    f"{name} is {wanted!r} on rank {first} and {value!r} on rank {rank}"
                )
                break
    return "; ".join(differences)
