"""The Python blocks of the pages run, as written, in a session of two processes."""

from pathlib import Path

import launched
import page_snippets
import pytest


def test_every_page_with_a_block_is_run():
    run = {*page_snippets.PAGES, *page_snippets.ELSEWHERE}
    assert set(page_snippets.pages_with_blocks()) == run


def test_every_block_runs(tmp_path):
    program = page_snippets.__file__
    lines = launched.run(program, tmp_path, processes=2, devices=2).splitlines()
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
