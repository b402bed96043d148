"""The one writer of a run in a bucket: a lease, since a bucket has no lock that ends with its process.

The object `lock` names the holder and is written anew every RENEW seconds, each time only if nobody else has written it
meanwhile. Whoever wants the run watches the object by its own clock: if it has not changed for EXPIRE seconds, its
holder is gone, and the lease is taken, again by a write that only one can win. No clock of another machine is trusted.

A process that was suspended for longer finds another holder before its next save, and stops (fencing).
"""

import contextlib
import logging
import os
import platform
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from contexture.data import bucket, mirror
from contexture.data.bucket import Address
from contexture.train.errors import CheckpointError, ConfigError

logger = logging.getLogger(__name__)

EXPIRE = float(os.environ.get("CONTEXTURE_LEASE_SECONDS", "60"))
"""Seconds without a write after which the holder counts as gone."""
RENEW = EXPIRE / 4
"""Seconds between two writes of the lease. Google allows one write a second to one object."""
_LOOK = 1.0
"""Seconds between two looks at a lease that is watched."""
NAME = "lock"


def holder(text: bytes | None) -> str:
    """Returns whom a lease names, "process 4711 on host"; "" for one that was given back."""
    return text.decode("utf-8", "replace").partition("\n")[0] if text else ""


def token_of(text: bytes | None) -> str:
    """Returns the random token of a lease's holder, which stays the same while it is renewed."""
    return text.decode("utf-8", "replace").split("\n")[1] if text and text.count(b"\n") > 1 else ""


def _limit(text: bytes | None) -> float:
    """Returns after how many seconds without a renewal a lease's holder counts as gone: the holder has written it."""
    try:
        return float((text or b"").split(b"\n")[3])
    except (IndexError, ValueError):
        return EXPIRE


def _fresh(text: bytes) -> bool:
    """Returns whether a lease was written a short while ago, by the clocks of two machines: for display alone."""
    try:
        return time.time() - float(text.split(b"\n")[2]) < 2 * _limit(text)
    except (IndexError, ValueError):
        return False


def current_holder(folder: Path) -> str:
    """Returns who trains in a bucket's folder now, or "". Raises: BucketError where the bucket cannot be read."""
    address = mirror.address_of(folder)
    text = bucket.read(address / NAME).value if address else None
    return holder(text) if text and _fresh(text) else ""


@contextlib.contextmanager
def log_in_bucket(log: Path) -> Iterator[None]:
    """Writes the log of a process that holds no lease to the bucket as it grows, and at the end of the block."""
    left, size = threading.Event(), 0

    def keep() -> None:
        nonlocal size
        while not left.wait(RENEW):
            # The next time may succeed, and the end of the block says if it does not.
            with contextlib.suppress(OSError):
                if (now := log.stat().st_size) != size:
                    mirror.push(log)
                    size = now

    thread = threading.Thread(target=keep, daemon=True)
    thread.start()
    try:
        yield
    finally:
        left.set()
        thread.join()
        try:
            mirror.push(log)
        except OSError as error:
            # An error on its way already, or a stop that has saved everything, must not be hidden by this one.
            logger.warning(f"{error}; the last lines of {log.name} are not in the bucket")


class Lease:
    """The lease of a bucket's folder until it is closed. One thread renews it; another one writes changed files to the
    bucket."""

    def __init__(self, folder: Path, address: Address) -> None:
        """Raises: ConfigError where another process holds it; BucketError where the bucket fails."""
        self._folder, self._object = folder, address / NAME
        self._me, self._token = f"process {os.getpid()} on {platform.node()}", secrets.token_hex(16)
        self._lost: CheckpointError | None = None
        self._lock, self._done = threading.Lock(), threading.Event()
        now = self._watched()
        if (taken := bucket.swap(self._object, self._text(), now.generation)) is None:
            raise self._in_use(bucket.read(self._object).value)
        self._generation, self._renewed = taken.generation, time.monotonic()
        # Two threads: a long upload must not keep the lease from being renewed.
        work = (self._renew, lambda: mirror.sync(self._folder))
        self._threads = [threading.Thread(target=self._keep, args=(each,), daemon=True) for each in work]
        for thread in self._threads:
            thread.start()
        mirror.guard(folder, self.check)

    def _watched(self) -> bucket.Stored:
        """Returns what the lease's object holds, once nobody holds the lease."""
        now = bucket.read(self._object)
        if not (name := holder(now.value)):
            return now
        limit = _limit(now.value)
        logger.info(f"{self._folder}: held by {name}, unless it is gone; watching for {limit:g} s")
        start = time.monotonic()
        while time.monotonic() - start < limit:
            time.sleep(_LOOK)
            later = bucket.read(self._object)
            if later.generation != now.generation:
                if not holder(later.value):  # given back
                    return later
                raise self._in_use(later.value)
        return now

    def _in_use(self, text: bytes | None) -> ConfigError:
        name = holder(text) or "another process"
        return ConfigError(f"{self._folder} is in use by {name}; wait for it, or give another --dir")

    def _text(self) -> bytes:
        # Random, so that no two writes are alike: the stored text decides who has won.
        return f"{self._me}\n{self._token}\n{time.time():.0f}\n{EXPIRE:g}\n{secrets.token_hex(8)}\n".encode()

    def _renew(self) -> None:
        with self._lock:
            if self._lost:
                raise self._lost
            taken = bucket.swap(self._object, self._text(), self._generation)
            # A write whose answer was lost, and that was stored after all.
            now = bucket.read(self._object) if taken is None else None
            if now is not None and token_of(now.value) == self._token:
                taken = bucket.swap(self._object, self._text(), now.generation)
            if taken is None:
                other = holder(bucket.read(self._object).value) or "another process"
                self._lost = CheckpointError(
                    f"{self._folder} was taken over by {other} while this process was away, which writes no more there"
                )
                raise self._lost
            self._generation, self._renewed = taken.generation, time.monotonic()

    def _keep(self, work: Callable[[], None]) -> None:
        failed = ""
        while not self._done.wait(RENEW):
            try:
                work()
                failed = ""
            except CheckpointError:
                return  # raised by the next `check`
            except Exception as error:
                # It may pass: the next save fails if it does not.
                if str(error) != failed:
                    logger.warning(f"{error}; trying again")
                failed = str(error)

    def check(self) -> None:
        """Raises: CheckpointError where another process has taken the lease, BucketError where that cannot be known."""
        if self._lost:
            raise self._lost
        # Others may take it from EXPIRE on: half of that leaves time for what follows the check.
        if time.monotonic() - self._renewed > EXPIRE / 2:
            self._renew()

    @property
    def closed(self) -> bool:
        """Whether it was given back, as a file's: `lock_folder` returns either."""
        return self._done.is_set()

    def close(self) -> None:
        """Writes what has changed to the bucket and gives the lease back; does neither where it was lost."""
        self._done.set()
        for thread in self._threads:
            thread.join()
        try:
            self.check()
            mirror.sync(self._folder)
            bucket.swap(self._object, b"\n" + self._token.encode() + b"\n", self._generation)
        except CheckpointError:
            logger.warning(f"{self._folder}: the last lines of log and metrics are lost, another process writes there")
        finally:
            mirror.guard(self._folder, None)

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except OSError as error:
            # An error is on its way already, or a stop that has saved everything: this one must not hide it.
            if kind is None:
                raise
            logger.warning(f"{error}; the last lines of log and metrics are not in the bucket")
