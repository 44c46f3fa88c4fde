"""`python -m jax_optireduce doctor`: checks this host, and suggests remedies.

Each line is PASS, WARN (it works, with avoidable delay or loss) or FAIL (it
does not work), with the command of the remedy.

    python -m jax_optireduce doctor

`--json` prints the same for programs:

    {"ok": true,
     "checks": [{"name": ..., "level": "PASS", "found": "", "remedy": ""}]}

Exit codes: 0, success; 1, a check failed; 2, usage error.
"""

import argparse
import dataclasses
import importlib.metadata
import json
import os
import platform
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import rich.table
import rich.text

from jax_optireduce import _jax_version, _native
from jax_optireduce._session import host_facts
from jax_optireduce._session.options import Options
from jax_optireduce.tools import accelerator_checks, screen
from jax_optireduce.tools.check import Check, Level

# Source: Linux 4.18 brought UDP_SEGMENT (GSO), Linux 5.0 UDP_GRO.
_KERNEL_FOR_OFFLOADS = (5, 0)

# Source: OpenSSL's CHANGES: 3.1 brought AES-GCM with vectors of 512 bits. They need all
# of these flags of /proc/cpuinfo.
_LIBCRYPTO_FOR_VECTORS = (3, 1)
_VECTOR_FLAGS = {"avx512f", "avx512dq", "avx512bw", "avx512vl", "vaes", "vpclmulqdq"}

# Source: RFC 8200, section 5: every link that carries IPv6 has this MTU, in bytes.
# Google Cloud has 1,460, and overlays of containers a little less.
_USUAL_MTU_BYTES = 1280

# Source: RFC 791, section 3.1: the datagram that every host must accept, in bytes.
_SMALLEST_MTU_BYTES = 576

# Chosen: JAX with a small model, and the buffers of a few buckets of 25 MiB, in bytes.
_MEMORY_WANTED_BYTES = 2 << 30

_MIB_BYTES = 1 << 20

# The bound of a socket's buffer in each direction, and the effect of a small one.
_BUFFERS = {
    "receive": (
        "net.core.rmem_max",
        "the kernel drops the excess, which is then retransmitted",
    ),
    "send": ("net.core.wmem_max", "the network thread waits more often"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this verb to `parser`."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Checks this host and prints the findings."""
    checks = examine()
    ok = all(check.level is not Level.FAIL for check in checks)
    if args.json:
        found = [dataclasses.asdict(check) for check in checks]
        print(json.dumps({"ok": ok, "checks": found}, indent=2))
    else:
        _print(checks)
    return 0 if ok else 1


def examine() -> list[Check]:
    """Returns the findings about this host, in the order of the output."""
    receive_bytes = Options().receive_buffer_bytes
    udp = _native.probe_udp(receive_bytes)
    processor = _words("/proc/cpuinfo", ("flags", "Features"))
    cores = len(os.sched_getaffinity(0))
    return [
        check_kernel(platform.system(), platform.release()),
        check_jax(importlib.metadata.version("jax")),
        check_cipher_library(_native.cipher_library(), processor),
        check_ciphers(processor),
        check_buffer("receive", udp["receive_buffer_bytes"], receive_bytes),
        check_buffer("send", udp["send_buffer_bytes"], udp["send_buffer_wanted_bytes"]),
        check_offload("GSO, sending many datagrams at once", bool(udp["gso"])),
        check_offload("GRO, receiving many at once", bool(udp["gro"])),
        *(check_mtu(name, mtu) for name, mtu in sorted(_interfaces().items())),
        check_cores(cores, host_facts.quota_cores()),
        check_memory(_available_bytes()),
        *accelerator_checks.examine(cores, os.environ),
    ]


def check_kernel(system: str, release: str) -> Check:
    """Checks that the kernel is Linux, and new enough for the UDP offloads.

    Args:
      system: as from `platform.system()`.
      release: as from `platform.release()`, "6.1.0-18-amd64".
    """
    name, found = "kernel", f"{system} {release}"
    if system != "Linux":
        return Check(
            name=name,
            level=Level.FAIL,
            found=found,
            remedy="use a Linux host or container",
        )
    version = tuple(int(part) for part in re.findall(r"\d+", release)[:2])
    if version < _KERNEL_FOR_OFFLOADS:
        return Check(
            name=name, level=Level.WARN, found=found, remedy="use Linux 5.0 or newer"
        )
    return Check(name=name, level=Level.PASS, found=found)


def check_jax(version: str) -> Check:
    """Checks the installed JAX against the range that this package was tested with.

    Args:
      version: installed version, "0.10.2".
    """
    tested = _jax_version.is_tested(version)
    span = _jax_version.TESTED
    return Check(
        name="JAX",
        level=Level.PASS if tested else Level.WARN,
        found=f"{version}, tested range {span.removeprefix('jax')}",
        remedy="" if tested else f"pip install '{span}'",
    )


def check_cipher_library(library: str, features: set[str]) -> Check:
    """Checks the library that authenticates the datagrams.

    Args:
      library: its name and version: "OpenSSL 3.5.4 30 Sep 2025".
      features: the flags of /proc/cpuinfo.
    """
    old = library.startswith("OpenSSL") and _release(library) < _LIBCRYPTO_FOR_VECTORS
    if old and features >= _VECTOR_FLAGS:
        return Check(
            name="cipher library",
            level=Level.WARN,
            found=f"{library}, which does not use this processor's vectors: tags take "
            "three times as long as with intel-ipsec-mb",
            remedy="apt-get install libipsec-mb-dev (Fedora: dnf install "
            "intel-ipsec-mb-devel), and build again; or OpenSSL 3.1 or newer",
        )
    return Check(name="cipher library", level=Level.PASS, found=library)


def check_ciphers(features: set[str]) -> Check:
    """Checks that the processor has instructions for AES-GCM.

    Args:
      features: the flags of /proc/cpuinfo.
    """
    if {"aes", "pclmulqdq"} <= features or {"aes", "pmull"} <= features:
        return Check(name="AES in hardware", level=Level.PASS, found="yes")
    return Check(
        name="AES in hardware",
        level=Level.WARN,
        found="no; authentication costs several times more time of the processor",
        remedy="show the host's processor to the virtual machine (QEMU: -cpu host)",
    )


def check_buffer(direction: str, granted_bytes: int, wanted_bytes: int) -> Check:
    """Checks the granted buffer of a socket.

    The check is of a socket, not of the kernel's bound: a process with CAP_NET_ADMIN is
    exempt from the bound, and a container cannot read it.

    Args:
      direction: "receive" or "send".
      granted_bytes: granted size.
      wanted_bytes: default size of the communicator.
    """
    found = (
        f"{granted_bytes / _MIB_BYTES:.2g} MiB of {wanted_bytes / _MIB_BYTES:.2g} MiB "
        "wanted"
    )
    name = f"{direction} buffer of a socket"
    if granted_bytes >= wanted_bytes:
        return Check(name=name, level=Level.PASS, found=found)
    limit, effect = _BUFFERS[direction]
    return Check(
        name=name,
        level=Level.WARN,
        found=f"{found}; large calls take longer: {effect}",
        remedy=f"sudo sysctl -w {limit}={wanted_bytes}",
    )


def check_offload(name: str, available: bool) -> Check:
    """Checks one UDP offload of the kernel.

    Args:
      name: name and effect.
      available: whether the kernel grants it to a socket of this process.
    """
    if available:
        return Check(name=name, level=Level.PASS, found="on")
    return Check(
        name=name,
        level=Level.WARN,
        found="off; each datagram costs a system call",
        remedy="use Linux 5.0 or newer, and no user-space network such as gVisor",
    )


def check_mtu(interface: str, mtu_bytes: int) -> Check:
    """Checks the largest IP packet of one interface.

    The interface has the MTU that its network gave it, by DHCP or by the plug-in of the
    containers. A larger one loses every datagram that the path does not carry, so no
    remedy names a value.

    Args:
      interface: name of the interface.
      mtu_bytes: MTU of the interface, in bytes.
    """
    if mtu_bytes >= _USUAL_MTU_BYTES:
        level = Level.PASS
    elif mtu_bytes >= _SMALLEST_MTU_BYTES:
        level = Level.WARN
    else:
        level = Level.FAIL
    remedy = (
        f"set the MTU of {interface} to that of its network, and no higher: "
        "`ping -M do -s BYTES HOST` finds it (BYTES + 28)"
    )
    return Check(
        name=f"MTU of {interface}",
        level=level,
        found=f"{mtu_bytes} bytes",
        remedy="" if level is Level.PASS else remedy,
    )


def check_cores(cores: int, quota_cores: float) -> Check:
    """Checks that the network threads have a core besides the computation.

    Args:
      cores: number of cores that this process may use.
      quota_cores: cores of the container's quota of processor time; infinite without a
        quota.
    """
    usable = min(cores, quota_cores)
    bounded = f", {quota_cores:g} by the container" if quota_cores < cores else ""
    few = usable < 2
    return Check(
        name="cores",
        level=Level.WARN if few else Level.PASS,
        found=f"{cores}{bounded}",
        remedy="give each process at least 2 cores" if few else "",
    )


def check_memory(available_bytes: int) -> Check:
    """Checks the available memory.

    Args:
      available_bytes: memory that this process can allocate.
    """
    enough = available_bytes >= _MEMORY_WANTED_BYTES
    remedy = "end other programs, or give the container more memory"
    return Check(
        name="memory",
        level=Level.PASS if enough else Level.WARN,
        found=f"{available_bytes / 2**30:.1f} GiB available",
        remedy="" if enough else remedy,
    )


def _print(checks: Iterable[Check]) -> None:
    styles = {Level.PASS: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}
    lines = rich.table.Table.grid(padding=(0, 2, 0, 0))
    for check in checks:
        level = rich.text.Text(check.level, styles[check.level])
        lines.add_row(level, f"{check.name}: {check.found}")
        if check.remedy:
            lines.add_row("", f"remedy: {check.remedy}")
    screen.show(lines)


def _release(version: str) -> tuple[int, ...]:
    """Returns the first two numbers of a version: "0.12.0.1" -> (0, 12)."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _words(path: str, keys: Iterable[str]) -> set[str]:
    """Returns the words of the first line "key : words" with one of `keys`."""
    for line in host_facts.read(path).splitlines():
        key, _, words = line.partition(":")
        if key.strip() in keys:
            return set(words.split())
    return set()


def _interfaces() -> Mapping[str, int]:
    """Returns the MTU of each interface that is up, in bytes."""
    found = {}
    for folder in Path("/sys/class/net").glob("*"):
        mtu_bytes = host_facts.number(f"{folder}/mtu")
        if (
            mtu_bytes is not None
            and host_facts.read(f"{folder}/operstate").strip() != "down"
        ):
            found[folder.name] = mtu_bytes
    return found


def _available_bytes() -> int:
    """Returns the memory that this process can allocate, in bytes."""
    fields = dict(re.findall(r"(\w+):\s+(\d+) kB", host_facts.read("/proc/meminfo")))
    available = int(fields.get("MemAvailable", 0)) * 1024
    limit = host_facts.number("/sys/fs/cgroup/memory.max")
    used = host_facts.number("/sys/fs/cgroup/memory.current")
    if limit is not None and used is not None:
        available = min(available, limit - used)
    return available
