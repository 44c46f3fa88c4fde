"""Which members reach each other, as rank 0 of five knows it.

A peer is silent after a second, and has a tenth of one to say otherwise.
"""

import pytest

import optireduce_testing as native

TIMEOUT = 1.0
LAST_CHANCE = 0.1
ALL = [0, 1, 2, 3, 4]
NOW = 10.0


@pytest.fixture
def connectivity():
    ranks = native.Connectivity(0, 5, 2, TIMEOUT, LAST_CHANCE)
    for rank in ALL[1:]:
        for lane in (0, 1):
            ranks.hear(NOW, lane, rank)
    return ranks


def test_ranks_that_are_heard_are_reached(connectivity):
    assert all(connectivity.reaches(NOW, rank) for rank in ALL)
    assert not connectivity.in_doubt(NOW, ALL)
    assert not connectivity.is_parted(NOW, ALL)


def test_silence_on_one_lane_makes_a_suspect_until_it_is_heard_there(connectivity):
    assert connectivity.suspect(1, 3)
    assert not connectivity.suspect(1, 3)
    assert not connectivity.hear(NOW, 0, 3)
    assert connectivity.suspects_among(ALL) == [3]
    assert connectivity.hear(NOW, 1, 3)
    assert connectivity.suspects_among(ALL) == []


def test_a_lane_that_cannot_be_used_stays_suspected_although_it_is_heard(connectivity):
    connectivity.suspect(0, 2)
    connectivity.set_unusable(0, 2, True)
    assert not connectivity.hear(NOW, 0, 2)
    assert 2 in connectivity.suspects_among(ALL)
    connectivity.set_unusable(0, 2, False)
    assert connectivity.hear(NOW, 0, 2)


def test_silence_counts_from_the_beginning_of_the_doubt(connectivity):
    connectivity.suspect_silent(NOW + 1.5, NOW + 1.0, ALL)
    assert connectivity.suspects_among(ALL) == []
    connectivity.hear(NOW + 1.5, 0, 4)
    connectivity.hear(NOW + 1.5, 1, 4)
    connectivity.suspect_silent(NOW + 2.0, NOW + 1.0, ALL)
    assert connectivity.suspects_among(ALL) == [1, 2, 3]


def test_a_rank_that_suspects_this_one_for_long_is_out_of_reach(connectivity):
    for step in range(11):
        assert connectivity.reaches(NOW + step / 10 - 0.1, 2)
        connectivity.handle_report(NOW + step / 10, 2, [0])
    assert not connectivity.reaches(NOW + 1.0, 2)
    assert connectivity.is_parted(NOW + 1.0, ALL)


def test_an_outdated_report_says_nothing(connectivity):
    connectivity.handle_report(NOW, 2, [0])
    connectivity.handle_report(NOW + 1.0, 2, [0])
    assert connectivity.reaches(NOW + 1.1, 2)
    assert connectivity.in_doubt(NOW + 1.1, ALL)
    assert not connectivity.in_doubt(NOW + 1.6, ALL)


def test_a_new_view_forgets_reports(connectivity):
    connectivity.handle_report(NOW, 2, [3])
    assert connectivity.in_doubt(NOW, ALL)
    connectivity.clear_reports()
    assert not connectivity.in_doubt(NOW, ALL)


def test_the_rank_that_most_do_not_reach_is_left_out(connectivity):
    for step in range(3):
        connectivity.handle_report(NOW + step / 10, 1, [3])
        connectivity.handle_report(NOW + step / 10, 2, [3])
    assert connectivity.agreeable(NOW + 0.2, ALL) == [0, 1, 2, 4]


def test_of_two_that_blame_each_other_the_higher_is_left_out(connectivity):
    for step in range(3):
        connectivity.handle_report(NOW + step / 10, 1, [3])
        connectivity.handle_report(NOW + step / 10, 3, [1])
    assert connectivity.agreeable(NOW + 0.2, ALL) == [0, 1, 2, 4]


def test_of_two_the_one_goes_whose_long_datagrams_do_not_pass(connectivity):
    for step in range(3):
        # Rank 1 hears rank 3 all the time, and names itself.
        connectivity.handle_report(NOW + step / 10, 1, [1, 3])
    assert connectivity.agreeable(NOW + 0.2, ALL) == [0, 2, 3, 4]


def test_a_rank_that_long_datagrams_of_two_do_not_reach_goes_before_these(connectivity):
    for step in range(3):
        connectivity.handle_report(NOW + step / 10, 1, [1, 3])
        connectivity.handle_report(NOW + step / 10, 2, [2, 3])
    assert connectivity.agreeable(NOW + 0.2, ALL) == [0, 1, 2, 4]


@pytest.mark.parametrize("reports", [{4: [0]}, {4: [0, 4]}, {4: [0], 3: [2]}])
def test_of_two_rank_0_stays(connectivity, reports):
    for step in range(12):
        for rank, suspects in reports.items():
            connectivity.handle_report(NOW + step / 10, rank, suspects)
    assert 0 in connectivity.agreeable(NOW + 1.1, ALL)
    assert 4 not in connectivity.agreeable(NOW + 1.1, ALL)


def test_rank_0_goes_if_most_others_do_not_reach_it(connectivity):
    for step in range(12):
        connectivity.handle_report(NOW + step / 10, 3, [0])
        connectivity.handle_report(NOW + step / 10, 4, [0])
    assert connectivity.agreeable(NOW + 1.1, ALL) == [1, 2, 3, 4]


def test_a_rank_that_cannot_send_long_datagrams_suspects_itself_too(connectivity):
    connectivity.suspect(0, 2)
    connectivity.set_unusable(0, 2, True)
    assert connectivity.suspects_among(ALL) == [0, 2]


def test_a_path_to_a_rank_that_was_removed_is_no_reason_to_suspect_oneself(
    connectivity,
):
    connectivity.suspect(0, 2)
    connectivity.set_unusable(0, 2, True)
    assert connectivity.suspects_among([0, 1, 3, 4]) == []
    for step in range(3):
        connectivity.handle_report(NOW + step / 10, 1, [0])
    assert connectivity.agreeable(NOW + 0.2, [0, 1, 3, 4]) == [0, 3, 4]


def test_a_suspicion_of_a_moment_leaves_no_rank_out(connectivity):
    connectivity.handle_report(NOW, 1, [3])
    assert connectivity.agreeable(NOW, ALL) == ALL


def test_two_ranks_that_do_not_hear_each_other_on_one_lane_need_evidence(connectivity):
    connectivity.suspect(1, 3)
    connectivity.hear(NOW, 0, 3)
    assert connectivity.is_partly_silent(NOW, 3)
    assert connectivity.lacks_evidence(NOW, ALL)
    for step in range(3):
        connectivity.handle_report(NOW + step / 10, 2, [3])
    assert not connectivity.lacks_evidence(NOW + 0.2, ALL)


def test_a_rank_that_is_silent_on_all_lanes_is_not_partly_silent(connectivity):
    connectivity.suspect(0, 3)
    connectivity.suspect(1, 3)
    assert not connectivity.is_partly_silent(NOW, 3)
    assert not connectivity.lacks_evidence(NOW, ALL)


SIX = [0, 1, 2, 3, 4, 5]


def _slices():
    """Returns rank 0 of six, in slices of two."""
    ranks = native.Connectivity(0, 6, 1, TIMEOUT, LAST_CHANCE, ranks_per_slice=2)
    for rank in range(1, 6):
        ranks.hear(NOW, 0, rank)
    return ranks


def test_a_slice_is_reached_as_a_whole():
    ranks = _slices()
    assert ranks.whole_reached(NOW, SIX) == SIX
    ranks.suspect(0, 3)
    assert ranks.reaches(NOW, 2)
    assert ranks.whole_reached(NOW, SIX) == [0, 1, 4, 5]
    ranks.suspect(0, 1)
    assert ranks.whole_reached(NOW, SIX) == [4, 5]


def test_a_slice_is_left_out_as_a_whole():
    ranks = _slices()
    ranks.suspect(0, 3)
    assert ranks.agreeable(NOW, SIX) == [0, 1, 4, 5]
    # A rank that has not voted counts as one that is not reached.
    assert ranks.agreeable(NOW, [0, 1, 2, 3, 4]) == [0, 1]


def test_the_slice_with_the_most_broken_paths_is_left_out():
    ranks = _slices()
    # Each rank has one broken path; those of the slice of 2 and 3 have two together.
    for step in range(3):
        ranks.handle_report(NOW + step / 10, 2, [1])
        ranks.handle_report(NOW + step / 10, 3, [4])
    assert ranks.agreeable(NOW + 0.2, SIX) == [0, 1, 4, 5]


def test_suspects_are_those_of_any_rank():
    ranks = _slices()
    ranks.handle_report(NOW, 2, [5])
    ranks.suspect(0, 3)
    assert ranks.suspected_by_any([2, 3, 4, 5]) == [3, 5]
