"""Cache of jitted functions, shared by all trainings and evaluations of one process, and its key."""

import dataclasses
import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeAlias, TypeVar, cast

import flax.struct
import jax
import numpy as np

from contexture.train.settings.run import Run
from contexture.train.settings.sections import EvaluateConfig, InitConfig, LogConfig, SaveConfig

# F: the function that makes jitted functions; `shared` keeps its type.
F = TypeVar("F", bound=Callable[..., Any])
Shapes: TypeAlias = tuple[tuple[int, ...], ...]
"""The shapes of a batch's arrays, in the order of their names."""

MOST = 16
"""Number of results that are kept with their programs: about five runs that differ in more than rate and seed."""
_kept: OrderedDict[Hashable, Any] = OrderedDict()
# A notebook may train in one thread and evaluate in another.
_lock = threading.Lock()


def shapes_of(batch: Mapping[str, jax.Array | np.ndarray]) -> Shapes:
    """Returns the shapes that a batch's program is compiled for."""
    # By sorted name: two dicts of the same fields in another order are the same program.
    return tuple(batch[name].shape for name in sorted(batch))


@flax.struct.dataclass
class StepSettings:
    """The settings of a run that its compiled step takes as arguments: runs that differ in these alone share it.

    Args:
        seed: of the dropout masks, u32
        peak_lr: optim.peak_lr, f32
    """

    seed: jax.Array
    peak_lr: jax.Array


def step_settings(run: Run) -> StepSettings:
    """Returns a run's settings as the arguments of its step."""
    # As numpy's scalars: they go to the devices of the state with each call, whichever these are.
    values = np.asarray(run.seed, np.uint32), np.asarray(run.optim.peak_lr, np.float32)
    return StepSettings(*cast(tuple[jax.Array, jax.Array], values))


def without_step_settings(run: Run) -> Run:
    """Returns the run with all that its programs are compiled for: the same for any two runs that can share them."""
    # Sections that no step reads: they are reset, not removed, so that the result is still a Run.
    cleared = dict(save=SaveConfig(), log=LogConfig(), evaluate=EvaluateConfig(), init=InitConfig())
    # The rate of a mix's weights is a multiple of the peak (mix_lr / peak_lr), which is a constant of the step.
    optim = run.optim if run.head.mix != "off" and run.optim.mix_lr else dataclasses.replace(run.optim, peak_lr=1.0)
    data = dataclasses.replace(run.data, path=(), dev=(), tokenizer="")
    task = dataclasses.replace(run.task, train=(), dev=(), test=())
    return dataclasses.replace(run, optim=optim, data=data, task=task, seed=0, dir="", **cleared)


def shared(function: F) -> F:
    """Caches the jitted functions that `function` makes: equal arguments return the cached result.

    So the second training of a notebook, the runs of a grid and the checkpoints of an evaluation are compiled once.
    Call the result with positional arguments. A `Run` is replaced by `without_step_settings(run)`, so no seed, rate or
    path becomes a constant of the program. Arguments that cannot be hashed (models, objectives) are compared by their
    `repr`, which lists all their fields. The cache holds `MOST` results and evicts the least recently used.
    """

    @functools.wraps(function)
    def kept(*arguments: Any) -> Any:
        traced = [without_step_settings(each) if isinstance(each, Run) else each for each in arguments]
        key = (function.__module__, function.__qualname__, *map(_value, traced))
        # The cache is ordered by last use: a hit moves to the end, and the first one is evicted.
        with _lock:
            if key in _kept:
                _kept.move_to_end(key)
                return _kept[key]
        # Outside the lock: tracing takes seconds. Two threads may do it twice, and the later result stays.
        made = function(*traced)
        with _lock:
            _kept[key] = made
            if len(_kept) > MOST:
                _kept.popitem(last=False)
        return made

    return cast(F, kept)


def _value(argument: Any) -> Hashable:
    # Objectives, for one, hold dicts of terms, which have no hash.
    try:
        hash(argument)
    except TypeError:
        return repr(argument)
    return argument


def forget() -> None:
    """Empties the cache."""
    with _lock:
        _kept.clear()
