"""The benchmark of networks, tiny: its table, and that it leaves nothing behind."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

# Seconds for one cell. Chosen: ten times what it takes on two idle cores.
TIMEOUT_S = 120

PROGRAMS = ("ip", "tc", "ethtool", "nft")


@pytest.fixture
def benchmark(monkeypatch):
    """The module."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import network

    return network


def _can_make_hosts():
    if os.geteuid() != 0 or not all(map(shutil.which, PROGRAMS)):
        return False
    name = "optireduce-try"
    made = subprocess.run(["ip", "netns", "add", name], check=False)
    subprocess.run(["ip", "netns", "delete", name], check=False)
    return made.returncode == 0


def test_a_line_has_times_in_units_of_the_wire(benchmark):
    # 2 * 3 / 4 of 10^6 bytes at 1 Gbit/s take 12 ms.
    ours = {"bytes": 1_000_000, "p50_s": 0.015, "p99_s": 0.018, "max_s": 0.024}
    ours |= {"late_share": 0.015, "against_xla": {"p50": 0.5}}
    gloo = {"p50_s": 0.030, "p99_s": 0.3}
    link = benchmark.Link(mbps=1000, queue_ms=4, congestion="bbr", loss=0.001)
    assert benchmark.row(link, "1M", "bounded", {"bounded": ours, "xla": gloo}) == (
        "| 1M | 0.1 % | bbr | bounded | 1.25 | 1.50 | 2.00 | 1.50 % | 2.50 | 25.00 "
        "| 0.50 |"
    )


@pytest.mark.skipif(not _can_make_hosts(), reason="needs root, namespaces, and tc")
def test_a_run_prints_its_rows_and_leaves_no_host():
    small = ("--sizes", "16K", "--calls", "2", "--loss", "0.01", "--modes", "exact")
    command = [sys.executable, str(BENCHMARKS / "network.py"), *small]
    command += ["--congestion", "cubic"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    _, _, line, cores = done.stdout.splitlines()
    assert line.startswith("| 16K | 1 % | cubic | exact | ")
    assert "cores" in cores
    left = subprocess.run(
        ["ip", "netns", "list"], capture_output=True, text=True, check=True
    )
    assert "optireduce-" not in left.stdout
    assert not list(Path("/etc/netns").glob("optireduce-*"))
