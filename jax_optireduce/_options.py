"""Settings of a communicator: frozen, validated where they are made, in stated units.

An option is looked up in this order: the argument given to `init`, the environment
variable `JAX_OPTIREDUCE_<FIELD>`, the default below.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence

from jax_optireduce._errors import UsageError, did_you_mean

ENVIRONMENT_PREFIX = "JAX_OPTIREDUCE_"

BACKENDS = ("optireduce", "xla")

# What a call does about a peer that is more than `max_lag` calls behind.
LAG_POLICIES = ("wait", "suspend")

# Share of the data that may miss a learned deadline, unless it is given.
# Source: the design's late budget: what is late is added later, at little cost.
_LATE_BUDGET = 0.01

# Largest UDP payload that is chosen without being asked for, in bytes.
# Chosen: 9000 (the largest Ethernet MTU in common use) - 20 (IPv4) - 8 (UDP). Loopback
# would carry 65507, but a program that is tried on one host would then lose its data in
# other pieces than on the network it is meant for, and a lost segment would cost 7
# times more; the kernel's segmentation offload gives the speed of large pieces without
# them.
DATAGRAM_BYTES_MAX = 8972

# Smallest IPv4 datagram every host must take, less the 28 bytes of IP and UDP headers.
# Source: RFC 791, section 3.1 (576 bytes).
DATAGRAM_BYTES_MIN = 548

# Fields that may differ between processes: they describe one host, not the session.
_OF_ONE_PROCESS = frozenset(
    {
        "bind_address",
        "faults",
        "flight_record_dir",
        "heartbeat_timeout_s",
        "receive_buffer_bytes",
        "rendezvous_timeout_s",
        "shutdown_timeout_s",
        "stall_timeout_s",
    }
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """How a communicator works. All ranks must agree, except where it says otherwise.

    Attributes:
      backend: "optireduce", or "xla", which turns every call into the `jax.lax` one, to
        compare the two without a change of code. Default "optireduce".
      bind_address: IPv4 or IPv6 address of this host that the others can reach; ""
        finds the one that leads to the coordinator. May differ between ranks. Default
        "".
      authenticate: whether every datagram carries a tag (AES-128-GCM) that is checked;
        False lets whoever can send UDP change the sums, and warns at every start.
        Default True.
      encrypt: whether payloads are encrypted as well; headers stay readable. Needs
        `authenticate`. Default False.
      lanes: network threads with a socket each; peers' calls are spread over them. 1 to
        64. Default 1.
      incast: ranks that send to one rank at the same time; 0 means as many as
        the receivers ask for. Default 0.
      receive_buffer_bytes: socket buffer to ask the kernel for, per lane, in bytes; it
        may grant less. May differ between ranks. Default 8 MiB.
      datagram_bytes_max: largest UDP payload, in bytes; 0 measures all paths and takes
        the smallest. Default 0.
      max_lag: calls of one collective that a rank may be ahead of another. Default 2.
      on_lag: what a bounded call does about a peer that is farther behind: "wait" for
        it while it answers, up to `peer_timeout_s`, or "suspend" it, so that the call
        never waits. An agreed call needs all owners of shards, and waits for such a
        peer up to `call_timeout_s` in either case. Default "wait".
      peer_timeout_s: how long a peer may be silent, in seconds. Then exact and agreed
        calls that wait for it fail, and bounded ones go on without it. Default 30.
      mismatch_timeout_s: how long two ranks may wait for each other in different calls
        before both fail, in seconds. Default 10.
      call_timeout_s: how long a call that waits (exact, agreed, a drain) may be under
        way, in seconds, although all peers answer: the bound for a rank whose program
        hangs. Then it fails on all ranks, and the error names that rank and what it
        last called. Also how long the devices of one process wait for each other. 0
        means for ever. Default 1800.
      deadline_s: how long a bounded, agreed or lossy call may take, in seconds, both
        stages together; 0 learns it from the times that calls need. Default 0.
      late_budget: share of the data that may miss a learned deadline, between 1e-6 and
        0.5; not together with `deadline_s`. Default 0.01.
      deadline_max_s: what a learned deadline never exceeds, and what a call has while
        it is being learned, in seconds. Default 1.
      bucket_bytes: largest bucket that several leaves share, in bytes; a larger leaf is
        a bucket of its own. Default 25 MiB.
      hadamard: whether lossy calls rotate each bucket, so that a lost datagram costs
        every entry a little instead of some entries everything. Default True.
      rendezvous_timeout_s: how long `init` waits for the other processes, in seconds.
        May differ between ranks. Default 120.
      heartbeat_timeout_s: how long JAX's coordination service takes to notice that a
        process is gone, in seconds; used when `init` initialises `jax.distributed`. May
        differ between ranks. Default 30.
      shutdown_timeout_s: how long one call may take, in seconds, once the program has
        ended and what it has dispatched is finished, until all is given up; and how
        long process 0 then waits for the others to end. May differ between ranks.
        Default 60.
      stall_timeout_s: how long a call may be under way, in seconds, before a line of
        the log says whom it waits for and the flight record is written to a file; 0
        means never. May differ between ranks. Default 60.
      flight_record_dir: folder for these files; "" means the system's folder for
        temporary files. May differ between ranks. Default "".
      faults: faults to inject into this process's datagrams, for tests, by name (for
        example {"loss": 0.01}); a string "loss=0.01,seed=7" is understood too. May
        differ between ranks. Default none.
    """

    backend: str = "optireduce"
    bind_address: str = ""
    authenticate: bool = True
    encrypt: bool = False
    lanes: int = 1
    incast: int = 0
    # Chosen: what 3 peers send to one rank in 25 ms at 1 Gbit/s; Linux grants less
    # unless net.core.rmem_max was raised, and says how much.
    receive_buffer_bytes: int = 8 << 20
    datagram_bytes_max: int = 0
    # Source: max_lag of the design: a call's buffers for two steps ahead.
    max_lag: int = 2
    on_lag: str = "wait"
    # Chosen: longer than a paused virtual machine or a garbage collection.
    peer_timeout_s: float = 30.0
    # Chosen: longer than two ranks take to start independent calls in another order.
    mismatch_timeout_s: float = 10.0
    # Source: torch.distributed waits 30 min with Gloo, 10 min with NCCL. Evaluation, a
    # checkpoint and compilation on one rank take less.
    call_timeout_s: float = 1800.0
    deadline_s: float = 0.0
    late_budget: float = _LATE_BUDGET
    # Chosen: several times a bucket of 25 MiB at 1 Gbit/s (0.3 s).
    deadline_max_s: float = 1.0
    # Source: PyTorch's DistributedDataParallel (bucket_cap_mb=25), where it was tuned.
    bucket_bytes: int = 25 << 20
    hadamard: bool = True
    rendezvous_timeout_s: float = 120.0
    # Chosen: three times shorter than JAX's 100 s; a dead process is known to the
    # survivors through `peer_timeout_s` long before.
    heartbeat_timeout_s: int = 30
    # Chosen: as `stall_timeout_s`. Ranks that are known to be dead are not waited for.
    shutdown_timeout_s: int = 60
    # Chosen: longer than a rank compiles, evaluates or saves while the others wait.
    stall_timeout_s: float = 60.0
    flight_record_dir: str = ""
    faults: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Validates every field.

        Raises:
          UsageError: a field has a wrong type or is out of its range.
        """
        for field in dataclasses.fields(self):
            kind, value = field.type, getattr(self, field.name)
            if field.name == "faults":
                continue
            if kind is float and type(value) is int:
                object.__setattr__(self, field.name, float(value))
            elif type(value) is not kind:
                raise UsageError(
                    f"{field.name} must be of type {typing.cast(type, kind).__name__}, "
                    f"got {value!r} of type {type(value).__name__}."
                )
        self._check_faults()
        self._check_choice("backend", BACKENDS)
        self._check_choice("on_lag", LAG_POLICIES)
        if self.encrypt and not self.authenticate:
            raise UsageError(
                "encrypt=True needs authenticate=True: what is only encrypted can be "
                "changed unnoticed. Leave authenticate at its default."
            )
        self._check_range("lanes", 1, 64)
        self._check_range("incast", 0, 65_535)
        self._check_range("receive_buffer_bytes", 64 << 10, 1 << 30)
        if self.datagram_bytes_max != 0:
            self._check_range("datagram_bytes_max", DATAGRAM_BYTES_MIN, 65_507)
        self._check_range("max_lag", 1, 1024)
        self._check_range("bucket_bytes", 1, 1 << 40)
        for name in (
            "peer_timeout_s",
            "mismatch_timeout_s",
            "deadline_max_s",
            "rendezvous_timeout_s",
        ):
            # A day; longer is a mistake of the unit.
            self._check_range(name, 1e-3, 86_400.0)
        self._check_deadline()
        for name in ("call_timeout_s", "stall_timeout_s"):
            if getattr(self, name) != 0:
                self._check_range(name, 1e-3, 86_400.0)
        # JAX takes whole seconds.
        self._check_range("heartbeat_timeout_s", 1, 86_400)
        self._check_range("shutdown_timeout_s", 1, 86_400)

    def _check_deadline(self) -> None:
        self._check_range("late_budget", 1e-6, 0.5)
        if self.deadline_s == 0:
            return
        self._check_range("deadline_s", 1e-3, 86_400.0)
        if self.late_budget != _LATE_BUDGET:
            raise UsageError(
                f"deadline_s={self.deadline_s:g} and late_budget={self.late_budget:g} "
                "contradict each other: the budget says how a deadline is learned. "
                "Give one of them."
            )

    def _check_choice(self, name: str, known: Sequence[str]) -> None:
        value = getattr(self, name)
        if value not in known:
            raise UsageError(
                f"{name} must be {' or '.join(map(repr, known))}, got {value!r}."
                + did_you_mean(value, known)
            )

    def _check_range(self, name: str, low: float, high: float) -> None:
        value = getattr(self, name)
        if not (math.isfinite(value) and low <= value <= high):
            unit = {"s": " seconds", "bytes": " bytes"}.get(name.rsplit("_", 1)[-1], "")
            raise UsageError(
                f"{name} must be between {low:g} and {high:g}{unit}, got {value!r}."
            )

    def _check_faults(self) -> None:
        faults: typing.Any = self.faults
        if not isinstance(faults, Mapping):
            raise UsageError(
                f"faults must map names to numbers, like {{'loss': 0.01}}, got "
                f"{faults!r}."
            )
        for name, value in faults.items():
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not isinstance(name, str) or not number or not math.isfinite(value):
                raise UsageError(
                    "faults must map names to numbers, like {'loss': 0.01}, got "
                    f"{name!r}: {value!r}."
                )
        frozen = types.MappingProxyType({k: float(v) for k, v in faults.items()})
        object.__setattr__(self, "faults", frozen)

    def agreed(self) -> dict[str, object]:
        """Returns the fields on which all ranks of a session must agree."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in _OF_ONE_PROCESS
        }

    def __hash__(self) -> int:
        """Hashes all fields; a mapping has no hash of its own."""
        faults = tuple(sorted(self.faults.items()))
        return hash((tuple(self.agreed().items()), self.bind_address, faults))


def resolve(
    arguments: Mapping[str, object], environment: Mapping[str, str]
) -> tuple[Options, dict[str, str]]:
    """Makes options of arguments, the environment and the defaults, in this order.

    Args:
      arguments: fields given to `init`, by name.
      environment: usually `os.environ`; names without our prefix are ignored.

    Returns:
      The options, and for every field that is not a default where it came from.

    Raises:
      UsageError: a name is unknown (with a suggestion), or a value does not fit.
    """
    fields = {field.name: field for field in dataclasses.fields(Options)}
    values: dict[str, typing.Any] = {}
    origins: dict[str, str] = {}
    for variable in sorted(environment):
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        if name not in fields or variable != ENVIRONMENT_PREFIX + name.upper():
            known = [ENVIRONMENT_PREFIX + field.upper() for field in fields]
            raise UsageError(
                f"the environment sets {variable}, which is no option."
                + did_you_mean(variable, known)
                + f" Known are: {', '.join(known)}."
            )
        if name not in arguments:
            kind = typing.cast(type, fields[name].type)
            values[name] = _parse(variable, environment[variable], kind)
            origins[name] = variable
    for name, value in arguments.items():
        if name not in fields:
            raise UsageError(
                f"{name!r} is no option."
                + did_you_mean(name, fields)
                + f" Known are: {', '.join(fields)}."
            )
        text = name == "faults" and isinstance(value, str)
        values[name] = _parse_faults(name, value) if text else value
        origins[name] = "argument"
    return Options(**values), origins


def _parse(variable: str, text: str, kind: type) -> object:
    """Reads one environment variable as the type of its field."""
    if kind is str:
        return text
    if kind is bool:
        booleans = {"1": True, "true": True, "0": False, "false": False}
        if text.lower() not in booleans:
            raise UsageError(f"{variable} must be 0, 1, true or false, got {text!r}.")
        return booleans[text.lower()]
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            expected = "a whole number" if kind is int else "a number"
            raise UsageError(f"{variable} must be {expected}, got {text!r}.") from None
    return _parse_faults(variable, text)


def _parse_faults(name: str, text: str) -> dict[str, float]:
    """Reads "loss=0.01,seed=7"."""
    faults: dict[str, float] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        fault, _, number = item.partition("=")
        try:
            faults[fault.strip()] = float(number)
        except ValueError:
            raise UsageError(
                f"{name} must look like 'loss=0.01,seed=7', got {text!r}."
            ) from None
    return faults


def describe_difference(
    records: Sequence[Mapping[str, object]],
) -> str:
    """Says in which options the ranks differ; empty when they agree.

    Args:
      records: `Options.agreed()` of each rank, in rank order.
    """
    differences = []
    for name in sorted({key for record in records for key in record}):
        values = [record.get(name) for record in records]
        for rank, value in enumerate(values):
            if value != values[0]:
                differences.append(
                    f"{name} is {values[0]!r} on rank 0 and {value!r} on rank {rank}"
                )
                break
    return "; ".join(differences)
