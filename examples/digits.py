"""The demonstration: one training, four transports, side by side.

    python examples/digits.py

Trains the same network four times in 4 processes on this host, from the same seed:
through `jax.lax.pmean` (Gloo), through jax_optireduce in mode `exact`, and in the modes
`bounded` and `lossy` while 2 % of all datagrams are dropped. The program shows a table,
and writes into `demo-output/` a plot (accuracy.png), the figures (demo-summary.json)
and the output of the processes (<transport>.log).

`digits_train.py` is the training program, `machine_load.py` measures other programs on
the same cores, `digits_report.py` makes table and plot. Exit codes: 0, all runs ended,
and the first steps of `exact` equal those of Gloo; 1 otherwise.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Self

import digits_report
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

TRAINING_PROGRAM = Path(__file__).with_name("digits_train.py")

# The output of digits_train.say(), after the launcher's "[0] ".
PROGRESS = re.compile(rb"\[0\] step (\d+)/\d+  loss ([\d.]+|nan)  accuracy ([\d.]+)")

# Lines between two progress reports without a terminal. Chosen: six for a run.
PLAIN_EVERY = 5

# Lines of the output of a failed run. Chosen: those that fit on a screen.
LINES_SHOWN_ON_FAILURE = 30


class RunError(Exception):
    """A training run has failed, for the reason in the message."""


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, default=4, help="ranks (default 4)")
    parser.add_argument("--steps", type=int, default=300, help="default 300")
    parser.add_argument("--seed", type=int, default=0, help="default 0")
    parser.add_argument(
        "--drop",
        type=float,
        default=0.02,
        help="share of dropped datagrams in `bounded`, `lossy` (default 0.02)",
    )
    parser.add_argument(
        "--deadline-s",
        type=float,
        default=0.0,
        help="deadline of a call in `bounded`, `lossy`, in seconds; 0: learned "
        "(default 0)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("demo-output"),
        help="folder for the results (default demo-output)",
    )
    return parser.parse_args()


def command(args: argparse.Namespace, transport: str, results: Path) -> list[str]:
    """Returns the command that trains with one transport in all processes."""
    # -P: the installed package, not the folder of that name in a checkout.
    launch = (sys.executable, "-P", "-m", "jax_optireduce", "launch")
    return [
        *(*launch, "-n", str(args.processes)),
        *(str(TRAINING_PROGRAM), "--transport", transport, "--output", str(results)),
        *("--steps", str(args.steps), "--seed", str(args.seed)),
        *("--drop", str(args.drop), "--deadline-s", str(args.deadline_s)),
    ]


def run(
    args: argparse.Namespace, transport: str, results: Path, screen: "Screen"
) -> None:
    """Trains with one transport and shows the progress.

    Raises:
      RunError: a process ended with an error.
    """
    log = args.output / f"{transport}.log"
    screen.start(transport, args.steps)
    with (
        log.open("wb") as kept,
        subprocess.Popen(  # noqa: S603 (the project's own launcher)
            command(args, transport, results),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as launcher,
    ):
        for line in launcher.stdout or ():
            kept.write(line)
            if found := PROGRESS.match(line):
                step, loss, accuracy = found.groups()
                screen.advance(int(step), float(loss), float(accuracy))
    if launcher.returncode != 0:
        last = log.read_text(errors="replace").splitlines()[-LINES_SHOWN_ON_FAILURE:]
        raise RunError(
            f"the run with {transport} ended with exit code {launcher.returncode}. The "
            f"end of {log}:\n" + "\n".join(last)
        )


class Screen:
    """Progress: a bar for each run on a terminal, otherwise occasional lines."""

    def __init__(self, console: Console) -> None:
        """Draws on `console` between `with screen:` and its end."""
        self._console = console
        self._bars = Progress(
            TextColumn("{task.description}", style="bold"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[said]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Self:
        """Starts to draw."""
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Keeps the bars on the screen."""
        self._bars.stop()

    def start(self, transport: str, steps: int) -> None:
        """Shows that a run begins."""
        self._steps, self._lines = steps, 0
        self._title = digits_report.TITLES[transport]
        width = max(map(len, digits_report.TITLES.values()))
        self._task = self._bars.add_task(
            self._title.ljust(width), total=steps, said="starting"
        )
        self._plain(f"{self._title}: starting")

    def advance(self, step: int, loss: float, accuracy: float) -> None:
        """Shows the progress of a run."""
        said = f"loss {loss:.3f}  accuracy {100 * accuracy:5.1f} %"
        self._bars.update(self._task, completed=step, said=said)
        self._lines += 1
        if self._lines % PLAIN_EVERY == 0 or step == self._steps:
            self._plain(f"{self._title}: step {step}/{self._steps}  {said}")

    def _plain(self, line: str) -> None:
        if not self._console.is_terminal:
            self._console.print(line, highlight=False, soft_wrap=True)


def main() -> int:
    """Runs all four, and reports; returns the exit code."""
    args = parse_arguments()
    args.output.mkdir(parents=True, exist_ok=True)
    # Chosen: the width of a terminal by default; a wider one makes the notes no better.
    console = Console(width=min(80, Console().width))
    console.print(
        f"Handwritten digits in {args.processes} processes on this host: {args.steps} "
        "steps of SGD with momentum, four times. Only the transport of the gradients "
        "differs.\n",
        highlight=False,
    )
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder)
        try:
            with Screen(console) as screen:
                for transport in digits_report.TITLES:
                    run(args, transport, results, screen)
        except RunError as error:
            console.print(
                str(error),
                style="red",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
            return 1
        except KeyboardInterrupt:
            # The terminal has interrupted the processes as well, and they have ended.
            return 130
        summary = digits_report.summarise(results, vars(args))
    digits_report.write(summary, args.output)
    digits_report.show(summary, args.output, console)
    return 0 if summary["exact_equals_gloo"] else 1


if __name__ == "__main__":
    sys.exit(main())
