"""Retransmissions are reported to users, call by call."""

import ranks


def test_the_record_of_a_call_says_how_much_was_sent_again(tmp_path):
    options = {"faults": "loss=0.05,seed=3", "datagram_bytes_max": 1472}
    with ranks.start(
        "retransmitted", folder=tmp_path, world_size=2, options=options
    ) as started:
        started.succeed()
        for rank in started:
            ((recorded, counted),) = [
                map(int, line.split()) for line in rank.lines("retransmitted")
            ]
            # The counters also include retransmissions after the end of their call.
            assert 0 < recorded <= counted, started.describe()
