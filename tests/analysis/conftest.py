"""A browser for the tests of pages, and runs for what reads them: their numbers are drawn and not learned."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.commands import devices, done
from tests.helpers.random_runs import random_pretraining, random_task


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Any]:
    from tests.analysis.pages.browser import started

    with started(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(scope="session")
def tiny_run(once, tiny_words: list[str]) -> Path:
    """The run of text of all tests, with weights drawn at random."""
    return once("random/whole", lambda folder: random_pretraining(folder, tiny_words))


@pytest.fixture(scope="session")
def gpt_run(once, gpt_words: list[str]) -> Path:
    """The run of all tests, trained in this process: what it writes is to be text."""

    def make(folder: Path) -> None:
        with devices(1):
            done(*gpt_words, "--dir", folder)

    return once("trained/gpt", make)


@pytest.fixture(scope="session")
def elmo_run(once, elmo_words: list[str]) -> Path:
    return once("random/elmo", lambda folder: random_pretraining(folder, elmo_words, evaluates=False))


@pytest.fixture(scope="session")
def task_run(once, tiny_run: Path, task_files: Path) -> Callable[..., Path]:
    """The fine-tuning of all tests, with weights drawn at random, of a kind: `task_run("tag")` → its folder."""

    def run(kind: str = "classify") -> Path:
        return once(f"random/{kind}", lambda folder: random_task(folder, tiny_run, task_files, kind))

    return run
