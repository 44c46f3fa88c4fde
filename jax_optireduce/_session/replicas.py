"""Replicas: processes that JAX does not connect, of which any number may come.

The places of replicas are numbers of their names, for good: a process that is started
again under a name has the place of the one before. The ranks of a session are the
positions of its members, by place.
"""

import time

import jax

from jax_optireduce._errors import RendezvousError, UsageError
from jax_optireduce._jax import coordination, processes
from jax_optireduce._session import plans, store
from jax_optireduce._session.options import Options

# Period in which a process looks at the age of the coordinator, in seconds. Chosen: a
# part of the start of a process.
_LOOK_S = 0.1


def take_place(options: Options) -> int:
    """Connects to the coordinator of the replicas; returns the place of this process.

    Raises:
      RendezvousError: the coordinator does not answer, or has another token.
      UsageError: the file of the token cannot be read, or JAX connects this process
        with others.
    """
    if jax.distributed.is_initialized():
        raise UsageError(
            f"replica={options.replica!r} is for processes that JAX does not connect, "
            "and jax.distributed is initialized here. Leave that call out, or the "
            "option."
        )
    token = store.read_token(options.token_file)
    timeout_s = options.rendezvous_timeout_s
    coordination.use(store.Client(options.coordinator, token, timeout_s))
    name = f"{plans.NEWS}/names/{options.replica}"
    known = coordination.entry(name)
    if known is None:
        # The place of another one may not be known yet.
        end = time.monotonic() + timeout_s
        while coordination.age_s() < plans.SETTLED_S:
            if time.monotonic() >= end:
                raise RendezvousError(
                    f"the coordinator at {options.coordinator} does not answer. Is its "
                    "process alive?"
                )
            time.sleep(_LOOK_S)
        known = coordination.entry(name)
    if known is None:
        number = coordination.increment(f"{plans.NEWS}/replicas") - 1
        own = str(number).encode()
        known = coordination.claim(name, own) or own
    place = int(known)
    processes.become_replica(place)
    return place
