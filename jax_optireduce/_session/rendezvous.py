"""The rendezvous of the processes of a program.

It uses JAX's coordination service, in two all-to-all rounds: first addresses and
options, then, with open sockets, ports and the sizes of paths and buffers. Before the
rounds each process claims its rank, which is possible only once; between them process 0
shares the secret. Datagrams then prove the paths (`paths`). If a path carries shorter
ones only, secret and sockets are replaced, for a session with these.
"""

import contextlib
import dataclasses
import errno
import functools
import ipaddress
import itertools
import json
import logging
import os
import resource
import secrets
import socket
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

import jax_optireduce
from jax_optireduce import _native, _phrases
from jax_optireduce._errors import RendezvousError, UsageError
from jax_optireduce._jax import clusters, coordination, processes
from jax_optireduce._session import interfaces, lanes, lives, paths, roll_call
from jax_optireduce._session.options import (
    DATAGRAM_BYTES_MIN,
    Internal,
    Options,
    describe_difference,
)

_log = logging.getLogger("jax_optireduce")

# Source: RFC 5869. Chosen: 256 bits, twice the length of the derived keys.
_SECRET_BYTES = 32

_UNAUTHENTICATED = (
    "datagrams are not authenticated. Any host that can send UDP to this process can "
    "change the sums of this program, unnoticed. Use it for measurements only, on a "
    "network of your own."
)

# The message of a process that cannot continue: JSON null.
_FAILED = b"null"

# Bytes of IP and UDP headers in front of a payload, by version of IP.
# Source: RFC 791 (20), RFC 8200 (40), RFC 768 (8).
_HEADER_BYTES = {4: 28, 6: 48}


# Launchers that JAX does not detect, with their variables for the number of processes
# and the index of one. Source: their documentation.
_UNREAD_LAUNCHERS = {
    "torchrun": ("WORLD_SIZE", "RANK"),
    "MPICH or Intel MPI": ("PMI_SIZE", "PMI_RANK"),
}


def initialize_distributed(options: Options, internal: Internal) -> None:
    """Initialises `jax.distributed` if the environment has its variables, or a cluster.

    Raises:
      UsageError: the environment is incomplete.
      RendezvousError: the initialisation by JAX failed.
    """
    if jax.distributed.is_initialized():
        if not processes.is_recoverable():
            _log.warning(
                "jax.distributed was initialized without jax_enable_recoverability: "
                "the death of one process will end all others. Let "
                "jax_optireduce.init() initialize it, or set that option before."
            )
        return
    arguments = _coordinated(options) if options.coordinator else _from_environment()
    if arguments is None:
        return
    # Without this option, JAX ends every process within the heartbeat timeout of the
    # first death. With it, JAX ends the running processes at the end of process 0, if
    # that one hosts the service, which `process_end` prevents if JAX has the client.
    if coordination.has_service():
        jax.config.update(processes.RECOVERABILITY, True)
    _initialize(arguments, options, internal)
    rank, _ = processes.process()
    if has_coordinator(options) and rank == 0 and lives.begin(rank) > 1:
        coordination.forget_topology()


def has_coordinator(options: Options) -> bool:
    """Whether the service is that of the option; otherwise process 0 hosts it.

    A program that initialises `jax.distributed` itself decides without the option.
    """
    address = processes.coordinator_address(options.coordinator)
    return bool(options.coordinator) and address == options.coordinator


def _from_environment() -> dict[str, Any] | None:
    """Returns arguments of `jax.distributed.initialize`; None: there is one process.

    The result is empty in a cluster that JAX detects.
    """
    names = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    given = {name: os.environ[name] for name in names if os.environ.get(name)}
    if len(given) == len(names):
        num_processes, process_id = _place(given)
        if num_processes == 1:
            return None
        return {
            "coordinator_address": given["JAX_COORDINATOR_ADDRESS"],
            "num_processes": num_processes,
            "process_id": process_id,
        }
    if clusters.in_cluster():
        return {}
    if given:
        missing = [name for name in names if name not in given]
        raise UsageError(
            f"the environment sets {', '.join(given)} but not "
            f"{', '.join(missing)}; set all three, or call "
            "jax.distributed.initialize(...) before init()."
        )
    _refuse_unread_launchers(os.environ)
    return None


def _coordinated(options: Options) -> dict[str, Any] | None:
    """Returns the same for a job with a coordinator."""
    names = ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    given = all(map(os.environ.get, names))
    place = _place(os.environ) if given else clusters.place()
    if place is None:
        raise UsageError(
            f"coordinator={options.coordinator!r} is given, but not which process of "
            f"the job this one is: set {' and '.join(names)}, unless JAX detects a "
            "cluster."
        )
    num_processes, process_id = place
    if num_processes == 1:
        return None
    return {
        "coordinator_address": options.coordinator,
        "num_processes": num_processes,
        "process_id": process_id,
        # JAX starts a service in process 0 in any case: an idle one, elsewhere.
        "coordinator_bind_address": "127.0.0.1:0",
    }


def _place(environment: Mapping[str, str]) -> tuple[int, int]:
    """Returns the number of processes and the index of this one."""
    number, index = environment["JAX_NUM_PROCESSES"], environment["JAX_PROCESS_ID"]
    try:
        return int(number), int(index)
    except ValueError:
        raise UsageError(
            "JAX_NUM_PROCESSES and JAX_PROCESS_ID must be whole numbers, got "
            f"{number!r} and {index!r}."
        ) from None


def _initialize(
    arguments: Mapping[str, Any], options: Options, internal: Internal
) -> None:
    """Meets the processes of the arguments, if there are any, and initialises JAX."""
    if arguments:
        with explained_descriptors():
            roll_call.hold(
                arguments["coordinator_address"],
                arguments["num_processes"],
                arguments["process_id"],
                options.rendezvous_timeout_s,
                has_coordinator=bool(options.coordinator),
            )
    try:
        jax.distributed.initialize(
            **arguments,
            initialization_timeout=max(1, round(options.rendezvous_timeout_s)),
            heartbeat_timeout_seconds=internal.heartbeat_timeout_s,
            shutdown_timeout_seconds=options.shutdown_timeout_s,
        )
    except (RuntimeError, ValueError) as error:
        raise RendezvousError(
            f"jax.distributed.initialize failed: {error}. Call jax_optireduce.init() "
            "before the first jax computation (jax.devices() is one), and check that "
            "JAX_COORDINATOR_ADDRESS is an address of process 0 that all can reach, or "
            "that the coordinator of the job runs."
        ) from error


def _refuse_unread_launchers(environment: Mapping[str, str]) -> None:
    """Raises if a launcher of which JAX knows nothing has started several processes."""
    for launcher, (count, index) in _UNREAD_LAUNCHERS.items():
        if index not in environment or environment.get(count, "1") == "1":
            continue
        host = environment.get("MASTER_ADDR", "<address of process 0>")
        raise UsageError(
            f"the environment has {count}={environment[count]} and {index}="
            f"{environment[index]}, as of {launcher}, which JAX does not read: this "
            "process would be a job of one. Set JAX_COORDINATOR_ADDRESS="
            f"{host}:<a free port>, JAX_NUM_PROCESSES=${count} and JAX_PROCESS_ID="
            f"${index}, or unset {count}."
        )


class Joined(NamedTuple):
    """The result of `join`.

    Attributes:
      native: the native communicator, connected; None with the backend "xla".
      address: of this host, numeric.
      datagram_bytes: the largest datagram, in bytes; 0 with the backend "xla".
      reason: why longer ones, which the interfaces carry, are not used, or "".
      lives: the life of the process of each member, see `lives`.
    """

    native: Any
    address: str
    datagram_bytes: int
    reason: str = ""
    lives: Mapping[int, int] = types.MappingProxyType({})


def join(
    label: str,
    name: str,
    rank: int,
    options: Options,
    internal: Internal,
    members: Sequence[int] | None = None,
    world_size: int | None = None,
) -> Joined:
    """Meets the other processes and opens the session.

    Args:
      label: name of this session, not used before; the same on all ranks.
      name: name of the communicator.
      rank: index of this process.
      options: the options of this process.
      internal: its settings for tests.
      members: the processes of the session, ascending; None: all. The places of others
        are empty.
      world_size: number of ranks of the session, empty ones included; None: of the job.

    Raises:
      RendezvousError: a process is missing, or ranks are not compatible.
      UsageError: no interface of this host has the name of the option.
    """
    timeout_s = options.rendezvous_timeout_s
    world_size = world_size or processes.process()[1]
    members = range(world_size) if members is None else members
    _claim_rank(label, rank)
    address = _own_address(options)
    interface = interfaces.name_of(address, _native.interface_addresses())
    own = {
        "address": address,
        "slice": processes.own_slice(),
        "agreed": options.agreed(),
        "share": lanes.own_share(address, interface, options.ports()),
        "wire_version": _native.wire_version(),
        "version": jax_optireduce.__version__,
        "life": lives.begin(rank),
    }
    answers = _exchange(f"{label}/hello", own, timeout_s, rank, members)
    hellos = dict(zip(members, answers, strict=True))
    _check_agreement(hellos)
    if options.backend == "xla":
        return Joined(None, address, 0)
    if options.security == "none":
        _log.warning("security='none': %s", _UNAUTHENTICATED)
    addresses = _addresses(hellos, world_size)
    lives_by_rank = {member: hello["life"] for member, hello in hellos.items()}
    if options.lanes == 0:
        shares = [lanes.Share(*hello["share"]) for hello in hellos.values()]
        options = dataclasses.replace(options, lanes=lanes.choose(shares))
    slices = [hellos.get(r, {}).get("slice") for r in range(world_size)]
    per_slice = _processes_per_slice(options.processes_per_slice, slices)
    open_session = functools.partial(
        _open,
        name=name,
        rank=rank,
        per_slice=per_slice,
        addresses=addresses,
        members=members,
        options=options,
    )
    native, proof = open_session(label, internal=internal)
    longest = native.features()["datagram_bytes_max"]
    if proof.passed_bytes == longest:
        return Joined(native, address, longest, lives=lives_by_rank)
    reason = f"{longest} do not pass from rank {proof.rank} to rank {proof.to}"
    # Keys and numbers of datagrams are used once, so all of the session is replaced.
    native.close("init continues with shorter datagrams")
    del native  # The ports are free with the last reference: others may not be.
    shorter = dataclasses.replace(internal, datagram_bytes_max=proof.passed_bytes)
    native, proof = open_session(f"{label}/shorter", internal=shorter)
    return Joined(native, address, proof.passed_bytes, reason, lives_by_rank)


def _share_secret(key: str, timeout_s: float, rank: int, source: int) -> bytes:
    own = secrets.token_bytes(_SECRET_BYTES)
    secret = coordination.share(key, own, timeout_s, rank, source)
    if len(secret) != _SECRET_BYTES:
        raise _peer_failed(source)
    return secret


def _peer_failed(rank: int) -> RendezvousError:
    return RendezvousError(
        f"process {rank} could not open its part of the session, and so none can; its "
        "own error says why. init() may be called again, on every rank."
    )


@contextlib.contextmanager
def explained_descriptors() -> Iterator[None]:
    """Adds the remedy to an error at the limit of open files.

    Raises:
      RendezvousError: in place of such an error of the block.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        lacking = (os.strerror(errno.EMFILE), os.strerror(errno.ENFILE))
        if not any(text in str(error) for text in lacking):
            raise
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        raise RendezvousError(
            f"this process cannot open more files: {error} Its limit is {soft} (ulimit "
            f"-n; it may be raised to {hard}). Each lane needs two, and process 0 one "
            "for each process of the job. Raise the limit, close files that the "
            "program does not need, or use fewer lanes."
        ) from error


def _claim_rank(label: str, rank: int) -> None:
    """Raises if another process has joined the session with this rank before.

    A second process would reuse the numbers of the first as nonces, and take part in
    calls that its peers have ended.
    """
    own = {"pid": os.getpid(), "host": socket.gethostname()}
    entry = coordination.claim(f"{label}/place/{rank}", json.dumps(own).encode())
    if entry is None:
        return
    first = json.loads(entry)
    raise RendezvousError(
        f"rank {rank} has already joined this session (pid {first['pid']} on host "
        f"{first['host']}), and another process has its number. Give each process of "
        "the job a JAX_PROCESS_ID of its own."
    )


def _open(
    label: str,
    *,
    name: str,
    rank: int,
    per_slice: int,
    addresses: Sequence[str],
    members: Sequence[int],
    options: Options,
    internal: Internal,
) -> tuple[Any, paths.Proof]:
    """Opens a session; returns the native communicator, and the proof of all ranks."""
    first = members[0]
    # The secret protects against senders of datagrams, not against readers of the
    # coordination service during the rendezvous.
    key = f"{label}/secret"
    try:
        secret = _share_secret(key, options.rendezvous_timeout_s, rank, first)
        opened = _open_sockets(
            options.values()
            | dataclasses.asdict(internal)
            | {
                "name": name,
                "rank": rank,
                "world_size": len(addresses),
                "processes_per_slice": per_slice,
                "secret": secret,
                "bind_address": addresses[rank],
                "ports": options.ports(),
            }
        )
        try:
            proof = _connect(opened, label, rank, addresses, members, options, internal)
        except BaseException:
            opened.close("the rendezvous failed")
            raise
    except BaseException:
        # Informs the others before their timeout.
        if rank == first:
            coordination.forget(key)
            coordination.publish(key, _FAILED)
        coordination.publish(f"{label}/sockets/{rank}", _FAILED)
        raise
    if rank == first:
        coordination.forget(key)  # All ranks have announced ports, so all have it.
    return opened, proof


def _open_sockets(settings: Mapping[str, Any]) -> Any:
    try:
        return _native.Communicator(settings)
    except RuntimeError as error:
        raise RendezvousError(f"this process has no sockets: {error}") from error


def _connect(
    native: Any,
    label: str,
    rank: int,
    addresses: Sequence[str],
    members: Sequence[int],
    options: Options,
    internal: Internal,
) -> paths.Proof:
    """Announces this process's ports and connects; returns the proof of all ranks."""
    present = [addresses[member] for member in members]
    payload_bytes = min(
        native.path_mtu_bytes(address)
        - _HEADER_BYTES[ipaddress.ip_address(address).version]
        for address in set(present)
    )
    answers = _exchange(
        f"{label}/sockets",
        {
            "ports": native.ports(),
            "payload_bytes": payload_bytes,
            "receive_buffer_bytes": native.granted_receive_buffer_bytes(),
        },
        options.rendezvous_timeout_s,
        rank,
        members,
    )
    for peer, answer in zip(members, answers, strict=True):
        if not answer:
            raise _peer_failed(peer)
    receive_buffer_bytes = min(answer["receive_buffer_bytes"] for answer in answers)
    given = internal.datagram_bytes_max
    datagram_bytes = min(
        given or paths.default_datagram_bytes(present, receive_buffer_bytes),
        *(answer["payload_bytes"] for answer in answers),
    )
    if datagram_bytes < DATAGRAM_BYTES_MIN:
        raise RendezvousError(
            f"some path between the ranks carries only {datagram_bytes} bytes of UDP "
            f"payload; {DATAGRAM_BYTES_MIN} are needed. Check the MTU of the "
            "network interfaces."
        )
    ports = {m: answer["ports"] for m, answer in zip(members, answers, strict=True)}
    peers = [(address, ports.get(peer, [])) for peer, address in enumerate(addresses)]
    native.connect(peers, datagram_bytes, receive_buffer_bytes)
    header_bytes = _HEADER_BYTES[ipaddress.ip_address(present[0]).version]
    lengths = [datagram_bytes]
    if not given:
        lengths += paths.shorter_datagrams(datagram_bytes, header_bytes)
    timeout_s = options.rendezvous_timeout_s
    proof = paths.prove(native, rank, f"{label}/connected", peers, lengths, timeout_s)
    proofs = _exchange(f"{label}/paths", proof._asdict(), timeout_s, rank, members)
    return paths.agree(proof, [paths.Proof(**each) for each in proofs])


def _exchange(
    label: str,
    record: Mapping[str, Any],
    timeout_s: float,
    rank: int,
    members: Sequence[int],
) -> list[dict[str, Any]]:
    payload = json.dumps(record).encode()
    answers = coordination.exchange(label, payload, timeout_s, rank, members)
    return [json.loads(answer) for answer in answers]


def _check_agreement(hellos: Mapping[int, Mapping[str, Any]]) -> None:
    """Raises the same error on every rank if two ranks are not compatible.

    Ranks with several releases of this package may be: a line of the log names them.
    """
    versions = {rank: hello["wire_version"] for rank, hello in hellos.items()}
    first = min(versions)
    for rank, version in versions.items():
        if version != versions[first]:
            raise RendezvousError(
                f"rank {first} uses version {versions[first]} of the wire format and "
                f"rank {rank} version {version}; install the same jax_optireduce "
                "everywhere."
            )
    releases = {
        rank: hello.get("version", "an unknown release")
        for rank, hello in hellos.items()
    }
    if len(set(releases.values())) > 1:
        _log.warning(
            "the ranks run several releases of jax_optireduce, which share a wire "
            "format: %s. Install the same one everywhere.",
            "; ".join(
                f"{_phrases.ranks(ranks)} {'has' if len(ranks) == 1 else 'have'} {of}"
                for of in dict.fromkeys(releases.values())
                for ranks in [[r for r, x in releases.items() if x == of]]
            ),
        )
    difference = describe_difference({r: h["agreed"] for r, h in hellos.items()})
    if difference:
        raise RendezvousError(
            f"the ranks were given different options: {difference}. Pass the same ones "
            "to init() and set the same JAX_OPTIREDUCE_* variables on every rank."
        )


def _processes_per_slice(given: int, slices: Sequence[int | None]) -> int:
    """Returns the number of processes of a slice.

    Args:
      given: the option; 0: as the devices say.
      slices: the slice of each process, by the devices; None if they are in none.

    Raises:
      RendezvousError: the slices are not equal parts of consecutive processes.
    """
    processes = len(slices)
    if given:
        if processes % given:
            raise RendezvousError(
                f"processes_per_slice={given} does not divide the {processes} "
                "processes: all slices have the same number of processes."
            )
        return given
    runs = [(index, len(list(run))) for index, run in itertools.groupby(slices)]
    if {index for index, _ in runs} == {None}:
        return 1
    per_slice = runs[0][1]
    expected = [(index, per_slice) for index in dict.fromkeys(slices)]
    if runs != expected or None in slices:
        raise RendezvousError(
            "the slices of the devices must be equal parts of consecutive processes; "
            f"by process they are {list(slices)}. Give processes_per_slice, or 1 if "
            "the death of a process does not stop the others of its slice."
        )
    return per_slice


def _own_address(options: Options) -> str:
    """Returns the address of this host that the other ranks are told."""
    if options.bind_address:
        return options.bind_address
    host = _coordinator_host(options)
    if not options.interface:
        return _address_towards(host)
    try:
        on_route = _address_towards(host)
    except RendezvousError:
        on_route = None  # Another interface than that of the coordinator.
    found = _native.interface_addresses()
    return interfaces.choose(options.interface, found, on_route)


def _coordinator_host(options: Options) -> str | None:
    address = processes.coordinator_address(options.coordinator)
    return address.rsplit(":", 1)[0].strip("[]") if address else None


def _addresses(hellos: Mapping[int, Mapping[str, Any]], world_size: int) -> list[str]:
    """Returns the address of every rank; raises if some are unreachable.

    The address of an empty place is "".
    """
    addresses = {rank: hello["address"] for rank, hello in hellos.items()}
    here = [
        rank
        for rank, address in addresses.items()
        if ipaddress.ip_address(address).is_loopback
    ]
    if here and len(here) < len(addresses):
        raise RendezvousError(
            f"ranks {here} found only a loopback address ({addresses[here[0]]}), while "
            "others are on other hosts: the coordinator's name leads to loopback "
            "there. Give JAX_COORDINATOR_ADDRESS as an IP address, or set "
            "JAX_OPTIREDUCE_BIND_ADDRESS on these ranks to one that the others can "
            "reach."
        )
    return [addresses.get(rank, "") for rank in range(world_size)]


def _address_towards(host: str | None) -> str:
    """Returns this host's address on the route to `host`, without a datagram.

    The name of this host is not resolved: in containers and on Debian it is often
    loopback, or unknown.
    """
    if host is None:
        return "127.0.0.1"
    try:
        # Port 9 is "discard"; `connect` on a UDP socket only looks up the route.
        family, kind, protocol, _, target = socket.getaddrinfo(
            host, 9, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            return probe.getsockname()[0]
    except OSError as error:
        raise RendezvousError(
            f"this host has no route to the coordinator {host!r}: {error}. Set "
            "JAX_OPTIREDUCE_BIND_ADDRESS to an address of this host that the other "
            "ranks can reach."
        ) from error
