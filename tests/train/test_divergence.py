"""A run whose loss has exploded ends with a failure; legitimate runs never do."""

import math

import pytest

from contexture.train.run.divergence import FAR_IN_REGRESSION, diverged_loss, uniform_loss
from contexture.train.settings.run_file import read
from tests.helpers.commands import run_command
from tests.train.run.test_formats import GOLDEN


def _records(losses):
    return [{"step": n, "split": "train", "loss": loss} for n, loss in enumerate(losses, 1)]


@pytest.mark.parametrize(
    ("losses", "uniform"),
    [
        ([9.0] * 10 + [1e13] * 10, 8.0),
        ([9.0, 30.0], 8.0),
        ([9.0] + [1e6] * 30, 8.0),
        ([0.7] * 30 + [50.0] * 10, 0.69),
    ],
)
def test_a_loss_far_above_its_first_and_above_the_guess_has_diverged(losses, uniform):
    assert diverged_loss(_records(losses), uniform) is not None


@pytest.mark.parametrize(
    ("losses", "uniform"),
    [
        ([], 8.0),
        ([1e13], 8.0),  # nothing to compare it with
        ([9.0] * 10 + [2.0] * 10, 8.0),
        ([0.01] * 10 + [0.9] * 10, 0.69),  # initialised from a model already trained on the task
        ([3.0] * 10 + [9.5] * 10, 9.0),  # a continued pretraining that has forgotten
        ([40.0] * 10 + [20.0] * 10, 8.0),  # a large initialisation
        ([9.0] * 10 + [1e13] + [2.0] * 10, 8.0),  # a single spike
        ([None] * 5, 8.0),
    ],
)
def test_other_losses_have_not(losses, uniform):
    assert diverged_loss(_records(losses), uniform) is None


@pytest.mark.parametrize(
    ("losses", "variance", "diverged"),
    [
        ([2.0] * 20 + [None] * 5 + [1e9] * 10, 1.0, True),
        ([2.0] + [1e9] * 20, 0.0, True),
        ([0.01] * 10 + [0.9] * 10, 0.8, False),  # its first examples were easy
        ([0.002] + [0.9] * 20, 0.8, False),  # a lucky first batch
        ([8e-5] + [0.0] * 20 + [1250.0] * 10, 291.0, False),  # of every 33 labels one is 100, the others are 0
        ([1e6] * 10 + [1e5] * 10, 1e6, False),  # labels of any scale
    ],
)
def test_a_regression_is_held_against_the_variance_of_its_labels(losses, variance, diverged):
    assert (diverged_loss(_records(losses), variance, FAR_IN_REGRESSION) is not None) == diverged


@pytest.mark.long
def test_a_regression_of_few_large_labels_is_no_failure(capsys, tiny_run, tmp_path, one_device):
    rows = "".join(f"the cat sees a house\t{100 if n % 33 == 32 else 0}\n" for n in range(132))
    (tmp_path / "t.tsv").write_text("text\tscore\n" + rows)
    words = [
        "finetune",
        tiny_run,
        "--task.kind",
        "regress",
        "--task.train",
        tmp_path / "t.tsv",
        "--task.label",
        "score",
    ]
    code, err = run_command(capsys, *words, "--data.batch", "4", "--steps", "30", "--dir", tmp_path / "run")
    assert code == 0, err


def test_held_out_figures_are_not_counted():
    records = [*_records([9.0] * 20), {"step": 20, "split": "dev", "loss": 1e13}]
    assert diverged_loss(records, 8.0) is None


@pytest.mark.long
def test_a_run_that_ends_with_an_exploded_loss_is_saved_and_fails(capsys, tiny_words, tmp_path, one_device):
    folder = tmp_path / "run"
    words = [*tiny_words, "--optim.peak-lr", "3", "--optim.warmup", "0", "--optim.name", "adamw", "--optim.clip", "0",
             "--dir", folder]  # fmt: skip
    code, err = run_command(capsys, *words)
    last = err.splitlines()[-1]
    assert code == 1 and last.startswith("Diverged: the training loss rose from "), err
    assert "try a lower --optim.peak-lr" in last and "Traceback" not in err
    assert (folder / "checkpoints" / "40").is_dir()


@pytest.mark.parametrize(("family", "added"), [("bert", math.log(2)), ("gpt", 0.0), ("elmo", 0.0)])
def test_a_guess_costs_the_logarithm_of_the_vocabulary(family, added):
    """BERT's next sentence is one of two besides. A biLM's loss is the mean of its directions."""
    run = read(GOLDEN / family).run
    assert uniform_loss(run, 0) == pytest.approx(math.log(run.model.vocab) + added)


def test_a_guess_at_a_class_costs_the_logarithm_of_their_number():
    run = read(GOLDEN / "bert_classify").run
    assert [uniform_loss(run, classes) for classes in (2, 3)] == pytest.approx([math.log(2), math.log(3)])
