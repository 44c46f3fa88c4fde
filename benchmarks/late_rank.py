"""Time of an exact call from the arrival of a late rank to its end, in virtual time.

    python benchmarks/late_rank.py late.jsonl
    python benchmarks/late_rank.py late.jsonl --ranks 4 8 --delays 0 1

Each call of 4 MB begins at all ranks together but the last one, which is late by a
multiple of W, the time of the bucket on a link of 250 Mbit/s. The production protocol
makes the calls, with and without relays, and the simulator checks every sum. Beside it
stand the times of StragglAR and of a ring by their closed forms, which have no latency
and no headers. The program appends a line to the file for each case, and omits cases
with a line in the file; then it prints a table of the file. Exit code: 0.
"""

import argparse
import dataclasses
import itertools
import math
import statistics
from pathlib import Path

import results
from scale import simulate

RANKS = (4, 8, 16, 32, 64, 128, 256)
DELAYS = (0.0, 0.5, 1.0, 2.0)  # in W
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
    print("| ranks | delay | ring | StragglAR | without relays | with relays |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for case, time in times.items():
        if not case.relays:
            continue
        without = times[dataclasses.replace(case, relays=False)]
        print(
            f"| {case.ranks} | {case.delay:g} W | {ring(case.ranks):.2f} "
            f"| {stragglar(case.ranks, case.delay):.2f} | {without:.2f} | {time:.2f} |"
        )


def main() -> None:
    """Runs the cases without a line in the file, and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--delays", type=float, nargs="+", default=DELAYS)
    args = parser.parse_args()
    cases = [
        Case(*case)
        for case in itertools.product(args.ranks, args.delays, (False, True))
    ]
    times = {case: row["w"] for case, row in results.read(args.file, cases).items()}
    for case in cases:
        if case in times:
            continue
        times[case] = measure(case)
        results.append(args.file, dataclasses.asdict(case) | {"w": times[case]})
    print_table(times)


if __name__ == "__main__":
    main()
