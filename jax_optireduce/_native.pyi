"""Types of the extension module, built from `ffi/`.

Invalid arguments raise ValueError, all other failures RuntimeError. Calls that may wait
release the GIL.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

BUILD: Final[str]
"""The compiler of this module: "GCC 12.2.0"."""

MODES: Final[Mapping[str, bool]]
"""Every mode, and whether its calls may leave data in flight for later ones."""

WIRE_FORMATS: Final[tuple[str, ...]]
"""Formats of float32 values on the wire."""

STATISTICS: Final[tuple[str, ...]]
"""The elements of the statistics vector, by position."""

NAME_BYTES_MAX: Final[int]
"""Longest name of a collective, in bytes of UTF-8."""

TOKEN_ELEMENTS: Final[int]
"""The elements of the token of a begun call, int32."""

DRAIN_OF_CALLS: Final[int]
"""The attribute `drain` of a drain of previous calls."""

DRAIN_OF_CALLS_IF_ANY: Final[int]
"""The attribute `drain` of a drain of previous calls, if any."""

EACH_PROCESS: Final[int]
"""In `group_processes`: each process of the session has a device with this rank."""

def registrations() -> Mapping[str, object]:
    """Capsules of the XLA FFI handlers, by target name, for the platform "cpu".

    "jax_optireduce_allreduce" sums leaves over a group; "jax_optireduce_sequence" draws
    the sequence of the next call; "jax_optireduce_begin" and "jax_optireduce_end" do a
    sum in two steps; "jax_optireduce_hadamard_encode" and "_decode" rotate a bucket.
    ffi/bind/xla_handlers.h describes their operands, results and attributes.
    """

def register_with_plugin(path: str) -> tuple[int, int]:
    """Registers the handlers of host computations with a loaded PJRT plug-in.

    They are those of calls, and of calls in two steps. Returns the version of its PJRT
    C API, (major, minor). A RuntimeError gives the reason of a refusal: see
    ffi/bind/plugin_registration.h.
    """

def reduce_and_wait(
    attributes: Mapping[str, Any],
    *,
    group_rank: Sequence[int],
    step: int,
    dtype: str,
    leaf: Any,
) -> list[float]:
    """Sums a leaf in place, and waits; returns the statistics.

    `attributes` are those of the allreduce in ffi/bind/xla_handlers.h; `group_rank` is
    (group, rank); `step` is -1 if the calls are counted; `leaf` is its memory as uint8
    [bytes], writable.
    """

def failures() -> list[dict[str, Any]]:
    """The last calls of the process that ended with an error, oldest first.

    The fields of each are "cause" ("peer lost", "path too small", "disagreement", "call
    timeout", "cancelled" or "other"), "message", "ranks", "collective", "sequence",
    "waited_s".
    """

def wire_version() -> int:
    """The version of the datagram format, equal on all ranks of a session."""

def interface_addresses() -> list[tuple[str, str]]:
    """The network interfaces that are up, with each of their numeric addresses.

    Raises:
      RuntimeError: the kernel does not list them.
    """

def cipher_library() -> str:
    """The name and version of the library that authenticates the datagrams."""

class Communicator:
    """This process's end of a session: sockets, threads and calls.

    The constructor binds the sockets; no datagram is sent before `connect`. Programs
    find the communicator by its name until `close`. A world of one process has no
    sockets and no threads, but needs `connect` as well.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Opens the sockets.

        Args:
          settings: the fields of `Options` and `Internal`, and beside them `name` (of
            the communicator for programs, unused in this process), `rank`,
            `world_size`, `secret` (32 bytes, shared by the ranks of this session only),
            `ports` (the first and the last UDP port that a lane may take; 0, 0: any).
            `bind_address`, `lanes` and `processes_per_slice` are the found ones.
            ffi/runtime/communicator_options.h lists those that are read.

        Raises:
          ValueError: a setting is missing or does not fit.
          RuntimeError: a socket cannot be opened.
        """

    def ports(self) -> list[int]:
        """The UDP port of each lane."""

    def path_mtu_bytes(self, address: str) -> int:
        """The kernel's MTU of the path to an IPv4 or IPv6 address, in bytes."""

    def granted_receive_buffer_bytes(self) -> int:
        """The smallest granted buffer, in bytes; 0 in a world of one process."""

    def connect(
        self,
        peers: Sequence[tuple[str, Sequence[int]]],
        datagram_bytes_max: int,
        peer_receive_buffer_bytes: int,
    ) -> None:
        """Starts the lanes, once; may be repeated after an exception.

        Args:
          peers: (address, ports) of every rank in order, this one included.
          datagram_bytes_max: largest UDP payload that crosses every path of the
            session, in bytes; the same on all ranks.
          peer_receive_buffer_bytes: granted size of the smallest socket buffer of the
            session.
        """

    def serve_status(self, folder: str) -> None:
        """Answers connections to a new UNIX socket with a report, until `close`.

        The socket `<session>-<rank>-<pid>.sock` is for this user alone. A thread of its
        own, without the GIL, writes the report as one JSON object and closes the
        connection: ffi/runtime/status_report.h.

        Args:
          folder: made if it is missing, with the permissions 0700.
        """

    def remove(self, rank: int, reason: str) -> None:
        """Treats a rank as one that has announced that it leaves."""

    def cancel(self, reason: str) -> None:
        """Fails every call under way with CANCELLED; the communicator stays usable."""

    def continue_from(self, earlier: Communicator) -> None:
        """Takes over the deadlines learned in another session; before the first calls.

        Waits for each lane of the other session, for 1 s at most.
        """

    def take_name(self, name: str) -> None:
        """Lets programs find this communicator by `name`, in place of another one."""

    def close(self, reason: str) -> None:
        """Fails every call under way, informs the peers, stops the threads.

        Takes 1 s at most. The name is unused afterwards. Idempotent; called at exit.
        """

    def take_late_data(self) -> list[tuple[str, int]]:
        """Late data without a call or drain at the time of `close`; returned once.

        Returns:
          The description of each collective with late data, and the bytes.
        """

    def counters(self) -> dict[str, int]:
        """Every counter by name, summed over the lanes."""

    def flight_record(self) -> list[dict[str, Any]]:
        """The newest calls, oldest first; see jax_optireduce.Communicator."""

    def collective_totals(self) -> dict[str, dict[str, Any]]:
        """Totals of the ended calls, by collective; see jax_optireduce.Communicator."""

    def calls_under_way(self) -> list[dict[str, Any]]:
        """The calls under way, as in the flight record."""

    def begun_calls_under_way(self) -> int:
        """Begun calls that have not ended, even if the program has not ended them."""

    def silent_ranks(self) -> list[int]:
        """Peers given up after a silence of `peer_timeout_s`; also after `close`."""

    def probe_paths(self, lengths: Sequence[int]) -> None:
        """Sends short and long datagrams to all peers, until they acknowledge them.

        Args:
          lengths: of the long ones, in bytes, at most `datagram_bytes_max`; those up to
            the longest acknowledged one are left out.
        """

    def unproven_paths(self) -> list[tuple[int, int, bool, bool, int]]:
        """The paths that the longest datagrams have not been seen to pass.

        Returns:
          For each: its lane; the peer; whether a datagram of it has arrived; whether it
          has acknowledged a short one; the length of the longest long one that it has
          acknowledged, or 0.
        """

    def unreached_ranks(self) -> list[int]:
        """After `close`: peers that have not acknowledged the end of this rank."""

    def wait_for_event(self) -> dict[str, Any] | None:
        """Waits for an event that concerns a user; for one thread.

        Returns:
          None once the communicator is closed and all events are returned. Otherwise a
          dictionary with "kind" and these fields:
          "slow", "recovered": rank, collective; among its last `calls` the number that
          `waited` for the rank, and among these the number in which it was `absent`;
          their medians `behind_s` and `elapsed_s`. "short deadline": collective; the
          mean share of the data of its last `calls` that was `late`; deadline_max_s as
          `needed_s` at least, and as `suggested_s`.
          "removed": `ranks`, the removed ones; `live`, the number of the others; and as
          `path` one that loses long datagrams, if that is the reason, in words.
          "lone call": `rank`, which has waited `waited_s` in `call`, while this process
          has gone on to the call `elsewhere`; that call fails after `limit_s`.
          "stall": `call`, as in the flight record, and `others`, the number of other
          calls under way.
          "devices": collective and sequence of a call; the ranks of this process that
          have `started` it, `elapsed_s` ago, and the `missing` ones; `others`, the
          number of other calls that wait in the same way.
        """

    def features(self) -> dict[str, object]:
        """Socket features: gso, gro, receive_buffer_bytes, datagram_bytes_max."""

def handle_termination(handler: Callable[[int, Any], object], ends: bool) -> None:
    """Makes `handler` Python's handler of SIGTERM, in place of a handler in C.

    For the main thread; only the first call has an effect.

    Args:
      handler: as for `signal.signal`.
      ends: whether the signal also closes all communicators immediately, and ends the
        process unless `termination_handled` is called within 3 s.
    """

def leave_termination() -> None:
    """Calls the handler in C as well; with `ends`, only that handler."""

def termination_handled() -> None:
    """Reports that the main thread handles SIGTERM, and ends the process."""

def exit_with(code: int) -> None:
    """Makes `code` the exit code of this process, whose end has begun."""

def leave_to_parent() -> None:
    """In a forked process: objects of threads that it lacks are no leaks at its end."""

def end_within(seconds: float) -> None:
    """Ends this process by SIGTERM after a time; needs `handle_termination`.

    Args:
      seconds: time until the signal.
    """

def probe_udp(receive_buffer_bytes: int) -> dict[str, int]:
    """Probes the UDP features of this host, with sockets like a communicator's.

    Args:
      receive_buffer_bytes: requested size.

    Returns:
      gso, gro (bool), receive_buffer_bytes and send_buffer_bytes as the kernel granted
      them, send_buffer_wanted_bytes, loopback_mtu_bytes.
    """

def scenario_fields() -> str:
    """The fields of a scenario with their defaults, a line each: "  ranks (4): ..."."""

def simulate(scenario: str) -> dict[str, Any]:
    """Runs one scenario ("seed=7 ranks=4 ...") in virtual time.

    Returns:
      "ok" (bool), "failure" (str, empty when ok), "scenario" (str, complete),
      "hash" (int), "counters", "faults" (dict[str, int]), "virtual_s" (float),
      "calls": for each number of a call "elapsed_s", at the slowest rank, and "late",
        the share of the data that was missing at its end.
    """
