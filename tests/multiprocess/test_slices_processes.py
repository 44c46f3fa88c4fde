"""A process dies, and the others continue without its whole slice."""

import re
import signal

import pytest
import ranks

_PEER_TIMEOUT_S = 2.0
_OPTIONS = {
    "peer_timeout_s": _PEER_TIMEOUT_S,
    "deadline_s": 0.2,
    "processes_per_slice": 2,
}

# The dead process, the other one of its slice, and those of the other slices.
_DEAD, _PARTNER, _OTHERS = 3, 2, (0, 1, 4, 5)


def _start(folder, how, *, world_size=6, steps=40, **options):
    return ranks.start(
        *("slices", how, "1", str(steps)),
        folder=folder,
        world_size=world_size,
        options={**_OPTIONS, **options},
    )


def _check_trained_on(started: ranks.Ranks) -> None:
    started.succeed(*_OTHERS)
    bits = set()
    for rank in (started[i] for i in _OTHERS):
        assert rank.lines("alone") == ["2"], started.describe()
        assert float(rank.lines("conserved")[0]) < 0.01, started.describe()
        (removal,) = [line for line in rank.lines("log") if "removed" in line]
        assert "ranks 2 and 3 removed from the session" in removal
        assert "4 ranks continue" in removal
        bits.update(rank.lines("bits"))
    # One for each process of a slice.
    assert len(bits) == 2, started.describe()


def test_a_killed_process_takes_its_slice_with_it_which_is_told_its_name(tmp_path):
    with _start(tmp_path, "apart") as started:
        started.wait_for(_DEAD, "step 20")
        started[_DEAD].process.kill()
        started.wait(_PARTNER)
        partner = started[_PARTNER]
        assert partner.code == 1, started.describe()
        error = (
            "this rank, 2, was removed from the session with its slice, ranks 2, 3: "
            "the others had not heard rank 3 for more than"
        )
        assert re.search(f"JaxRuntimeError: .*{error}", partner.output)
        _check_trained_on(started)


@pytest.mark.long
@pytest.mark.parametrize("number", ["SIGKILL", "SIGSTOP"])
def test_the_collectives_of_other_slices_go_on(tmp_path, number):
    with _start(tmp_path, "joined") as started:
        started.wait_for(_DEAD, "step 20")
        started[_DEAD].process.send_signal(signal.Signals[number])
        _check_trained_on(started)
        partner = started[_PARTNER]
        if number == "SIGKILL":
            # XLA ends its sum over the slice with an error.
            started.wait(_PARTNER)
            assert partner.code == 1, started.describe()
        else:
            # Its sum waits for ever; the log says why.
            expected = "this process, rank 2, was removed from the session with rank 3"
            assert any(expected in line for line in partner.lines("log"))
