"""One process's end of a session: its lanes and its calls, on real sockets."""

import json
import time

import pytest

import optireduce_testing as native

# Above the size from which a bucket is split across lanes.
LARGE = 300_000


def connected(ranks, lanes=1):
    session = native.Communicators(ranks, lanes)
    for rank in range(ranks):
        session.connect(rank, ranks)
    return session


def test_a_world_of_one_needs_no_socket_and_keeps_its_values():
    session = native.Communicators(1)
    assert session.ports(0) == 0
    session.connect(0, 1)
    session.submit(0, [1.0, 2.0])
    (end,) = session.ended(1)
    assert (end.error, end.values) == ("", [1.0, 2.0])


def test_a_program_that_sees_the_end_of_a_call_finds_it_counted():
    session = connected(1)
    assert [session.counted_at_its_end() for _ in range(3)] == [1, 2, 3]


def test_a_world_of_one_takes_no_call_after_its_end():
    session = connected(1)
    session.close(0, "its program has ended")
    session.submit(0, [1.0])
    assert session.ended(1)[0].error == "its program has ended"


@pytest.mark.parametrize("elements", [3, LARGE])
@pytest.mark.parametrize("lanes", [1, 3])
def test_a_call_is_one_call_on_however_many_lanes(lanes, elements):
    session = connected(2, lanes)
    assert session.ports(0) == lanes
    for rank in range(2):
        session.submit(rank, [1.0 + rank] * elements)
    for end in session.ended(2):
        assert (end.error, set(end.values)) == ("", {3.0})
    for rank in range(2):
        assert session.counters(rank)["calls_completed"] == 1
        assert session.counters(rank)["calls_failed"] == 0


def test_a_call_before_the_ranks_are_connected_says_what_to_do():
    session = native.Communicators(2)
    session.submit(0, [1.0])
    assert "is not connected yet" in session.ended(1)[0].error
    assert session.counters(0)["calls_failed"] == 1


def test_to_connect_takes_the_addresses_of_all_ranks_and_once():
    session = native.Communicators(2)
    with pytest.raises(ValueError, match="expected 2, got 1"):
        session.connect(0, 1)
    # A failed connect() may be repeated.
    session.connect(0, 2)
    with pytest.raises(RuntimeError, match="may be called once"):
        session.connect(0, 2)


def test_cancelled_calls_end_on_all_lanes_and_later_ones_are_not_concerned():
    session = connected(2, lanes=2)
    session.submit(0, [1.0] * LARGE)
    session.cancel(0, "interrupted")
    assert session.ended(1)[0].error == "interrupted"
    session.submit(1, [1.0] * LARGE)
    assert (
        "rank 0 has stopped with this error: interrupted" in session.ended(2)[1].error
    )
    for rank in range(2):
        session.submit(rank, [1.0] * LARGE, sequence=1)
    assert [end.error for end in session.ended(4)[2:]] == ["", ""]


def test_a_device_that_waits_for_another_is_cancelled():
    session = connected(2)
    session.start(0, 0, [1.0])
    session.cancel(0, "interrupted")
    (end,) = session.ended(1)
    assert end.error == "interrupted"


def test_after_its_end_calls_fail_and_the_peers_know():
    session = connected(2)
    session.close(0, "its program has ended")
    session.close(0, "again")
    session.submit(0, [1.0])
    session.submit(1, [1.0])
    ended = {end.rank: end.error for end in session.ended(2)}
    assert ended[0] == "its program has ended"
    assert "rank 0 has left: its program has ended" in ended[1]


def test_only_ranks_with_the_address_of_a_rank_are_on_its_host():
    addresses = ["10.0.0.1", "10.0.0.2", "10.0.0.1"]
    assert native.same_hosts(0, addresses) == [True, False, True]
    assert native.same_hosts(1, addresses) == [False, True, False]


def test_each_stage_has_half_of_the_deadline_that_is_given_or_at_most_learned():
    assert native.stage_deadlines(3.0, 20.0) == (1.5, 1.5)
    assert native.stage_deadlines(0.0, 20.0) == (10.0, 10.0)


def test_a_deadline_that_is_given_is_not_learned():
    assert native.endpoint_late_budget(0.25, deadline_s=0.0) == 0.25
    assert native.endpoint_late_budget(0.25, deadline_s=1.0) == 0.0


def test_every_rank_and_lane_has_faults_of_its_own_and_again_the_same():
    places = [(rank, lane) for rank in range(8) for lane in range(4)]
    seeds = [native.fault_seed(7, *place) for place in places]
    assert len(set(seeds)) == len(places)
    assert seeds == [native.fault_seed(7, *place) for place in places]
    assert seeds[0] != native.fault_seed(8, 0, 0)


def test_faults_of_one_lane_are_those_of_no_other():
    assert [native.has_faults(1, lane) for lane in range(3)] == [False, True, False]
    assert all(native.has_faults(None, lane) for lane in range(3))


@pytest.mark.parametrize("lanes", [1, 3])
def test_a_report_names_the_ranks_that_a_call_waits_for(lanes):
    session = connected(3, lanes)
    for rank in range(3):
        session.submit(rank, [1.0] * LARGE)
    session.ended(3)
    for rank in range(2):
        session.submit(rank, [1.0] * LARGE, 1)
    # Until rank 0 has heard that rank 1 waits as well.
    while (report := json.loads(session.examine(0)))["calls"][0]["absent"] != [2]:
        time.sleep(0.01)
    (call,) = report["calls"]
    assert (call["collective"], call["sequence"], call["mode"]) == ("x", 1, "exact")
    assert (call["bytes"], call["drain"]) == (4 * LARGE, False)
    assert 2 in call["waiting_for"]
    assert (report["rank"], report["world_size"]) == (0, 3)
    assert report["members"] == [0, 1, 2]
    assert report["last_ended"]["sequence"] == 0
    assert report["last_ended"]["state"] == "done"
    assert report["mute_lanes"] == []
    one, two = report["peers"]
    assert (one["rank"], one["state"], one["calls_behind"]) == (1, "alive", 0)
    assert (two["rank"], two["state"], two["calls_behind"]) == (2, "alive", 1)
    assert one["bytes_sent"] > 4 * LARGE / 3
    assert one["segments_sent"] > 100
    assert 0 < one["rtt_s"] < 20
    assert json.loads(session.examine(2))["calls"] == []


def test_a_report_names_devices_that_have_not_started_a_call():
    session = connected(2)
    session.start(0, 0, [1.0])
    report = json.loads(session.examine(0))
    (call,) = report["devices"]
    assert (call["collective"], call["sequence"]) == ("devices", 0)
    assert (call["started"], call["missing"]) == ([0], [1])
    assert report["last_ended"] is None


def test_a_status_socket_needs_a_connection_and_ends_with_the_session(tmp_path):
    session = native.Communicators(1)
    folder = tmp_path / "sockets"
    with pytest.raises(Exception, match="is not connected yet"):
        session.serve_status(0, str(folder))
    session.connect(0, 1)
    session.serve_status(0, str(folder))
    (path,) = folder.iterdir()
    assert path.name.endswith(".sock")
    session.close(0, "its program has ended")
    assert list(folder.iterdir()) == []
