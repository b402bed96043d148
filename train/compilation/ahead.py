"""Compiles the training step for the lengths that later batches have, while it trains on the first."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any

import jax

from contexture.data.tasks.batches import TaskBatches
from contexture.train.compilation.programs import Shapes, shapes_of


class CompilesAhead:
    """A thread that compiles a program for each length, in the order in which the batches have them.

    compile(batch) → the program for batches of these shapes. batch_at(step) → the step's batch on the devices.
    within() → the context that both are called in, which is a thread's own.
    """

    def __init__(
        self,
        compile: Callable[[dict[str, jax.Array]], Any],
        batches: TaskBatches,
        batch_at: Callable[[int], dict[str, jax.Array]],
        within: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self._compile, self._batches, self._batch_at, self._within = compile, batches, batch_at, within
        self._programs: dict[Shapes, Future[Any]] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=lambda: None)

    def start(self, first: int, last: int) -> None:
        """Begins with the batches behind `first`, which is compiled when it comes, and before `last`."""
        # What one pass does not have is rare enough to be compiled when it comes.
        last = min(last, first + self._batches.examples_per_epoch // self._batches.batch)
        self._thread = threading.Thread(target=self._run, args=(first, last))
        self._thread.start()

    def _run(self, first: int, last: int) -> None:
        seen = {self._batches.length_at(first)}
        for step in range(first + 1, last):
            if self._stopped.is_set() or len(seen) == len(self._batches.lengths):
                return
            if (length := self._batches.length_at(step)) in seen:
                continue
            seen.add(length)
            with self._within():
                batch = self._batch_at(step)
                program = self._programs[shapes_of(batch)] = Future[Any]()
                try:
                    program.set_result(self._compile(batch))
                except Exception:  # it is compiled again when it is needed, where the error is reported
                    program.set_result(None)

    def provide(self, shapes: Shapes, programs: dict[Shapes, Any]) -> None:
        """Adds the program for these shapes to `programs`; waits for it if it is being compiled."""
        if shapes not in programs and shapes in self._programs and (program := self._programs[shapes].result()):
            programs[shapes] = program

    def stop(self) -> None:
        """Ends the thread, as soon as the program that it compiles is complete."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
