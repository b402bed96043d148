"""A cloud's notice that it takes this machine away. Needs no jax.

Google's metadata server says so under `instance/preempted` and `instance/maintenance-event`, and tells who waits for a
change at once. Then this process sends SIGTERM to itself: all processes of the job stop at one step, with everything
saved.
"""

import contextlib
import http.client
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

logger = logging.getLogger(__name__)

_SERVER = "metadata.google.internal"
_PRODUCT = Path("/sys/class/dmi/id/product_name")
"""What the machine is, as its firmware says."""
_QUIET = {"preempted": "FALSE", "maintenance-event": "NONE", "upcoming-maintenance": "NONE"}
"""Key → its value while nothing is to come, also where there is no such key."""
_TAKEN = ("TRUE", "TERMINATE_ON_HOST_MAINTENANCE")
_HELD, _PAUSE = 60, 5.0
"""Seconds that the server holds a request, and until the next one after an error."""


def server() -> str:
    """Returns host:port of the metadata server of this machine, "" where there is none."""
    # The name that Google's own libraries read.
    if given := os.environ.get("GCE_METADATA_HOST"):
        return given
    # Elsewhere the name would be looked up in vain, in each run.
    with contextlib.suppress(OSError):
        return _SERVER if "Google" in _PRODUCT.read_text() else ""
    return ""


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Within the block, a notice that this machine is taken away becomes a SIGTERM to this process.

    A preemption always does. Maintenance does if it is announced while the job runs: a job that is started again on
    the same machine before its maintenance trains on until the machine goes. Maintenance that is planned is a warning.
    """
    left = threading.Event()
    if host := server():
        for key in _QUIET:
            threading.Thread(target=_listen, args=(host, key, left), name=f"notice-{key}", daemon=True).start()
    try:
        yield
    finally:
        # The threads may be in a request for a minute more, and do nothing after it.
        left.set()


def _listen(host: str, key: str, left: threading.Event) -> None:
    """Waits for changes of a key until the block is left; ends at once where no metadata server answers."""
    quiet = value = _QUIET[key]
    tag = ""
    first = True
    while not left.is_set():
        began, asked = time.monotonic(), tag
        try:
            value, tag = _read(host, key, tag)
        # ValueError: the user's GCE_METADATA_HOST is no host and port.
        except (OSError, http.client.HTTPException, ValueError):
            if first:
                return
            # It has answered before: it is busy, or is restarted.
            left.wait(_PAUSE)
            continue
        if value != quiet and not left.is_set() and _told(key, value, first):
            return
        quiet, first = value, False
        if not tag:
            left.wait(_HELD)  # there is no such key now, and nothing to wait for at the server
        elif tag == asked and time.monotonic() - began < 1:
            left.wait(_PAUSE)  # this server answers at once, though nothing has changed


def _told(key: str, value: str, first: bool) -> bool:
    """Acts on a new value; returns whether there is nothing more to wait for. first: it was there at the start."""
    if value in _TAKEN and (key == "preempted" or not first):
        logger.warning(f"the cloud takes this machine away ({key}={value}): the run saves and stops")
        os.kill(os.getpid(), signal.SIGTERM)
        return True
    if key != "preempted" and value != _QUIET[key]:
        logger.warning(
            f"the cloud plans maintenance of this machine ({key}={_short(value)}); the run goes on until then"
        )
    return False


def _short(value: str) -> str:
    # Planned maintenance is a JSON object, whose window says when.
    with contextlib.suppress(ValueError, AttributeError, TypeError):
        found = json.loads(value)
        return str(found.get("windowStartTime") or found.get("window_start_time") or value)[:100]
    return value[:100]


def _read(host: str, key: str, tag: str) -> tuple[str, str]:
    """Returns (the value of a key, its tag); with a tag, once the value is another or the wait is over.

    Raises OSError or HTTPException where no metadata server answers.
    """
    name, _, port = host.partition(":")
    # No proxy is asked: the server belongs to this machine.
    connection = http.client.HTTPConnection(name, int(port or 80), timeout=_HELD + 10 if tag else 5)
    try:
        wait = f"?wait_for_change=true&timeout_sec={_HELD}&last_etag={tag}" if tag else ""
        connection.request("GET", f"/computeMetadata/v1/instance/{key}{wait}", headers={"Metadata-Flavor": "Google"})
        answer = connection.getresponse()
        text = answer.read().decode("utf-8", "replace").strip()
        # What answers there may be another server, such as a captive portal.
        if answer.headers.get("Metadata-Flavor") != "Google":
            raise http.client.HTTPException(f"{host} is no metadata server")
        if answer.status in (404, 503):
            return _QUIET[key], ""
        if answer.status != 200:
            raise http.client.HTTPException(f"{host} answers {answer.status}")
        return text, answer.headers.get("ETag", "")
    finally:
        connection.close()
