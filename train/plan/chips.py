"""The chips that programs can be compiled for: peaks from the data sheets, and the names that users give them."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True)
class Chip:
    """One accelerator. Peaks are dense, without sparsity.

    Args:
        name: as the user writes it in --topology
        platform: tpu or gpu
        bf16: FLOP/s of products of bfloat16 factors
        f32: FLOP/s of products of float32 factors, which a TPU multiplies in six passes
        int8: operations/s of products of 8-bit integers
        fp8: FLOP/s of products of 8-bit floats; a chip without such products converts the factors to bfloat16
        bandwidth: bytes/s of its memory
        memory: bytes that a program may use, before a framework sets some aside
        links: bytes/s that it can send over all its links at once, one way: a slice's torus, NVLink or
            PCIe; nine tenths of what its data sheet says
        target: for a GPU, its description for the compiler
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
        # A TPU's default for float32 is one pass over bfloat16 parts; with a precision given it takes three or six.
        peaks = {"f32": self.bf16 if self.platform == "tpu" else self.f32, "f64": self.f32 / 2, "s8": self.int8,
                 "u8": self.int8, "f8e4m3fn": self.fp8, "f8e5m2": self.fp8,
                 "f32:highest": self.f32, "f32:high": self.bf16 / 3}  # fmt: skip
        # Products of different types follow each other: their times add up. An unknown type counts as bfloat16.
        return sum(count / peaks.get(dtype, self.bf16) for dtype, count in flops.items())


def _tpu(name: str, bf16: float, int8: float, bandwidth: float, gib: float, links: float) -> Chip:
    # Full float32 takes six passes of bfloat16 parts. No TPU here has products of 8-bit floats.
    return Chip(name, "tpu", bf16, bf16 / 6, int8, bf16, bandwidth, gib * GIB, links)


def _gpu(
    name: str,
    device: str,
    peaks: tuple[float, float, float, float],
    memory: tuple[float, float],
    links: float,
    core: Mapping[str, object],
) -> Chip:
    """memory: bytes/s, and MiB."""
    bandwidth, size = memory[0], memory[1] * 2**20
    facts = {"threads_per_block_limit": 1024, "threads_per_warp": 32, "shared_memory_per_block": 49152,
             "threads_per_core_limit": 2048, "block_dim_limit_x": 2147483647, "block_dim_limit_y": 65535,
             "block_dim_limit_z": 65535, "registers_per_core_limit": 65536, "registers_per_block_limit": 65536,
             "memory_bandwidth": int(bandwidth), "device_memory_size": int(size), **core}  # fmt: skip
    # XLA's GpuTargetConfig in protobuf's text form: numbers as field: value, messages in braces.
    info = " ".join(
        f"{field} {{ {value} }}" if isinstance(value, str) else f"{field}: {value}" for field, value in facts.items()
    )
    target = (
        f'gpu_device_info {{ {info} }} platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 10 }} '
        f'device_description_str: "{device}"'
    )
    return Chip(name, "gpu", *peaks, bandwidth, size, links, target)


_HOPPER = {"shared_memory_per_core": 233472, "shared_memory_per_block_optin": 232448, "core_count": 132,
           "fpus_per_core": 128, "l2_cache_size": 50 * 2**20, "clock_rate_ghz": 1.98,
           "cuda_compute_capability": "major: 9 minor: 0 feature_extension: ACCELERATED_FEATURES"}  # fmt: skip
_ADA = {"shared_memory_per_core": 102400, "shared_memory_per_block_optin": 101376, "threads_per_core_limit": 1536,
        "fpus_per_core": 128, "cuda_compute_capability": "major: 8 minor: 9"}  # fmt: skip
_TURING = {"shared_memory_per_core": 65536, "shared_memory_per_block_optin": 65536, "threads_per_core_limit": 1024,
           "core_count": 40, "fpus_per_core": 64, "l2_cache_size": 4 * 2**20, "clock_rate_ghz": 1.59,
           "cuda_compute_capability": "major: 7 minor: 5"}  # fmt: skip
_AMPERE = {"shared_memory_per_core": 167936, "shared_memory_per_block_optin": 166912, "core_count": 108,
           "fpus_per_core": 64, "l2_cache_size": 40 * 2**20, "clock_rate_ghz": 1.41,
           "cuda_compute_capability": "major: 8 minor: 0"}  # fmt: skip
CHIPS = {
    chip.name: chip
    for chip in (
        _tpu("v4", 275e12, 275e12, 1.228e12, 31.75, 2.7e11),
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
        _gpu(
            "a100-40g", "NVIDIA A100-SXM4-40GB", (312e12, 19.5e12, 624e12, 312e12), (1.555e12, 40960), 2.7e11, _AMPERE
        ),
        _gpu(
            "l4",
            "NVIDIA L4",
            (121e12, 30.3e12, 242e12, 242e12),
            (3e11, 23034),
            2.8e10,
            _ADA | {"core_count": 58, "l2_cache_size": 48 * 2**20, "clock_rate_ghz": 2.04},
        ),
        _gpu(
            "rtx4090",
            "NVIDIA GeForce RTX 4090",
            (165e12, 82.6e12, 661e12, 330e12),
            (1.008e12, 24564),
            2.8e10,
            _ADA | {"core_count": 128, "l2_cache_size": 72 * 2**20, "clock_rate_ghz": 2.52},
        ),
        # A T4 has no products of bfloat16: their factors become float32.
        _gpu("t4", "Tesla T4", (8.1e12, 8.1e12, 130e12, 8.1e12), (3.2e11, 15360), 1.4e10, _TURING),
    )
}

# Names of clouds and drivers → ours.
_OTHER_NAMES = {
    "v5litepod": "v5e",
    "v5lite": "v5e",
    "a100-80g": "a100",
    "h100-80g": "h100",
    "h200-141g": "h200",
    "4090": "rtx4090",
    "rtx-4090": "rtx4090",
    "tesla-t4": "t4",
}
_TWO_CORES = ("v4", "v5p")
"""Chips that cloud names count by their two cores: v5p-32 are 16 chips."""
# DGX and HGX machines have eight.
MOST_OF_A_HOST = 8
"""GPUs of one host."""


def named_devices(text: str) -> tuple[str, Sequence[int]]:
    """Returns (the chip, the sizes of its slice) of the usual names: v5litepod-16 → v5e, (4, 4); a100-80gb:8 → a100,
    (8,); t4 → t4, (1,). Sizes are empty if the text has no readable ones, and the chip may be unknown."""
    name, colon, shape = text.strip().lower().partition(":")
    # Google's names of slices: a chip and a number, of chips or of cores.
    number = re.fullmatch(r"(v\d\w*)-([1-9]\d{0,4})", name)
    if number and not colon:
        chip = _OTHER_NAMES.get(number[1], number[1])
        chips, rest = divmod(int(number[2]), 2 if chip in _TWO_CORES else 1)
        return chip, () if rest else slice_shape(chip, chips)
    # NVIDIA's and the clouds' names: nvidia-a100-80gb → a100-80g.
    name = name.replace("_", "-").removeprefix("nvidia-")
    name = name[:-1] if re.search(r"-\d+gb$", name) else name
    # A GPU without a number is one GPU.
    chip = _OTHER_NAMES.get(name, name)
    if not colon and chip in CHIPS and CHIPS[chip].platform == "gpu":
        return chip, (1,)
    # Our own form, CHIP:SIZE with SIZE as 8 or 4x4 or 4x4x8.
    sizes = re.fullmatch(r"[1-9]\d{0,4}(x[1-9]\d{0,4})*", shape)
    return chip, tuple(map(int, shape.split("x"))) if sizes else ()


def slice_shape(chip: str, chips: int) -> tuple[int, ...]:
    """Returns the usual shape of a slice of `chips` TPU chips; () if that is no power of two.

    v5e and v6e are grids, v4 and v5p tori of three axes. The smallest slices have four chips, or one (grids only).
    """
    axes = 3 if chip in _TWO_CORES else 2
    # log2 of the chips, spread over the axes as evenly as it goes, the larger axes last: 8 chips → 2×4.
    power = chips.bit_length() - 1
    if chips == 1 and axes == 2:
        return (1, 1)
    if chips < 4 or chips != 2**power:
        return ()
    # The smallest torus has one host of four chips.
    if axes == 3 and chips == 4:
        return (2, 2, 1)
    return tuple(sorted(2 ** ((power + axis) // axes) for axis in range(axes)))


def grown(chip: str, sizes: Sequence[int]) -> tuple[int, ...]:
    """Returns the sizes of a slice, or of hosts, with twice as many devices."""
    if CHIPS[chip].platform == "tpu":
        return slice_shape(chip, 2 * math.prod(sizes))
    # More GPUs in the host while it has room, since NVLink joins them; then more hosts.
    hosts, gpus = sizes if len(sizes) == 2 else (1, sizes[0])
    return (hosts, 2 * gpus) if hosts == 1 and 2 * gpus <= MOST_OF_A_HOST else (2 * hosts, gpus)
