"""Absent devices to compile for: slices of TPUs and hosts of GPUs, and any number of pretended CPUs."""

import importlib.util
import os
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
MAX_CPUS = 1024
"""Maximum number of CPU devices that one process pretends to have."""


@dataclass(frozen=True)
class Topology:
    """Devices to compile for. chip: None for CPUs, whose peaks are unknown. memory: bytes that a device may use."""

    name: str
    chip: Chip | None
    devices: Sequence[Device]
    memory: float


def silence_compilers() -> None:
    """Tells libtpu and XLA, which read it when they are loaded, that a missing chip is no error. Call it before jax is
    imported, or at least before it has started a device."""
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # no cloud is asked which machine this is
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    # 3: fatal errors only.
    for name in ("TF_CPP_MIN_LOG_LEVEL", "TPU_MIN_LOG_LEVEL", "TPU_STDERR_LOG_LEVEL"):
        os.environ.setdefault(name, "3")


def topology(text: str) -> Topology:
    """Returns the devices named by `v5e:16x16`, `v5litepod-256`, `h100:1x8`, `t4` or `cpu:8`.

    Raises ConfigError for an unreadable name, a slice that does not exist, or a compiler that is not installed.
    """
    name, sizes = named_devices(text)
    if name == "cpu" and len(sizes) == 1 and sizes[0] <= MAX_CPUS:
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
    try:
        platform = "cuda" if chip.platform == "gpu" else "tpu"
        described = topologies.get_topology_desc(platform=platform, topology_name=shown, **more)
    except Exception as error:  # whatever a plug-in raises
        why = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ConfigError(f"topology={text!r}: its compiler knows no such slice: {why}") from None
    # On a GPU, programs have only the share of the memory that jax sets aside for them.
    fraction = gpu_memory_fraction() if chip.platform == "gpu" else 1.0
    return Topology(shown, chip, described.devices, chip.memory * fraction)


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
