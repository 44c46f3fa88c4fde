"""Facts of this host, as its kernel tells them."""

import math
from pathlib import Path


def read(path: str) -> str:
    """Returns the content of a file of the kernel, "" if it is not readable."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def number(path: str) -> int | None:
    """Returns the whole number in a file of the kernel, None if it has none."""
    text = read(path).strip()
    return int(text) if text.isdigit() else None


def boot() -> str:
    """Returns the identity of the running kernel, the same in all containers of a host.

    "" if it is unknown.
    """
    return read("/proc/sys/kernel/random/boot_id").strip()


def quota_cores() -> float:
    """Returns the cores of the control group's quota; infinite without one."""
    # Control groups version 2, then version 1, which has -1 for no quota.
    quota, _, period = read("/sys/fs/cgroup/cpu.max").strip().partition(" ")
    if not quota:
        quota = read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").strip()
        period = read("/sys/fs/cgroup/cpu/cpu.cfs_period_us").strip()
    return int(quota) / int(period) if quota.isdigit() and period else math.inf


def link_mbps(interface: str) -> int:
    """Returns the speed of an interface's link, in 10^6 bit/s; 0 if it is unknown.

    Many virtual interfaces have none, or have a fixed one.
    """
    return number(f"/sys/class/net/{interface}/speed") or 0
