"""The demonstration: one training, four transports of its gradients.

    python examples/digits.py

Trains the same network four times in 4 processes on this host, from the same seed:
through `jax.lax.pmean` (Gloo), through jax_optireduce in mode `exact`, and in the modes
`bounded` and `lossy` while 2 % of all datagrams are dropped. The program prints a
table, and writes into `demo-output/` a plot (accuracy.png) and the figures of each run
(<transport>.npz, see `digits_train.py`, the training program). On a busy machine the
times are not comparable.

Exit codes: 0, all runs ended, and the first steps of `exact` equal those of Gloo; 1
otherwise.
"""

import argparse
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

TRAINING_PROGRAM = Path(__file__).with_name("digits_train.py")

# The runs, and their names in the table.
TITLES = {
    "gloo": "lax.pmean (Gloo)",
    "exact": "exact",
    "bounded": "bounded, with loss",
    "lossy": "lossy, with loss",
}

# Largest relative distance, after the first few steps, between the parameters of two
# runs that differ only in the order of additions. Later steps amplify rounding errors.
# Chosen: above the 2e-8 measured after 10 steps, far below the 2e-2 that missing
# contributions cost.
TOLERANCE = 1e-4

Figures = Mapping[str, np.ndarray]


class RunError(Exception):
    """A training run has failed, for the reason in the message."""


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--processes", type=int, default=4, help="ranks (default 4)")
    add("--steps", type=int, default=300, help="default 300")
    add("--seed", type=int, default=0, help="default 0")
    add("--drop", type=float, default=0.02, help="share of datagrams (default 0.02)")
    add("--deadline-s", type=float, default=0.0, help="of a call; 0: learned")
    add("--output", type=Path, default=Path("demo-output"), help="folder")
    return parser.parse_args()


def run(args: argparse.Namespace, transport: str) -> Figures:
    """Trains with one transport, and returns the figures of the run.

    Raises:
      RunError: a process ended with an error.
    """
    print(f"{TITLES[transport]}:", flush=True)
    # -P: the installed package, not the folder of that name in a checkout.
    launch = (sys.executable, "-P", "-m", "jax_optireduce", "launch")
    command = [
        *(*launch, "-n", str(args.processes)),
        *(str(TRAINING_PROGRAM), "--transport", transport, "--output", args.output),
        *("--steps", str(args.steps), "--seed", str(args.seed)),
        *("--drop", str(args.drop), "--deadline-s", str(args.deadline_s)),
    ]
    output = b""
    with subprocess.Popen(  # noqa: S603 (the project's own launcher)
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as launcher:
        for line in launcher.stdout or ():
            output += line
            if line.startswith(b"[0] step"):
                print(line.decode().removeprefix("[0]").rstrip(), flush=True)
    if launcher.returncode != 0:
        raise RunError(f"exit code {launcher.returncode}:\n{output.decode()}")
    with np.load(args.output / f"{transport}.npz") as file:
        return dict(file)


def distance(figures: Figures, reference: Figures) -> float:
    """Returns the relative distance of the parameters after the first few steps."""
    own, other = (x["early"].astype(np.float64) for x in (figures, reference))
    return float(np.linalg.norm(own - other) / np.linalg.norm(other))


def table(runs: Mapping[str, Figures]) -> str:
    """Returns a line for each run."""
    lines = [f"{'':<18}  accuracy  step P50  step P99  late or lost  replicas apart"]
    for transport, figures in runs.items():
        p50, p99 = 1000 * np.percentile(figures["seconds"], (50, 99))
        lines.append(
            f"{TITLES[transport]:<18}  {figures['curve'][-1, 1]:8.1%}  {p50:5.1f} ms  "
            f"{p99:5.1f} ms  {figures['missing'].mean():12.2%}  "
            f"{figures['replica_distance']:14.1e}"
        )
    return "\n".join(lines)


def plot(runs: Mapping[str, Figures], path: Path) -> None:
    """Draws held-out accuracy against training time."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    for transport, figures in runs.items():
        seconds, shares = figures["curve"].T
        axes.plot(seconds, 100 * shares, linewidth=2, label=TITLES[transport])
    axes.set_xlabel("training time (s)")
    axes.set_ylabel("held-out accuracy (%)")
    axes.grid(axis="y", color="#dddddd")
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=150)


def main() -> int:
    """Runs all four, and reports; returns the exit code."""
    args = parse_arguments()
    args.output.mkdir(parents=True, exist_ok=True)
    try:
        runs = {transport: run(args, transport) for transport in TITLES}
    except RunError as error:
        print(error)
        return 1
    except KeyboardInterrupt:
        # The terminal has interrupted the processes as well, and they have ended.
        return 130
    plot(runs, args.output / "accuracy.png")
    apart = distance(runs["exact"], runs["gloo"])
    equal = apart <= TOLERANCE
    print(f"\n{table(runs)}\n")
    print(
        f"The first steps of exact {'equal' if equal else 'DIFFER FROM'} those of "
        f"Gloo: relative distance {apart:.0e}, allowed {TOLERANCE:.0e}."
    )
    print(f"Plot: {args.output}/accuracy.png")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
