"""JAX's coordination service in a process that need not be one of the job."""

from typing import Any

from jax_optireduce import _jax_version
from jax_optireduce._jax_version import explained

try:
    from jax._src.lib import (
        _jax as _runtime,  # pyright: ignore[reportPrivateImportUsage]
    )
except ImportError as missing:
    raise ImportError(_jax_version.moved(missing)) from missing


@explained
def start(bind_address: str, num_processes: int, heartbeat_timeout_s: int) -> Any:
    """Starts the service, which survives the death of any process of the job.

    Args:
      bind_address: "address:port" at which it listens.
      num_processes: number of processes of the job.
      heartbeat_timeout_s: silence after which it declares a process dead, in seconds.

    Returns:
      The service: it ends with this object.

    Raises:
      RuntimeError: it cannot listen there.
    """
    return _runtime.get_distributed_runtime_service(
        bind_address,
        num_processes,
        heartbeat_timeout=heartbeat_timeout_s,
        # Otherwise it would end all processes after the death of one.
        recoverable=True,
    )
