"""Runs for what reads them: their numbers are drawn and not learned."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.random_runs import random_pretraining, random_task


@pytest.fixture(scope="session")
def tiny_run(once, tiny_words: list[str]) -> Path:
    """The run of text of all tests, with weights drawn at random."""
    return once("random/whole", lambda folder: random_pretraining(folder, tiny_words))


@pytest.fixture(scope="session")
def elmo_run(once, elmo_words: list[str]) -> Path:
    return once("random/elmo", lambda folder: random_pretraining(folder, elmo_words, evaluates=False))


@pytest.fixture(scope="session")
def task_run(once, tiny_run: Path, task_files: Path) -> Callable[..., Path]:
    """The fine-tuning of all tests, with weights drawn at random, of a kind: `task_run("tag")` → its folder."""

    def run(kind: str = "classify") -> Path:
        return once(f"random/{kind}", lambda folder: random_task(folder, tiny_run, task_files, kind))

    return run
