"""The processes for which process 0 waits at its end."""

import json

from jax_optireduce._session import process_end


def exited(named_by, *, dead=(), unreached=()):
    announced = {str(rank): json.dumps(n).encode() for rank, n in named_by.items()}
    peers = process_end.PeersAtExit(set(dead), set(unreached))
    return process_end.find_exited(peers, announced)


def test_a_rank_that_has_announced_its_exit_or_is_dead_is_not_waited_for():
    assert exited({}) == set()
    assert exited({1: [], 3: []}, dead=[2]) == {1, 2, 3}


def test_a_dead_rank_that_another_one_names_is_not_waited_for():
    assert exited({1: [2]}, unreached=[2]) == {1, 2}


def test_a_rank_that_was_cut_off_is_not_believed_that_all_others_are_dead():
    assert exited({3: [0, 1, 2]}, dead=[3]) == {3}
    assert exited({3: [0, 1, 2]}, unreached=[3]) == {3}


def test_a_rank_that_was_not_reached_and_that_no_rank_names_is_waited_for():
    assert exited({1: []}, unreached=[2]) == {1}
