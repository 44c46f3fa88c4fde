"""The example whose processes come and go trains on, and saves checkpoints."""

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import launched

PROCESSES = 4
EVERY = 10

# More steps than a test waits for.
ENDLESS = 1_000_000


class _Job:
    """The example under the launcher."""

    def __init__(self, folder: Path, steps: int) -> None:
        self._output = folder / "output.txt"
        launch = [sys.executable, "-P", "-m", "jax_optireduce", "launch"]
        launch += ["-n", str(PROCESSES), "--restart", str(2 * PROCESSES)]
        program = [str(launched.EXAMPLES / "preemptible.py"), "--step-s", "0.03"]
        program += ["--checkpoints", "checkpoints", "--every", str(EVERY)]
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [*launch, *program, "--steps", str(steps)],
                cwd=folder,
                env={
                    **os.environ,
                    "XLA_FLAGS": "--xla_backend_optimization_level=0",
                    "JAX_OPTIREDUCE_PEER_TIMEOUT_S": "2",
                    "JAX_OPTIREDUCE_DEADLINE_S": "0.5",
                },
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def kill(self, *ranks: int) -> None:
        """Kills the processes of these ranks."""
        for rank in ranks:
            launched.kill(self.process.pid, f"JAX_PROCESS_ID={rank}")

    def wait_for(self, pattern: str, times: int = 1) -> None:
        """Waits for so many lines with this pattern."""
        end = time.monotonic() + launched.TIMEOUT_S
        while len(re.findall(pattern, self.output())) < times:
            assert self.process.poll() is None, self.output()
            assert time.monotonic() < end, self.output()
            time.sleep(0.05)


@contextlib.contextmanager
def _started(folder: Path, steps: int = ENDLESS) -> Iterator[_Job]:
    """Starts the example; its processes end with the launcher."""
    (folder / "checkpoints").mkdir(exist_ok=True)
    job = _Job(folder, steps)
    try:
        yield job
    finally:
        job.process.kill()
        job.process.wait()


def _saved(folder: Path) -> set[int]:
    """Returns the steps of the checkpoints."""
    names = [path.name for path in (folder / "checkpoints").iterdir()]
    return {int(name) for name in names if name.isdigit()}


def _await_saved(folder: Path, job: _Job, step: int, writers: set[int]) -> None:
    """Waits until each of these ranks has saved a step after this one."""
    end = time.monotonic() + launched.TIMEOUT_S
    while not writers <= {
        saved // EVERY % PROCESSES for saved in _saved(folder) if saved > step
    }:
        assert time.monotonic() < end, job.output()
        time.sleep(0.05)


def test_all_ranks_save_in_turn_while_process_0_and_others_come_back(tmp_path):
    everyone = set(range(PROCESSES))
    with _started(tmp_path) as job:
        job.wait_for(rf"step {EVERY}:", PROCESSES)
        _await_saved(tmp_path, job, 0, everyone)
        for rank in (0, 2):
            job.kill(rank)
            _await_saved(tmp_path, job, max(_saved(tmp_path)), everyone - {rank})
            job.wait_for(rf"rank {rank}, life 2: back in step")
            _await_saved(tmp_path, job, max(_saved(tmp_path)), everyone)
        # Each has its state from the others.
        assert "continues from" not in job.output(), job.output()


def test_a_job_that_was_killed_continues_from_its_newest_checkpoint(tmp_path):
    with _started(tmp_path) as job:
        _await_saved(tmp_path, job, 0, set(range(PROCESSES)))
    newest = max(_saved(tmp_path))
    last = newest + EVERY
    with _started(tmp_path, last) as job:
        assert job.process.wait(timeout=launched.TIMEOUT_S) == 0, job.output()
        found = re.findall(r"continues from step (\d+)", job.output())
        assert found == [str(newest)] * PROCESSES, job.output()
        assert last in _saved(tmp_path)
