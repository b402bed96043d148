"""Which checkpoint answers for a run."""

import pytest

from contexture.requests.arguments import checkpoint_of
from contexture.train.checkpoints.meta import find_steps
from contexture.train.errors import ConfigError
from contexture.train.grid.train_grid import _checked_start
from contexture.train.settings.run import Run
from contexture.train.settings.run_file import RunRecord, write
from contexture.train.settings.sections import EvaluateConfig, InitConfig
from tests.train.checkpoints.json_checkpoints import write_meta


@pytest.fixture
def run(tmp_path):
    """Makes a run with checkpoints of these accuracies, None where it was not measured: run({10: 0.5, …}, patience)."""

    def made(accuracies: dict[int, float | None], patience: int = 0):
        write(tmp_path, RunRecord(run=Run(evaluate=EvaluateConfig(metric="accuracy", patience=patience))))
        for step, value in accuracies.items():
            write_meta(tmp_path, step, metric="accuracy", rank=None if value is None else -value)
        return tmp_path

    return made


def test_a_run_with_patience_answers_with_its_best_others_with_the_newest(run):
    accuracies = {10: 0.5, 20: 0.7, 30: 0.7, 40: 0.6}
    folder = run(accuracies)
    assert find_steps(folder, None) == [40, 30, 20, 10] and find_steps(folder, "best") == [20]
    write(folder, RunRecord(run=Run(evaluate=EvaluateConfig(metric="accuracy", patience=2))))
    assert find_steps(folder, None) == [20, 40, 30, 10]
    assert find_steps(folder, 40) == [40]


def test_a_damaged_best_is_passed_over_and_the_next_best_answers(run):
    folder = run({10: 0.5, 20: 0.7, 30: 0.6}, patience=1)
    (folder / "checkpoints" / "20" / "meta" / "metadata").write_text("{}")
    assert find_steps(folder, None) == [30, 20, 10] and find_steps(folder, "best") == [30]


def test_without_a_measure_the_newest_answers_and_the_best_is_refused(run):
    folder = run({10: None, 20: float("nan")}, patience=1)
    assert find_steps(folder, None) == [20, 10]
    with pytest.raises(ConfigError, match="holds no checkpoint with a held-out accuracy; give --step N"):
        find_steps(folder, "best")
    with pytest.raises(ConfigError, match="no checkpoint of step 7; those there are of step 10, 20"):
        find_steps(folder, 7)


def test_a_step_is_a_number_or_best():
    assert [checkpoint_of(each) for each in ("", "best", "0", "40")] == [None, "best", 0, 40]
    for each in ("last", "-1", "4.0", "1_0", "٤"):
        with pytest.raises(ConfigError, match="give the number of a step, or `best`"):
            checkpoint_of(each)


def test_the_runs_of_a_grid_begin_from_the_checkpoint_that_answers(run):
    """The best one of a source that was trained with patience: what a grid compares is what its runs begin from."""
    folder = run({10: 0.7, 20: 0.5}, patience=1)
    start = _checked_start(Run(init=InitConfig(run=str(folder))), None)
    assert start and start["step"] == find_steps(folder, None)[0] == 10
    assert _checked_start(Run(init=InitConfig(run=str(folder / "none"))), start) == start
