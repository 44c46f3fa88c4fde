"""`doctor`: its judgement of figures, and an examination of this host."""

import json
import math
import re
import subprocess
import sys

import pytest

from jax_optireduce.tools import doctor
from jax_optireduce.tools.doctor import Level


@pytest.mark.parametrize(
    ("system", "release", "level"),
    [
        ("Linux", "6.1.0-18-amd64", Level.PASS),
        ("Linux", "5.0", Level.PASS),
        ("Linux", "4.15.0", Level.WARN),
        ("Darwin", "23.1.0", Level.FAIL),
    ],
)
def test_kernel(system, release, level):
    assert doctor.check_kernel(system, release).level is level


@pytest.mark.parametrize(
    ("version", "level"),
    [
        ("0.9.2", Level.WARN),
        ("0.10.2", Level.PASS),
        ("0.12.0.1", Level.PASS),
        ("0.13.0", Level.WARN),
    ],
)
def test_jax_is_compared_with_the_range_of_the_package(version, level):
    check = doctor.check_jax(version)
    assert check.level is level
    assert bool(check.remedy) == (level is not Level.PASS)


@pytest.mark.parametrize(
    ("direction", "limit"),
    [("receive", "net.core.rmem_max"), ("send", "net.core.wmem_max")],
)
def test_a_small_socket_buffer_comes_with_the_command_that_raises_it(direction, limit):
    # The default limit of Linux, for a socket that requests more.
    check = doctor.check_buffer(direction, 212_992, 8 << 20)
    assert check.level is Level.WARN
    assert "0.2 MiB of 8 MiB wanted" in check.found
    assert check.remedy == f"sudo sysctl -w {limit}=8388608"
    assert doctor.check_buffer(direction, 8 << 20, 8 << 20).level is Level.PASS


@pytest.mark.parametrize(
    ("mtu_bytes", "level"),
    [
        (65_536, Level.PASS),
        (1500, Level.PASS),
        (1460, Level.PASS),  # Google Cloud
        (1400, Level.PASS),  # an overlay of containers
        (1200, Level.WARN),
        (500, Level.FAIL),
    ],
)
def test_mtu(mtu_bytes, level):
    check = doctor.check_mtu("eth0", mtu_bytes)
    assert check.level is level
    assert ("eth0" in check.remedy) == (level is not Level.PASS)


def test_no_remedy_names_an_mtu_that_the_path_may_not_have():
    for mtu_bytes in (500, 1200):
        remedy = doctor.check_mtu("eth0", mtu_bytes).remedy
        assert "ping -M do" in remedy
        assert not re.search(r"mtu \d|\b\d{4,}\b", remedy)


def test_cores_count_the_limit_of_the_container():
    assert doctor.check_cores(8, math.inf).level is Level.PASS
    assert doctor.check_cores(8, 0.5).level is Level.WARN
    assert doctor.check_cores(1, math.inf).level is Level.WARN


def test_hardware_ciphers_of_both_architectures_count():
    assert doctor.check_ciphers({"aes", "pclmulqdq", "sse2"}).level is Level.PASS
    assert doctor.check_ciphers({"aes", "pmull"}).level is Level.PASS
    assert doctor.check_ciphers({"sse2"}).level is Level.WARN


@pytest.mark.parametrize(
    ("library", "flags", "level"),
    [
        ("OpenSSL 3.0.19 27 Jan 2026", doctor._VECTOR_FLAGS, Level.WARN),
        ("OpenSSL 3.1.0 14 Mar 2023", doctor._VECTOR_FLAGS, Level.PASS),
        ("OpenSSL 3.0.19 27 Jan 2026", {"aes", "pclmulqdq", "avx512f"}, Level.PASS),
        ("intel-ipsec-mb 1.3.0", doctor._VECTOR_FLAGS, Level.PASS),
    ],
)
def test_an_old_libcrypto_leaves_vectors_unused(library, flags, level):
    check = doctor.check_cipher_library(library, flags)
    assert check.level is level
    assert library in check.found


def test_this_host_is_examined():
    checks = {check.name: check for check in doctor.examine()}
    assert checks["cipher library"].found.startswith(("OpenSSL 3", "intel-ipsec-mb 1"))
    assert checks["kernel"].level is Level.PASS
    assert checks["MTU of lo"].level is Level.PASS
    for check in checks.values():
        assert bool(check.remedy) == (check.level is not Level.PASS), check


@pytest.mark.parametrize("as_json", [True, False])
def test_the_exit_code_says_whether_a_check_failed(tmp_path, as_json):
    command = [sys.executable, "-m", "jax_optireduce", "doctor"]
    found = subprocess.run(
        command + ["--json"] * as_json,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    if as_json:
        report = json.loads(found.stdout)
        levels = [check["level"] for check in report["checks"]]
        assert report["ok"] == ("FAIL" not in levels)
    else:
        levels = [line.split()[0] for line in found.stdout.splitlines()]
        assert "\x1b" not in found.stdout, "colours where there is no terminal"
    assert found.returncode == (1 if "FAIL" in levels else 0), found.stderr
