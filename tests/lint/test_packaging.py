"""The metadata agrees with itself, and a build that cannot work says why."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from source_tree import ROOT, text

_PROJECT = tomllib.loads(text(ROOT / "pyproject.toml"))
_WHEELS = _PROJECT["tool"]["cibuildwheel"]
_JAX_VERSION = text(ROOT / "jax_optireduce/_jax_version.py")


def _minors(pattern: str, texts: list[str]) -> list[int]:
    found = [re.fullmatch(pattern, each) for each in texts]
    return sorted(int(each.group(1)) for each in found if each)


def test_python_releases_are_the_same_in_every_place():
    project = _PROJECT["project"]
    classified = _minors(
        r"Programming Language :: Python :: 3\.(\d+)", project["classifiers"]
    )
    assert _minors(r"cp3(\d+)-\*", _WHEELS["build"]) == classified
    assert len(classified) == len(_WHEELS["build"])
    assert project["requires-python"] == f">=3.{classified[0]}"
    cmake = text(ROOT / "ffi/CMakeLists.txt")
    assert f"find_package(Python 3.{classified[0]} " in cmake
    assert classified == list(range(classified[0], classified[-1] + 1))


def test_jax_has_one_lower_bound_and_no_upper_one():
    oldest = re.search(r'^_OLDEST: Final = "(.+)"$', _JAX_VERSION, re.MULTILINE)
    required = f"jax>={oldest.group(1)}"
    assert required in _PROJECT["project"]["dependencies"]
    assert required in _PROJECT["build-system"]["requires"]


def test_libcrypto_of_the_wheels_is_built_where_the_build_looks_for_it():
    linux = _WHEELS["linux"]
    prefix = linux["environment"]["OPENSSL_ROOT_DIR"]
    script = re.search(r"\{project\}/(\S+) (\S+)$", linux["before-all"])
    assert os.access(ROOT / script.group(1), os.X_OK)
    assert script.group(2) == prefix
    assert f"LD_LIBRARY_PATH={prefix}/lib " in linux["repair-wheel-command"]
    source = text(ROOT / script.group(1))
    assert re.search(r"^VERSION=3\.5\.\d+$", source, re.MULTILINE)
    assert re.search(r"^SHA256=[0-9a-f]{64}$", source, re.MULTILINE)


def test_a_tarball_of_other_contents_is_not_built(tmp_path):
    tarball = tmp_path / "openssl.tar.gz"
    tarball.write_bytes(b"not that of OpenSSL")
    built = subprocess.run(
        [ROOT / "tools/build_libcrypto.sh", tmp_path / "prefix", tarball],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode != 0
    assert "FAILED" in built.stdout + built.stderr
    assert not (tmp_path / "prefix").exists()


def _configure(build: Path, *options: str, path: str | None = None) -> str:
    """Returns the output of CMake, which must fail."""
    tools = Path(sys.executable).parent
    environment = {k: v for k, v in os.environ.items() if k not in ("CXX", "CC")}
    if path is not None:
        environment["PATH"] = path
    ran = subprocess.run(
        [
            *(tools / "cmake", "-G", "Ninja", "-S", ROOT / "ffi", "-B", build),
            f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}",
            *options,
        ],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert ran.returncode != 0, ran.stdout
    return " ".join(ran.stderr.split())


def test_a_build_without_a_compiler_names_the_package_to_install(tmp_path):
    errors = _configure(tmp_path, path=str(tmp_path))
    assert "needs a C++20 compiler (GCC 12, Clang 14 or newer), and none" in errors
    assert "apt-get install g++" in errors
    assert errors.count("CMake Error") == 1


@pytest.mark.skipif(
    subprocess.run(
        ["sh", "-c", "command -v c++"], capture_output=True, check=False
    ).returncode
    != 0,
    reason="no c++ here",
)
def test_a_build_without_openssl_headers_names_the_package_to_install(tmp_path):
    errors = _configure(
        tmp_path,
        "-DOPTIREDUCE_PYTHON=OFF",
        f"-DCMAKE_FIND_ROOT_PATH={tmp_path}",
        "-DCMAKE_FIND_ROOT_PATH_MODE_INCLUDE=ONLY",
        "-DCMAKE_FIND_ROOT_PATH_MODE_LIBRARY=ONLY",
    )
    assert "needs OpenSSL's libcrypto, 3.0 or newer, with its headers" in errors
    assert "apt-get install libssl-dev" in errors
    assert errors.count("CMake Error") == 1


def test_a_failed_build_ends_with_what_a_build_needs():
    message = _PROJECT["tool"]["scikit-build"]["messages"]["after-failure"]
    for package in ("g++", "python3-dev", "libssl-dev"):
        assert package in message
    assert "jax_optireduce was not built" in message
