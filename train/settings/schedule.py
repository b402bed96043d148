"""Turns epochs into steps, and fits the warm-up into them."""

import dataclasses

from contexture.models.config import MAX_SIZE
from contexture.train.errors import ConfigError
from contexture.train.settings.run import Run

EVALUATIONS = 10
"""Minimum number of evaluations in a run, unless evaluate.every is given."""


def resolve_schedule(run: Run, examples_per_epoch: int) -> Run:
    """Returns the run with its length in steps, evaluated ten times, or after each epoch of more than ten.

        steps = int(examples / batch · epochs), at least 1      warm-up = int(steps · warmup_fraction)

    as BERT's original counts them. GPT-1's schedule counts its warm-up in parts of a step, so its fraction is kept. A
    warm-up as long as the run or longer becomes a tenth of it.
    """
    # Rounded down, as int(N / batch · epochs) in run_classifier.py; --steps wins over --epochs.
    steps = run.steps or max(int(examples_per_epoch / run.data.batch * run.epochs), 1)
    if steps > MAX_SIZE:
        raise ConfigError(f"epochs={run.epochs:g} are {steps:.1e} steps, more than {MAX_SIZE:,}; lower --epochs")
    optim = run.optim
    # A fraction wins over a number of steps.
    warmup = int(steps * optim.warmup_fraction) if optim.warmup_fraction else _warmup_within(steps, optim.warmup)
    # Each phase with a schedule of its own fits the warm-up into its own steps.
    if not optim.phase_lr and (optim.schedule != "gpt1" or not optim.warmup_fraction):
        optim = dataclasses.replace(optim, warmup=warmup, warmup_fraction=0.0)
    # The steps of an epoch, rounded up, so that an evaluation comes after its end.
    epoch = -(-examples_per_epoch // run.data.batch) if run.epochs else steps
    every = run.evaluate.every or max(min(steps // EVALUATIONS, epoch), 1)
    # From here on the run counts in steps alone: the loop knows no epochs.
    return dataclasses.replace(
        run,
        steps=steps,
        epochs=0.0,
        optim=optim,
        evaluate=dataclasses.replace(run.evaluate, every=every),
    )


def _warmup_within(steps: int, warmup: int) -> int:
    """Returns the steps of the warm-up: as given, or a tenth of all steps if it would leave no step after it.

    This depends on both numbers alone, and run.json keeps the warm-up as given. So a resumed run has the same schedule,
    and a run made longer has the schedule that a run of that length has from the start.
    """
    # A warm-up of 10,000 steps, the default, would otherwise leave a short run below its peak rate to the end.
    return warmup if warmup < steps else steps // 10


def warmup_note(given: Run, run: Run) -> str:
    """Returns a warning if `resolve_schedule` made the warm-up shorter than the one given, else ""."""
    optim = given.optim
    if optim.warmup_fraction or optim.phase_lr or optim.warmup == run.optim.warmup:
        return ""
    return (
        f"optim.warmup={optim.warmup} leaves none of the {run.steps} steps; the warm-up takes "
        f"{run.optim.warmup} steps instead; give --optim.warmup or --optim.warmup-fraction for another"
    )
