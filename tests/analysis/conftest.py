"""A browser for the tests of pages, and runs for what reads them: their numbers are drawn and not learned."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.commands import devices, done
from tests.train.evaluation.conftest import elmo_run, task_run, tiny_run

__all__ = ["elmo_run", "task_run", "tiny_run"]


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Any]:
    from tests.analysis.pages.browser import started

    with started(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(scope="session")
def gpt_run(once, gpt_words: list[str]) -> Path:
    """The run of all tests, trained in this process: what it writes is to be text."""

    def make(folder: Path) -> None:
        with devices(1):
            done(*gpt_words, "--dir", folder)

    return once("trained/gpt", make)
