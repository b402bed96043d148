"""Weights & Biases: `train/loss`, `dev/loss`, … over `train/step` and `dev/step`, in the project WANDB_PROJECT, else
`contexture`. WANDB_MODE=offline writes to the run's folder (or WANDB_DIR), for `wandb sync` later."""

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import wandb
from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportAttributeAccessIssue]

from contexture.train.errors import ConfigError
from contexture.train.loggers.trackers import Place

_SPLITS = ("train", "dev")


def check() -> None:
    """Raises ConfigError if nobody is logged in: W&B would ask for a key in the middle of the training's output."""
    settings = wandb.setup().settings
    if settings.mode in ("online", "shared") and not wandb.login(prompt=False):
        raise ConfigError("nobody is logged in; run `wandb login`, or set WANDB_MODE=offline")


def open_run(place: Place) -> "WandbTracker":
    return WandbTracker(place)


class WandbTracker:
    """A run of Weights & Biases, on its server or in files."""

    def __init__(self, place: Place) -> None:
        # The id is ours, so the same run can be continued without asking the server for one.
        number = place.ids.get("run") or uuid.uuid4().hex[:12]
        folder = os.environ.get("WANDB_DIR") or str(place.folder)
        self._run = wandb.init(
            id=number,
            resume="allow",
            reinit="create_new",  # a run that the caller has open stays as it is
            project=os.environ.get("WANDB_PROJECT", "contexture"),
            name=os.environ.get("WANDB_NAME", place.name),
            dir=folder,
            config=place.config,
            settings=wandb.Settings(silent=True, console="off", show_warnings=False),
        )
        # W&B's own step must always rise, and records of train and dev come with steps of their own.
        for split in _SPLITS:
            self._run.define_metric(f"{split}/*", step_metric=f"{split}/step")
        files = Path(self._run.settings.wandb_dir)
        self.ids = {"run": number}
        # Offline there is no server to ask: the last step is read from the files of earlier starts.
        if self._run.offline:
            self._last = _last_steps(files, number)
            self.where = f"offline run {number}; send it with `wandb sync {files}/offline-run-*-{number}`"
        else:
            self._last = {split: int(self._run.summary.get(f"{split}/step", -1)) for split in _SPLITS}
            self.where = str(self._run.url or f"run {number}")

    def last_step(self, split: str) -> int:
        return self._last.get(split, -1)

    def add(self, step: int, split: str, figures: dict[str, float]) -> None:
        self._run.log({f"{split}/{name}": value for name, value in figures.items()})

    def flush(self) -> None:
        """W&B's own process writes and sends."""

    def close(self, complete: bool) -> None:
        self._run.finish(exit_code=0 if complete else 1)


def _last_steps(folder: Path, number: str) -> dict[str, int]:
    """Returns the last step of each split in the files of a run. Each start writes a file, offline or not."""
    last: dict[str, int] = {}
    for path in folder.glob(f"*run-*-{number}/run-{number}.wandb"):
        for row in history(path):
            for split in _SPLITS:
                last[split] = max(last.get(split, -1), int(row.get(f"{split}/step", -1)))
    return last


def history(path: Path) -> Iterator[dict[str, float]]:
    """Yields the history rows of a .wandb file, up to a torn end; other records are skipped."""
    for data in _records(path):
        record = Record.FromString(data)
        if record.WhichOneof("record_type") == "history":
            # Values are JSON texts; nested names are joined by dots.
            yield {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}


_FILE_HEAD, _BLOCK, _PART_HEAD = 7, 1 << 15, 7


def _records(path: Path) -> Iterator[bytes]:
    """Yields the records of a file in LevelDB's log format.

    The file is 7 bytes of W&B's own and blocks of 32 KiB. A record has one part or more, each after its checksum (4
    bytes), its length (2) and its kind (1: whole, 2: first, 3: middle, 4: last). No part crosses a block.
    """
    with path.open("rb") as file:
        place = len(file.read(_FILE_HEAD))
        record = b""
        while True:
            # place counts bytes of the whole file, W&B's head included: blocks are counted from its beginning.
            if (rest := _BLOCK - place % _BLOCK) < _PART_HEAD:
                place += len(file.read(rest))  # no part fits there
            head = file.read(_PART_HEAD)
            data = file.read(int.from_bytes(head[4:6], "little"))
            if len(head) < _PART_HEAD or len(data) < int.from_bytes(head[4:6], "little"):
                return  # a process that was killed wrote no more
            place += len(head) + len(data)
            # A first part starts a new record, also after a torn one.
            record = record + data if head[6] in (3, 4) else data
            if head[6] in (1, 4):
                yield record
