"""A program catches the error of a failed call by its type, on every way of a call."""

import pytest
import ranks

# `Internal.host_call` of each rank; the last one causes the errors.
_WAYS = ["host_computation", "host_computation", "", ""]
_LAST = len(_WAYS) - 1
_OPTIONS = {
    "call_timeout_s": 3.0,
    # A `lossy` call goes on without a rank that comes later, whatever it calls.
    "deadline_s": 20.0,
    "mismatch_timeout_s": 1.0,
    "peer_timeout_s": 2.0,
}


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    with ranks.start(
        "typed_errors",
        folder=tmp_path_factory.mktemp("typed_errors"),
        world_size=len(_WAYS),
        options=_OPTIONS,
        options_of={i: {"host_call": way} for i, way in enumerate(_WAYS) if way},
    ) as started:
        started.wait()
        yield started


def _assert_case(started, case, kind, ranks_of_others, collective, *, last=None):
    """Asserts the error of the other ranks, and that of the last one, if any."""
    for i, rank in enumerate(started):
        if i == _LAST and last is None:
            continue
        (line,) = rank.lines(f"{case} ")
        found = line.split()
        expected = ranks_of_others if i < _LAST else last
        assert found[:2] == [kind, expected], started.describe()
        if i < _LAST:
            assert found[2:-4] == collective.split(), line
        assert found[-2] in ("JaxRuntimeError", "ValueError"), line
        assert found[-1] == "True", line


@pytest.mark.parametrize("what", ["name", "exact", "bounded", "lossy"])
def test_ranks_in_different_calls_are_a_disagreement(started, what):
    case = f"disagreement-{what}"
    sides = []
    for rank in started:
        (line,) = rank.lines(f"{case} ")
        kind, named = line.split()[:2]
        assert kind == "Disagreement", started.describe()
        named = [int(each) for each in named.split(",")]
        assert named == sorted(set(named)), line
        assert named[-1] <= _LAST, line
        sides.append(named)
    # A rank that learns of it from a third one sees one side.
    both = [named for named in sides if len(named) == 2 and named[-1] == _LAST]
    assert both or what == "name", started.describe()


def test_a_rank_that_does_not_call_is_an_exceeded_deadline(started):
    _assert_case(started, "late", "DeadlineExceeded", "3", "late", last="3")
    waited = [float(rank.lines("late ")[0].split()[-3]) for rank in started[:_LAST]]
    assert max(waited) >= _OPTIONS["call_timeout_s"], started.describe()


def test_a_cancelled_call_names_the_rank_that_cancelled(started):
    for i, rank in enumerate(started):
        (line,) = rank.lines("cancelled ")
        assert line.split(" ")[:2] == ["Cancelled", "3" if i < _LAST else ""], line


def test_a_killed_rank_is_a_lost_peer_and_the_others_end_with_their_code(started):
    _assert_case(started, "dead", "PeerLost", "3", "together")
    codes = [rank.code for rank in started]
    assert codes == [75, 75, 75, -9], started.describe()


def test_other_errors_pass_unchanged(started):
    for rank in started:
        assert rank.lines("unchanged ") == ["ValueError"], started.describe()
