"""Errors of jax's plug-in for NVIDIA GPUs, in one line.

jax starts every plug-in that is installed, and logs a traceback of each that fails. The compilers for GPUs that
`contexture plan` needs are such a plug-in, and it fails on every machine without a GPU.
"""

import contextlib
import glob
import logging
from collections.abc import Iterator

logger = logging.getLogger("contexture")
_GPU_FILES = ("/dev/nvidia[0-9]*", "/dev/dxg")
"""One of them is there with an NVIDIA GPU; a container may have the fourth GPU alone. The last: under Windows."""


class PluginErrors(logging.Filter):
    """Takes that plug-in's tracebacks out of a log; on a machine with a GPU a warning takes their place."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether a message stays as it is."""
        if not record.exc_info or "cuda" not in record.getMessage():
            return True
        if has_gpu():
            lines = str(record.exc_info[1]).splitlines()
            why = next((line for line in lines if line.strip()), type(record.exc_info[1]).__name__)
            logger.warning(f"jax cannot use this machine's GPU: {why}; "
                           "install the extra [cuda], or set JAX_PLATFORMS=cpu to do without it")  # fmt: skip
        return False


def has_gpu() -> bool:
    """Returns whether this machine has an NVIDIA GPU, whatever jax makes of it."""
    return any(map(glob.glob, _GPU_FILES))


@contextlib.contextmanager
def plugin_errors_in_one_line() -> Iterator[None]:
    """Within the block, a plug-in for GPUs that jax cannot start is no traceback."""
    log, errors = logging.getLogger("jax._src.xla_bridge"), PluginErrors()
    log.addFilter(errors)
    try:
        yield
    finally:
        log.removeFilter(errors)
