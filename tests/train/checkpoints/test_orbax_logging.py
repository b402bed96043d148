"""Orbax prints no failures of its own where it is silenced. Others print theirs, and a block puts everything back."""

import logging
import subprocess
import sys
import threading

from contexture.train.checkpoints.orbax_logging import orbax_silenced

# A failing thread of Orbax and one of somebody else, a message of Orbax's logger and one of another.
FAILURES = """
import gc, logging, threading
from contexture.train.checkpoints.orbax_logging import silence_orbax
silence_orbax()
gc.collect()
orbax, other = {}, {}
exec(compile("def fail(): raise OSError('from orbax')", "/site-packages/orbax/writer.py", "exec"), orbax)
exec(compile("def fail(): raise OSError('from another')", "/site-packages/another/writer.py", "exec"), other)
for fail in (orbax["fail"], other["fail"]):
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
logging.getLogger("absl").error("message of orbax")
logging.getLogger("another").error("message of another")
"""


def test_orbax_stays_silent_for_the_rest_of_the_process_and_others_do_not():
    done = subprocess.run([sys.executable, "-c", FAILURES], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "from another" in done.stderr and "message of another" in done.stderr, done.stderr
    assert "orbax" not in done.stderr.replace("another", ""), done.stderr


def test_a_silenced_block_puts_back_hooks_and_levels():
    before = (threading.excepthook, sys.excepthook, sys.unraisablehook, logging.getLogger("absl").level)
    with orbax_silenced():
        assert threading.excepthook is not before[0] and logging.getLogger("absl").level == logging.CRITICAL
    assert (threading.excepthook, sys.excepthook, sys.unraisablehook, logging.getLogger("absl").level) == before
