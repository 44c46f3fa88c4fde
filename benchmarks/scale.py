"""Completion time over the number of ranks: the production protocol against models.

    python benchmarks/scale.py run scale.jsonl --ranks 8 32 128
    python benchmarks/scale.py table scale.jsonl
    python benchmarks/scale.py plot scale.jsonl -o scale.png

`run` makes calls of one bucket (of 1 MiB) on simulated networks: numbers of ranks,
rates of the links, tails of the latency. It appends a line for each case, and omits
cases with a line in the file.

Simulated cases run the production protocol in virtual time and check every sum:

  * `exact` and `bounded`: a flat TAR. The deadline of `bounded`, half of it for each
    stage, is the 95th percentile of the times of `exact` in the same network with the
    tail `--calm` (1.5), for any tail;
  * `exact 2D`: an allreduce of the whole bucket within each of about sqrt(N) groups,
    then one across the groups among the ranks of equal place: two `psum`s over two
    axes;
  * `exact, N owners`: `exact` with a shard on every rank, however small the bucket;
  * `2D TAR`: a `psum_scatter` within each group, a `psum` of the part across, an
    `all_gather` within the group.

Models are Monte Carlo computations with latencies of the same distribution:

  * `ring model`: 2(N-1) steps of 1/N of the bucket over a reliable transport;
  * `halving model`: recursive halving and doubling, 2 log2(N) steps, the same bytes.

The models have no loss, and no time in hosts. Exit code: 0.
"""

import argparse
import dataclasses
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scale_models import (
    DATAGRAM_BYTES,
    LATENCY_S,
    Network,
    halving_times,
    ring_times,
)

RANKS = (8, 32, 128, 512, 1024)
RATES_GBPS = (25, 100)
TAILS = (1.5, 3.0)
SIMULATED = ("exact", "bounded", "exact 2D", "2D TAR")
MODELS = {"ring model": ring_times, "halving model": halving_times}
KINDS = (*MODELS, *SIMULATED)
# Equal to `exact` for the default bucket.
SMALL = "exact, N owners"

# Counted calls, and calls before these, which open windows and announce names.
# Chosen: a few minutes of one core.
CALLS = {8: 100, 32: 30, 128: 8, 512: 2, 1024: 1}
WARM_UP = {8: 12, 32: 6, 128: 3, 512: 1, 1024: 1}
MODEL_CALLS = 200

# Source: Okabe and Ito, "Color Universal Design": distinct with any colour vision.
COLOURS = {
    "ring model": "#000000",
    "halving model": "#E69F00",
    "exact": "#0072B2",
    "bounded": "#009E73",
    "exact 2D": "#CC79A7",
    "2D TAR": "#D55E00",
}


# ------------------------------------------------------------------------- simulated


def groups_of(ranks: int) -> int:
    """Returns the number of groups of a 2D TAR: the power of two at sqrt(ranks)."""
    return 1 << ((ranks.bit_length() - 1) // 2)


def scenario(network: Network, kind: str, calls: int, deadline_s: float = 0) -> str:
    """Returns the scenario for `python -m jax_optireduce simulate`.

    Args:
      network: the network.
      kind: one of `SIMULATED`, or `SMALL`.
      calls: number of consecutive calls.
      deadline_s: deadline of a call of `bounded`, in seconds.
    """
    fields = {
        "seed": 1,
        "ranks": network.ranks,
        "elements": network.bucket_bytes // 4,
        "calls": calls,
        "sequential": 1,
        # Chosen: longer than any call with its late data.
        "period_us": 50_000,
        "rate_mbps": network.gbps * 1000,
        "delay_us": 0,
        "latency_us": round(LATENCY_S * 1e6),
        "latency_tail_percent": round(network.tail * 100),
        "latency_hold_us": network.hold_ms * 1000,
        "datagram_bytes": DATAGRAM_BYTES,
        # Chosen: 64 kB, one GSO batch; the late wake-up of a process on an idle host;
        # the buffer of a socket on a host with such a link.
        "batch_max": 7,
        "timer_late_us": 50,
        "receive_buffer_bytes": 16 << 20,
        # Tags take time of this machine, and no simulated time.
        "unprotected": 1,
        # No random numbers for faults, since there are none.
        "faults_end_us": 0,
        # Peers advertise at most 255 senders: with more ranks some would wait, and the
        # simulator would check each of them for every datagram.
        "incast": 0 if network.ranks <= 256 else network.ranks - 1,
        "groups": groups_of(network.ranks) if "2D" in kind else 1,
        "group_stages": int(kind == "2D TAR"),
    }
    if kind == SMALL:
        fields["shard_bytes_min"] = 1
    if kind == "bounded":
        half_us = max(round(deadline_s / 2 * 1e6), 1)
        fields |= {
            "mode": "bounded",
            "reduce_scatter_deadline_us": half_us,
            "all_gather_deadline_us": half_us,
        }
    return " ".join(f"{name}={value}" for name, value in fields.items())


def simulate(line: str) -> dict[str, Any]:
    """Runs a scenario.

    Raises:
      RuntimeError: a check failed, or the scenario is invalid.
    """
    command = (sys.executable, "-m", "jax_optireduce", "simulate", "--json")
    done = subprocess.run(  # noqa: S603 (the words are ours)
        (*command, "--scenario", line), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{line}: {done.stdout or done.stderr}")
    return json.loads(done.stdout)


def measure(network: Network, kind: str, deadline_s: float) -> dict[str, Any]:
    """Returns the times of calls, in seconds, and other fields of a line."""
    warm_up = WARM_UP[network.ranks]
    divisor = max(round(network.mib), 1)
    warm_up = max(warm_up // divisor, min(warm_up, 2))
    calls = max(CALLS[network.ranks] // divisor, 5 if network.mib > 1 else 1)
    report = simulate(scenario(network, kind, warm_up + calls, deadline_s))
    counted = report["calls"][warm_up : warm_up + calls]
    return {
        "elapsed_s": [call["elapsed_s"] for call in counted],
        "datagrams": report["counters"]["datagrams_sent"]
        / (warm_up + calls)
        / network.ranks,
        "late": float(np.mean([call["late"] for call in counted])),
        "deadline_s": deadline_s,
        "retransmitted": report["counters"]["segments_retransmitted"],
        "dropped": report["faults"]["queue_full_switch"],
    }


# ------------------------------------------------------------------------- the file


def model(network: Network, kind: str) -> dict[str, Any]:
    """Returns a line of the file for one of `MODELS`."""
    rng = np.random.default_rng(
        [network.ranks, network.gbps, int(network.tail * 10), int(network.mib)]
    )
    return {"elapsed_s": MODELS[kind](network, MODEL_CALLS, rng).tolist()}


Key = tuple[Network, str]


def read(path: Path) -> dict[Key, dict[str, Any]]:
    """Returns the lines of the file by case; none if it does not exist."""
    lines: dict[Key, dict[str, Any]] = {}
    for text in path.read_text().splitlines() if path.exists() else ():
        line = json.loads(text)
        lines[Network(**line.pop("network")), line.pop("kind")] = line
    return lines


def cases(args: argparse.Namespace) -> Iterator[Key]:
    """Yields the cases; a case precedes those that take its times as deadline."""
    for number in args.ranks:
        for kind in args.kinds:
            for gbps in args.gbps:
                for tail in args.tails:
                    yield Network(number, gbps, tail, args.mib, args.hold_ms), kind


def run(args: argparse.Namespace) -> None:
    """Runs the cases without a line in the file."""
    for network, kind in cases(args):
        lines = read(args.file)
        if (network, kind) in lines:
            continue
        if kind in MODELS:
            line = model(network, kind)
        else:
            calm = dataclasses.replace(network, tail=args.calm), "exact"
            if kind == "bounded" and calm not in lines:
                raise SystemExit(f"{kind} needs `exact` at {calm[0]}: run that first.")
            elapsed_s = lines[calm]["elapsed_s"] if kind == "bounded" else [0.0]
            line = measure(network, kind, float(np.percentile(elapsed_s, 95)))
        line |= {"network": dataclasses.asdict(network), "kind": kind}
        with args.file.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(network, kind, f"{1e3 * np.median(line['elapsed_s']):.3f} ms", flush=True)


# ------------------------------------------------------------------------- results


def percentiles_ms(line: dict[str, Any]) -> tuple[float, float]:
    """Returns P50 and P99, measured times; P99 of few calls is the longest."""
    times_ms = 1e3 * np.array(line["elapsed_s"])
    low, high = np.percentile(times_ms, [50, 99], method="higher")
    return float(low), float(high)


def cell(line: dict[str, Any] | None) -> str:
    """Returns the cells of a case."""
    if line is None:
        return "-"
    low, high = percentiles_ms(line)
    late = f" ({100 * line['late']:.2g} % late)" if line.get("deadline_s") else ""
    return f"{low:.3g} / {high:.3g}{late}"


def table(args: argparse.Namespace) -> None:
    """Prints P50 / P99 in ms, and the increase of P50 by the longer tail."""
    lines = read(args.file)
    networks = sorted({network for network, _ in lines}, key=_order)
    with_small = any(kind == SMALL for _, kind in lines)
    kinds = (*KINDS, SMALL) if with_small else KINDS
    _print_head("MiB", "hold, ms", "Gbit/s", "tail", "ranks", *kinds)
    for network in networks:
        cells = [cell(lines.get((network, kind))) for kind in kinds]
        print("|", " | ".join([*map(str, _order(network)), *cells]), "|")
    print()
    _print_head("MiB", "hold, ms", "Gbit/s", "tails", "ranks", *kinds)
    for calm, longer in itertools.product(networks, repeat=2):
        if calm.tail < longer.tail and dataclasses.replace(calm, tail=longer.tail) == (
            longer
        ):
            cells = [growth(lines, calm, longer, kind) for kind in kinds]
            mib, hold_ms, gbps, _, ranks = map(str, _order(calm))
            tails = f"{calm.tail:g} to {longer.tail:g}"
            print("|", " | ".join([mib, hold_ms, gbps, tails, ranks, *cells]), "|")


def _order(network: Network) -> tuple[float, ...]:
    """Returns the sort key of networks."""
    return (network.mib, network.hold_ms, network.gbps, network.tail, network.ranks)


def _print_head(*names: str) -> None:
    """Prints the first two lines of a table in Markdown."""
    print("|", " | ".join(names), "|")
    print("|", " | ".join("---:" for _ in names), "|")


def growth(
    lines: dict[Key, dict[str, Any]], calm: Network, longer: Network, kind: str
) -> str:
    """Returns the increase of the median from one network to the other."""
    both = [lines.get((network, kind)) for network in (calm, longer)]
    medians = [percentiles_ms(line)[0] for line in both if line is not None]
    if len(medians) < 2:
        return "-"
    return f"{100 * (medians[1] / medians[0] - 1):+.0f} %"


def plot(args: argparse.Namespace) -> None:
    """Draws P50, and up to P99 as a band, over the number of ranks."""
    lines = read(args.file)
    figure = Figure(figsize=(10, 7), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True, sharey=True)
    for row, gbps in zip(axes, RATES_GBPS, strict=True):
        for axis, tail in zip(row, TAILS, strict=True):
            for kind in KINDS:
                draw_kind(axis, lines, gbps, tail, kind)
            axis.set_title(f"{gbps} Gbit/s, latency P99/P50 = {tail:g}", fontsize=10)
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            axis.set_xticks(RANKS, [f"{ranks:,}" for ranks in RANKS])
            axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.grid(visible=True, color="#dddddd", linewidth=0.6)
            axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[-1]:
        axis.set_xlabel("ranks")
    for axis in axes[:, 0]:
        axis.set_ylabel("time of an allreduce of 1 MiB, ms")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=len(labels), frameon=False
    )
    figure.savefig(args.output, dpi=100)


def draw_kind(
    axis: Axes, lines: dict[Key, dict[str, Any]], gbps: int, tail: float, kind: str
) -> None:
    """Draws one kind into one picture; models are dashed."""
    ranks = [number for number in RANKS if (Network(number, gbps, tail), kind) in lines]
    both = [
        percentiles_ms(lines[Network(number, gbps, tail), kind]) for number in ranks
    ]
    style = {
        "color": COLOURS[kind],
        "linestyle": "--" if kind in MODELS else "-",
        "marker": "o",
        "markersize": 4,
    }
    axis.plot(ranks, [low for low, _ in both], label=kind, **style)
    if both:
        axis.fill_between(
            ranks, *zip(*both, strict=True), color=COLOURS[kind], alpha=0.2
        )


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(required=True)
    running = verbs.add_parser("run", help="run the cases without a line in the file")
    running.add_argument("file", type=Path)
    running.add_argument(
        "--ranks", type=int, nargs="+", default=RANKS, choices=RANKS, metavar="N"
    )
    running.add_argument("--kinds", nargs="+", default=KINDS, choices=(*KINDS, SMALL))
    running.add_argument("--gbps", type=int, nargs="+", default=RATES_GBPS, metavar="N")
    running.add_argument("--mib", type=float, default=1, help="of the bucket (1)")
    running.add_argument("--hold-ms", type=int, default=1, help="of a latency (1)")
    running.add_argument(
        "--calm", type=float, default=1.5, help="tail of the network of deadlines (1.5)"
    )
    running.add_argument("--tails", type=float, nargs="+", default=TAILS, metavar="X")
    running.set_defaults(verb=run)
    printing = verbs.add_parser("table", help="print the tables of docs/figures.md")
    printing.add_argument("file", type=Path)
    printing.set_defaults(verb=table)
    drawing = verbs.add_parser("plot", help="draw the picture of docs/figures.md")
    drawing.add_argument("file", type=Path)
    drawing.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    drawing.set_defaults(verb=plot)
    args = parser.parse_args()
    args.verb(args)


if __name__ == "__main__":
    main()
