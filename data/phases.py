"""Phases of a pretraining, as data.phases names them: LENGTHxBATCH:STEPS for each, and the last without its steps. And
the stages of an ERNIE's masking, LEVEL:STEPS."""

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

_FORM = re.compile(r"(\d{1,9})x(\d{1,9})(?::(\d{1,12}))?")


LEVELS = ("pieces", "phrases", "entities")
"""What an ERNIE masks together, by stage (`DataConfig.masking_stages`)."""


class Phase(NamedTuple):
    """A stretch of steps with sequences of one length.

    Args:
        first: its first step.
        length: tokens of a sequence.
        batch: sequences of a step.
        steps: how many steps it has; 0: all that are left.
    """

    first: int
    length: int
    batch: int
    steps: int


@functools.lru_cache
def phases_of(texts: tuple[str, ...]) -> tuple[Phase, ...]:
    """Returns the phases that texts name: `phases_of(("128x256:900000", "512x256"))`.

    Raises: ValueError for a text of another form, a number of 0, and any phase but the last without its steps.
    """
    phases: list[Phase] = []
    for number, text in enumerate(texts, 1):
        match = _FORM.fullmatch(text)
        length, batch, steps = (int(part or 0) for part in match.groups()) if match else (0, 0, 0)
        # Only of the last phase the steps may follow from those of the run.
        if not length or not batch or (not steps and (number < len(texts) or (match and match[3]))):
            raise ValueError(f"data.phases: {text!r} is not LENGTHxBATCH:STEPS; give each phase as 128x256:900000")
        phases.append(Phase(sum(each.steps for each in phases), length, batch, steps))
    if len(phases) == 1:
        raise ValueError("data.phases names a single phase; give --data.length, --data.batch and --steps instead")
    return tuple(phases)


def with_phases(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options with what data.phases says in other words: length and batch of the last phase, and all steps.

    given: values by dotted names; the phases one text or several.

    Raises: ValueError as `phases_of`, and where an option says something else.
    """
    options, value = dict(given), given.get("data.phases")
    if value is None:
        return options
    # A file of settings may hold anything, and "" names none.
    texts = tuple(" ".join(map(str, value if isinstance(value, list | tuple) else [value])).split())
    if not texts:
        return {**options, "data.phases": ()}
    phases = phases_of(texts)
    last = phases[-1]
    # The last phase ends with the run, so that --steps makes a run longer that has phases too.
    options["data.phases"] = (*texts[:-1], texts[-1].partition(":")[0])
    said = {"data.length": last.length, "data.batch": last.batch}
    if last.steps:
        said["steps"] = last.first + last.steps
    # Steps win over epochs, so that these would be ignored. A run.json may hold both; its last phase has no steps.
    if last.steps and given.get("epochs"):
        raise ValueError("--epochs contradicts --data.phases, which says how many steps there are; leave it out")
    for name, wanted in said.items():
        if given.get(name, wanted) != wanted:
            raise ValueError(
                f"--{name} {given[name]} contradicts --data.phases, which says {wanted}; leave it out, or change the "
                "phases"
            )
    return options | said


@functools.lru_cache
def stages_of(texts: tuple[str, ...]) -> tuple[tuple[int, str], ...]:
    """Returns (first step, level) of the stages that texts name: `stages_of(("pieces:900", "phrases"))`.

    Raises: ValueError for a text of another form, and any stage but the last without its steps.
    """
    stages: list[tuple[int, str]] = []
    # Each begins where the one before it ends.
    first = 0
    for number, text in enumerate(texts, 1):
        level, colon, steps = text.partition(":")
        is_last = number == len(texts)
        # The last stage ends with the run.
        if level not in LEVELS or bool(colon) is is_last or not (is_last or (steps.isdecimal() and int(steps))):
            raise ValueError(
                f"data.masking-stages: {text!r} is not one of {', '.join(LEVELS)} with its steps (the last without); "
                "give them as pieces:50000 phrases:50000 entities"
            )
        stages.append((first, level))
        first += int(steps or 0)
    return tuple(stages)


def phase_number(phases: Sequence[Phase], step: int) -> int:
    """Returns which phase a step is in, from 0 on."""
    return sum(step >= phase.first for phase in phases) - 1
