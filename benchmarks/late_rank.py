"""Time of an exact call from the arrival of a late rank to its end, in virtual time.

    python benchmarks/late_rank.py late.jsonl
    python benchmarks/late_rank.py late.jsonl --ranks 4 8 --delays 0 1
    python benchmarks/late_rank.py late.jsonl --plot late.png

Each call of 4 MB begins at all ranks together but the last one, which is late by a
multiple of W, the time of the bucket on a link of 250 Mbit/s. The production protocol
makes the calls, with and without relays, and the simulator checks every sum. Beside it
stand the times of StragglAR and of a ring by their closed forms, which have no latency
and no headers. The program appends a line to the file for each case, and omits cases
with a line in the file; then it prints a table of these cases, and draws them. Exit
code: 0.
"""

import argparse
import dataclasses
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import results
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scale import simulate

RANKS = (4, 8, 16, 32, 64, 128, 256)
DELAYS = (0.0, 0.5, 1.0, 2.0)  # in W
# More than this many ranks take long, and have one delay only.
MANY = 64
# Of the pictures: the delay of one, the number of ranks of the other.
DRAWN_DELAY, DRAWN_RANKS = 1.0, 8
MBPS = 250
ELEMENTS = 1_000_000
# Headers of UDP, IP and Ethernet, and of the protocol, in a datagram of 1,472 bytes.
WIRE_PART = 1538 / 1432
W_S = ELEMENTS * 4 * 8 * WIRE_PART / (MBPS * 1e6)
# Chosen: the windows of the first call are still small.
CALLS = 4
NEVER = 1 << 30
# Parts of the bucket in StragglAR, for each rank that is in time. Chosen: 4, with which
# its time is within 10 % of the bound.
PARTS = 4

# Source of the colours: Okabe and Ito, "Color Universal Design".
RING = {"label": "ring (closed form)", "color": "#000000", "linestyle": "--"}
STRAGGLAR = {"label": "StragglAR (closed form)", "color": "#009E73", "linestyle": "--"}


@dataclasses.dataclass(frozen=True)
class Case:
    """A simulated run; the names of a line of the file."""

    ranks: int
    delay: float  # in W
    relays: bool


def measure(case: Case) -> float:
    """Returns the median time from the arrival to the last end, in W."""
    late_us = round(case.delay * W_S * 1e6)
    period_us = late_us + round(8 * W_S * 1e6)
    report = simulate(
        f"seed=1 ranks={case.ranks} calls={CALLS} sequential=1 elements={ELEMENTS} "
        f"rate_mbps={MBPS} unprotected=1 faults_end_us=0 late_us={late_us} "
        f"period_us={period_us} relay_segments_min={0 if case.relays else NEVER}"
    )
    longest = [call["elapsed_s"] for call in report["calls"]][1:]
    return statistics.median(longest) / W_S - case.delay


def ring(ranks: int) -> float:
    """Returns the time of a ring, which cannot begin without the late rank, in W."""
    return 2 * (ranks - 1) / ranks


def stragglar(ranks: int, delay: float) -> float:
    """Returns the time of StragglAR from the arrival of the late rank, in W.

    Source: Devraj et al., StragglAR, 2025, with more parts than in the paper. The
    others reduce-scatter during the delay, or after it.
    """
    parts = PARTS * (ranks - 1)
    doublings = math.ceil(math.log2(ranks))
    odd = 0 if 1 << doublings == ranks else 1
    second = (parts - 1 + doublings + odd) / parts
    first = (ranks - 2) / (ranks - 1)
    return max(delay, first) - delay + second


def print_table(times: dict[Case, float]) -> None:
    """Prints a line for each number of ranks and each delay."""
    print("| ranks | arrives after | ring | StragglAR | without relays | with relays |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for case, time in times.items():
        if not case.relays:
            continue
        without = times[dataclasses.replace(case, relays=False)]
        print(
            f"| {case.ranks} | {case.delay:g} W | {ring(case.ranks):.2f} "
            f"| {stragglar(case.ranks, case.delay):.2f} | {without:.2f} | {time:.2f} |"
        )


def draw(times: dict[Case, float], path: Path) -> None:
    """Draws the times over the number of ranks, and over the delay."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    by_ranks, by_delay = figure.subplots(1, 2, sharey=True)
    draw_measured(
        by_ranks,
        {case: t for case, t in times.items() if case.delay == DRAWN_DELAY},
        "ranks",
    )
    ranks = 1 << np.arange(2, 9)
    by_ranks.plot(ranks, [ring(n) for n in ranks], **RING)
    by_ranks.plot(ranks, [stragglar(n, DRAWN_DELAY) for n in ranks], **STRAGGLAR)
    by_ranks.set_title(f"the last rank comes {DRAWN_DELAY:g} W late", fontsize=10)
    by_ranks.set_xscale("log", base=2)
    by_ranks.set_xticks(ranks, map(str, ranks))
    by_ranks.set_xlabel("ranks")
    by_ranks.set_ylabel("from its arrival to the end, W")
    draw_measured(
        by_delay,
        {case: t for case, t in times.items() if case.ranks == DRAWN_RANKS},
        "delay",
    )
    delays = np.linspace(0, max(DELAYS), 201)
    by_delay.plot(delays, np.full_like(delays, ring(DRAWN_RANKS)), **RING)
    by_delay.plot(delays, [stragglar(DRAWN_RANKS, d) for d in delays], **STRAGGLAR)
    by_delay.set_title(f"{DRAWN_RANKS} ranks", fontsize=10)
    by_delay.set_xlabel("lateness of the last rank, W")
    by_delay.set_ylim(bottom=0)
    for axis in (by_ranks, by_delay):
        axis.grid(visible=True, color="#dddddd", linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
    handles, labels = by_ranks.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, dpi=100)


def draw_measured(axis: Axes, times: dict[Case, float], field: str) -> None:
    """Draws the simulated times over a field of their cases."""
    for relays, label, colour in (
        (False, "exact, without relays", "#E69F00"),
        (True, "exact, with relays", "#0072B2"),
    ):
        drawn = sorted(
            (getattr(case, field), time)
            for case, time in times.items()
            if case.relays == relays
        )
        if drawn:
            axis.plot(
                *zip(*drawn, strict=True),
                label=label,
                color=colour,
                marker="o",
                markersize=4,
            )


def cases_of(ranks: Sequence[int], delays: Sequence[float] | None) -> list[Case]:
    """Returns the cases; without delays the usual ones of each number of ranks."""
    return [
        Case(number, delay, relays)
        for number in ranks
        for delay in delays or (DELAYS if number <= MANY else (DRAWN_DELAY,))
        for relays in (False, True)
    ]


def main() -> None:
    """Runs the cases without a line in the file, and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument(
        "--delays",
        type=float,
        nargs="+",
        help=f"in W; default {DELAYS}, above {MANY} ranks {DRAWN_DELAY}",
    )
    parser.add_argument("--plot", type=Path, help="a picture to draw")
    args = parser.parse_args()
    cases = cases_of(args.ranks, args.delays)
    times = {case: row["w"] for case, row in results.read(args.file, cases).items()}
    for case in cases:
        if case in times:
            continue
        times[case] = measure(case)
        results.append(args.file, dataclasses.asdict(case) | {"w": times[case]})
    print_table({case: times[case] for case in cases})
    if args.plot:
        draw(times, args.plot)


if __name__ == "__main__":
    main()
