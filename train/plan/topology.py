"""Absent devices to compile for: slices of TPUs and hosts of GPUs, and any number of pretended CPUs."""

import importlib.util
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from contexture.models.sharding import gpu_memory_fraction
from contexture.train.errors import ConfigError, install_hint
from contexture.train.mesh import Device
from contexture.train.plan.chips import CHIPS, Chip, named_devices

_EXAMPLES = {"tpu": "v5e:4x4", "gpu": "h100:1x8 (hosts x GPUs)", "cpu": "cpu:8"}
_AXES = {"tpu": (2, 3), "gpu": (1, 2)}
"""Platform → how many sizes a topology may have: v5e:4x4, h100:8 or h100:1x8."""
_EXTRAS = {"tpu": ("plan-tpu", ("libtpu",)), "gpu": ("plan-gpu", ("jax_plugins.xla_cuda13", "nvidia.cu13"))}
SLICE_GBPS = 25.0
"""Gigabits a second that a chip sends to other slices by default: hosts of four chips at 100 Gbit/s."""
_SEVERAL = re.compile(r"\s*([1-9]\d{0,2})\s*\*\s*(.*)", re.DOTALL)
"""2*v5e:4x4: a number of slices, and one of them."""
MAX_CPUS = 1024
"""Maximum number of CPU devices that one process pretends to have."""


@dataclass(frozen=True)
class Topology:
    """Devices to compile for.

    Args:
        name: `v5e:4x4`; of several slices `2*v5e:4x4`.
        chip: None for CPUs, whose peaks are unknown.
        devices: of all slices.
        memory: bytes that a device may use.
        slices: how many there are, joined by the network of their hosts.
        slice_gbps: gigabits a second that a device sends to other slices.
    """

    name: str
    chip: Chip | None
    devices: Sequence[Device]
    memory: float
    slices: int = 1
    slice_gbps: float = SLICE_GBPS


def silence_compilers() -> None:
    """Tells libtpu and XLA, which read it when they are loaded, that a missing chip is no error. Call it before jax is
    imported, or at least before it has started a device."""
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # no cloud is asked which machine this is
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    # 3: fatal errors only.
    for name in ("TF_CPP_MIN_LOG_LEVEL", "TPU_MIN_LOG_LEVEL", "TPU_STDERR_LOG_LEVEL"):
        os.environ.setdefault(name, "3")


def topology(text: str, slice_gbps: float = SLICE_GBPS) -> Topology:
    """Returns the devices named by `v5e:16x16`, `v5litepod-256`, `2*v5e:16x16` (two slices), `h100:1x8`, `t4` or
    `cpu:8`.

    Raises ConfigError for an unreadable name, a slice that does not exist, or a compiler that is not installed.
    """
    if not slice_gbps > 0:
        raise ConfigError(f"slice-gbps={slice_gbps} is not above 0 gigabits a second")
    several = _SEVERAL.fullmatch(text)
    slices, one = (int(several[1]), several[2]) if several else (1, text)
    name, sizes = named_devices(one)
    if several and name in CHIPS and CHIPS[name].platform != "tpu":
        raise ConfigError(f"topology={text!r}: slices are of TPUs; give hosts x GPUs, such as h100:4x8")
    if name == "cpu" and not several and len(sizes) == 1 and sizes[0] <= MAX_CPUS:
        return _cpus(text, sizes[0])
    chip = CHIPS.get(name)
    # A slice of TPUs is a grid or a torus, at least `2x2`; GPUs are in hosts. Refused before the compiler is looked
    # for: a user with a wrong size should not install something first, and its own message is hard to read.
    if chip is None or len(sizes) not in _AXES[chip.platform]:
        examples = ", ".join(
            _EXAMPLES[chip.platform] if chip else example for example in ([""] if chip else _EXAMPLES.values())
        )
        wrong = f"topology={text!r} is not CHIP:SIZE" if chip or name == "cpu" else f"there is no chip {name!r}"
        if chip and not sizes and "-" in text:
            wrong = f"there is no slice {text!r}: the number of its chips is a power of two"
        raise ConfigError(f"{wrong}; give {', '.join(CHIPS)} or cpu and its size, such as {examples}")
    _check_compiler(chip)
    from jax.experimental import topologies

    shown, more = f"{name}:{'x'.join(map(str, sizes))}", dict[str, Any]()
    if chip.platform == "gpu":
        # Importing the plug-in registers the platform cuda, also on a machine without a GPU or driver.
        importlib.import_module("jax_plugins.xla_cuda13")
        hosts, gpus = sizes if len(sizes) == 2 else (1, sizes[0])
        # slices × hosts × GPUs; the compiler is told about the GPU in text, since it cannot ask one.
        more = {"target_config": chip.target, "topology": f"1x{hosts}x{gpus}"}
    elif slices > 1:
        more = {"num_slices": slices}
    try:
        platform = "cuda" if chip.platform == "gpu" else "tpu"
        described = topologies.get_topology_desc(platform=platform, topology_name=shown, **more)
    except Exception as error:  # whatever a plug-in raises
        why = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ConfigError(f"topology={text!r}: its compiler knows no such slice: {why}") from None
    # On a GPU, programs have only the share of the memory that jax sets aside for them.
    fraction = gpu_memory_fraction() if chip.platform == "gpu" else 1.0
    shown = f"{slices}*{shown}" if slices > 1 else shown
    return Topology(shown, chip, described.devices, chip.memory * fraction, slices, slice_gbps)


def _check_compiler(chip: Chip) -> None:
    extra, modules = _EXTRAS[chip.platform]
    for module in modules:
        try:
            # Looked up and not imported: importing would start the plug-in.
            installed = importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:
            installed = False
        if not installed:
            raise ConfigError(
                f"compiling for {chip.name} needs {module.split('.')[0]}, which is not installed; "
                + install_hint(extra)
            )


def _cpus(text: str, count: int) -> Topology:
    # Only before jax has started its CPU backend; afterwards the number is fixed.
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        pass  # jax has started already: its number of devices is checked below
    devices = jax.devices("cpu")
    if len(devices) < count:
        raise ConfigError(
            f"topology={text!r}: jax has started with {len(devices)} CPU devices in this process; plan in a new one"
        )
    return Topology(text, None, devices[:count], os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / count)
