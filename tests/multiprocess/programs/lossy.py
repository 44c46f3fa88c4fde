"""Repeated lossy means of the same values, with some datagrams lost.

Prints "errors <of one call> <of the mean over calls> <share lost> <calls with
unreported losses>"; errors are relative, in the Euclidean norm.
"""

import jax
import meshes
import numpy as np

import jax_optireduce as jo

# The first calls measure the duration of a whole call, and retransmit lost data.
MEASURING = 20
CALLS = 60

with jo.init():
    mesh = meshes.make((jax.device_count(),), ("dp",))
    rows = np.random.default_rng(0).normal(size=(jax.device_count(), 200_000))
    rows = rows.astype(np.float32)
    expected = rows.mean(0)
    program = meshes.mapped(
        mesh, lambda x: jo.pmean(x, "dp", mode="lossy", return_stats=True)
    )
    given = meshes.spread(mesh, rows)
    means, lost, hidden = [], 0.0, 0
    for number in range(MEASURING + CALLS):
        total, report = jax.block_until_ready(program(given))
        if number < MEASURING:
            continue
        (mean,) = meshes.rows_here(total).values()
        (contributions,) = meshes.rows_here(report.missing_contributions).values()
        (results,) = meshes.rows_here(report.missing_results).values()
        means.append(mean.astype(np.float64))
        missing = float(contributions) + float(results)
        lost += missing / CALLS
        wrong = np.abs(mean - expected).max() > 1e-3
        hidden += bool(wrong and missing == 0)
    norm = np.linalg.norm(expected)
    single = np.mean([np.linalg.norm(mean - expected) for mean in means]) / norm
    over_calls = np.linalg.norm(np.mean(means, 0) - expected) / norm
    print(f"errors {single:.5f} {over_calls:.5f} {lost:.4f} {hidden}")
