"""`analyse`: causes of stalls in flight records, and files that are none."""

import json

import pytest

from jax_optireduce import __main__
from jax_optireduce._session.log_thread import REQUESTED

_STALL = "call 812 of 'grads' has been under way for 60.0 s."


def call(sequence, *, name="grads", number=None, state="done", started=None, **fields):
    """One line of a record."""
    return {
        "number": sequence + 1 if number is None else number,
        "collective": name,
        "sequence": sequence,
        "started_unix_s": 1000.0 + sequence if started is None else started,
        "state": state,
        "elapsed_s": 0.5,
        "error": "",
        "slowest_process": -1,
        "behind_s": 0.0,
        "waiting_for": [],
        "absent": [],
        **fields,
    }


def under_way(sequence, waiting_for=(), absent=(), **fields):
    """A call that waits."""
    return call(
        sequence,
        waiting_for=list(waiting_for),
        absent=list(absent),
        **{"state": "under way", "elapsed_s": 60.0, **fields},
    )


@pytest.fixture
def analyse(tmp_path, capsys):
    """Writes the records of some ranks; returns exit code, output and findings."""

    def run(calls, *, world_size=4, reasons=None, written=2000.0):
        paths = []
        for rank, lines in calls.items():
            head = {
                "rank": rank,
                "world_size": world_size,
                "pid": 100 + rank,
                "reason": (reasons or {}).get(rank, REQUESTED),
                "written_unix_s": written,
            }
            paths.append(tmp_path / f"rank{rank}.jsonl")
            paths[-1].write_text("\n".join(map(json.dumps, [head, *lines])) + "\n")
        arguments = list(map(str, paths))
        code = __main__.main(["analyse", *arguments])
        text = " ".join(capsys.readouterr().out.split())
        assert __main__.main(["analyse", "--json", *arguments]) == code
        return code, text, json.loads(capsys.readouterr().out)

    return run


def test_a_rank_without_a_file_is_named_by_the_others(analyse):
    waits = [call(811), under_way(812, [2], [2])]
    code, text, found = analyse(dict.fromkeys((0, 1, 3), waits))
    assert code == 1
    assert text == (
        "rank 2 never entered call 812 of 'grads'; ranks 0, 1 and 3 wait for it for "
        "60.0 s. 3 of 4 ranks have files. Missing: rank 2."
    )
    assert found["ok"] is False
    cause = found["cause"]
    assert (cause["kind"], cause["ranks"], cause["waiting"]) == (
        "absent",
        [2],
        [0, 1, 3],
    )
    assert cause["key"] == {"collective": "grads", "sequence": 812}
    assert (found["ranks"], found["missing_ranks"]) == ([0, 1, 3], [2])


def test_a_rank_whose_own_file_lacks_the_call_is_named_with_its_last_one(analyse):
    failed = call(812, state="failed", error="rank 2 is silent", elapsed_s=30.0)
    code, text, _ = analyse(
        {0: [call(811), failed], 1: [call(811), failed], 2: [call(811)]}
    )
    assert code == 1
    assert text.startswith(
        "rank 2 never entered call 812 of 'grads'; on ranks 0 and 1 the call failed "
        "after 30.0 s. Rank 2 was last in call 811 of 'grads'."
    )


def test_the_oldest_of_several_open_calls_is_the_one_that_counts(analyse):
    calls = [under_way(813, [1], [1]), under_way(814, [3], [3])]
    _, text, _ = analyse({0: calls})
    assert "rank 1 never entered call 813" in text


def test_ranks_in_different_calls_are_a_mismatch(analyse):
    others = [call(811), under_way(812, [1], [1])]
    one = [call(811), under_way(3, [0, 2, 3], [0, 2, 3], name="loss", number=813)]
    code, text, found = analyse({0: others, 1: one, 2: others, 3: others})
    assert code == 1
    assert text.startswith(
        "rank 1 called 'loss' (call 3) where the others called 'grads' (call 812). All "
        "ranks must make the same calls"
    )
    assert (found["cause"]["kind"], found["cause"]["ranks"]) == ("mismatch", [1])
    assert "4 of 4 ranks have files." in text
    assert "Missing" not in text


def test_two_ranks_in_different_calls_are_a_mismatch_as_well(analyse):
    calls = {
        0: [under_way(0, [1], [1])],
        1: [under_way(0, [0], [0], name="loss", state="failed", error="mismatch")],
    }
    _, text, _ = analyse(calls, world_size=2)
    assert "called 'loss' (call 0) where rank 0 called 'grads' (call 0)" in text


def test_a_rank_that_came_late_is_told_from_one_that_never_came(analyse):
    waits = [under_way(812, [2], [2], started=1812.0)]
    late = [under_way(812, [0], [], started=1873.0)]
    _, text, found = analyse({0: waits, 2: late}, world_size=3)
    assert "rank 2 entered call 812 of 'grads' 61.0 s after the others." in text
    assert found["cause"]["kind"] == "late"


def test_missing_data_of_a_rank_that_has_entered_is_a_matter_of_the_network(analyse):
    _, text, found = analyse({0: [under_way(812, [2])], 1: [under_way(812, [2])]})
    assert "all ranks entered call 812 of 'grads'; ranks 0 and 1 wait for data" in text
    assert (found["cause"]["kind"], found["cause"]["ranks"]) == ("data", [2])


def test_an_error_is_repeated(analyse):
    failed = call(812, state="failed", error="jax_optireduce: out of memory")
    _, text, found = analyse({0: [failed], 1: [failed]}, world_size=2)
    assert "call 812 of 'grads' failed on ranks 0 and 1: out of memory." in text
    assert found["cause"]["kind"] == "failed"


def test_a_file_older_than_the_call_proves_nothing(analyse):
    calls = {0: [under_way(812, [1])], 2: [call(811)]}
    _, text, _ = analyse(calls, written=1811.5)
    assert "rank 2 never" not in text


def test_a_record_that_begins_after_the_call_proves_nothing(analyse):
    calls = {0: [under_way(812, [1])], 2: [call(900, number=901)]}
    _, text, _ = analyse(calls, written=5000.0)
    assert "rank 2 never" not in text


def test_without_a_stall_the_slowest_rank_is_named(analyse):
    slowest = [3, 3, 3, 1, 2]
    calls = [call(n, slowest_process=r, behind_s=0.02) for n, r in enumerate(slowest)]
    code, text, found = analyse(dict.fromkeys(range(4), calls))
    assert code == 0
    assert text.startswith(
        "all 5 calls ended; the slowest rank was 3 in 60 % of the calls, 20 ms after "
        "the others (median)."
    )
    assert found["ok"] is True
    assert found["slowest"] == {"3": 0.6, "1": 0.2, "2": 0.2}


def test_a_report_of_another_kind_is_repeated(analyse):
    removal = "rank 3 removed from the session after silence"
    code, text, _ = analyse({0: [call(0)]}, reasons={0: removal})
    assert code == 1
    assert f"rank 0 reported: {removal}" in text


def test_a_report_of_several_ranks_is_repeated_once(analyse):
    removal = "rank 3 removed from the session after silence"
    calls = {rank: [call(0)] for rank in range(3)}
    reasons = dict.fromkeys((0, 2), removal)
    _, text, _ = analyse(calls, reasons={**reasons, 1: _STALL})
    assert f"ranks 0 and 2 reported: {removal}" in text
    assert f"rank 1 reported: {_STALL}" in text
    assert text.count(removal) == 1


def test_a_record_without_calls_is_one(analyse):
    code, text, _ = analyse({0: []}, world_size=1)
    assert (code, text) == (0, "all 0 calls ended. 1 of 1 rank have files.")


def write(path, *lines):
    path.write_text("\n".join(lines))
    return str(path)


def head(rank=0, world_size=2, pid=1, written=1.0):
    """The first line of a file."""
    facts = {"rank": rank, "world_size": world_size, "pid": pid, "reason": _STALL}
    return json.dumps({**facts, "written_unix_s": written})


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "is empty"),
        (["not json"], "line 1 is not JSON"),
        (["[1, 2]"], "line 1 is no line of a flight record"),
        (['{"rank": 0}'], "it has no pid, reason, world_size"),
        ([head(), '{"number": 1'], "line 2 is not JSON"),
        ([head(), '{"number": 1}'], "line 2 is no line of a flight record"),
    ],
)
def test_a_file_that_is_no_record_is_an_error_in_one_line(
    tmp_path, capsys, lines, message
):
    path = write(tmp_path / "wrong.jsonl", *lines)
    assert __main__.main(["analyse", path]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert path in line


def test_other_wrong_files_are_errors_too(tmp_path, capsys):
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    two = write(tmp_path / "two", head(pid=2))
    one = write(tmp_path / "one", head(pid=1))
    larger = write(tmp_path / "larger", head(rank=1, world_size=8))
    for files, message in [
        ([str(tmp_path / "missing")], "No such file"),
        ([str(tmp_path)], "a directory"),
        ([str(binary)], "is not text"),
        ([one, two], "rank 0 has files of two processes, 1 and 2"),
        ([one, larger], "the files are of several runs"),
    ]:
        assert __main__.main(["analyse", *files]) == 2
        assert message in capsys.readouterr().err


def test_of_two_files_of_a_rank_the_newer_one_counts(tmp_path, capsys):
    older = [head(written=1.0), json.dumps(under_way(0, [1], [1]))]
    newer = [head(written=2.0), json.dumps(call(0)), json.dumps(under_way(1, [1], [1]))]
    paths = [write(tmp_path / "b", *older), write(tmp_path / "a", *newer)]
    assert __main__.main(["analyse", *paths]) == 1
    assert "rank 1 never entered call 1 of 'grads'" in capsys.readouterr().out
