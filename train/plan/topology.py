"""Devices that are not here: the chips that programs can be compiled for, with their peaks by the data sheets."""

import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from contexture.models.sharding import gpu_memory_fraction
from contexture.train.errors import ConfigError, install_hint
from contexture.train.mesh import Device

GIB = 2**30


@dataclass(frozen=True)
class Chip:
    """One accelerator. Peaks are dense, without sparsity.

    bf16, f32, int8     FLOP/s of products, by the type of their factors; a TPU multiplies float32 in six passes
    fp8                 likewise; a chip that has no such products converts the factors to bfloat16
    bandwidth           bytes/s of its memory
    memory              bytes that a program may use, before a framework sets some aside
    links               bytes/s that it can send to its neighbours at once, over all its links one way: over a
                        slice's torus, or NVLink
    """

    name: str
    platform: str
    bf16: float
    f32: float
    int8: float
    fp8: float
    bandwidth: float
    memory: float
    links: float
    target: str = ""
    """For a GPU: its description for the compiler."""

    def seconds(self, flops: dict[str, float]) -> float:
        """Returns the least time for products, {type of the factors: FLOPs}."""
        peaks = {"f32": self.bf16 if self.platform == "tpu" else self.f32, "f64": self.f32 / 2, "s8": self.int8,
                 "u8": self.int8, "f8e4m3fn": self.fp8, "f8e5m2": self.fp8,
                 "f32:highest": self.f32, "f32:high": self.bf16 / 3}  # fmt: skip
        return sum(count / peaks.get(dtype, self.bf16) for dtype, count in flops.items())


def _tpu(name: str, bf16: float, int8: float, bandwidth: float, gib: float, links: float) -> Chip:
    return Chip(name, "tpu", bf16, bf16 / 6, int8, bf16, bandwidth, gib * GIB, links)


def _gpu(name: str, device: str, peaks: tuple[float, float, float, float], memory: tuple[float, float], links: float,
         core: Mapping[str, object]) -> Chip:  # fmt: skip
    """memory: bytes/s, and MiB."""
    bandwidth, size = memory[0], memory[1] * 2**20
    facts = {"threads_per_block_limit": 1024, "threads_per_warp": 32, "shared_memory_per_block": 49152,
             "threads_per_core_limit": 2048, "block_dim_limit_x": 2147483647, "block_dim_limit_y": 65535,
             "block_dim_limit_z": 65535, "registers_per_core_limit": 65536, "registers_per_block_limit": 65536,
             "memory_bandwidth": int(bandwidth), "device_memory_size": int(size), **core}  # fmt: skip
    info = " ".join(f"{field} {{ {value} }}" if isinstance(value, str) else f"{field}: {value}"
                    for field, value in facts.items())  # fmt: skip
    target = (f'gpu_device_info {{ {info} }} platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 10 }} '
              f'device_description_str: "{device}"')  # fmt: skip
    return Chip(name, "gpu", *peaks, bandwidth, size, links, target)


_HOPPER = {"shared_memory_per_core": 233472, "shared_memory_per_block_optin": 232448, "core_count": 132,
           "fpus_per_core": 128, "l2_cache_size": 50 * 2**20, "clock_rate_ghz": 1.98,
           "cuda_compute_capability": "major: 9 minor: 0 feature_extension: ACCELERATED_FEATURES"}  # fmt: skip
_AMPERE = {"shared_memory_per_core": 167936, "shared_memory_per_block_optin": 166912, "core_count": 108,
           "fpus_per_core": 64, "l2_cache_size": 40 * 2**20, "clock_rate_ghz": 1.41,
           "cuda_compute_capability": "major: 8 minor: 0"}  # fmt: skip
CHIPS = {
    chip.name: chip
    for chip in (
        _tpu("v5e", 197e12, 394e12, 0.819e12, 15.75, 1.8e11),
        _tpu("v5p", 459e12, 918e12, 2.765e12, 95.74, 5.4e11),
        _tpu("v6e", 918e12, 1836e12, 1.64e12, 31.25, 3.6e11),
        _gpu(
            "h200",
            "NVIDIA H200",
            (989e12, 67e12, 1979e12, 1979e12),
            (4.8e12, 143771),
            4.0e11,
            _HOPPER | {"l2_cache_size": 60 * 2**20},
        ),
        _gpu("h100", "NVIDIA H100 80GB HBM3", (989e12, 67e12, 1979e12, 1979e12), (3.35e12, 81559), 4.0e11, _HOPPER),
        _gpu("a100", "NVIDIA A100-SXM4-80GB", (312e12, 19.5e12, 624e12, 312e12), (2.039e12, 81920), 2.7e11, _AMPERE),
    )
}
_EXAMPLES = {"tpu": "v5e:4x4", "gpu": "h100:1x8 (hosts x GPUs)", "cpu": "cpu:8"}
_AXES = {"tpu": (2, 3), "gpu": (1, 2)}
"""How many sizes a platform's devices have."""
_EXTRAS = {"tpu": ("plan-tpu", ("libtpu",)),
           "gpu": ("plan-gpu", ("jax_plugins.xla_cuda13", "nvidia.cu13"))}  # fmt: skip
MAX_CPUS = 1024
"""Devices that one process pretends to have."""


@dataclass(frozen=True)
class Topology:
    """Devices to compile for. chip: None for CPUs, whose peaks are not known. memory: bytes a device may use."""

    name: str
    chip: Chip | None
    devices: Sequence[Device]
    memory: float


def silence_compilers() -> None:
    """Sets what libtpu and XLA read when they are loaded: that there is no chip here, and that it is no fault. Before
    jax is imported, or at least before it has started a device."""
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # no cloud is asked which machine this is
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    for name in ("TF_CPP_MIN_LOG_LEVEL", "TPU_MIN_LOG_LEVEL", "TPU_STDERR_LOG_LEVEL"):
        os.environ.setdefault(name, "3")


def topology(text: str) -> Topology:
    """Returns the devices that `v5e:16x16`, `h100:1x8` or `cpu:8` names.

    Raises ConfigError for what cannot be read, a slice that does not exist, or a compiler that is not installed.
    """
    name, _, shape = text.partition(":")
    sizes = [int(size) for size in shape.split("x")] if re.fullmatch(r"[1-9]\d{0,4}(x[1-9]\d{0,4})*", shape) else []
    if name == "cpu" and len(sizes) == 1 and sizes[0] <= MAX_CPUS:
        return _cpus(text, sizes[0])
    chip = CHIPS.get(name)
    # A slice of TPUs is a grid or a torus, `2x2` the least; GPUs stand in hosts. Refused here, since a compiler that is
    # not installed would be named first, and it explains a bad size in words of its own.
    if chip is None or len(sizes) not in _AXES[chip.platform]:
        examples = ", ".join(_EXAMPLES[chip.platform] if chip else example for example in
                             ([""] if chip else _EXAMPLES.values()))  # fmt: skip
        wrong = f"topology={text!r} is not CHIP:SIZE" if chip or name == "cpu" else f"there is no chip {name!r}"
        raise ConfigError(f"{wrong}; give {', '.join(CHIPS)} or cpu and its size, such as {examples}")
    _check_compiler(chip)
    from jax.experimental import topologies

    more: dict[str, Any] = {}
    if chip.platform == "gpu":
        importlib.import_module("jax_plugins.xla_cuda13")
        hosts, gpus = sizes if len(sizes) == 2 else (1, sizes[0])
        more = {"target_config": chip.target, "topology": f"1x{hosts}x{gpus}"}
    try:
        platform = "cuda" if chip.platform == "gpu" else "tpu"
        described = topologies.get_topology_desc(platform=platform, topology_name=text, **more)
    except Exception as error:  # whatever a plug-in raises
        why = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ConfigError(f"topology={text!r}: its compiler knows no such slice: {why}") from None
    fraction = gpu_memory_fraction() if chip.platform == "gpu" else 1.0
    return Topology(text, chip, described.devices, chip.memory * fraction)


def _check_compiler(chip: Chip) -> None:
    extra, modules = _EXTRAS[chip.platform]
    for module in modules:
        try:
            installed = importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:
            installed = False
        if not installed:
            raise ConfigError(f"compiling for {chip.name} needs {module.split('.')[0]}, which is not installed; "
                              + install_hint(extra))  # fmt: skip


def _cpus(text: str, count: int) -> Topology:
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        pass  # jax has started; what it started with must do
    devices = jax.devices("cpu")
    if len(devices) < count:
        raise ConfigError(f"topology={text!r}: jax has started with {len(devices)} CPU devices in this process; "
                          "plan in a new one")  # fmt: skip
    return Topology(text, None, devices[:count], os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / count)
