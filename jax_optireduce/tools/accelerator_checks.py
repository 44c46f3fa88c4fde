"""The findings of `doctor` about GPU and TPU.

Plug-ins are loaded, and no device is opened: a training program may use it.
"""

import ctypes
import dataclasses
import importlib.metadata
import importlib.util
from collections.abc import Iterable, Mapping
from pathlib import Path

from jax_optireduce._session import accelerators
from jax_optireduce.tools.check import Check, Level


@dataclasses.dataclass(frozen=True, kw_only=True)
class Package:
    """A package with a plug-in of JAX.

    Attributes:
      name: of the distribution.
      module: that holds the library.
      library: its file.
      platform: JAX's name of the devices.
      extra: of the distribution jax, which installs it.
    """

    name: str
    module: str
    library: str
    platform: str
    extra: str


# Source: the extras of jax 0.12.
PACKAGES = (
    *(
        Package(
            name=f"jax-{kind}-pjrt",
            module=f"jax_plugins.xla_{kind}",
            library=f"xla_{platform}_plugin.so",
            platform=platform,
            extra=extra,
        )
        for kind, platform, extra in (
            ("cuda12", "cuda", "cuda12"),
            ("cuda13", "cuda", "cuda13"),
            ("rocm7", "rocm", "rocm7-local"),
        )
    ),
    Package(
        name="libtpu",
        module="libtpu",
        library="libtpu.so",
        platform="tpu",
        extra="tpu",
    ),
)

# The platforms on which this package has run. Source: docs/accelerators.md.
_RAN = ("cuda",)

# The devices of a platform, as files.
_DEVICES = {
    "cuda": ("/dev/nvidia[0-9]*",),
    "rocm": ("/dev/dri/renderD*",),
    "tpu": ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*"),
}

# Chosen: the network thread, and one for completions.
_CORES_OF_NETWORK = 2


def examine(cores: int, environment: Mapping[str, str]) -> list[Check]:
    """Returns the findings, or one that no plug-in is installed.

    Args:
      cores: that this process may use.
      environment: usually `os.environ`.
    """
    checks = []
    for package in PACKAGES:
        path = _library(package)
        if not path.exists():
            continue
        devices = count_devices(package.platform)
        version = importlib.metadata.version(package.name)
        try:
            ctypes.CDLL(str(path))
            plugin = accelerators.ask(package.platform, str(path))
        except OSError as error:
            plugin = accelerators.Plugin(
                platform=package.platform, path=str(path), refusal=str(error)
            )
        checks.append(check_plugin(plugin, version, devices, package.extra))
        if devices:
            checks.append(check_cores_of_devices(cores, devices))
            checks.append(check_network(_names("/sys/class/infiniband")))
        if package.platform == "tpu":
            checks += check_slices(environment)
    if checks:
        return checks
    return [Check(name="accelerators", level=Level.PASS, found="no plug-in of JAX")]


def _library(package: Package) -> Path:
    try:
        spec = importlib.util.find_spec(package.module)
    except ModuleNotFoundError:
        spec = None
    folders = (spec.submodule_search_locations if spec else None) or ["/nonexistent"]
    return Path(folders[0]) / package.library


def _names(folder: str) -> list[str]:
    return sorted(path.name for path in Path(folder).glob("*"))


def count_devices(platform: str) -> int:
    """Returns the number of device files of a platform on this host."""
    return sum(
        1
        for pattern in _DEVICES[platform]
        for _ in Path("/").glob(pattern.removeprefix("/"))
    )


def check_plugin(
    plugin: accelerators.Plugin, version: str, devices: int, extra: str
) -> Check:
    """Checks that a plug-in takes the handlers of this package.

    Args:
      plugin: the plug-in, after it was asked.
      version: of its package.
      devices: number of devices on this host.
      extra: of the distribution jax, which installs it.
    """
    name = f"plug-in of JAX for {plugin.platform}"
    about = f"{version}, {devices} devices on this host"
    if plugin.refusal:
        return Check(
            name=name,
            level=Level.WARN,
            found=f"{about}; no handlers of this package: {plugin.refusal}",
            remedy=f"pip install --upgrade 'jax[{extra}]', or "
            "JAX_OPTIREDUCE_BACKEND=xla for JAX's own collectives",
        )
    found = f"{about}; takes the handlers (PJRT {plugin.version})"
    if plugin.platform not in _RAN:
        found += (
            ". This package compiles for, has not yet run on such a device: "
            "tools/try_accelerator.py examines it, please report its output"
        )
    return Check(name=name, level=Level.PASS, found=found)


def check_cores_of_devices(cores: int, devices: int) -> Check:
    """Checks that the host computations have cores besides the network.

    Args:
      cores: that this process may use.
      devices: number of devices on this host.
    """
    enough = cores >= _CORES_OF_NETWORK + devices
    return Check(
        name="cores for the devices",
        level=Level.PASS if enough else Level.WARN,
        found=f"{cores} for {devices} devices: one each, and "
        f"{_CORES_OF_NETWORK} for the network",
        remedy=""
        if enough
        else f"give each process {_CORES_OF_NETWORK + devices} cores",
    )


def check_network(infiniband: Iterable[str]) -> Check:
    """Checks for a network on which XLA's collectives are faster.

    Args:
      infiniband: names of the InfiniBand and RoCE devices of this host.
    """
    found = ", ".join(infiniband)
    return Check(
        name="network of the devices",
        level=Level.WARN if found else Level.PASS,
        found=f"InfiniBand or RoCE ({found}), over which NCCL is faster than this "
        "package"
        if found
        else "no InfiniBand",
        remedy="JAX_OPTIREDUCE_BACKEND=xla takes JAX's own collectives"
        if found
        else "",
    )


def check_slices(environment: Mapping[str, str]) -> list[Check]:
    """Checks the slices of a TPU program, if the environment describes them.

    Args:
      environment: MEGASCALE_NUM_SLICES and TPU_WORKER_HOSTNAMES, as Cloud TPU sets
        them.
    """
    slices = environment.get("MEGASCALE_NUM_SLICES", "")
    if not slices.isdigit():
        return []
    hosts = len(environment.get("TPU_WORKER_HOSTNAMES", "localhost").split(","))
    few = int(slices) < 3
    found = f"{slices} of {hosts} hosts each"
    if few:
        found += "; calls continue without a dead one from three slices on"
    if hosts > 1:
        found += "; a dead host also stops the collectives of XLA in its slice"
    return [
        Check(
            name="slices",
            level=Level.WARN if few else Level.PASS,
            found=found,
            remedy="use three slices or more to continue without one" if few else "",
        )
    ]
