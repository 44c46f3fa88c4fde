"""Signs of life of replicas: a job begins anew only if no process of it is left.

A replica in a session, or in a plan for one, raises the number of its entry; see
`plans`. Pure, as the agreement.
"""

from collections.abc import Iterable

from jax_optireduce._session.plans import News, World, sign_key

# Period of the signs of a process, in seconds. Chosen: several polls.
_PERIOD_S = 1.0

# Time without a new sign after which a process is taken for gone, in seconds. Chosen:
# longer than the opening of a session, in which a process makes none.
_GONE_S = 15.0


class LifeSigns:
    """The signs that a process makes, and its sight of those of others."""

    def __init__(self, world: World, rank: int, life: int) -> None:
        """Makes none, until `begin`.

        Args:
          world: of the agreement.
          rank: the place of the process.
          life: its number there.
        """
        self._world = world
        self._key = sign_key(rank, life)
        self._shown = False
        self._number = 0
        self._next_s = 0.0
        # The last sign of each process, with the time at which it was new.
        self._seen: dict[tuple[int, int], tuple[int, float]] = {}
        # Processes that were silent before, whose signs are taken for old ones.
        self._silent: set[tuple[int, int]] = set()

    async def begin(self) -> None:
        """Shows from now on that this process lives."""
        if not self._shown:
            self._shown, self._next_s = True, float("-inf")
            await self.renew()

    async def renew(self) -> None:
        """Makes the next sign, if it is time for it."""
        now = self._world.now()
        if self._shown and now >= self._next_s:
            self._number += 1
            self._next_s = now + _PERIOD_S
            await self._world.publish(self._key, str(self._number).encode())

    async def end(self) -> None:
        """Shows that this process takes part no more."""
        if self._shown:
            self._shown = False
            await self._world.forget(self._key)

    def look_anew(self, silent: Iterable[tuple[int, int]]) -> None:
        """Forgets the signs of others; those of silent ones are old already.

        Args:
          silent: (rank, life) of the processes that have not been heard.
        """
        self._seen, self._silent = {}, set(silent)

    def live(self, news: News) -> set[tuple[int, int]]:
        """Returns (rank, life) of the processes that have made a sign lately."""
        now = self._world.now()
        signs = {
            (rank, life): sign
            for (rank, life), sign in news.signs.items()
            if life == news.lives.get(rank, life)
        }
        for process, sign in signs.items():
            known, _ = self._seen.get(process, (None, now))
            if known != sign:
                early_s = _GONE_S - 2 * _PERIOD_S if process in self._silent else 0.0
                self._seen[process] = (sign, now - early_s)
                self._silent.discard(process)
        return {of for of in signs if now - self._seen[of][1] < _GONE_S}
