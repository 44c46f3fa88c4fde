"""The parts of one rank's endpoint, without a network."""

import optireduce_testing as native

# Source: DatagramKind of wire.h.
ANNOUNCEMENT, PROBE, WAITING = 4, 5, 8


class Parts(native.SessionParts):
    """Rank 0, and collectives of all ranks with one element for each."""

    def __init__(self, world_size: int = 3, **options):
        super().__init__(0, world_size, **options)
        self.world_size = world_size

    def collective(self, mode: str, *, name="x", fingerprint=1) -> int:
        """Learns a collective; returns its identity."""
        return self.learn(
            native.Collective(
                name,
                mode=mode,
                members=list(range(self.world_size)),
                elements=self.world_size,
                description=f"{name}: float32[{self.world_size}]",
                fingerprint=fingerprint,
                wire_format="float32",
            )
        )
