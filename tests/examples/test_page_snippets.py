"""The Python blocks of the pages run, as written, in a session of two processes."""

import os
import subprocess
import sys
from pathlib import Path

import page_snippets
import pytest

# Seconds. Chosen: ten times the time on two idle cores.
TIMEOUT_S = 150


def test_every_page_with_a_block_is_run():
    run = {*page_snippets.PAGES, *page_snippets.ELSEWHERE}
    assert set(page_snippets.pages_with_blocks()) == run


def test_every_block_runs(tmp_path):
    launch = ["-m", "jax_optireduce", "launch", "-n", "2", "--devices-per-process", "2"]
    ended = subprocess.run(
        [sys.executable, "-P", *launch, page_snippets.__file__],
        cwd=tmp_path,
        env={
            **os.environ,
            # Most of the time is that of the compiler. The launcher adds the devices.
            "XLA_FLAGS": "--xla_backend_optimization_level=0",
            # A busy machine is late, and late data is that of a later block.
            "JAX_OPTIREDUCE_DEADLINE_MAX_S": "30",
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = ended.stdout.splitlines()
    for page in page_snippets.PAGES:
        for rank in range(2):
            assert any(line.startswith(f"[{rank}] {page}: ") for line in lines)


def test_a_page_with_another_number_of_blocks_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(page_snippets, "ROOT", tmp_path)
    Path(tmp_path / "page.md").write_text("```python\na = 1\nb = a + 1\nb\n```\n")
    blocks = page_snippets.Page("page.md")
    with pytest.raises(AssertionError, match="1 blocks were not run"):
        blocks.end()
    assert blocks.run() == 2
    blocks.end()
