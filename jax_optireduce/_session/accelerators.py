"""Plug-ins of GPU and TPU devices, and the way of a call from a program to this host.

A program for CPU devices calls the handlers directly. A program for a GPU or TPU calls
them in a host computation, which the compiler in the plug-in makes: it copies the
operands to the host, runs the handler there, and copies the results back. The compiler
finds the handlers in a table of the plug-in, so they must be registered there before
it compiles a call: the GPU compiler ends the process at a call of an unknown handler.

Registration happens in `init` for the plug-ins that JAX has loaded, and at the lowering
of the first call for the others.
"""

import dataclasses
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path

import jax

from jax_optireduce import _native
from jax_optireduce._errors import UsageError
from jax_optireduce._jax_version import release

_log = logging.getLogger("jax_optireduce")

# JAX's names of the platforms, by the beginning of the file name of their plug-in.
# Source: the packages jax-cuda12-pjrt, jax-cuda13-pjrt, jax-rocm7-pjrt and libtpu.
_PLATFORMS = {
    "xla_cuda_plugin": "cuda",
    "xla_rocm_plugin": "rocm",
    "libtpu": "tpu",
}
PLATFORMS = tuple(_PLATFORMS.values())

# The first release of JAX whose programs run on CUDA devices. In earlier ones XLA joins
# pinned buffers of two allocations into one copy, which CUDA refuses at some sizes.
# Source: openxla/xla, issue 42349.
_CUDA_FROM = "0.11.2"

# The variable with which JAX finds another libtpu.
_TPU_LIBRARY = "TPU_LIBRARY_PATH"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plugin:
    """A PJRT plug-in in this process.

    Attributes:
      platform: JAX's name of its devices.
      path: of its library.
      version: of its PJRT C API, "0.116"; "" if unknown.
      refusal: the reason why it has no handlers of this package; "" if it has them.
    """

    platform: str
    path: str
    version: str = ""
    refusal: str = ""


# The plug-ins that were asked, by path; the answer does not change.
_asked: dict[str, Plugin] = {}
_asking = threading.Lock()


def register() -> list[Plugin]:
    """Registers the handlers with all plug-ins that this process has loaded."""
    with _asking:
        for path in sorted(mapped_libraries()):
            platform = platform_of(path, os.environ)
            if platform and path not in _asked:
                _asked[path] = ask(platform, path)
                if _asked[path].refusal:
                    _log.warning("%s", _describe(_asked[path]))
        return list(_asked.values())


def ask(platform: str, path: str) -> Plugin:
    """Registers the handlers with a loaded plug-in."""
    if platform == "cuda" and release(jax.__version__) < release(_CUDA_FROM):
        refusal = (
            f"CUDA devices need JAX {_CUDA_FROM} or newer (Python 3.12), and this is "
            f"{jax.__version__}, which copies some buffers wrongly (openxla/xla#42349)"
        )
        return Plugin(platform=platform, path=path, refusal=refusal)
    try:
        major, minor = _native.register_with_plugin(path)
    except RuntimeError as error:
        return Plugin(platform=platform, path=path, refusal=str(error))
    return Plugin(platform=platform, path=path, version=f"{major}.{minor}")


def platform_of(path: str, environment: Mapping[str, str]) -> str:
    """Returns the platform of the plug-in in a library, "" for other libraries."""
    if path == environment.get(_TPU_LIBRARY):
        return "tpu"
    name = Path(path).name
    found = (p for stem, p in _PLATFORMS.items() if name.startswith(stem))
    return next(found, "")


def mapped_libraries() -> set[str]:
    """Returns the shared libraries of this process, by path."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return set()
    paths = (line.split(maxsplit=5)[5:] for line in lines)
    return {path[0] for path in paths if path and ".so" in Path(path[0]).name}


def check(platform: str, kind: str) -> None:
    """Checks that the calls of a program can be compiled for a GPU or TPU.

    Args:
      platform: of the program.
      kind: the public function, for the message.

    Raises:
      UsageError: the plug-in of the platform has no handlers, or is not there.
    """
    plugins = [plugin for plugin in register() if plugin.platform == platform]
    refused = next((plugin for plugin in plugins if plugin.refusal), None)
    if plugins and refused is None:
        return
    raise UsageError(
        f"{kind} cannot be compiled for {platform}: {_reason(refused, platform)} "
        "Install the plug-in of the same release as jax (python -m jax_optireduce "
        "doctor examines it), or set JAX_OPTIREDUCE_BACKEND=xla: every call then "
        "becomes the jax.lax one."
    )


def _reason(refused: Plugin | None, platform: str) -> str:
    """Returns why calls cannot be compiled: a plug-in refused them, or none exists."""
    if refused is not None:
        return _describe(refused)
    names = [f"{start}*.so" for start, of in _PLATFORMS.items() if of == platform]
    return (
        f"this process has not loaded a plug-in of JAX for {platform} "
        f"({' or '.join(names)})."
    )


def _describe(plugin: Plugin) -> str:
    return (
        f"the plug-in {plugin.path} has no handlers of jax_optireduce, because "
        f"{plugin.refusal}."
    )
