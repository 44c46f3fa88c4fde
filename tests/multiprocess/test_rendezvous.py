"""Processes join a session in every supported way, or explain the failure."""

import os
import re
import socket
import subprocess
import sys

import pytest
import ranks


@pytest.mark.parametrize(
    "how",
    [
        "plainly",
        "without key-value client",
        "jax.distributed initialised before",
        "twice",
    ],
)
def test_processes_join(tmp_path, how):
    with ranks.start("rendezvous", how, folder=tmp_path, world_size=2) as started:
        started.succeed()
        sums = [rank.lines("sum") for rank in started]
        assert sums == [["3.0 0 2"], ["3.0 1 2"]], started.describe()


def test_hosts_with_many_cores_get_the_lanes_of_the_least(tmp_path):
    with ranks.start(
        *("rendezvous", "many cores"),
        folder=tmp_path,
        world_size=2,
        options={"lanes": 0},
        options_of={rank: {"bind_address": f"127.0.0.{rank + 1}"} for rank in (0, 1)},
    ) as started:
        started.succeed()
        for rank in started:
            assert rank.lines("sum")[0].startswith("3.0"), started.describe()
            assert rank.lines("lanes") == ["2"], started.describe()


def test_sessions_on_one_host_do_not_meet(tmp_path):
    folders = [tmp_path / "one", tmp_path / "other"]
    for folder in folders:
        folder.mkdir()
    with (
        ranks.start("rendezvous", "plainly", folder=folders[0], world_size=2) as one,
        ranks.start("rendezvous", "plainly", folder=folders[1], world_size=2) as other,
    ):
        for session in (one, other):
            session.succeed()
            sums = [rank.lines("sum") for rank in session]
            assert sums == [["3.0 0 2"], ["3.0 1 2"]], session.describe()


def test_xla_backend_gives_the_same_sums_without_change_of_code(tmp_path):
    with ranks.start(
        "rendezvous",
        "plainly",
        folder=tmp_path,
        world_size=2,
        options={"backend": "xla"},
    ) as started:
        started.succeed()
        assert started[1].lines("sum") == ["3.0 1 2"], started.describe()


@pytest.mark.parametrize("how", ["plainly", "without key-value client", "twice"])
def test_processes_join_at_a_coordinator(tmp_path, how):
    with ranks.start(
        "rendezvous", how, folder=tmp_path, world_size=2, coordinator=True
    ) as started:
        started.succeed()
        sums = [rank.lines("sum") for rank in started]
        assert sums == [["3.0 0 2"], ["3.0 1 2"]], started.describe()


def test_different_options_are_named_on_every_rank(tmp_path):
    with ranks.start(
        "rendezvous", "different options", folder=tmp_path, world_size=2
    ) as started:
        started.succeed()
        for rank in started:
            (line,) = rank.lines("error")
            assert "lanes is 1 on rank 0 and 2 on rank 1" in line
            assert "bucket_bytes is 1000 on rank 0 and 1001 on rank 1" in line


def test_ranks_with_several_releases_join_and_say_so(tmp_path):
    with ranks.start(
        "rendezvous", "several releases", folder=tmp_path, world_size=2
    ) as started:
        started.succeed()
        for i, rank in enumerate(started):
            assert rank.lines("sum") == [f"3.0 {i} 2"], started.describe()
            said = (
                r"the ranks run several releases of jax_optireduce, .*: "
                r"rank 0 has \d+\.\d+\.\d+; rank 1 has 0\.0\.9"
            )
            assert re.search(said, rank.output), started.describe()


def test_ranks_with_several_wire_formats_do_not_join(tmp_path):
    with ranks.start(
        "rendezvous", "several wire formats", folder=tmp_path, world_size=2
    ) as started:
        started.succeed()
        for rank in started:
            (line,) = rank.lines("error")
            assert "of the wire format and rank 1 version 1; install" in line


def test_a_rank_whose_datagrams_do_not_arrive_is_named_on_every_rank(tmp_path):
    with ranks.start(
        "rendezvous",
        "plainly",
        folder=tmp_path,
        world_size=2,
        options_of={1: {"faults": "loss=1"}},
    ) as started:
        started.succeed()
        errors = ["".join(rank.lines("error")) for rank in started]
        silent = "rank 0: no datagram ever came from rank 1 at 127.0.0.1, UDP port"
        assert errors[0].startswith(silent), started.describe()
        deaf = r"rank 1: rank 0 at 127.0.0.1, UDP port \d+ answers no datagram"
        assert re.match(deaf, errors[1]), started.describe()


def test_ports_are_in_their_range_and_its_end_is_explained(tmp_path):
    # Found free a moment ago, together with the one above it.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        first = min(probe.getsockname()[1], 65_533)
    with ranks.start(
        "rendezvous",
        "plainly",
        folder=tmp_path,
        world_size=3,
        options={"port_range": f"{first}-{first + 1}", "interface": "=lo"},
    ) as started:
        started.wait()
        errors = [line for rank in started for line in rank.lines("error")]
        assert len(errors) == 3, started.describe()
        text = f"no UDP port from {first} to {first + 1} is free on 127.0.0.1"
        assert any(text in line for line in errors), errors
    options = {"port_range": f"{first}-{first + 2}", "interface": "^eth"}
    with ranks.start(
        *("rendezvous", "plainly"), folder=tmp_path, world_size=3, options=options
    ) as started:
        started.succeed()
        assert started[0].lines("sum") == ["6.0 0 3"]
        (line,) = started[0].lines("jax_optireduce:")
        joined = re.fullmatch(
            r"3 processes; rank 0 at 127.0.0.1 \(lo\), UDP (\d+); datagrams of \d+ "
            r"bytes, tags by [\w -.]+; deadlines learned, at most 10 s",
            line,
        )
        assert joined, line
        assert first <= int(joined[1]) <= first + 2
        # The others are silent.
        assert started[1].lines("jax_optireduce:") == []


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        (
            {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0"},
            "but not JAX_COORDINATOR_ADDRESS; set all three",
        ),
        (
            {"JAX_COORDINATOR_ADDRESS": "10.0.0.1:1234"},
            "but not JAX_NUM_PROCESSES, JAX_PROCESS_ID; set all three",
        ),
        (
            {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "10.0.0.1"},
            "would be a job of one. Set JAX_COORDINATOR_ADDRESS=10.0.0.1:<a free port>",
        ),
        ({"PMI_SIZE": "4", "PMI_RANK": "0"}, "JAX_NUM_PROCESSES=$PMI_SIZE"),
        (
            {"JAX_OPTIREDUCE_COORDINATOR": "10.0.0.1:1234", "JAX_PROCESS_ID": "0"},
            "set JAX_NUM_PROCESSES and JAX_PROCESS_ID, unless JAX detects a cluster",
        ),
        (
            {"JAX_OPTIREDUCE_COORDINATOR": "10.0.0.1"},
            "coordinator must be an address and a port, like '10.0.0.1:1234', got",
        ),
    ],
)
def test_an_incomplete_environment_says_what_is_missing(variables, text):
    result = subprocess.run(
        [sys.executable, "-c", "import jax_optireduce; jax_optireduce.init()"],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=ranks.TIME_LIMIT_S,
    )
    assert result.returncode == 1
    assert text in result.stderr


def test_a_program_may_initialize_jax_itself_under_launch(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import jax, jax_optireduce\n"
        "jax.distributed.initialize()\n"
        "with jax_optireduce.init() as joined:\n"
        "    print('joined', joined.world_size)\n"
    )
    launch = [sys.executable, "-m", "jax_optireduce", "launch", "-n", "2"]
    result = subprocess.run(
        [*launch, str(program)],
        capture_output=True,
        text=True,
        check=False,
        timeout=ranks.TIME_LIMIT_S,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("joined 2") == 2


@pytest.mark.long
def test_every_present_process_names_all_missing_ones():
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", "import jax_optireduce; jax_optireduce.init()"],
                env={
                    **os.environ,
                    "JAX_PLATFORMS": "cpu",
                    "JAX_COORDINATOR_ADDRESS": address,
                    "JAX_COORDINATOR_BIND_ADDRESS": address,
                    "JAX_NUM_PROCESSES": "4",
                    "JAX_PROCESS_ID": str(process),
                    "JAX_OPTIREDUCE_RENDEZVOUS_TIMEOUT_S": "8",
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for process in (0, 2)
        ]
        for process in processes:
            output, _ = process.communicate(timeout=ranks.TIME_LIMIT_S)
            assert process.returncode == 1, output
            assert f"processes 1, 3 of 4 did not come to {address}" in output


def test_coordination_service_does_not_keep_the_secret(tmp_path):
    with ranks.start("places", "keys", folder=tmp_path, world_size=2) as started:
        started.succeed()
        for rank in started:
            keys = [line.split() for line in rank.lines("key")]
            # The other rank may have ended.
            assert {name for name, _ in keys} - {"ended"} == {
                "place",
                "hello",
                "sockets",
                "connected",
                "paths",
            }
            assert {found for _, found in keys} == {"False"}, rank.output


def test_a_process_that_is_started_again_makes_no_call_before_join(tmp_path):
    steps = tmp_path / "steps"
    arguments = ("places", "train", str(steps))
    with ranks.start(*arguments, folder=tmp_path, world_size=3) as started:
        started.wait_for(0, "step 3")
        started[2].process.kill()
        started[2].process.wait()
        again = subprocess.run(
            started[2].process.args,
            env=started[2].environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=ranks.TIME_LIMIT_S,
        )
        assert again.returncode != 0
        error = "in a process that was started again jax_optireduce.join(), too"
        assert error in again.stdout + again.stderr, again.stdout + again.stderr
        # The others do not notice. Neither is so far ahead of the other.
        made = len(started[0].lines("step"))
        started.write(steps.name, str(made + 20))
        started.succeed(0, 1)


def test_lack_of_descriptors_is_explained_and_leaves_nothing_open(tmp_path):
    with ranks.start("descriptors", folder=tmp_path, world_size=2) as started:
        started.succeed()
        for rank in started:
            errors = rank.lines("error")
            assert len(errors) == 4, started.describe()
            for line in errors:
                # Either rank may fail first, since both lack descriptors.
                own = "cannot open more files" in line and "ulimit -n" in line
                assert own or "could not open its part" in line, line
            assert "ulimit -n" in errors[0]
            assert rank.lines("leaked")[0].startswith("0 "), started.describe()
            assert rank.lines("sum") == ["2.0"]
