"""Progress on a terminal of any width, and in a file; the figures that are shown; messages with their time."""

import io
import logging
import re
from pathlib import Path

import pytest
from rich.console import Console

from contexture.train.errors import ConfigError
from contexture.train.run.console import logged_to
from contexture.train.run.progress import ProgressDisplay, figures_of
from contexture.train.run.report import Report
from tests.helpers.logs import logged
from tests.helpers.notebooks import outputs_of

RECORD = {
    "step": 1234,
    "split": "train",
    "loss": 6.44908,
    "mlm_accuracy": 0.0791,
    "tokens_per_second": 123456.7,
    "learning_rate": 1e-4,
    "seconds_left": 3725.4,
    "data_wait": 0.3,
}


def _terminal(width: int) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None, soft_wrap=True)


def _rows(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return [re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]", "", row) for row in re.split(r"[\r\n]", console.file.getvalue())]


@pytest.mark.parametrize("width", [60, 80, 110])
def test_the_bar_is_one_line_of_the_terminal(width):
    console = _terminal(width)
    display = ProgressDisplay(console, steps=20000, done=0)
    display.show(RECORD)
    with display.busy("evaluating"):
        pass
    display.stop()
    bars = [row.rstrip() for row in _rows(console) if row.startswith("step ")]
    assert bars and all(len(bar) <= width for bar in bars)
    assert "step 1234/20000" in bars[-1] and "loss 6.4491" in bars[-1] and bars[-1].endswith("1:02:05 left"), bars
    assert any("evaluating 0:00:00" in bar for bar in bars)
    assert ("tokens/s" in bars[-1]) == (width >= 80)


def test_a_held_out_line_replaces_none_with_the_time_that_is_left(monkeypatch):
    """An evaluation every 10 seconds, and the figures of training 4 seconds after each."""
    now = [100.0]
    monkeypatch.setattr("contexture.train.run.progress.time.monotonic", lambda: now[0])
    display = ProgressDisplay(Console(file=io.StringIO()), steps=20000, done=0)
    with logged() as lines:
        for step in (100, 200, 300):
            display.show({**RECORD, "step": step})
            now[0] += 6
            display.show({"step": step, "split": "dev", "loss": 5.0})
            now[0] += 4
    assert [("held out" in line, "left" in line) for line in lines] == [(False, True), (True, False)] * 3


def test_without_a_terminal_progress_is_lines():
    display = ProgressDisplay(Console(file=io.StringIO()), steps=2000, done=0)
    with logged() as lines:
        display.show({**RECORD, "step": 1})
        display.show({**RECORD, "step": 2})  # too soon after the other
        display.show({"step": 2, "split": "dev", "loss": 5.0})
        display.show({**RECORD, "step": 2000, "seconds_left": 0.0})
    assert [line.partition(":")[0] for line in lines] == ["step 1/2000", "step 2/2000 held out", "step 2000/2000"]
    assert lines[0].endswith("lr 1.0e-04, waits for data 30%, 1:02:05 left") and "left" not in lines[-1]


def test_the_finished_bar_stands_above_the_last_lines(tmp_path):
    report = Report(tmp_path, steps=2, speaks=True, tensorboard=False)
    report.console = _terminal(80)
    with logged_to(report.console):
        report.start(0, 1)
        report.record([{**RECORD, "step": 2, "seconds_left": 0.0}], saved=2)
        report.complete()
        logging.getLogger("contexture").info("next: go on")
        report.close()
    rows = [row.rstrip() for row in _rows(report.console) if row.strip()]
    assert rows[-1] == "next: go on" and rows[-2].startswith("step 2/2 ") and "left" not in rows[-2]


IN_A_NOTEBOOK = f"""
from pathlib import Path
from contexture.train.run.console import logged_to
from contexture.train.run.report import Report
record = {RECORD}
report = Report(Path("run"), steps=2000, speaks=True, tensorboard=False)
Path("run").mkdir()
with logged_to(report.console, dated=True):
    report.start(0, 1)
    report.table("the task", ["kind"], [["classify"]])
    for step in range(1, 1001):
        report.record([record | {{"step": step}}], saved=step)
    with report.evaluating():
        pass
    report.record([{{"step": 1000, "split": "dev", "loss": 5.0}}], saved=1000)
    report.close()
"""


def test_a_notebook_has_one_bar_that_is_drawn_in_place(tmp_path):
    bar, text = outputs_of(IN_A_NOTEBOOK, tmp_path)
    assert (text.name, text.text) == ("stdout", "the task\nkind    \nclassify\nstep 1000/2000 held out: loss 5.0000\n")
    assert list(bar.data) == ["text/plain"] and "\n" not in bar.data["text/plain"]
    assert re.fullmatch(r"step 1000/2000 ━+╸? +loss 6.4491, .*, 1:02:05 left", bar.data["text/plain"])


def test_what_is_not_remarkable_is_not_shown():
    assert "waits for data 5%" not in figures_of({**RECORD, "data_wait": 0.05})
    mixed = {"loss": 2.0, "loss/de": 1.5, "loss/fr": 2.5, "mlm_accuracy": 0.5, "loss/ru": None}
    assert figures_of(mixed) == ["loss 2.0000 (de 1.5000, fr 2.5000)", "mlm 50.0%"]
    assert figures_of({"loss": None, "skipped": 3}) == ["loss not finite, step skipped", "3 skipped"]


@pytest.mark.parametrize(("terminal", "dated"), [(False, True), (True, True), (False, False)])
def test_a_message_in_a_file_has_its_time(terminal, dated):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=60, color_system=None, soft_wrap=True)
    with logged_to(console, dated=dated):
        logging.getLogger("contexture.train").warning("the disk is slow " + "word " * 20)
    assert isinstance(console.file, io.StringIO)
    first, *others = console.file.getvalue().splitlines()
    time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d " if dated and not terminal else ""
    assert re.match(f"{time}warning: the disk is slow word", first), first
    # A terminal's lines break between words, those of a file do not.
    assert len(others) == (2 if terminal else 0) and all(len(line) <= 60 for line in others)


def test_what_a_training_says_is_kept_in_a_file_too(tmp_path):
    """Also the error that ends it, and what an earlier start has said; a full disk ends nothing."""
    for n in range(2):
        with pytest.raises(ConfigError), logged_to(_terminal(40), file=tmp_path / "log.txt"):
            logging.getLogger("contexture.train").info(f"start {n}: " + "word " * 20)
            raise ConfigError("the batch is too large; lower --data.batch")
    lines = [line[20:] for line in (tmp_path / "log.txt").read_text().splitlines()]
    assert (
        lines[2].startswith("start 1: word")
        and lines[1::2] == ["ConfigError: the batch is too large; lower --data.batch"] * 2
    )
    with logged_to(_terminal(40), file=Path("/dev/full")):
        logging.getLogger("contexture.train").info("word " * 10_000)


@pytest.mark.parametrize("width", range(24, 60))
def test_an_option_and_its_value_stand_in_one_line_of_a_terminal(width):
    console = _terminal(width)
    options = ["--init.random", "--steps 2000", "--data.path a.txt", "--model.vocab 4096", "--optim.peak-lr 0.001"]
    with logged_to(console):
        logging.getLogger("contexture.train").info("differs from its recipe: " + " ".join(options) + "\n  (of\tall)")
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert all(len(line) <= width for line in lines) and lines[-1].startswith("  (of")
    assert all(any(option in line for line in lines) for option in options)
    assert " ".join(lines).split() == " ".join(["differs from its recipe:", *options, "(of all)"]).split()
