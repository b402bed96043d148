"""Parts of a work, made by several processes of this machine."""

import multiprocessing
import os
import queue
import shutil
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from contexture.data.errors import DataError
from contexture.data.pretraining.part_folder import part_name

_BETWEEN = 0.5
"""Seconds between two messages of a worker."""
_SPAWN = multiprocessing.get_context("spawn")  # a forked process would have locks of threads that it lacks


@dataclass
class Tally:
    """Counts of what was read and written so far."""

    total: int
    """Bytes of all sources; of a TFDS set and a columnar file about as many as are read."""
    read: int = 0
    documents: int = 0
    tokens: int = 0
    workers: dict[int, str] = field(default_factory=dict)
    """The part that each worker is at, by the worker's number."""

    def add(self, read: int = 0, documents: int = 0, tokens: int = 0) -> None:
        # Some sizes are estimates: never more than all.
        self.read = min(self.read + read, self.total)
        self.documents += documents
        self.tokens += tokens


Report: TypeAlias = Callable[[int, int, int], None]
"""Called with the bytes that were read, and the documents and tokens that were written, since the last call; an
exception that it raises stops the work."""


class PartMaker(Protocol):
    """Makes parts in a worker, to which it is sent by pickle."""

    def open(self) -> Callable[[int, Report], None]:
        """Returns a function that makes the part of a number, unless it is done. A worker calls this once.

        Raises: DataError, as the function does.
        """
        ...


def make_in_workers(maker: PartMaker, folder: Path, count: int, workers: int, report: Report, tally: Tally) -> None:
    """Makes all parts that are not done, in so many processes.

    Args:
        maker: makes them.
        folder: where they lie.
        count: how many parts there are.
        workers: how many processes.
        report: called twice a second at least.
        tally: gets the part that each worker is at.

    Raises:
        DataError: as `maker`.
        OSError: where a worker is killed.
    """
    threads = max((os.cpu_count() or 1) // workers, 1)
    # The next free worker takes the next part; -1 ends a worker.
    parts, messages = _SPAWN.Queue(), _SPAWN.Queue()
    for part in [*range(count), *[-1] * workers]:
        parts.put(part)
    processes = [
        _SPAWN.Process(target=_work, args=(maker, count, threads, parts, messages, each), daemon=True)
        for each in range(workers)
    ]
    for process in processes:
        process.start()
    try:
        _listen(processes, messages, report, tally)
    finally:
        for process in processes:
            process.terminate()
            process.join()
        # Partial folders of workers that were ended in the middle of a part.
        for left in folder.glob(".part-*.partial"):
            shutil.rmtree(left, ignore_errors=True)


def _listen(processes: list[SpawnProcess], messages: Any, report: Report, tally: Tally) -> None:
    """Passes on what workers say, until all have ended."""
    left = len(processes)
    while left:
        # A worker that was killed (by the system, for memory) has left its part undone.
        for number, process in enumerate(processes):
            if process.exitcode:
                reason = f"was killed by signal {-process.exitcode}" if process.exitcode < 0 else "has failed"
                raise OSError(f"worker {number} {reason}; the same command resumes from the parts that are done")
        # Asked before the queue: what a worker has said before its end is still read.
        ended = all(process.exitcode is not None for process in processes)
        try:
            worker, what, value = messages.get(timeout=0.0 if ended else _BETWEEN)
        except queue.Empty:
            report(0, 0, 0)
            if ended:
                break
            continue
        # An error of the user's text, or of the disk, is that of the command.
        if what == "error":
            raise value
        # The part of a worker is shown on request; counts are added up.
        if what == "part":
            tally.workers[worker] = value
        # Its last message: nobody waits until its process is gone.
        elif what == "end":
            left -= 1
        else:
            report(*value)


def _end_with_parent() -> None:
    """Ends this worker when the process that started it is gone, however that ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(maker: PartMaker, count: int, threads: int, parts: Any, messages: Any, number: int) -> None:
    """A worker: makes parts until there are no more."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Ctrl-C goes to all processes of a terminal: the one that was started ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Read when a tokenizer first takes a batch of texts.
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    counts, last = [0, 0, 0], time.monotonic()

    def report(*new: int) -> None:
        nonlocal last, counts
        # Few messages: a part says thousands of times what it has read.
        counts = [one + more for one, more in zip(counts, new, strict=True)]
        if time.monotonic() - last > _BETWEEN:
            messages.put((number, "counts", tuple(counts)))
            counts, last = [0, 0, 0], time.monotonic()

    # Any other exception is a defect of ours: its traceback is printed.
    try:
        make = maker.open()
        while (part := parts.get()) >= 0:
            messages.put((number, "part", part_name(part, count)))
            make(part, report)
        messages.put((number, "counts", tuple(counts)))
        messages.put((number, "end", None))
    except (DataError, OSError) as error:
        messages.put((number, "error", error))
    # What was put into the queue is sent before the process ends.
    messages.close()
    messages.join_thread()
