"""The clusters that `jax.distributed.initialize()` detects."""

import os
from typing import Any

try:
    from jax._src import clusters as _clusters
except ImportError:  # No cluster is detected.
    _clusters = None


def in_cluster() -> bool:
    """Whether JAX detects a cluster of several processes (SLURM, Kubernetes, ...)."""
    return _detected() is not None


def place() -> tuple[int, int] | None:
    """Returns the number of processes of such a cluster, and the index of this one."""
    cluster = _detected()
    if cluster is None:
        return None
    return cluster.get_process_count(), cluster.get_process_id()


def _detected() -> Any:
    """Returns JAX's class of the cluster, or None."""
    types = getattr(getattr(_clusters, "ClusterEnv", None), "_cluster_types", ())
    for cluster in types:
        if cluster.opt_in_only_method or not cluster.is_env_present():
            continue
        try:
            if (cluster.get_process_count() or 1) > 1:
                return cluster
        except (AttributeError, NotImplementedError, OSError, ValueError, KeyError):
            continue
    return None


def _let_jax_read_its_variables() -> None:
    """Lets `jax.distributed.initialize()` read those that JAX does not read itself."""
    base: Any = getattr(_clusters, "ClusterEnv", None)
    if base is None:
        return
    names = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")

    class Variables(base):
        """The job of the three variables, as a cluster of JAX."""

        name = "jax_optireduce"
        is_env_present = staticmethod(lambda: all(map(os.environ.get, names)))
        get_coordinator_address = staticmethod(lambda *_, **__: os.environ[names[0]])
        get_process_count = staticmethod(lambda: int(os.environ[names[1]]))
        get_process_id = staticmethod(lambda: int(os.environ[names[2]]))
        get_local_process_id = staticmethod(lambda: None)

    # They precede a cluster, as in `init`.
    base._cluster_types.remove(Variables)  # noqa: SLF001
    base._cluster_types.insert(0, Variables)  # noqa: SLF001


_let_jax_read_its_variables()
