"""The parts of one call of member 0 of three; a member owns two segments."""

import optireduce_testing as native

MEMBERS = 3
# Deadline of both stages together, in seconds.
DEADLINE_S = 0.2
# Segments of the members: 0 and 1, 2 and 3, 4 and 5.
SEGMENTS = 2 * MEMBERS
OWN = (0, 1)

# Values of member 0.
VALUES = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


class Call(native.CallStages):
    """A call; `submitted` if the program has made it."""

    def __init__(self, mode, *, submitted=True, **how):
        collective = native.Collective(
            "x",
            mode=mode,
            members=list(range(MEMBERS)),
            elements=SEGMENTS,
            description="x",
            fingerprint=1,
            deadline_s=DEADLINE_S,
            wire_format="float32",
        )
        super().__init__(collective, **how)
        if submitted:
            self.submit(0.0, VALUES)

    def contribute_all(self, *members):
        """The members contribute ten times their number to each own segment."""
        for member in members:
            for segment in OWN:
                assert self.contribute(0.0, member, segment, 10.0 * member) == "new"

    def sent(self, to):
        """Sends everything to a member; returns (kind, segment, value)."""
        items = []
        while (item := self.next(to)) is not None:
            items.append((*item[:2], self.send(to, item)))
        return items
