"""Builds the C++ core with other options, beside the installed one.

The build has a package of its own. It serves tools that change or instrument the
sources: planted bugs, sanitizers, coverage.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent

# The editable installation provides the package of the checkout; this removes it.
_SITE = """\
import sys
sys.meta_path[:] = [
    finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__
]
"""


def write(path: Path, text: str) -> None:
    """Writes a file unless its content is equal, which would cause a compilation."""
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def build(
    source: Path, folder: Path, options: Iterable[str], programs: Sequence[str]
) -> None:
    """Builds both extension modules and some programs of the sources in a folder.

    `source` contains ffi/ and tests/native/, as in the checkout.
    """
    tools = Path(sys.executable).parent
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    cmake = shutil.which("cmake", path=path) or "cmake"
    configure = [cmake, "-G", "Ninja", "-S", source / "ffi", "-B", folder, *options]
    configure += ["-DOPTIREDUCE_TESTING=ON", f"-DPython_EXECUTABLE={sys.executable}"]
    targets = ["_native", "optireduce_testing", "optireduce_fake_plugin", *programs]
    for command in (configure, [cmake, "--build", folder, "--target", *targets]):
        environment = {**os.environ, "PATH": path}
        subprocess.run(command, check=True, env=environment, stdout=sys.stderr)


def make_package(built: Path, folder: Path, source: Path = ROOT) -> dict[str, str]:
    """Puts the package of a source tree, with the modules of a build, into a folder.

    Returns the environment in which Python and its child processes use that package.
    """
    write(folder / "sitecustomize.py", _SITE)
    for path in (source / "jax_optireduce").rglob("*.py"):
        write(folder / path.relative_to(source), path.read_text())
    package = folder / "jax_optireduce"
    (package / "bin").mkdir(exist_ok=True)
    for module in built.glob("_native.*.so"):
        shutil.copy2(module, package / module.name)
    for module in (built / "native").glob("*optireduce_*.so"):
        shutil.copy2(module, folder / module.name)
    if (built / "optireduce_simulate").exists():
        shutil.copy2(built / "optireduce_simulate", package / "bin")
    return {
        **os.environ,
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
