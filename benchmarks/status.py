"""The cost of questions about a running job to its calls.

    python benchmarks/status.py
    python benchmarks/status.py --turns 4 --sizes 64K 4M

`bench` measures calls of 4 ranks on this host, in turns: alone; while a program that
has started before asks all of them once a second, on their sockets; while
`python -m jax_optireduce status` starts once a second. The program prints the medians
over the turns, and their ratios to the first. Exit code: 0.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from jax_optireduce._session import status
from jax_optireduce.tools import status_sockets

RANKS = 4
EVERY_S = 1.0
# Calls of a size in one turn. Chosen: half of a bench is in the calls.
CALLS = {"64K": 4000, "4M": 250}


def ask() -> None:
    """Asks all processes of this user once, as the verb does."""
    for path in status_sockets.find(status.folders()):
        status_sockets.ask(path)


def start_verb() -> None:
    """Asks the same by the verb."""
    command = (sys.executable, "-m", "jax_optireduce", "status", "--interval", "0")
    subprocess.run(command, check=False, capture_output=True)  # noqa: S603


QUESTIONS: dict[str, Callable[[], None] | None] = {
    "none": None,
    "sockets": ask,
    "verb": start_verb,
}


@contextlib.contextmanager
def repeated(question: Callable[[], None] | None) -> Iterator[None]:
    """Asks once a second until the end of the block."""
    over = threading.Event()

    def repeat() -> None:
        while question is not None and not over.wait(EVERY_S):
            question()

    thread = threading.Thread(target=repeat)
    thread.start()
    yield
    over.set()
    thread.join()


def bench(size: str) -> dict[str, float]:
    """Returns P50 and P99 of the calls, in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.json"
        command = [sys.executable, "-m", "jax_optireduce", "bench"]
        command += ["--processes", str(RANKS), "-b", size, "-e", size]
        command += ["-n", str(CALLS[size]), "--json", str(path)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603
        (result,) = json.loads(path.read_text())["results"]
    return {name: result[f"{name}_s"] for name in ("p50", "p99")}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--sizes", nargs="+", default=list(CALLS), choices=CALLS)
    args = parser.parse_args()
    found: defaultdict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    for _ in range(args.turns):
        for size in args.sizes:
            for name, question in QUESTIONS.items():
                with repeated(question):
                    found[size, name].append(bench(size))
    print("size  questions    P50 ms   ratio    P99 ms   ratio")
    for size in args.sizes:
        for name in QUESTIONS:
            row = f"{size:4}  {name:9}"
            for figure in ("p50", "p99"):
                turns = [turn[figure] for turn in found[size, name]]
                base = [turn[figure] for turn in found[size, "none"]]
                ratio = statistics.median(
                    a / b for a, b in zip(turns, base, strict=True)
                )
                row += f"{1000 * statistics.median(turns):10.3f}{ratio:8.2f}"
            print(row)


if __name__ == "__main__":
    main()
