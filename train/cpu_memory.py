"""Settings of glibc's allocator: a training step on a CPU reuses the memory of the step before."""

import ctypes
import importlib.util
import math
import os


def tune_cpu_allocator(floats: float = math.inf) -> None:
    """On a CPU, keeps the memory that a step has freed for the next step.

    Returned to the system and requested again, its pages cost a third of a step. Must be called before jax starts its
    threads. Does nothing without glibc, or with an accelerator. floats: about how many numbers a step holds.
    """
    accelerators = ("jax_cuda12_plugin", "jax_cuda13_plugin", "jax_rocm60_plugin", "jax_rocm7_plugin", "libtpu")
    if os.environ.get("JAX_PLATFORMS") != "cpu" and any(importlib.util.find_spec(name) for name in accelerators):
        return
    M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -4, -8
    # Never trim the heap, grow it by 64 MiB at a time, and serve no request by a mapping of its own.
    options = [(M_TRIM_THRESHOLD, 2**31 - 1), (M_TOP_PAD, 2**26), (M_MMAP_MAX, 0)]
    # Each thread has an arena of 64 MB. What does not fit in one is mapped and unmapped by glibc after all, so a large
    # step shares the main arena. Small steps would lose time by waiting for its lock.
    if floats * 4 > 60e6:
        options.append((M_ARENA_MAX, 1))
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    for option, value in options:
        mallopt(option, value)
