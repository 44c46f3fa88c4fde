"""The metadata agrees with itself, and a build that cannot work says why."""

import email
import importlib.metadata
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
from source_tree import ROOT, files, relative, text

_PROJECT = tomllib.loads(text(ROOT / "pyproject.toml"))
_WHEELS = _PROJECT["tool"]["cibuildwheel"]
_OLDEST_JAX = re.search(
    r'^_OLDEST: Final = "(.+)"$',
    text(ROOT / "jax_optireduce/_jax_version.py"),
    re.MULTILINE,
).group(1)


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


def test_one_wheel_serves_all_releases_of_python_but_the_oldest():
    classified = _minors(
        r"Programming Language :: Python :: 3\.(\d+)",
        _PROJECT["project"]["classifiers"],
    )
    py_api = _PROJECT["tool"]["scikit-build"]["wheel"]["py-api"]
    assert py_api == f"cp3{classified[1]}"


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """The contents of the sdist by their names in the checkout."""
    folder = tmp_path_factory.mktemp("sdist")
    subprocess.run(
        [
            *(sys.executable, "-c"),
            f"import scikit_build_core.build as b; b.build_sdist({str(folder)!r})",
        ],
        check=True,
        capture_output=True,
        cwd=ROOT,
    )
    [path] = folder.glob("*.tar.gz")
    with tarfile.open(path) as file:
        return {
            member.name.partition("/")[2]: file.extractfile(member).read()
            for member in file
        }


def test_the_sdist_has_the_sources_of_a_build_the_pages_and_nothing_else(sdist):
    folders = ("docs/", "examples/", "ffi/", "jax_optireduce/")
    single = {"ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "README.md"}
    single |= {"LICENSE", "SECURITY.md", "pyproject.toml", "third_party/NOTICE.txt"}
    wanted = {
        name
        for name in map(relative, files())
        if name in single or name.startswith(folders)
    }
    assert set(sdist) - {"PKG-INFO"} == wanted
    assert single <= set(sdist)


def test_the_description_names_pages_of_the_sdist_instead_of_links_to_them(sdist):
    metadata = email.message_from_bytes(sdist["PKG-INFO"])
    assert metadata["Description-Content-Type"] == "text/markdown"
    description = metadata.get_payload()
    link = r"\]\((?!https?:)([^)#]*)"
    assert re.findall(link, description) == []
    assert "![" not in description
    assert "!Path" not in description
    folders = {name.partition("/")[0] for name in sdist}
    named = set(re.findall(link, sdist["README.md"].decode()))
    assert "docs/modes.md" in named
    for path in named:
        assert path in sdist or path in folders
        assert path in description
    assert "are in the source distribution" in description


def test_the_metadata_names_the_licences_of_all_that_a_wheel_contains(sdist):
    metadata = email.message_from_bytes(sdist["PKG-INFO"])
    assert metadata["License-Expression"] == "Apache-2.0 AND BSD-3-Clause AND MIT"
    assert set(metadata.get_all("License-File")) == {
        "LICENSE",
        "third_party/NOTICE.txt",
    }
    notice = sdist["third_party/NOTICE.txt"].decode()
    for project in ("OpenSSL", "XLA", "nanobind", "tsl::robin_map"):
        assert project in notice
    nanobind = importlib.metadata.distribution("nanobind")
    [licence] = [path for path in nanobind.files if path.name == "LICENSE"]
    assert licence.read_text().strip() in notice


def test_jax_has_one_lower_bound_and_no_upper_one():
    required = [r for r in _PROJECT["project"]["dependencies"] if r.startswith("jax")]
    assert required == [f"jax>={_OLDEST_JAX}", "jaxlib"]
    assert f"Any JAX from {_OLDEST_JAX} on" in text(ROOT / "docs/deploy.md")


def test_a_build_has_the_headers_of_the_oldest_supported_jax():
    # A jaxlib refuses handlers that were built with headers of a newer XLA FFI API.
    required = _PROJECT["build-system"]["requires"]
    assert [r for r in required if r.startswith("jax")] == [f"jax=={_OLDEST_JAX}"]
    oldest = re.findall(r'jax: "([0-9.]+)"', text(ROOT / ".github/workflows/ci.yml"))
    assert set(oldest) == {_OLDEST_JAX}


def test_the_environments_of_make_are_not_bound_to_the_oldest_jax():
    printed = subprocess.run(
        [sys.executable, ROOT / "tools/requirements.py", "test"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    found = [line for line in printed if line.startswith("jax")]
    assert found == [f"jax>={_OLDEST_JAX}", "jaxlib"]


def test_wheels_are_tried_with_the_oldest_a_middle_and_the_newest_jax():
    three_of = runpy.run_path(str(ROOT / "tools/try_wheels.py"))["three_of"]
    listed = f"jax (0.12.1)\nAvailable versions: 0.12.1, 0.11.0, {_OLDEST_JAX}, 0.10.1"
    assert three_of(listed) == [_OLDEST_JAX, "0.11.0", "0.12.1"]
    assert three_of(f"Available versions: {_OLDEST_JAX}, 0.9.0") == [_OLDEST_JAX]


def test_libcrypto_of_the_wheels_is_built_where_the_build_looks_for_it():
    linux = _WHEELS["linux"]
    prefix = linux["environment"]["OPENSSL_ROOT_DIR"]
    script = re.search(r"\{project\}/(\S+) (\S+)$", linux["before-all"])
    assert os.access(ROOT / script.group(1), os.X_OK)
    assert script.group(2) == prefix
    source = text(ROOT / script.group(1))
    left_out = re.search(r'^others="([^"]*)"', source, re.MULTILINE).group(1)
    assert {"shared", "autoload-config"} <= set(left_out.split())
    assert re.search(r"^VERSION=3\.5\.\d+$", source, re.MULTILINE)
    assert re.search(r"^SHA256=[0-9a-f]{64}$", source, re.MULTILINE)


def test_the_pages_name_the_openssl_that_the_script_builds():
    script = text(ROOT / "tools/build_libcrypto.sh")
    version = re.search(r"^VERSION=(.+)$", script, re.MULTILINE).group(1)
    for page in ("SECURITY.md", "CONTRIBUTING.md"):
        named = re.findall(r"[Oo]pen(?:SSL|ssl)[ -](\d+\.\d+\.\d+)", text(ROOT / page))
        assert set(named) == {version}, page


def test_the_install_line_names_the_library_that_doctor_advises():
    advised = re.search(
        r"apt-get install (libipsec\S+)", text(ROOT / "jax_optireduce/tools/doctor.py")
    )
    install = text(ROOT / "README.md").split("## Install", 1)[1].split("```sh")[0]
    assert "`libssl-dev`" in install
    assert f"`{advised.group(1)}`" in install


def test_actions_are_pinned_to_commits_with_their_version():
    workflows = sorted((ROOT / ".github/workflows").glob("*.yml"))
    uses = [
        line.partition("uses:")[2].strip()
        for path in workflows
        for line in text(path).splitlines()
        if "uses:" in line
    ]
    pinned = [re.fullmatch(r"([\w/-]+)@[0-9a-f]{40} # v[\d.]+", use) for use in uses]
    assert all(pinned), uses
    one_version_each = {match.group(1) for match in pinned}
    assert len(set(uses)) == len(one_version_each)


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


def _configure(
    build: Path, *options: str, succeeds: bool = False, **variables: str
) -> str:
    """Returns the errors and warnings of CMake."""
    tools = Path(sys.executable).parent
    environment = {k: v for k, v in os.environ.items() if k not in ("CXX", "CC")}
    environment |= variables
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
    assert (ran.returncode == 0) == succeeds, ran.stdout + ran.stderr
    return " ".join(ran.stderr.split())


def test_a_build_elsewhere_than_on_linux_names_the_system(tmp_path):
    errors = _configure(tmp_path, "-DCMAKE_SYSTEM_NAME=Darwin")
    assert "needs Linux, and this is Darwin" in errors
    assert errors.count("CMake Error") == 1


def test_a_build_without_a_compiler_names_the_package_to_install(tmp_path):
    errors = _configure(tmp_path, PATH=str(tmp_path))
    assert "needs a C++20 compiler (GCC 12, Clang 14 or newer), and none" in errors
    assert "apt-get install g++" in errors
    assert errors.count("CMake Error") == 1


_WITH_COMPILER = pytest.mark.skipif(shutil.which("c++") is None, reason="no c++ here")


@_WITH_COMPILER
def test_a_build_with_an_old_compiler_names_its_version(tmp_path):
    cxx = tmp_path / "old-c++"
    cxx.write_text('#!/bin/sh\nexec c++ -U__GNUC__ -D__GNUC__=11 "$@"\n')
    cxx.chmod(0o755)
    errors = _configure(tmp_path / "build", f"-DCMAKE_CXX_COMPILER={cxx}")
    assert re.search(r"needs GCC 12, Clang 14 or newer, and \S+ is GNU 11\.", errors)
    assert "CXX=g++-12 pip install ." in errors


@_WITH_COMPILER
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


@_WITH_COMPILER
@pytest.mark.parametrize("newer", [True, False])
def test_a_build_with_the_headers_of_a_newer_jaxlib_warns(tmp_path, newer):
    version = "99.0.1" if newer else _OLDEST_JAX
    (tmp_path / "jaxlib.py").write_text(f"__version__ = {version!r}")
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax/__init__.py").write_text("from jax import ffi")
    (tmp_path / "jax/ffi.py").write_text("include_dir = lambda: '/include'")
    warnings = _configure(
        tmp_path / "build",
        f"-DPython_EXECUTABLE={sys.executable}",
        succeeds=True,
        PYTHONPATH=str(tmp_path),
    )
    assert ("headers of jaxlib 99.0.1, and an older jaxlib may" in warnings) == newer
    assert (f"every JAX from {_OLDEST_JAX} on: pip install ." in warnings) == newer


def test_a_failed_build_ends_with_what_a_build_needs():
    message = _PROJECT["tool"]["scikit-build"]["messages"]["after-failure"]
    for package in ("g++", "python3-dev", "libssl-dev"):
        assert package in message
    assert "jax_optireduce was not built" in message
