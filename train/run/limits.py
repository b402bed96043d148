"""The system's limits on this process, checked before native code meets one and aborts."""

import contextlib
import resource
from pathlib import Path

LEAST_ADDRESS_SPACE = 3 << 30
"""Bytes (`ulimit -v`): jax with one device and its threads on a CPU maps about 2.5 GiB."""
LEAST_OPEN_FILES = 64
"""File descriptors (`ulimit -n`): a checkpoint being written and shards being read hold up to 30."""

_ENOUGH_FILES = 1 << 16


def available_memory(root: Path = Path("/")) -> int | None:
    """Returns the bytes that Linux has left before it kills a process; None on other systems.

    The smaller of the machine's and, in a container, of its control group's. root: where the system's files are.
    """
    available = []
    with contextlib.suppress(OSError, StopIteration):
        lines = (root / "proc/meminfo").read_text().splitlines()
        available.append(1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")))
    group = root / "sys/fs/cgroup"
    with contextlib.suppress(OSError, ValueError):  # `max`: no limit
        used = int((group / "memory.current").read_text())
        # The kernel counts cached files as used, and drops inactive ones when memory is short.
        cached = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        # memory.max is `max` without a limit, which is no integer: the machine's figure counts alone.
        available.append(int((group / "memory.max").read_text()) - used + int(cached.get("inactive_file", 0)))
    return max(min(available), 0) if available else None


def check_address_space() -> None:
    """Raises MemoryError if the address space is too small for jax to begin."""
    # RLIM_INFINITY is -1: no limit.
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if 0 <= space < LEAST_ADDRESS_SPACE:
        raise MemoryError(
            f"this process may use {space / 2**30:.2f} GiB of memory (ulimit -v), and jax wants "
            f"{LEAST_ADDRESS_SPACE >> 30} at least; raise the limit"
        )


def check_limits() -> None:
    """Raises MemoryError or OSError if address space or file descriptors are too few to begin.

    Raises the soft limit of descriptors as far as the system allows it.
    """
    check_address_space()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < LEAST_OPEN_FILES:
        raise OSError(
            f"too many open files would be needed: this process may have {hard} (ulimit -n); "
            f"allow {LEAST_OPEN_FILES} at least"
        )
    # Any process may raise its soft limit up to the hard one. Many shells start with 1,024 or 256.
    enough = _ENOUGH_FILES if hard < 0 else min(hard, _ENOUGH_FILES)
    if 0 <= soft < enough:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))
