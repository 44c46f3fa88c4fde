"""The processes for which process 0 waits at its end."""

import json

from jax_optireduce import _exit


def gone(goodbyes, *, dead=(), unreached=()):
    told = {str(rank): json.dumps(ranks).encode() for rank, ranks in goodbyes.items()}
    return _exit.find_gone(_exit.Departure(set(dead), set(unreached)), told)


def test_who_has_said_goodbye_or_is_dead_is_not_waited_for():
    assert gone({}) == set()
    assert gone({1: [], 3: []}, dead=[2]) == {1, 2, 3}


def test_a_dead_rank_that_another_one_names_is_not_waited_for():
    assert gone({1: [2]}, unreached=[2]) == {1, 2}


def test_a_rank_that_was_cut_off_is_not_believed_that_all_others_are_dead():
    assert gone({3: [0, 1, 2]}, dead=[3]) == {3}
    assert gone({3: [0, 1, 2]}, unreached=[3]) == {3}


def test_a_rank_that_was_not_reached_and_is_named_by_nobody_is_waited_for():
    assert gone({1: []}, unreached=[2]) == {1}
