"""Runs for what reads them: their numbers are drawn and not learned."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.random_runs import random_bert, random_elmo, random_task


@pytest.fixture(scope="session")
def tiny_run(once, tiny_words: list[str]) -> Path:
    """The run of text of all tests, with weights drawn at random."""
    return random_bert(once, tiny_words)


@pytest.fixture(scope="session")
def elmo_run(once, elmo_words: list[str]) -> Path:
    return random_elmo(once, elmo_words)


@pytest.fixture(scope="session")
def task_run(once, tiny_run: Path, task_files: Path) -> Callable[..., Path]:
    """The fine-tuning of all tests, with weights drawn at random, of a kind: `task_run("tag")` → its folder."""

    def run(kind: str = "classify") -> Path:
        return once(f"random/{kind}", lambda folder: random_task(folder, tiny_run, task_files, kind))

    return run
