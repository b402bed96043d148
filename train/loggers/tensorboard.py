"""TensorBoard event files, written by the caller's own thread, so that a full disk is an error and not a hang."""

import os
import time
from pathlib import Path

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
from tensorboardX.summary import scalar


class Events:
    """One event file of a run, for the steps after `step`; TensorBoard hides earlier files' events for these steps."""

    def __init__(self, directory: Path, step: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._writer = EventsWriter(str(directory / "events"), f".{os.getpid()}.{step}")
        # The mark of a restart: TensorBoard purges everything from this step on that other files hold.
        self._write(step + 1, session_log=SessionLog(status=SessionLog.START))

    def _write(self, step: int, **what: object) -> None:
        self._writer.write_event(Event(wall_time=time.time(), step=step, **what))

    def add(self, step: int, split: str, figures: dict[str, float]) -> None:
        """Adds the figures of one step: {"loss": 2.5} → train/loss."""
        for name, value in figures.items():
            self._write(step, summary=scalar(f"{split}/{name}", value))

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
