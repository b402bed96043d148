"""Errors of jax's plug-ins: one line for NVIDIA GPUs, and none for TPUs where there is no TPU.

jax starts every plug-in that is installed, and logs a traceback for each that fails. The compilers for GPUs that
`contexture plan` needs are such a plug-in, and it fails on every machine without a GPU. Its compiler for TPUs, libtpu,
writes on stderr that it cannot find out which TPU it is on.
"""

import contextlib
import glob
import logging
import os
from collections.abc import Iterator
from pathlib import Path

logger = logging.getLogger("contexture")
_GPU_FILES = ("/dev/nvidia[0-9]*", "/dev/dxg")
"""Patterns, one of which exists with an NVIDIA GPU. A container may have nvidia3 alone; dxg is Windows' (WSL)."""
_PCI_DEVICES = "/sys/bus/pci/devices/*"
_GOOGLE = "0x1ae0"
_DISKS_AND_NETWORKS = ("0x01", "0x02")
"""PCI classes of devices that Google makes too, for the virtual machines of its cloud, and that are no TPUs."""
_ONE_HOST = {"TPU_HOST_BOUNDS": "1,1,1", "TPU_WORKER_HOSTNAMES": "localhost"}
"""Answers to what libtpu asks Google's metadata server; where none answers it reports an error."""


class PluginErrors(logging.Filter):
    """Removes the GPU plug-in's tracebacks from a log; on a machine with a GPU a one-line warning replaces them."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether a message is logged unchanged."""
        if not record.exc_info or "cuda" not in record.getMessage():
            return True
        # A GPU that jax cannot use is worth a line; without one the failure is expected.
        if has_gpu():
            lines = str(record.exc_info[1]).splitlines()
            why = next((line for line in lines if line.strip()), type(record.exc_info[1]).__name__)
            logger.warning(
                f"jax cannot use this machine's GPU: {why}; "
                "install the extra [cuda], or set JAX_PLATFORMS=cpu to do without it"
            )
        return False


def has_gpu() -> bool:
    """Returns whether this machine has an NVIDIA GPU, usable by jax or not."""
    return any(map(glob.glob, _GPU_FILES))


def may_have_tpu() -> bool:
    """Returns whether a device of this machine may be a TPU, or the user says that there is one."""
    # The user's word counts more than the bus: a TPU may be reached in other ways.
    if "JAX_FORCE_TPU_INIT" in os.environ or "tpu" in os.environ.get("JAX_PLATFORMS", ""):
        return True
    # TPU cards are PCI devices of Google's.
    return any(
        _read(f"{device}/vendor") == _GOOGLE and not _read(f"{device}/class").startswith(_DISKS_AND_NETWORKS)
        for device in glob.glob(_PCI_DEVICES)
    )


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    # No such file, or none that a container may read: unknown, which is no TPU.
    except OSError:
        return ""


@contextlib.contextmanager
def plugin_errors_in_one_line() -> Iterator[None]:
    """Within the block, a GPU plug-in that fails logs no traceback, and libtpu is silent on machines without a TPU."""
    log, errors = logging.getLogger("jax._src.xla_bridge"), PluginErrors()
    # Only what the user has not set, and only for this block: on a real TPU these values would hide other hosts.
    added = {} if may_have_tpu() else {name: value for name, value in _ONE_HOST.items() if name not in os.environ}
    os.environ.update(added)
    # jax starts the plug-ins when devices are first asked for, and logs from this module.
    log.addFilter(errors)
    try:
        yield
    finally:
        log.removeFilter(errors)
        # As it was: a program that is started later may have a TPU.
        for name in added:
            os.environ.pop(name, None)
