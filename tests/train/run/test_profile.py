"""A trace of some steps: jax's own reader opens it, and an operation's time is its own."""

import logging
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from contexture.train.run import profile
from contexture.train.run.profile import Profile, slowest
from contexture.train.settings.sections import LogConfig
from tests.helpers.jobs import recorded


def test_the_steps_that_were_asked_for_are_traced(tmp_path, caplog):
    program = jax.jit(lambda x: jax.lax.scan(lambda y, _: (jnp.tanh(y @ y), None), x, None, length=7)[0])
    own, x = Profile("3:5", tmp_path), program(jnp.eye(200))
    with caplog.at_level(logging.INFO):
        for step in range(1, 9):
            own.before(step, x)
            x = program(x)
            own.after(step, x)
    (file,) = (tmp_path / "profile").rglob("*.xplane.pb")
    assert [*(tmp_path / "profile").rglob("*.trace.json.gz")]
    found = slowest(file)
    # Seven turns of each of three steps; a loop is not counted again with what it contains.
    assert any(slow.times == 21 for slow in found) and found == sorted(found, key=lambda slow: -slow.seconds)
    products = sum(slow.seconds for slow in found if slow.times == 21)
    loop = next(slow for slow in found if slow.name.startswith("while"))
    assert loop.times == 3 and loop.seconds < products
    assert f"the trace is in {tmp_path / 'profile'}" in caplog.text
    assert found[0].name in caplog.text


def test_a_run_that_begins_late_or_is_stopped_keeps_a_trace(tmp_path, caplog):
    x = jnp.ones(3)
    for number, (steps, ends) in enumerate((((4, 5), True), ((4,), False), ((6, 7), None))):
        own = Profile("3:5", tmp_path / str(number))
        for step in steps:
            own.before(step, x)
            own.after(step, x)
        own.close()
        own.close()
        assert len([*(tmp_path / str(number)).rglob("*.xplane.pb")]) == (0 if ends is None else 1)
    # Warns if the run ends before the first step to trace, or begins after the last one.
    with caplog.at_level(logging.WARNING):
        for start, end in ((5, 9), (0, 2), (0, 3), (4, 9)):
            Profile("3:5", tmp_path).check(start, end)
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "log.profile=3:5 traces nothing: the steps are 6 to 9", "log.profile=3:5 traces nothing: the steps are 1 to 2"
    ]  # fmt: skip
    # Traces nothing without the option.
    off = Profile("", tmp_path / "off")
    off.before(0, x)
    off.before(1, x)
    off.after(1, x)
    assert not (tmp_path / "off").exists()


def test_the_own_time_of_an_event_is_without_those_within():
    def event(name: str, start: float, duration: float) -> Any:
        return SimpleNamespace(name=name, start_ns=start, duration_ns=duration)

    events = [event("loop", 0, 100), event("a", 0, 30), event("b", 40, 50), event("c", 50, 10), event("d", 100, 5)]
    assert dict(profile._own_times(events)) == {"loop": 20, "a": 30, "b": 40, "c": 10, "d": 5}


@pytest.mark.parametrize("text", ["100", "0:5", "7:6", "a:b", "1:2:3", "-1:4", ":"])
def test_what_is_no_range_of_steps_is_refused(text):
    with pytest.raises(ValueError, match="is not FIRST:LAST, two steps from 1 on, as 100:110"):
        LogConfig(profile=text)


@pytest.mark.long
def test_a_training_traces_its_steps_and_loses_none(door, tiny_words, tmp_path):
    done = door(*tiny_words, "--profile", "20:24", "--dir", tmp_path / "run")
    assert done.returncode == 0 and "slowest operations" in done.stderr, done.stderr
    assert [*(tmp_path / "run" / "profile").rglob("*.xplane.pb")]
    assert recorded(tmp_path / "run") == 40
