"""How glibc gives memory back, set so that a training step on a CPU finds its pages again."""

import ctypes
import importlib.util
import math
import os


def tune_cpu_allocator(floats: float = math.inf) -> None:
    """On a CPU, keep the memory that a step has freed for the next step: given back to the system and asked for again,
    its pages cost a third of a step. To be called before jax makes its threads; nothing where there is no glibc, or
    where jax has an accelerator.

    floats: how many numbers a step works on. Where they fit into a thread's own arena of 64 MB, each thread has its
    own; else glibc would give them back, and all threads share one arena, for which small steps would wait."""
    accelerators = ("jax_cuda12_plugin", "jax_cuda13_plugin", "jax_rocm60_plugin", "jax_rocm7_plugin", "libtpu")
    if os.environ.get("JAX_PLATFORMS") != "cpu" and any(importlib.util.find_spec(name) for name in accelerators):
        return
    M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -4, -8
    options = [(M_TRIM_THRESHOLD, 2**31 - 1), (M_TOP_PAD, 2**26), (M_MMAP_MAX, 0)]
    if floats * 4 > 60e6:
        options.append((M_ARENA_MAX, 1))
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    for option, value in options:
        mallopt(option, value)
