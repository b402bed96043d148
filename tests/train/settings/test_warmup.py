"""A warm-up longer than the run becomes a tenth of it, with a line, the same after every resume."""

import dataclasses
import json

import pytest

from contexture.configs import recipe
from contexture.data.config import DataConfig
from contexture.models.config import MAX_SIZE
from contexture.train.errors import ConfigError
from contexture.train.settings.run import Run
from contexture.train.settings.run_file import fingerprint
from contexture.train.settings.schedule import resolve_schedule, warmup_note
from contexture.train.settings.sections import OptimConfig
from tests.helpers.commands import run_command


@pytest.mark.parametrize(
    ("steps", "warmup", "taken"), [(40, 39, 39), (40, 40, 4), (40, 99999, 4), (1, 1, 0), (5, 9, 0)]
)
def test_a_warmup_that_leaves_no_step_is_a_tenth_of_all_steps(steps, warmup, taken):
    base = recipe("bert.tiny")
    run = dataclasses.replace(base, steps=steps, optim=dataclasses.replace(base.optim, warmup=warmup))
    resolved = resolve_schedule(run, 100)
    assert resolved.optim.warmup == taken
    assert resolve_schedule(resolved, 100) == resolved
    assert bool(warmup_note(run, resolved)) == (taken != warmup)


def test_a_run_made_longer_has_the_schedule_of_its_new_length():
    base = recipe("bert.tiny")
    run = dataclasses.replace(base, steps=40, optim=dataclasses.replace(base.optim, warmup=100))
    longer = dataclasses.replace(run, steps=1000)
    assert resolve_schedule(longer, 100).optim.warmup == 100
    assert fingerprint(run, "", "") == fingerprint(longer, "", "")  # so that it may resume


def test_the_warmup_is_said_and_run_json_keeps_what_was_given(capsys, tmp_path, tiny_words, one_device, start_or_run):
    words = [*tiny_words, "--optim.warmup", "500", "--steps", "10"]
    for _ in range(2):
        code, err = run_command(capsys, *words, "--dir", tmp_path / "run")
        assert code == start_or_run, err
        assert "warning: optim.warmup=500 leaves none of the 10 steps; the warm-up takes 1 steps instead" in err
        assert json.loads((tmp_path / "run" / "run.json").read_text())["config"]["optim"]["warmup"] == 500


def test_a_run_has_as_many_steps_as_a_number_of_them_may_say():
    base = recipe("bert.tiny")
    run = dataclasses.replace(base, steps=0, epochs=1.0, data=dataclasses.replace(base.data, batch=1))
    assert resolve_schedule(run, MAX_SIZE).steps == MAX_SIZE
    with pytest.raises(ConfigError, match=f"epochs=1 are .* steps, more than {MAX_SIZE:,}; lower --epochs"):
        resolve_schedule(run, MAX_SIZE + 1)


def test_a_phase_whose_warm_up_is_cut_is_named():
    data = DataConfig(phases=("16x8:100", "32x8"), length=32, batch=8)
    run = Run(data=data, steps=120, optim=OptimConfig(phase_lr=(1e-3, 1e-3), phase_warmup=(10, 20)))
    line = "the warm-up of phase 2 leaves none of its 20 steps, and takes 2 instead of 20; give --optim.phase-warmup"
    assert line in warmup_note(run, resolve_schedule(run, 1000)) and "phase 1" not in warmup_note(run, run)
    # Without phase_warmup each has that of the run.
    usual = dataclasses.replace(run, optim=OptimConfig(phase_lr=(1e-3, 1e-3), warmup=19))
    assert not warmup_note(usual, resolve_schedule(usual, 1000))
