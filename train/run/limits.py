"""What the system allows this process: checked before native code meets a limit, which it answers with an abort."""

import contextlib
import resource

LEAST_ADDRESS_SPACE = 3 << 30
"""Bytes (`ulimit -v`): jax with one device and its threads on a CPU maps about 2.5 GiB."""
LEAST_OPEN_FILES = 64
"""File descriptors (`ulimit -n`): a checkpoint being written and shards being read hold up to 30."""

_ENOUGH_FILES = 1 << 16


def check_address_space() -> None:
    """Raises MemoryError if the address space is too small for jax to begin."""
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if 0 <= space < LEAST_ADDRESS_SPACE:
        raise MemoryError(
            f"this process may use {space / 2**30:.2f} GiB of memory (ulimit -v), and jax wants "
            f"{LEAST_ADDRESS_SPACE >> 30} at least; raise the limit"
        )


def check_limits() -> None:
    """Raises MemoryError or OSError if address space or file descriptors are too few to begin; takes the
    descriptors that the system would give when asked."""
    check_address_space()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < LEAST_OPEN_FILES:
        raise OSError(
            f"too many open files would be needed: this process may have {hard} (ulimit -n); "
            f"allow {LEAST_OPEN_FILES} at least"
        )
    enough = _ENOUGH_FILES if hard < 0 else min(hard, _ENOUGH_FILES)
    if 0 <= soft < enough:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))
