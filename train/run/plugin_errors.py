"""Errors of jax's plug-ins: one line for NVIDIA GPUs, and none for TPUs where there is no TPU.

jax starts every plug-in that is installed, and logs a traceback of each that fails. The compilers for GPUs that
`contexture plan` needs are such a plug-in, and it fails on every machine without a GPU. Its compiler for TPUs, libtpu,
writes on stderr that it cannot learn which TPU it is on.
"""

import contextlib
import glob
import logging
import os
from collections.abc import Iterator
from pathlib import Path

logger = logging.getLogger("contexture")
_GPU_FILES = ("/dev/nvidia[0-9]*", "/dev/dxg")
"""One of them is there with an NVIDIA GPU; a container may have the fourth GPU alone. The last: under Windows."""
_PCI_DEVICES = "/sys/bus/pci/devices/*"
_GOOGLE = "0x1ae0"
_DISKS_AND_NETWORKS = ("0x01", "0x02")
"""Google makes these too, for the virtual machines of its cloud."""
_ONE_HOST = {"TPU_HOST_BOUNDS": "1,1,1", "TPU_WORKER_HOSTNAMES": "localhost"}
"""What libtpu asks the cloud for, and reports as an error where no cloud answers."""


class PluginErrors(logging.Filter):
    """Takes that plug-in's tracebacks out of a log; on a machine with a GPU a warning takes their place."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether a message stays as it is."""
        if not record.exc_info or "cuda" not in record.getMessage():
            return True
        if has_gpu():
            lines = str(record.exc_info[1]).splitlines()
            why = next((line for line in lines if line.strip()), type(record.exc_info[1]).__name__)
            logger.warning(
                f"jax cannot use this machine's GPU: {why}; "
                "install the extra [cuda], or set JAX_PLATFORMS=cpu to do without it"
            )
        return False


def has_gpu() -> bool:
    """Returns whether this machine has an NVIDIA GPU, whatever jax makes of it."""
    return any(map(glob.glob, _GPU_FILES))


def may_have_tpu() -> bool:
    """Returns whether a device of this machine may be a TPU, or the user says that there is one."""
    if "JAX_FORCE_TPU_INIT" in os.environ or "tpu" in os.environ.get("JAX_PLATFORMS", ""):
        return True
    return any(
        _read(f"{device}/vendor") == _GOOGLE and not _read(f"{device}/class").startswith(_DISKS_AND_NETWORKS)
        for device in glob.glob(_PCI_DEVICES)
    )


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


@contextlib.contextmanager
def plugin_errors_in_one_line() -> Iterator[None]:
    """Within the block, a plug-in for GPUs that jax cannot start is no traceback. Without a TPU libtpu is silent."""
    log, errors = logging.getLogger("jax._src.xla_bridge"), PluginErrors()
    added = {} if may_have_tpu() else {name: value for name, value in _ONE_HOST.items() if name not in os.environ}
    os.environ.update(added)
    log.addFilter(errors)
    try:
        yield
    finally:
        log.removeFilter(errors)
        for name in added:
            os.environ.pop(name, None)
