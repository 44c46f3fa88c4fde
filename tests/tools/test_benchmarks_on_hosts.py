"""The benchmarks on hosts of their own, tiny: their tables, their links, their ends."""

import dataclasses
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

# Seconds for one cell. Chosen: ten times the duration on two idle cores.
TIMEOUT_S = 120

PROGRAMS = ("ip", "tc", "ethtool", "nft", "iptables")

# Echoes datagrams on port 5001.
ECHO = """
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    s.bind(("", 5001))
    print("ready", flush=True)
    while True:
        s.sendto(*s.recvfrom(2000))
"""

# Sends packets of 1,000 bytes to an address at a fixed interval, and waits until none
# has come back for a while. Prints for each the duration to its return, or null.
PING = """
import json, select, socket, struct, sys, time
address, count = sys.argv[1], int(sys.argv[2])
gap_s, patience_s = map(float, sys.argv[3:])
seconds = [None] * count
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    sent, start = 0, time.monotonic()
    last = start  # the time of the newest packet, sent or returned
    while (now := time.monotonic()) < last + patience_s and None in seconds:
        due = start + gap_s * sent if sent < count else last + patience_s
        if now >= due:
            s.sendto(struct.pack("=Id988x", sent, now), (address, 5001))
            sent, last = sent + 1, now
        elif select.select([s], [], [], due - now)[0]:
            number, at = struct.unpack_from("=Id", s.recv(2000))
            last = time.monotonic()
            seconds[number] = last - at
print(json.dumps(seconds))
"""


@pytest.fixture
def benchmark(monkeypatch):
    """The module."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import network

    return network


def _can_make_hosts():
    if os.geteuid() != 0 or not all(map(shutil.which, PROGRAMS)):
        return False
    # Other workers may run the same test.
    name = f"optireduce-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], check=False)
    subprocess.run(["ip", "netns", "delete", name], check=False)
    return made.returncode == 0


def test_a_line_has_times_in_units_of_the_wire(benchmark):
    # 2 * 3 / 4 of 10^6 bytes at 1 Gbit/s take 12 ms.
    ours = {"bytes": 1_000_000, "p50_s": 0.015, "p99_s": 0.018, "max_s": 0.024}
    ours |= {"late_share": 0.015, "against_xla": {"p50": 0.5}}
    gloo = {"p50_s": 0.030, "p99_s": 0.3}
    link = benchmark.Link(mbps=1000, queue_ms=4, congestion="bbr")
    results = {"bounded": ours, "xla": gloo}
    assert benchmark.row(link, "bursts", "1M", "bounded", results) == (
        "| 1M | 1000 | bursts | bbr | bounded | 1.25 | 1.50 | 2.00 | 1.50 % | 2.50 "
        "| 25.00 | 0.50 |"
    )


def test_an_impairment_is_known_by_its_name(benchmark):
    link = benchmark.Link(mbps=1000, queue_ms=4, congestion="cubic")
    assert benchmark.impaired(link, "clean") == link
    assert benchmark.impaired(link, "loss0.1").loss == 0.001
    for name in benchmark.DEFAULT:
        benchmark.impaired(link, name)
    for name in ("loss", "noise"):
        with pytest.raises(ValueError, match="is none of clean, bursts"):
            benchmark.impaired(link, name)


needs_hosts = pytest.mark.skipif(
    not _can_make_hosts(), reason="needs root, namespaces, and tc"
)


def _ping(link, count, gap_s, to=1, patience_s=2):
    """Returns round-trip times of packets from the first host, in s; NaN: lost."""
    import hosts

    with hosts.network(link), hosts.program(to, "-c", ECHO) as echo:
        assert echo.stdout.readline() == "ready\n"
        arguments = map(str, (hosts.address(to), count, gap_s, patience_s))
        with hosts.program(0, "-c", PING, *arguments) as ping:
            seconds = json.loads(ping.communicate(timeout=TIMEOUT_S)[0])
    return np.array(seconds, float)


@needs_hosts
class TestLink:
    """The effect of links on packets that are echoed."""

    @pytest.fixture
    def link(self, benchmark):
        return benchmark.Link(mbps=100, queue_ms=1000, congestion="cubic")

    def test_loss_is_by_chance(self, link):
        seconds = _ping(dataclasses.replace(link, loss=0.3), 1000, 0.001)
        # Each direction loses 30 %.
        assert 0.4 < np.isnan(seconds).mean() < 0.62

    def test_bursts_lose_many_in_a_row(self, link):
        seconds = _ping(dataclasses.replace(link, loss=0.2, run=20), 4000, 0.0001)
        lost = np.isnan(seconds)
        runs = [sum(1 for _ in run) for key, run in itertools.groupby(lost) if key]
        assert 0.02 < lost.mean() < 0.7
        # Runs would have 1.6 packets on average by chance alone, at 36 %.
        assert np.mean(runs) > 3

    def test_stalls_hold_some(self, benchmark, link):
        stalls = benchmark.Stalls(per_s=4, median_ms=200)
        link = dataclasses.replace(link, stalls=stalls)
        # Long enough for two stalls. On a busy host, a few come back even later.
        seconds = _ping(link, 300, 0.01, patience_s=5)
        assert np.isnan(seconds).mean() < 0.1
        assert np.nanmax(seconds) >= 0.1
        assert np.nanmin(seconds) < 0.1

    def test_only_the_last_link_is_slow(self, link):
        slow = dataclasses.replace(link, slow=100)
        # They take 240 ms at 1 Mbit/s.
        last, other = (_ping(slow, 30, 0, to=to, patience_s=5) for to in (3, 1))
        assert last.max() > other.max() + 0.1


def _run(command, **options):
    """Runs a benchmark; returns its output once no host of it is left."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, **options
    ) as process:
        output, errors = process.communicate(timeout=4 * TIMEOUT_S)
    assert process.returncode == 0, output + errors
    listed = subprocess.run(
        ["ip", "netns", "list"], capture_output=True, text=True, check=True
    )
    mine = f"optireduce-{process.pid}-"
    assert mine not in listed.stdout
    assert not list(Path("/etc/netns").glob(f"{mine}*"))
    return output


@needs_hosts
@pytest.mark.parametrize(
    "impairment", ["loss1", pytest.param("tail3", marks=pytest.mark.long)]
)
def test_a_run_prints_its_rows_and_leaves_no_host(impairment):
    small = ("--sizes", "16K", "--calls", "2", "--modes", "exact")
    command = [sys.executable, str(BENCHMARKS / "network.py"), *small]
    command += ["--congestion", "cubic", "--impairments", impairment]
    _, _, line, cores = _run(command).splitlines()
    assert line.startswith(f"| 16K | 1000 | {impairment} | cubic | exact | ")
    assert "cores" in cores


@needs_hosts
@pytest.mark.long
def test_a_run_apart_has_hosts_with_stalls_for_each_kind():
    small = ("--sizes", "16K", "--calls", "2", "--modes", "exact", "--apart")
    command = [sys.executable, str(BENCHMARKS / "network.py"), *small]
    command += ["--congestion", "cubic", "--impairments", "tail3"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=4 * TIMEOUT_S, check=True
    )
    row = done.stdout.splitlines()[2]
    assert row.startswith("| 16K | 1000 | tail3 | cubic | exact")
    ours, gloo = done.stderr.split("tail3 16K xla")
    for part in (ours, gloo):
        stalls = re.findall(r"hosts\.py: (\d+) stalls", part)
        assert len(stalls) == 4
        assert sum(map(int, stalls)) > 0


def _train(folder, *schemes):
    """Returns the output of a start of the benchmark that makes ten steps."""
    command = [sys.executable, str(BENCHMARKS / "tta.py"), "--seeds", "1"]
    command += ["--tasks", "text", "--optimizers", "sgd", "--impairments", "quiet"]
    command += ["--schemes", *schemes, "--steps", "10"]
    # Other tests have several devices in a process. Most of the time is the compiler's.
    env = {**os.environ, "XLA_FLAGS": "--xla_backend_optimization_level=0"}
    return _run(command, cwd=folder, env=env)


def _trained(folder):
    lines = (folder / "tta-output/results.jsonl").read_text().splitlines()
    return list(map(json.loads, lines))


@needs_hosts
@pytest.mark.long
def test_a_training_on_hosts_has_figures_and_is_not_repeated(tmp_path):
    assert "1 runs, 0 of them made" in _train(tmp_path, "exact")
    assert "1 runs, 1 of them made" in _train(tmp_path, "exact")
    (exact,) = _trained(tmp_path)
    assert exact["ended"] == 4
    assert exact["drift"] == exact["missing_results"] == 0
    assert (tmp_path / "tta-output/tta.png").stat().st_size > 0


@needs_hosts
@pytest.mark.long
def test_trainings_on_hosts_reach_the_same(tmp_path):
    _train(tmp_path, "Gloo", "exact")
    gloo, exact = _trained(tmp_path)
    np.testing.assert_allclose(gloo["curve"], exact["curve"], atol=0.002)
