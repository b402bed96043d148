"""Runs for what reads them: their numbers are drawn and not learned."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contexture.train.compilation.programs import Programs
from contexture.train.evaluation import evaluate, predict
from tests.helpers.random_runs import random_pretraining, random_task


@pytest.fixture(scope="session")
def tiny_run(once, tiny_words: list[str]) -> Path:
    """The run of text of all tests, with weights drawn at random."""
    return once("random/whole", lambda folder: random_pretraining(folder, tiny_words))


@pytest.fixture(scope="session")
def task_run(once, tiny_run: Path, task_files: Path) -> Callable[..., Path]:
    """The fine-tuning of all tests, with weights drawn at random, of a kind: `task_run("tag")` → its folder."""

    def run(kind: str = "classify") -> Path:
        return once(f"random/{kind}", lambda folder: random_task(folder, tiny_run, task_files, kind))

    return run


_PROGRAMS = Programs()


@pytest.fixture(scope="module", autouse=True)
def shared_programs() -> Iterator[None]:
    """Evaluations and predictions of these tests share what they compile, as those of one command over several runs
    do."""
    step = predict.evaluation_step

    def shared_step(model: Any, objective: Any, mesh: Any) -> Any:
        key = ("predict", repr(model), repr(objective), mesh)
        return _PROGRAMS.get(key, lambda: step(model, objective, mesh))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate, "Programs", lambda: _PROGRAMS)
        patch.setattr(predict, "evaluation_step", shared_step)
        yield
