"""`launch`: real processes, real signals."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest

from jax_optireduce.tools import launch

# Chosen: a start of Python with JAX takes some 2 s, ten times that on a busy machine.
_PATIENCE_S = 60.0

_SLEEP = "import time; print('ready'); time.sleep(1000)"


def _start(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "jax_optireduce", "launch", *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _finish(process: subprocess.Popen[str]) -> tuple[int, list[str], str]:
    """Returns exit code, the sorted lines of the output, and the errors."""
    with process:
        out, err = process.communicate(timeout=_PATIENCE_S)
    return process.returncode, sorted(out.splitlines()), err


@pytest.fixture
def script(tmp_path) -> Callable[[str], str]:
    """Writes a program and returns its path."""

    def write(source: str) -> str:
        path = tmp_path / "program.py"
        path.write_text(textwrap.dedent(source))
        return str(path)

    return write


@contextlib.contextmanager
def _sleepers(script, cwd: Path, count: int) -> Iterator[tuple]:
    """A launcher whose processes have all started and sleep; and their process ids."""
    process = _start(
        "-n",
        str(count),
        "--grace-s",
        "0.5",
        script(f"import os; print(os.getpid())\n{_SLEEP}"),
        cwd=cwd,
    )
    with process:
        pids = []
        while len(pids) < count:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            pids += [int(pid) for pid in re.findall(r"^\[\d+\] (\d+)$", line)]
        yield process, pids
        process.kill()


def _wait_until_gone(pids: list[int]) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    for pid in pids:
        while Path(f"/proc/{pid}").exists():
            status = Path(f"/proc/{pid}/status").read_text()
            if "\nState:\tZ" in status:  # No parent reaps it in this container.
                break
            assert time.monotonic() < deadline_s, f"process {pid} is still there"
            time.sleep(0.01)


def test_every_process_learns_its_place_and_lines_show_its_rank(script, tmp_path):
    program = script(
        """
        import os, sys
        names = ("NUM_PROCESSES", "PROCESS_ID", "NUM_CPU_DEVICES")
        print(*(os.environ["JAX_" + name] for name in names), sys.argv[1:])
        addresses = ("JAX_OPTIREDUCE_COORDINATOR", "JAX_COORDINATOR_ADDRESS")
        coordinator, own = (os.environ[name] for name in addresses)
        assert coordinator.startswith("127.0.0.1:") and coordinator != own
        print("no end of line", end="")
        """
    )
    code, lines, _ = _finish(
        _start(
            "-n", "2", "--devices-per-process", "3", program, "-n", "x", cwd=tmp_path
        )
    )
    assert code == 0
    assert lines == [
        "[0] 2 0 3 ['-n', 'x']",
        "[0] no end of line",
        "[1] 2 1 3 ['-n', 'x']",
        "[1] no end of line",
    ]


def test_processes_meet_in_one_jax_session(script, tmp_path):
    program = script(
        """
        import os, jax
        jax.distributed.initialize(
            num_processes=int(os.environ["JAX_NUM_PROCESSES"]),
            process_id=int(os.environ["JAX_PROCESS_ID"]),
        )
        print(jax.process_index(), jax.device_count(), jax.local_device_count())
        """
    )
    code, lines, err = _finish(
        _start("-n", "2", "--devices-per-process", "2", program, cwd=tmp_path)
    )
    assert code == 0, err
    assert lines == ["[0] 0 4 2", "[1] 1 4 2"]


def test_a_module_is_run_as_python_would(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "program.py").write_text("print(__name__, __package__)")
    code, lines, _ = _finish(_start("-n", "1", "-m", "package.program", cwd=tmp_path))
    assert (code, lines) == (0, ["[0] __main__ package"])


def test_the_first_failure_decides_and_ends_the_others(script, tmp_path):
    program = script(
        f"""
        import os, sys
        if os.environ["JAX_PROCESS_ID"] == "1":
            sys.exit(7)
        {_SLEEP}
        """
    )
    start_s = time.monotonic()
    code, _, err = _finish(_start("-n", "3", "--grace-s", "0.2", program, cwd=tmp_path))
    assert code == 7
    assert "rank 1 ended with exit code 7" in err
    assert time.monotonic() - start_s < _PATIENCE_S


def test_the_others_may_finish_within_the_grace(script, tmp_path):
    program = script(
        """
        import os, sys, time
        if os.environ["JAX_PROCESS_ID"] == "1":
            sys.exit(7)
        time.sleep(0.5)
        print("noticed")
        """
    )
    code, lines, _ = _finish(
        _start("-n", "2", "--grace-s", "30", program, cwd=tmp_path)
    )
    assert (code, lines) == (7, ["[0] noticed"])


def test_the_others_have_time_to_find_a_dead_process(script, tmp_path, monkeypatch):
    program = script(
        """
        import os, signal
        import jax, jax.numpy as jnp
        from jax.sharding import PartitionSpec as P
        import jax_optireduce
        jax_optireduce.init()
        mesh = jax.make_mesh((jax.device_count(),), ("d",))
        psum = lambda x: jax_optireduce.psum(x, "d")
        mapped = jax.shard_map(
            psum, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False
        )
        f, x = jax.jit(mapped), jnp.ones(4)
        # A killed rank may leave data of the first call unsent.
        with jax_optireduce.typed_errors():
            jax.block_until_ready(f(x))
            if jax.process_index() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            jax.block_until_ready(f(x))
        """
    )
    monkeypatch.setenv("JAX_OPTIREDUCE_PEER_TIMEOUT_S", "7")
    code, _, err = _finish(_start("-n", "2", program, cwd=tmp_path))
    assert code == 128 + signal.SIGKILL
    assert "rank 1 ended with SIGKILL; the others have 12 s" in err
    assert "PeerLost: " in err
    assert "rank 1" in err


def test_a_wrong_variable_is_an_error_before_the_start(script, tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_OPTIREDUCE_PEER_TIMEOUT_S", "soon")
    code, lines, err = _finish(_start("-n", "2", script("print(1)"), cwd=tmp_path))
    assert (code, lines) == (2, [])
    assert "JAX_OPTIREDUCE_PEER_TIMEOUT_S must be a number, got 'soon'" in err


def test_the_others_keep_going_where_they_are_told_to(script, tmp_path):
    program = script(
        """
        import os, signal, sys, time
        if os.environ["JAX_PROCESS_ID"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1)
        print("done")
        sys.exit(os.environ["JAX_PROCESS_ID"] == "2")
        """
    )
    arguments = ("-n", "3", "--grace-s", "0", "--keep-going", program)
    code, lines, err = _finish(_start(*arguments, cwd=tmp_path))
    assert (code, lines) == (128 + signal.SIGKILL, ["[0] done", "[2] done"])
    assert "rank 1 ended with SIGKILL; the others continue" in err
    assert "rank 2 ended with exit code 1; the others continue" in err


def test_a_failed_process_is_started_again_beside_the_others(script, tmp_path):
    program = script(
        """
        import os, pathlib, signal, sys, time
        lives = pathlib.Path("lives" + os.environ["JAX_PROCESS_ID"])
        lives.write_text(lives.read_text() + "." if lives.exists() else ".")
        life = len(lives.read_text())
        if os.environ["JAX_PROCESS_ID"] == "0" and life < 3:
            os.kill(os.getpid(), signal.SIGKILL) if life == 1 else sys.exit(7)
        print("life", life)
        """
    )
    arguments = ("-n", "2", "--grace-s", "0", program)
    code, lines, err = _finish(_start("--restart", "2", *arguments, cwd=tmp_path))
    assert (code, lines) == (0, ["[0] life 3", "[1] life 1"]), err
    assert "rank 0 ended with SIGKILL; it is started again (1 of 2)" in err
    assert "rank 0 ended with exit code 7; it is started again (2 of 2)" in err


def test_a_process_that_fails_too_often_decides_and_the_others_continue(
    script, tmp_path
):
    program = script(
        """
        import os, sys, time
        if os.environ["JAX_PROCESS_ID"] == "0":
            sys.exit(7)
        time.sleep(1)
        print("done")
        """
    )
    arguments = ("-n", "2", "--grace-s", "0", "--restart", "1", program)
    code, lines, err = _finish(_start(*arguments, cwd=tmp_path))
    assert (code, lines) == (7, ["[1] done"])
    assert "it is started again (1 of 1)" in err
    assert "rank 0 ended with exit code 7; the others continue" in err


def test_process_0_may_die_like_any_other(script, tmp_path):
    program = script(
        """
        import os, signal, time, jax_optireduce
        jax_optireduce.init()
        if os.environ["JAX_PROCESS_ID"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1)
        print("done")
        """
    )
    code, lines, err = _finish(_start("-n", "3", "--keep-going", program, cwd=tmp_path))
    assert (code, lines) == (128 + signal.SIGKILL, ["[1] done", "[2] done"]), err
    assert "rank 0 ended with SIGKILL; the others continue" in err
    assert "rank 1 ended" not in err
    assert "[coordinator] all 3 processes have come" in err


def test_the_end_of_the_coordinator_ends_the_launch(script, tmp_path):
    program = script(
        f"""
        import os, pathlib, signal
        launcher = os.getppid()
        children = pathlib.Path(f"/proc/{{launcher}}/task/{{launcher}}/children")
        for pid in map(int, children.read_text().split()):
            command = pathlib.Path(f"/proc/{{pid}}/cmdline").read_bytes()
            if b"coordinator" in command and os.environ["JAX_PROCESS_ID"] == "0":
                os.kill(pid, signal.SIGKILL)
        {_SLEEP}
        """
    )
    arguments = ("-n", "2", "--restart", "5", program)
    code, _, err = _finish(_start(*arguments, cwd=tmp_path))
    assert code == 128 + signal.SIGKILL
    text = "the coordinator ended with SIGKILL; the ranks cannot continue"
    assert text in err
    assert "again" not in err


def test_a_process_that_ignores_the_polite_signal_is_killed(script, tmp_path):
    program = script(
        f"""
        import os, signal, sys
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.environ["JAX_PROCESS_ID"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        {_SLEEP}
        """
    )
    code, _, err = _finish(_start("-n", "2", "--grace-s", "0.2", program, cwd=tmp_path))
    assert code == 128 + signal.SIGKILL
    assert "rank 1 ended with SIGKILL" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_launcher_ends_every_process(script, tmp_path, number):
    with _sleepers(script, tmp_path, 2) as (process, pids):
        process.send_signal(number)
        assert process.wait(_PATIENCE_S) == 128 + number
        _wait_until_gone(pids)


def test_sigterm_ends_a_session_although_jax_takes_the_signal(script, tmp_path):
    program = script(
        """
        import time, jax_optireduce
        jax_optireduce.init()
        try:
            print("joined")
            time.sleep(1000)
        finally:
            print("cleaned up")
        """
    )
    process = _start("-n", "2", "--grace-s", "60", program, cwd=tmp_path)
    joined = [process.stdout.readline() for _ in range(2)]
    assert sorted(joined) == ["[0] joined\n", "[1] joined\n"]
    process.send_signal(signal.SIGTERM)
    code, lines, err = _finish(process)
    assert code == 128 + signal.SIGTERM
    assert lines == ["[0] cleaned up", "[1] cleaned up"]
    assert "SIGKILL" not in err
    assert "does not end" not in err


def test_no_process_outlives_a_killed_launcher(script, tmp_path):
    with _sleepers(script, tmp_path, 2) as (process, pids):
        process.kill()
        _wait_until_gone(pids)


def test_what_a_process_has_started_ends_with_it(script, tmp_path):
    program = script(
        """
        import subprocess
        print(subprocess.Popen(["sleep", "1000"]).pid)
        """
    )
    code, lines, _ = _finish(_start("-n", "1", program, cwd=tmp_path))
    assert code == 0
    _wait_until_gone([int(lines[0].removeprefix("[0] "))])


def test_a_process_and_its_child_that_end_together_are_no_error(script, tmp_path):
    program = script(
        """
        import os, subprocess, time
        print(subprocess.Popen(["sleep", "1000"]).pid, os.getpid())
        time.sleep(1000)
        """
    )
    with _start("-n", "1", program, cwd=tmp_path) as process:
        line = process.stdout.readline()
        child, rank = map(int, line.removeprefix("[0] ").split())
        # The launcher finds both ends at once: the process, then its output, which the
        # child has held open.
        process.send_signal(signal.SIGSTOP)
        for pid in (rank, child):
            os.kill(pid, signal.SIGKILL)
            _wait_until_gone([pid])
        process.send_signal(signal.SIGCONT)
        code, _, err = _finish(process)
    assert code == 128 + signal.SIGKILL, err
    assert "Traceback" not in err


def test_each_process_has_cores_of_its_own_where_there_are_enough(script, tmp_path):
    program = script("import os; print(sorted(os.sched_getaffinity(0)))")
    available = os.sched_getaffinity(0)
    count = min(2, len(available))
    code, lines, _ = _finish(_start("-n", str(count), program, cwd=tmp_path))
    expected = launch.core_sets(count, available)
    assert code == 0
    assert lines == [f"[{rank}] {list(own)}" for rank, own in enumerate(expected)]


@hypothesis.given(st.integers(1, 70), st.sets(st.integers(0, 300), min_size=1))
def test_cores_are_divided_fairly_and_each_is_used_once(processes, available):
    sets = launch.core_sets(processes, available)
    assert len(sets) == processes
    if processes > len(available):
        assert not any(sets)
    else:
        assert sorted(core for own in sets for core in own) == sorted(available)
        assert max(map(len, sets)) - min(map(len, sets)) <= 1


@pytest.mark.parametrize(
    ("platforms", "visible", "processes", "devices", "expected"),
    [
        ("cpu", None, 2, 8, None),
        ("cuda", None, 2, 8, "1"),
        ("cuda,cpu", "4,6", 2, 8, "6"),
        ("cuda", "GPU-a,GPU-b", 4, 2, "GPU-b"),
        ("cuda", None, 4, 1, "0"),
        ("cuda", None, 2, 0, None),
    ],
)
def test_each_process_gets_a_gpu_or_a_share_of_one(
    platforms, visible, processes, devices, expected
):
    inherited = {"JAX_PLATFORMS": platforms}
    if visible:
        inherited["CUDA_VISIBLE_DEVICES"] = visible
    found = launch.of_gpu(inherited, 1, processes, devices)
    assert found.get("CUDA_VISIBLE_DEVICES") == expected
    shared = expected is not None and processes > 2
    assert ("XLA_PYTHON_CLIENT_PREALLOCATE" in found) is shared
