"""Collectives for JAX that end by a deadline, over UDP.

`psum` and `pmean` stand in for those of `jax.lax`; `allreduce_gradients`,
`sync_in_backward` and `all_reduce_gradients` (for Optax) average gradients; `drain` and
`resync` settle what is late, and replicas that differ.
"""

import pkgutil

# In a checkout, whose folder `python -m` puts first, the compiled part is found where
# pip has installed it.
__path__ = pkgutil.extend_path(__path__, __name__)

from jax_optireduce._collectives import (
    pmean,
    pmean_with_stats,
    psum,
    psum_with_stats,
)
from jax_optireduce._communicator import Communicator, init, shutdown, stats
from jax_optireduce._errors import (
    AxisError,
    NotInitializedError,
    OptiReduceError,
    RendezvousError,
    UsageError,
)
from jax_optireduce._gradients import (
    allreduce_gradients,
    allreduce_gradients_with_stats,
    drain,
    resync,
    sync_in_backward,
)
from jax_optireduce._optax import all_reduce_gradients
from jax_optireduce._options import Options
from jax_optireduce._stats import CollectiveStats

__version__ = "0.1.0"

__all__ = [
    "AxisError",
    "CollectiveStats",
    "Communicator",
    "NotInitializedError",
    "OptiReduceError",
    "Options",
    "RendezvousError",
    "UsageError",
    "all_reduce_gradients",
    "allreduce_gradients",
    "allreduce_gradients_with_stats",
    "drain",
    "init",
    "pmean",
    "pmean_with_stats",
    "psum",
    "psum_with_stats",
    "resync",
    "shutdown",
    "stats",
    "sync_in_backward",
]
