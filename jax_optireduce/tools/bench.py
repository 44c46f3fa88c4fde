"""`python -m jax_optireduce bench`: measures calls, beside `lax.psum` if wanted.

    python -m jax_optireduce bench --processes 4          # on this host
    python -m jax_optireduce bench -b 4 -e 100M -f 10 --mode all --against xla

The first command starts 4 processes on this host. Without --processes this
process is one of several, started by `launch`, by SLURM, or by hand with the
variables JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID: each
runs the same command, process 0 prints.

A line of the table is one mode at one size. The time of a call is that of its
slowest rank, from the call of the jitted function to the end of
`block_until_ready`. P50, P99, P99.9 are over all counted calls, each a measured
time; P99.9 of fewer than 1,000 calls is the maximum.

    size    of the data that one call reduces on each rank; K is 1,024 bytes
    algbw   size / P50
    busbw   algbw * 2 (N - 1) / N: traffic on a rank's link, in each direction
    missed  share of the data that missed its call: it joins a later one, and is
            dropped in mode lossy
    hits    calls that a deadline ended with data missing, on any rank
    CPU     processor seconds of all ranks, user and system, per GB of size
    wrong   elements with a wrong sum in the calls that --check makes

With --against xla, `lax.psum` over Gloo is measured in the same processes, in
turns of 5 calls, and a second table has the ratios, ours / theirs: below 1 is
better. The quartiles are those of the ratio of P50 over the turns.

Exit codes: 0, success; 1, a sum was wrong, or a call failed; 2, usage error, or
a file that cannot be written. With --processes also those of `launch`.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import rich.console
import rich.progress
import rich.table

import jax_optireduce
from jax_optireduce._errors import OptiReduceError, UsageError
from jax_optireduce._program import call, checks
from jax_optireduce._session.options import Options
from jax_optireduce.tools import arguments, bench_figures, bench_rank, launch, screen
from jax_optireduce.tools.bench_rank import XLA, Calls, Plan

# Chosen: half a minute for two kinds and four ranks on two cores.
_MAX_BYTES = 64 << 20
_ITERATIONS = 100

# Source: a deadline is learned from 20 calls.
_WARM_UP = 25

# A sum of bool is whether any is true, which needs no bandwidth.
_DTYPES = tuple(name for name in checks.SUPPORTED if name != "bool")

# Default number of calls whose sums are verified.
_CHECK_CALLS = 5

# Time between two updates of the progress line, in seconds.
# Chosen: an update delays process 0 by about a millisecond, in one call of many.
_PROGRESS_S = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this verb to `parser`."""
    parser.add_argument(
        "--processes",
        **arguments.whole(2),
        help="start N processes on this host (default: this is one of several)",
    )
    _add_sizes(parser)
    _add_calls(parser)
    parser.add_argument(
        "--deadline-s",
        **arguments.seconds(),
        help="deadline of calls that do not wait, in seconds (default: learned)",
    )
    parser.add_argument(
        "--loss",
        **arguments.share(),
        help="share of the UDP datagrams to drop, 0 to 1; Gloo is not affected "
        "(default: none)",
    )
    parser.add_argument(
        "--late-s",
        **arguments.seconds(),
        default=0.0,
        help="sleep of the last rank before each call, in seconds, like a longer "
        "computation; times of calls exclude it (default 0)",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write all figures and times"
    )


def _add_sizes(parser: argparse.ArgumentParser) -> None:
    size = {"type": _size, "metavar": "SIZE"}
    parser.add_argument(
        *("-b", "--min-bytes"),
        **size,
        default=1 << 10,
        help="smallest size, like 4, 1K, 100M (default 1K)",
    )
    parser.add_argument(
        *("-e", "--max-bytes"),
        **size,
        default=_MAX_BYTES,
        help=f"largest size (default {bench_figures.format_size(_MAX_BYTES)})",
    )
    parser.add_argument(
        *("-f", "--step-factor"),
        **arguments.factor(),
        default=8.0,
        help="factor from one size to the next (default 8)",
    )


def _add_calls(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        *("-n", "--iterations"),
        **arguments.whole(1),
        default=_ITERATIONS,
        help=f"timed calls of each kind and size (default {_ITERATIONS})",
    )
    parser.add_argument(
        *("-w", "--warmup"),
        **arguments.whole(0),
        default=_WARM_UP,
        help=f"calls before these (default {_WARM_UP}; deadlines are learned from 20)",
    )
    parser.add_argument(
        *("-d", "--dtype"),
        **arguments.one_of(*_DTYPES, metavar="DTYPE"),
        default="float32",
        help=f"of the elements: {', '.join(_DTYPES)} (default float32)",
    )
    parser.add_argument(
        "--mode",
        **arguments.one_of(*call.MODES, "all", metavar="MODE"),
        default="exact",
        help=f"of our calls: {', '.join(call.MODES)} or all (default exact)",
    )
    parser.add_argument(
        "--in-place",
        action="store_true",
        help="donate the array, as a train step does with its gradients: the result "
        "may reuse its memory (default: each call makes a new array)",
    )
    parser.add_argument(
        *("-c", "--check"),
        **arguments.whole(0),
        nargs="?",
        const=_CHECK_CALLS,
        default=0,
        help="after the timed calls, make N more and verify their sums "
        f"(without a number {_CHECK_CALLS}; default 0)",
    )
    parser.add_argument(
        "--against", **arguments.one_of(XLA), help="compare with lax.psum over Gloo"
    )


def run(args: argparse.Namespace) -> int:
    """Starts the processes, or runs as one of them.

    Raises:
      UsageError: the arguments contradict each other, or a file cannot be written.
      OptiReduceError: a call failed.
    """
    plan, options = _plan(args)
    if args.json is not None and _is_first(args.processes):
        _check_writable(args.json)
    # The started processes have the same argument.
    if args.processes is not None and "JAX_PROCESS_ID" not in os.environ:
        return _start(args.processes)
    return _measure(plan, options, args)


def _size(text: str) -> int:
    try:
        return bench_figures.parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _plan(args: argparse.Namespace) -> tuple[Plan, dict[str, Any]]:
    """Returns the plan of the measurement, and the options of the communicator.

    Raises:
      UsageError: the arguments are invalid.
    """
    needed = jnp.dtype(args.dtype).itemsize
    if args.min_bytes < needed:
        raise UsageError(
            f"--min-bytes must be {needed} or more, an element of {args.dtype}, got "
            f"{args.min_bytes}."
        )
    if args.max_bytes < args.min_bytes:
        raise UsageError(
            f"--max-bytes must not be below --min-bytes, got {args.max_bytes} and "
            f"{args.min_bytes}."
        )
    if args.dtype == "int32" and args.mode != "exact":
        raise UsageError(
            "--dtype int32 needs --mode exact: the other modes are for gradients."
        )
    options: dict[str, Any] = {}
    if args.deadline_s is not None:
        options["deadline_s"] = args.deadline_s
    if args.loss is not None:
        options["faults"] = {"loss": args.loss, "seed": 1}
    Options(**options)
    modes = call.MODES if args.mode == "all" else (args.mode,)
    plan = Plan(
        sizes_bytes=bench_figures.sizes(
            args.min_bytes, args.max_bytes, args.step_factor
        ),
        dtype=args.dtype,
        in_place=args.in_place,
        kinds=(*((XLA,) if args.against else ()), *modes),
        iterations=args.iterations,
        warm_up=args.warmup,
        check_calls=args.check,
        late_s=args.late_s,
    )
    return plan, options


def _start(processes: int) -> int:
    """Runs this command in processes on this host."""
    program = [sys.executable, *(["-P"] if sys.flags.safe_path else [])]
    program += ["-m", "jax_optireduce", *sys.argv[1:]]
    return launch.start(program, processes=processes, direct=(0,))


def _is_first(processes: int | None) -> bool:
    """Whether this process surely writes the file, known before the rendezvous."""
    return processes is not None or os.environ.get("JAX_PROCESS_ID") == "0"


def _check_writable(path: Path) -> None:
    try:
        path.open("a").close()
    except OSError as error:
        raise UsageError(
            f"--json: {path} cannot be written: {error.strerror}; give a file in an "
            "existing folder."
        ) from error


def _measure(plan: Plan, options: Mapping[str, Any], args: argparse.Namespace) -> int:
    """Runs one of the processes; returns the exit code, the same in all of them."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_x64", plan.dtype == "float64")
    with jax_optireduce.init(backend="optireduce", **options) as communicator:
        if communicator.world_size < 2:
            raise UsageError(
                "there is nothing to measure in one process; give --processes 4 for "
                "processes on this host, or start this command on every host with "
                "JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID."
            )
        if args.processes not in (None, communicator.world_size):
            raise UsageError(
                f"--processes {args.processes} starts processes on this host, but this "
                f"is one of {communicator.world_size} already; leave it out."
            )
        report = _Report(plan, args, communicator.rank == 0)
        mesh = bench_rank.make_mesh()
        if XLA in plan.kinds:
            bench_rank.connect_gloo(mesh)
        for size_bytes in plan.sizes_bytes:
            with report.progress(size_bytes) as progress:
                try:
                    own = bench_rank.measure(plan, size_bytes, mesh, progress)
                except (jax.errors.JaxRuntimeError, ValueError) as error:
                    raise OptiReduceError(f"a call failed: {error}") from error
            report.add(
                {
                    kind: bench_rank.gather(f"bench/{size_bytes}/{kind}", calls)
                    for kind, calls in own.items()
                }
            )
        return report.finish()


class _Report:
    """Output of process 0, size by size; other processes only verify."""

    def __init__(self, plan: Plan, args: argparse.Namespace, shown: bool) -> None:
        self._plan = plan
        self._shown = shown
        self._path: Path | None = args.json if shown else None
        hosts = bench_rank.gather_hosts("bench/hosts")
        self._content = {
            "schema": bench_figures.SCHEMA,
            "version": jax_optireduce.__version__,
            "jax": jax.__version__,
            "started_unix_s": time.time(),
            "processes": len(hosts),
            "hosts": hosts,
            **dataclasses.asdict(plan),
            "deadline_s": args.deadline_s,
            "loss": args.loss,
            "results": [],
        }
        self._write()
        self._say(bench_figures.heading(self._content))
        self._say(bench_figures.table([], heading=True))

    @contextlib.contextmanager
    def progress(self, size_bytes: int) -> Iterator[Callable[[], None]]:
        """Shows a progress line if process 0 writes to a terminal.

        Args:
          size_bytes: size under measurement.

        Yields:
          A function to call after each turn.
        """
        console = rich.console.Console(stderr=True)
        if not (self._shown and console.is_terminal):
            yield lambda: None
            return
        turns = bench_rank.turns(self._plan) * len(self._plan.kinds)
        with rich.progress.Progress(
            console=console,
            transient=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        ) as bar:
            task = bar.add_task(bench_figures.format_size(size_bytes), total=turns)
            shown_s = time.monotonic()

            def advance() -> None:
                nonlocal shown_s
                due = time.monotonic() - shown_s >= _PROGRESS_S
                bar.update(task, advance=1, refresh=due)
                shown_s = time.monotonic() if due else shown_s

            bar.refresh()
            yield advance

    def add(self, kinds: Mapping[str, Calls]) -> None:
        """Adds a size: the measurements of all ranks, by kind."""
        dtype = jnp.dtype(self._plan.dtype)
        found = {
            kind: bench_figures.figures(kind, calls, dtype)
            for kind, calls in kinds.items()
        }
        for kind, result in found.items():
            if XLA in found and kind != XLA:
                bench_figures.compare(result, found[XLA])
            self._content["results"].append(result)
        self._say(bench_figures.table(found.values(), heading=False))
        self._write()

    def finish(self) -> int:
        """Prints the ratios and the end, and returns the exit code."""
        results = self._content["results"]
        if XLA in self._plan.kinds:
            self._say("\nours / lax.psum over Gloo; below 1 is better")
            self._say(bench_figures.ratios(results))
            self._say("")
        wrong = sum(result["wrong"] or 0 for result in results)
        self._say(f"load average at the end {os.getloadavg()[0]:.1f}")
        if wrong:
            self._say(f"{wrong} elements were wrong")
        return 1 if wrong else 0

    def _say(self, text: str | rich.table.Table) -> None:
        if not self._shown:
            return
        try:
            screen.show(text)
        except BrokenPipeError:
            # An ordinary end would wait for the other ranks, which `launch` ends now.
            os._exit(launch.EXIT_BY_SIGNAL + signal.SIGPIPE)

    def _write(self) -> None:
        """Rewrites the file, so that an interrupted run leaves its results."""
        if self._path is None:
            return
        self._path.write_text(json.dumps(self._content) + "\n")
