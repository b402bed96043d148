"""The number of masked tokens follows the length of a sequence, also in the paper's second phase."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from contexture import configs
from contexture.cli.parse import parse
from contexture.data.config import DataConfig
from contexture.train.errors import ConfigError
from contexture.train.objectives import batch_sizes
from contexture.train.run.folder import open_or_create
from contexture.train.settings import run_file
from contexture.train.settings.run import Run
from tests.helpers.parity_rule import assert_close

GOLDEN = Path(__file__).parents[1] / "golden"
PHASES = [name for name in configs.recipes() if name.endswith("_phase2")]


@pytest.mark.parametrize(("length", "slots"), [(8, 2), (20, 3), (32, 5), (64, 10), (128, 20), (256, 39), (512, 77)])
def test_masked_slots_follow_the_length(length: int, slots: int):
    assert DataConfig(length=length).slots == slots
    assert DataConfig(length=length, masked_fraction="0.5").slots == length // 2
    assert DataConfig(length=length, max_predictions=2).slots == 2


def test_no_sequence_has_fewer_slots_than_tokens_to_mask():
    for length in range(8, 1025):
        slots = DataConfig(length=length).slots
        assert max(1, np.rint(length * 0.15)) <= slots <= length


def test_a_longer_length_of_the_command_line_has_more_slots():
    for recipe, words, slots in (
        ("bert.base", "--data.length 512", 77),
        ("bert.base", "", 20),
        ("bert.base", "--data.length 512 --data.max-predictions 20", 20),
        ("bert.tiny", "--data.length 64", 10),
        ("bert.tiny", "--data.masked-fraction 0.3", 39),
    ):
        run = parse(Run, words.split(), "pretrain", configs.recipe(recipe))
        assert batch_sizes(run, 4)["P"] == slots


def test_more_slots_than_tokens_are_refused():
    with pytest.raises(ValueError, match="data.max-predictions=21 is more than data.length=20; lower it, or give 0"):
        Run(data=DataConfig(length=20, max_predictions=21))


@pytest.mark.parametrize("name", PHASES)
def test_a_second_phase_is_a_tenth_of_the_first_at_four_times_its_length(name: str):
    first, second = configs.recipe(name.removesuffix("_phase2")), configs.recipe(name)
    assert (first.data.length, first.data.slots, second.data.length, second.data.slots) == (128, 20, 512, 77)
    assert second.model == first.model and second.data.batch == first.data.batch
    assert second.steps == first.steps // 10
    assert_close(second.optim.peak_lr, first.optim.peak_lr * (1 - 0.9), rtol=1e-9)
    text = configs.recipes()[name].__doc__ or ""
    for part in (f"contexture pretrain {name} --dir ", "--init runs/", "Devlin et al. 2018", "Not yet run"):
        assert part in text


def test_the_papers_sizes_have_a_second_phase():
    assert PHASES == [f"bert.{name}_phase2" for name in ("base", "large", "base_cased", "large_cased")]


def _begun(folder: Path, run: Run) -> Run:
    """A folder whose run.json was written by a version that stored the number, and that has trained."""
    run = dataclasses.replace(run, dir=str(folder))
    run_file.write(folder, run_file.RunRecord(run=run, data="abc"))
    (folder / "checkpoints" / "10").mkdir(parents=True)
    return run


def test_a_run_that_stores_the_number_of_its_length_resumes(tmp_path: Path):
    follows = configs.recipe("bert.tiny")
    stored = dataclasses.replace(follows, data=dataclasses.replace(follows.data, max_predictions=20))
    assert run_file.fingerprint(stored, "t", "d") == run_file.fingerprint(follows, "t", "d")
    _begun(tmp_path, stored)
    old = open_or_create(dataclasses.replace(follows, dir=str(tmp_path)), tmp_path)
    assert old is not None and old.data == "abc"


def test_a_run_that_was_begun_with_another_number_is_another_run(tmp_path: Path):
    follows = configs.recipe("bert.base_phase2")
    stored = dataclasses.replace(follows, data=dataclasses.replace(follows.data, max_predictions=20))
    assert run_file.fingerprint(stored, "t", "d") != run_file.fingerprint(follows, "t", "d")
    _begun(tmp_path, stored)
    with pytest.raises(ConfigError, match="holds a run with --data.max-predictions 20, not 77"):
        open_or_create(dataclasses.replace(follows, dir=str(tmp_path)), tmp_path)


def test_runs_that_mask_nothing_do_not_see_the_default(tmp_path: Path):
    follows = configs.recipe("gpt.tiny")
    assert follows.data.max_predictions == 0
    stored = dataclasses.replace(follows, data=dataclasses.replace(follows.data, max_predictions=20))
    assert run_file.fingerprint(stored, "t", "d") == run_file.fingerprint(follows, "t", "d")
    _begun(tmp_path, stored)
    old = open_or_create(dataclasses.replace(follows, dir=str(tmp_path)), tmp_path)
    assert old is not None and old.data == "abc"
