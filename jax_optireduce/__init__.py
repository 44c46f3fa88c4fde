"""Collectives for JAX that end by a deadline, over UDP.

`psum`, `pmean`, `psum_scatter` and `all_gather` replace those of `jax.lax`;
`average_gradients`, `sync_in_backward` and `optax_average_gradients` average gradients;
`value_and_grad` and `over_slow_axis` serve programs without `shard_map`; `begin` and
`end` let a call overlap with the next step; `drain` returns data in flight, and
`resync` makes replicas equal again; `assert_replicas_equal` and `replica_drift` compare
them; `typed_errors` gives failed calls exceptions to catch; `coding` has exact
gradients without the late ranks.
"""

import pkgutil as _pkgutil

# After `pip install .` the compiled part is in the folder of the installation, and
# `python -m` in the checkout imports this one.
__path__ = _pkgutil.extend_path(__path__, __name__)

from jax_optireduce import coding
from jax_optireduce._calls.collectives import pmean, psum
from jax_optireduce._calls.gradients import (
    average_gradients,
    drain,
    resync,
    sync_in_backward,
)
from jax_optireduce._calls.handles import Handle, begin, empty_handle, end
from jax_optireduce._calls.optax import optax_average_gradients
from jax_optireduce._calls.regions import over_slow_axis, value_and_grad
from jax_optireduce._calls.replicas import assert_replicas_equal, replica_drift
from jax_optireduce._calls.stages import all_gather, psum_scatter
from jax_optireduce._errors import (
    AxisError,
    Cancelled,
    CollectiveError,
    DeadlineExceeded,
    Disagreement,
    NotInitializedError,
    OptiReduceError,
    PathTooSmall,
    PeerLost,
    RendezvousError,
    ReplicasDifferError,
    UsageError,
)
from jax_optireduce._program.call import REPLICAS, CallArguments
from jax_optireduce._session.communicator import (
    Communicator,
    admit,
    init,
    join,
    shutdown,
    stats,
)
from jax_optireduce._session.failures import typed_errors
from jax_optireduce._session.options import Options
from jax_optireduce._stats import CollectiveStats

__version__ = "0.1.0"

__all__ = [
    "REPLICAS",
    "AxisError",
    "CallArguments",
    "Cancelled",
    "CollectiveError",
    "CollectiveStats",
    "Communicator",
    "DeadlineExceeded",
    "Disagreement",
    "Handle",
    "NotInitializedError",
    "OptiReduceError",
    "Options",
    "PathTooSmall",
    "PeerLost",
    "RendezvousError",
    "ReplicasDifferError",
    "UsageError",
    "admit",
    "all_gather",
    "assert_replicas_equal",
    "average_gradients",
    "begin",
    "coding",
    "drain",
    "empty_handle",
    "end",
    "init",
    "join",
    "optax_average_gradients",
    "over_slow_axis",
    "pmean",
    "psum",
    "psum_scatter",
    "replica_drift",
    "resync",
    "shutdown",
    "stats",
    "sync_in_backward",
    "typed_errors",
    "value_and_grad",
]
