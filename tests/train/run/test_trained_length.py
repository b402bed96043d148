"""How long the sequences of training were, as a run and those before it say, and one warning where text is longer."""

from dataclasses import replace
from pathlib import Path

import pytest

from contexture.configs import recipe
from contexture.models.config import MAX_SIZE
from contexture.train.errors import ConfigError
from contexture.train.run import trained_length as module
from contexture.train.run.trained_length import LengthWatch, trained_length
from contexture.train.settings.run import Run
from contexture.train.settings.run_file import Imported, RunRecord
from tests.helpers.logs import logged

BERT = recipe("bert.tiny")
LONGEST = getattr(BERT.model, "length")  # noqa: B009


def record(length: int, begins_from: str = "", *, run: Run = BERT, random: bool = False, imported: bool = False):
    data, init = replace(run.data, length=length), replace(run.init, run=begins_from, random=random)
    return RunRecord(run=replace(run, data=data, init=init), imported=Imported(format="hf") if imported else None)


@pytest.fixture(autouse=True)
def _runs(monkeypatch):
    runs = {
        "short": record(32),
        "long": record(256, "short"),
        "from-long": record(16, "long"),
        "imported": record(128, imported=True),
        "loop": record(24, "loop"),
    }

    def read(folder: Path) -> RunRecord:
        if folder.name not in runs:
            raise ConfigError(f"{folder} is not a run")
        return runs[folder.name]

    monkeypatch.setattr(module, "read", read)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (record(64), 64),
        (record(16, "short"), 32),
        (record(64, "short"), 64),
        (record(16, "from-long"), 256),
        (record(16, "long", random=True), 16),
        (record(16, "imported"), LONGEST),
        (record(16, imported=True), LONGEST),
        (record(16, "gone"), LONGEST),
        (record(16, "loop"), 24),
        (record(8, run=recipe("elmo.tiny")), MAX_SIZE),
    ],
)
def test_positions_were_trained_by_a_run_or_by_one_before_it(given: RunRecord, expected: int):
    assert trained_length(given) == expected


def test_longer_text_is_said_once():
    watch = LengthWatch(8)
    with logged() as lines:
        for length in (7, 8, 9, 30):
            watch.check(length)
    assert lines == ["warning: trained on sequences of at most 8 tokens; text beyond that may degrade, and here are 9"]
