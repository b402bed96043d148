"""The parts of a preparation as tasks of a Ray cluster: a node that is killed leaves its parts to the others."""

import contextlib
import dataclasses
import functools
import logging
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from contexture.data.errors import DataError
from contexture.data.mirror import address_of, local, placed, with_addresses
from contexture.data.pretraining.part_folder import PartError, part_name
from contexture.data.pretraining.part_workers import Report
from contexture.data.pretraining.tokenize_corpus import Cluster, PartsOfText

_RETRIES = 8
"""How often a part is made again after its node or its process was killed."""
_BETWEEN, _GRACE = 0.5, 10.0
"""Seconds between two looks at what has arrived; those that a cluster has to answer, and cancelled tasks to end."""
_Made = tuple[int, int, int] | DataError | OSError
"""What a task returns: counts as `Report` takes them, or the error of the text or of the disk."""


@contextlib.contextmanager
def ray_cluster(at_once: int = 0) -> Iterator[Cluster]:
    """Connects to the cluster of RAY_ADDRESS, or to one that runs on this machine, and gives what makes parts there.

    Args:
        at_once: the most parts that are made at once; 0: as many as the cluster has processors.

    Raises:
        DataError: where there is no cluster.
    """
    # Read when Ray is imported: it sends no counts of its uses, and prints nothing that nodes say, which would come on
    # stdout, where results are.
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS_SKIP_REGEX": "."}
    import ray

    # Whoever listens for SIGTERM now does so afterwards.
    before = signal.getsignal(signal.SIGTERM)
    joined = ray.is_initialized()
    try:
        if not joined:
            _check_reached(os.environ.get("RAY_ADDRESS", ""))
            ray.init("auto", log_to_driver=False, logging_level=logging.CRITICAL)
    # Of another version of Python or Ray; an address that is none; nobody there.
    except (OSError, RuntimeError, ValueError) as error:
        # Ray's first sentence; it goes on for several lines.
        reason = " ".join(str(error).split()).partition(". ")[0].rstrip(".")
        mend = "start one (ray start --head), or give its address in RAY_ADDRESS"
        raise DataError(f"runner=ray: no cluster to be had ({reason}); {mend}") from None
    finally:
        # Ray puts a handler of its own in the place of ours.
        signal.signal(signal.SIGTERM, before)
    # A program that had joined before stays so.
    try:
        yield functools.partial(_make_on_cluster, at_once)
    finally:
        if not joined:
            ray.shutdown()


def _check_reached(address: str) -> None:
    """Raises: OSError where nobody listens at HOST:PORT, where Ray would try for a quarter of an hour."""
    # HOST:PORT, or ray://HOST:PORT of Ray's client; "" and "auto" are found by Ray itself, at once.
    host, _, port = address.rpartition("/")[2].rpartition(":")
    if host and port.isdecimal():
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_GRACE).close()
        except OSError as error:
            raise OSError(f"{address}: {error.strerror or error}") from None


def _make_on_cluster(at_once: int, maker: PartsOfText, count: int, report: Report) -> None:
    """Makes all parts that are not done (`Cluster`)."""
    import ray

    # The others know no path of this process's copy of a bucket.
    config = dataclasses.replace(maker.config, **_each_path(maker.config, with_addresses))
    names = {name: with_addresses(getattr(maker, name)) for name in ("tokenizer", "folder")}
    sent = dataclasses.replace(maker, config=config, **names)
    # Retries are for killed processes and nodes alone: errors of ours are results, and no task raises them.
    task: Any = ray.remote(num_cpus=1, max_retries=_RETRIES)(_make)
    # As many at once as were asked for; Ray itself waits for free processors.
    left, running = iter(range(count)), dict[Any, int]()
    try:
        while True:
            # As many as may run; Ray queues what the cluster has no processors for, and a cluster that grows sees them.
            for part in islice(left, (at_once or count) - len(running)):
                running[task.remote(sent, os.getcwd(), part)] = part
            if not running:
                break
            done, _ = ray.wait([*running], timeout=_BETWEEN)
            # Without news too, where a signal may stop the work.
            report(0, 0, 0)
            for each in done:
                report(*_counts(each, part_name(running.pop(each), count)))
    finally:
        # Also after the last one, where there is nothing to cancel.
        _cancel([*running], Path(maker.folder))


def _counts(task: Any, name: str) -> tuple[int, int, int]:
    """Returns what a task has counted. Raises: its error; OSError where it was killed each time."""
    import ray
    from ray.exceptions import RayError, RayTaskError

    try:
        made: _Made = ray.get(task)
    except RayError as error:
        lines = str(error).strip().splitlines() or [""]
        # An exception comes with its traceback, whose last line it is.
        reason = lines[-1 if isinstance(error, RayTaskError) else 0].rstrip(".")
        kind = type(error).__name__
        raise OSError(
            f"{name} failed on the cluster ({kind}: {reason}); the same command resumes from the parts that are done"
        ) from None
    # Of the user's text, or of a disk: that of the command.
    if isinstance(made, Exception):
        raise made
    return made


def _cancel(tasks: list[Any], folder: Path) -> None:
    """Ends tasks, and removes what they leave unfinished."""
    import ray

    if not tasks:
        return
    for task in tasks:
        ray.cancel(task)
    # Their exceptions remove what they were writing; whoever does not hear is killed.
    for task in ray.wait(tasks, num_returns=len(tasks), timeout=_GRACE)[1]:
        ray.cancel(task, force=True)
    # Of those that were killed, on a disk that all see.
    for left in folder.glob(".part-*.partial"):
        shutil.rmtree(left, ignore_errors=True)


def _make(maker: PartsOfText, cwd: str, part: int) -> _Made:
    """A task: makes a part, unless it is there."""
    # Sums alone go back: a part that is made twice is counted once.
    counts = [0, 0, 0]

    def report(*new: int) -> None:
        counts[:] = [one + more for one, more in zip(counts, new, strict=True)]

    try:
        _opened(maker, cwd)(part, report)
        place = Path(placed(maker.folder)) / part_name(part, maker.count)
        # In a bucket by now: a process that makes many parts keeps none of them.
        if address_of(place) is not None:
            shutil.rmtree(place)
    except (DataError, OSError) as error:
        return _to_send(error)
    return counts[0], counts[1], counts[2]


@functools.lru_cache(maxsize=1)
def _opened(maker: PartsOfText, cwd: str) -> Callable[[int, Report], None]:
    """Opens a preparation, once in a process. Raises: PartError where this node sees another text than the first."""
    # One thread for one processor, read when a tokenizer first takes a batch of texts.
    os.environ["RAYON_NUM_THREADS"] = "1"
    try:
        # Paths mean what they mean where the command was given, and so do messages.
        if not os.path.isdir(cwd):
            raise DataError(f"{cwd}: the folder of the command is missing here")
        os.chdir(cwd)
        # Text and vocabulary in a bucket are fetched now; of parts nothing is, each asks for its own.
        config = dataclasses.replace(maker.config, **_each_path(maker.config, local))
        tokenizer, folder = local(maker.tokenizer), placed(maker.folder)
        return dataclasses.replace(maker, config=config, tokenizer=tokenizer, folder=folder).open()
    except DataError as error:
        # What is done by other nodes stays.
        mend = "all nodes must see one text: on a shared disk, or in a bucket"
        raise PartError(f"{error} (on {socket.gethostname()}); {mend}") from None


def _each_path(config: Any, change: Callable[[str], str]) -> dict[str, tuple[str, ...]]:
    return {name: tuple(change(str(path)) for path in getattr(config, name)) for name in ("path", "dev")}


def _to_send(error: DataError | OSError) -> DataError | OSError:
    """Returns an error as the command's process would have it."""
    # In a bucket's copy here the file has a path that nobody else knows.
    error.args = tuple(with_addresses(each) if isinstance(each, str) else each for each in error.args)
    if isinstance(error, OSError) and error.filename:
        error.filename = with_addresses(str(error.filename))
    return error.with_traceback(None)
