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


def phase_warmups(run: Run) -> list[tuple[int, int, int]]:
    """Returns of each phase with a schedule of its own (optim.phase-lr): its steps, the warm-up steps asked for, and
    those that it takes, as `_warmup_within`."""
    optim, firsts = run.optim, [phase.first for phase in run.data.stretches]
    # The last phase ends with the run, which --steps may have made longer.
    counts = [end - first for first, end in zip(firsts, [*firsts[1:], run.steps], strict=True)]
    # As `resolve_schedule` does for a whole run: a fraction wins over a number of steps.
    usual = [int(count * optim.warmup_fraction) if optim.warmup_fraction else optim.warmup for count in counts]
    asked = optim.phase_warmup or usual
    return [(count, each, _warmup_within(count, each)) for count, each in zip(counts, asked, strict=True)]


def warmup_note(given: Run, run: Run) -> str:
    """Returns a warning if the warm-up of the run, or of a phase, is shorter than the one given, else ""."""
    optim = given.optim
    if optim.phase_lr:
        # The run keeps the numbers as they were given, so that these are compared with what each phase takes.
        cut = [
            f"the warm-up of phase {number} leaves none of its {count} steps, and takes {taken} instead of {asked}"
            for number, (count, asked, taken) in enumerate(phase_warmups(run), 1)
            if taken != asked
        ]
        return "; ".join(cut) + "; give --optim.phase-warmup for others" * bool(cut)
    if optim.warmup_fraction or optim.warmup == run.optim.warmup:
        return ""
    return (
        f"optim.warmup={optim.warmup} leaves none of the {run.steps} steps; the warm-up takes "
        f"{run.optim.warmup} steps instead; give --optim.warmup or --optim.warmup-fraction for another"
    )
