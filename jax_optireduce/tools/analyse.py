"""`python -m jax_optireduce analyse FILE...`: names the cause of a stall.

It puts the flight records of several ranks side by side, and looks for the
oldest call that is not done everywhere: a rank that has never entered it, or is
in another call, or whose data is missing. Processes write these files after a
stall and after a removal, and `Communicator.dump_flight_record` on request.
More files give more exact answers; one is enough to name the rank that its
process waits for.

    python -m jax_optireduce analyse $TMPDIR/jax_optireduce-flight-*.jsonl

Exit codes: 0, all calls ended; 1, a call is under way or failed, or a rank
reported something else; 2, usage error, or a file that is no flight record.
"""

import argparse
import dataclasses
import json
from pathlib import Path

from jax_optireduce import _phrases
from jax_optireduce.tools import flight_records, screen


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this verb to `parser`."""
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a file")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Reads the files and prints the cause.

    Raises:
      RecordError: a file is no flight record.
    """
    records = flight_records.read_all(args.files)
    cause = flight_records.find_cause(records)
    world_size = next(iter(records.values())).world_size
    missing = sorted(set(range(world_size)) - records.keys())
    ok = cause.kind == "none"
    if args.json:
        found = {
            "ok": ok,
            "cause": dataclasses.asdict(cause)
            | {"key": cause.key._asdict() if cause.key else None},
            "ranks": sorted(records),
            "missing_ranks": missing,
            "slowest": flight_records.count_slowest(records),
        }
        print(json.dumps(found, indent=2))
        return 0 if ok else 1
    screen.show(f"{cause.text}.", style="" if ok else "bold")
    have = "rank" if world_size == 1 else "ranks"
    absent = f" Missing: {_phrases.ranks(missing)}." if missing else ""
    screen.show(f"{len(records)} of {world_size} {have} have files.{absent}")
    return 0 if ok else 1
