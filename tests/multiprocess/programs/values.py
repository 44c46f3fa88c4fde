"""Means of values, in mode "bounded", while a rank pauses and after it is killed.

Every rank contributes the same values, so each mean of any contributions equals them.
The last rank pauses before every fifth call. Arguments: the number of calls after the
death. Prints

  "call <number>"      after each call
  "alone"              after the first call without the rank
  "strange <elements>" at the end: elements that are neither the value nor NaN
  "late <calls>"       at the end: calls with missing contributions
  "absent <calls>"     at the end: calls with missing results
"""

import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import meshes
import numpy as np

import jax_optireduce as jo

CALLS = int(sys.argv[1])
# Segments of several datagrams, and less than one.
ENTRIES = 30_011
PAUSE_S = 0.3


def call(row: jax.Array) -> Any:
    """Averages values of all dtypes; returns those that are strange."""
    values = {
        "one": row[0],
        "many": row,
        "half": row[:7].astype(jnp.bfloat16),
        "whole": row[:3].astype(jnp.int32),
    }
    means, report = jo.pmean(
        values, "dp", mode="bounded", name="loss", return_stats=True
    )
    leaves = jax.tree.leaves(means)
    strange = sum((~jnp.isnan(x) & (x != row[0])).sum() for x in leaves)
    return strange, report


def own(x: jax.Array) -> float:
    """Returns the number of this process."""
    (row,) = meshes.rows_here(x).values()
    return float(row)


with jo.init():
    mesh = meshes.make((jax.device_count(),), ("dp",))
    ranks = jax.device_count()
    average = meshes.mapped(mesh, call)
    rows = meshes.spread(mesh, np.full((ranks, ENTRIES), 7, np.float32))
    number, left = 0, None
    strange, late, absent = 0.0, 0, 0
    while left is None or left > 0:
        pauses = jax.process_index() == ranks - 1 and number % 5 == 4
        time.sleep(PAUSE_S if pauses else 0.01)
        found, report = average(rows)
        strange += own(found)
        late += own(report.missing_contributions) > 0
        absent += own(report.missing_results) > 0
        print("call", number)
        number += 1
        if left is not None:
            left -= 1
        elif own(report.live_processes) < ranks:
            print("alone")
            left = CALLS
    print("strange", strange)
    print("late", late)
    print("absent", absent)
