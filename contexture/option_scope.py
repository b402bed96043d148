"""The options that have a meaning for a run: help lists these, and others are refused. Needs no jax."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import NamedTuple

from contexture.data.families.base import TextFamily
from contexture.data.plain_files import inner_suffix
from contexture.data.task_kinds import KINDS, kinds_with
from contexture.train.errors import ConfigError
from contexture.train.families import FAMILIES
from contexture.train.settings.run import Run, fields


class _Scope(NamedTuple):
    """What options are for, in words, and whether a run is that."""

    what: str
    has: Callable[[Run], bool]


def _called(has: Callable[[TextFamily], bool]) -> str:
    """Returns the families for which `has` is true, in words: "a BERT, a GPT or an ELMo"."""
    *others, last = [family.text.called for family in FAMILIES.values() if has(family.text)]
    return f"{', '.join(others)} or {last}" if others else last


def _model_fields(kind: type) -> set[str]:
    return {each.name for each in dataclass_fields(kind)}


def _of_families() -> dict[str, _Scope]:
    """Returns the scopes of the options of data that a family declares as its own."""
    scopes: dict[str, _Scope] = {}
    # name=name below: a lambda would read the loop's variable only when it is called, after the loop.
    for name in {name for family in FAMILIES.values() for name in family.text.options}:
        scopes[f"data.{name}"] = _Scope(
            _called(lambda text, name=name: name in text.options), lambda run, name=name: name in run.text.options
        )
    for name in {name for family in FAMILIES.values() for name in family.text.pretraining_options}:
        scopes[f"data.{name}"] = _Scope(
            f"pretraining {_called(lambda text, name=name: name in text.pretraining_options)}",
            lambda run, name=name: not _is_task(run) and name in run.text.pretraining_options,
        )
    return scopes


def _has_kind(*kinds: str) -> _Scope:
    return _Scope(f"--task.kind {' or '.join(kinds)}", lambda run: run.task.kind in kinds)


def _is_task(run: Run) -> bool:
    return run.task.kind != "off"


_TASK = _Scope("contexture finetune", _is_task)
_CAUSAL = _called(lambda text: text.is_causal)
_READERS_OF_WORDS = _called(lambda text: text.reads_words)
_ADAM = _Scope("--optim.name adamw, bert, gpt1 or lamb", lambda run: run.optim.name not in ("adagrad", "adafactor"))
_IN_PHASES = _Scope("a run with --data.phases", lambda run: bool(run.data.phases))
_SCOPES: dict[str, _Scope] = {
    **dict.fromkeys(
        ("data.path", "data.text_column", "data.dev", "data.dev_fraction"),
        _Scope("pretraining on text (a task has --task.train and --task.dev)", lambda run: not _is_task(run)),
    ),
    **_of_families(),
    **dict.fromkeys(
        ("data.cache_gb", "data.tokenizer", "data.vocabulary"),
        _Scope("pretraining on text", lambda run: not _is_task(run)),
    ),
    "model.stateful": _Scope(
        f"pretraining {_called(lambda text: text.continues_rows)}",
        lambda run: not _is_task(run) and run.text.continues_rows,
    ),
    "data.context": _has_kind("tag"),
    **dict.fromkeys(
        ("data.ramp_from", "data.ramp_steps"),
        _Scope(
            f"pretraining {_called(lambda text: text.stream is not None and not text.continues_rows)}, or fine-tuning",
            lambda run: _is_task(run) or not run.text.continues_rows,
        ),
    ),
    "data.languages": _Scope(
        f"pretraining {_called(lambda text: text.stream is not None and not text.continues_rows)}",
        lambda run: not _is_task(run) and run.text.stream is not None and not run.text.continues_rows,
    ),
    "data.language_exponent": _Scope("a run with --data.languages", lambda run: bool(run.data.languages)),
    "data.phases": _Scope(
        f"pretraining {_called(lambda text: text.stream is not None and not text.continues_rows)}",
        lambda run: not _is_task(run) and run.text.stream is not None and not run.text.continues_rows,
    ),
    **dict.fromkeys(
        ("data.unit_fraction", "data.masking_stages"),
        _Scope(
            "pretraining a BERT with --data.masking ernie",
            lambda run: not _is_task(run) and run.data.masking == "ernie",
        ),
    ),
    "data.span_boundary": _Scope(
        "pretraining a BERT with --data.masking spans", lambda run: not _is_task(run) and run.data.masking == "spans"
    ),
    "data.masked_steps": _Scope(
        "pretraining a BERT with --data.masked-fraction FIRST:LAST",
        lambda run: (
            not _is_task(run) and "masked_steps" in run.text.pretraining_options and ":" in run.data.masked_fraction
        ),
    ),
    "data.features": _Scope(
        "a task with --optim.frozen backbone", lambda run: _is_task(run) and run.optim.freezes_backbone
    ),
    "optim.layer_decay": _Scope(
        _called(lambda text: "layers" in _model_fields(FAMILIES[text.name].config)), lambda run: run.model.layers > 0
    ),
    **dict.fromkeys(("optim.phase_lr", "optim.phase_warmup"), _IN_PHASES),
    "optim.gradient_scale": _Scope("--optim.name adagrad", lambda run: run.optim.name == "adagrad"),
    **dict.fromkeys(("optim.b1", "optim.b2", "optim.eps", "optim.moments", "optim.stochastic_rounding"), _ADAM),
    **dict.fromkeys(
        ("head.mix", "head.mix_norm", "head.mix_l2", "head.place", "head.cells", "head.lstm_layers"),
        _has_kind(*KINDS),
    ),
    "optim.mix_lr": _Scope("--head.mix all or last-four", lambda run: run.head.mixes),
    "task.windows": _has_kind(*kinds_with("windows")),
    "task.second": _has_kind(*kinds_with("second")),
    **dict.fromkeys(
        (
            "task.answer_start",
            "task.stride",
            "task.question_length",
            "task.answer_length",
            "task.n_best",
            "task.null_threshold",
        ),
        _has_kind("span"),
    ),
    "task.choices": _has_kind(*kinds_with("choices")),
    "task.labels": _has_kind(*kinds_with("labels")),
    "task.class_weights": _has_kind(*kinds_with("class_weights")),
    "task.lm_weight": _Scope(f"fine-tuning {_CAUSAL}", lambda run: _is_task(run) and run.text.is_causal),
    "task.symmetric": _Scope(
        f"{_CAUSAL}'s --task.kind {' or '.join(kinds_with('symmetric'))}",
        lambda run: run.text.is_causal and run.task.kind in kinds_with("symmetric"),
    ),
    "head.crf": _Scope(
        f"--task.kind tag of {_READERS_OF_WORDS}", lambda run: run.text.reads_words and run.task.kind == "tag"
    ),
    "head.pair": _Scope("no command: it is known from the examples", lambda run: False),
}


class _Need(NamedTuple):
    """Whether an option has an effect given a run's other options, and the end of the error message if it has none."""

    has_effect: Callable[[Run], bool]
    problem: str


def _reads_tables(run: Run) -> bool:
    files = (*run.task.train, *run.task.dev, *run.task.test)
    return not files or any(inner_suffix(file) in (".tsv", ".csv") for file in files)


_SOURCE = _Need(lambda run: bool(run.init.run), "without a run to begin from; give --init.run RUN too")
_TAKEN = _Need(
    lambda run: bool(run.init.run) and not run.init.random,
    "without parameters of another run; give --init.run RUN, and no --init.random",
)
_JOB = _Need(lambda run: run.mesh.distributed, "in one process; give --mesh.distributed too")
_HELD_OUT = _Need(
    lambda run: not _is_task(run) or bool(run.task.dev or run.task.dev_fraction),
    "without held-out examples; give --task.dev FILE, or --task.dev-fraction 0.1",
)
_DROPPED = "where optim.frozen=backbone computes the backbone without dropout; leave one out"
_DRAWN = "where a run's parameters are taken over; leave it out, or give --init.random"
_NEEDS: dict[str, _Need] = {
    "optim.peak_lr": _Need(
        lambda run: not run.optim.phase_lr, "where optim.phase-lr has the rate of each phase; leave it out"
    ),
    **dict.fromkeys(
        ("optim.warmup", "optim.warmup_fraction"),
        _Need(
            lambda run: not run.optim.phase_warmup,
            "where optim.phase-warmup has the steps of each phase; leave it out",
        ),
    ),
    "optim.lora_alpha": _Need(lambda run: run.optim.lora_rank > 0, "without adapters; give --optim.lora-rank 8 too"),
    "optim.stochastic_rounding": _Need(
        lambda run: run.optim.moments == "bfloat16", "without moments in bfloat16; give --optim.moments bfloat16 too"
    ),
    "optim.no_decay": _Need(
        lambda run: run.optim.weight_decay > 0, "without weight decay; give --optim.weight-decay 0.01 too"
    ),
    "mesh.startup_minutes": _JOB,
    "mesh.peer_minutes": _JOB,
    "init.random": _SOURCE,
    "init.step": _TAKEN,
    "init.grow": _TAKEN,
    "init.drop_heads": _TAKEN,
    "evaluate.every": _HELD_OUT,
    "evaluate.batch": _HELD_OUT,
    "data.vocabulary": _Need(
        lambda run: not run.data.tokenizer and not run.init.run,
        "where a vocabulary is given, by data.tokenizer or init.run; leave it out",
    ),
    "data.lowercase": _Need(lambda run: not run.init.run, "where init.run brings its own vocabulary; leave it out"),
    "data.features": _Need(
        lambda run: run.reads_features, "beside task.lm-weight, whose loss reads the backbone itself; leave one out"
    ),
    "model.dropout": _Need(lambda run: not run.optim.freezes_backbone or not run.model.dropout, _DROPPED),  # pyright: ignore[reportAttributeAccessIssue]
    "model.attention_dropout": _Need(
        lambda run: not run.optim.freezes_backbone or not run.model.attention_dropout,  # pyright: ignore[reportAttributeAccessIssue]
        _DROPPED,
    ),
    "model.init": _Need(lambda run: not run.init.run or run.init.random or run.init.redraw_layers > 0, _DRAWN),
    "model.position_std": _Need(lambda run: not run.init.run or run.init.random or run.init.grow, _DRAWN),
    "task.header": _Need(_reads_tables, "for files that are no *.tsv or *.csv; leave it out"),
}
"""Options that have an effect only with some values of other options. Help lists them all the same."""


def scope(name: str, run: Run) -> str:
    """Returns which runs an option (data.max_predictions) is for, in words; "" if it has a meaning for this run."""
    if name.startswith(("task.", "head.")) and not _is_task(run):
        return _TASK.what
    given = _SCOPES.get(name)
    return given.what if given and not given.has(run) else ""


def families_of(name: str) -> str:
    """Returns which families have an option of the model (model.quantization): "a BERT or a GPT"; or ""."""
    section, _, field = name.partition(".")
    have = [each.text.called for each in FAMILIES.values() if field in _model_fields(each.config)]
    return " or ".join(have) if section == "model" else ""


def own_options(run: Run) -> list[str]:
    """Returns the options that have a meaning for the run, as the command line names them."""
    return [_option(name) for name in fields(run) if not scope(name, run)]


def other_options(run: Run) -> dict[str, str]:
    """Returns the options without a meaning for the run → what they are for: other families and kinds of task."""
    models = {f"model.{name}" for family in FAMILIES.values() for name in _model_fields(family.config)}
    others = {_option(name): families_of(name) for name in sorted(models - fields(run).keys())}
    return others | {_option(name): scope(name, run) for name in fields(run) if scope(name, run)}


def check_scope(names: Collection[str], run: Run, where: str = "") -> None:
    """Raises: ConfigError when a given option (data.max_predictions) has no meaning for the run."""
    for name in names:
        if what := scope(name, run):
            kind = f"task.kind={run.task.kind}" if _is_task(run) else f"pretraining {run.text.called}"
            kind = f"head.mix={run.head.mix}" if name == "optim.mix_lr" else kind
            kind = f"--optim.name {run.optim.name}" if _SCOPES.get(name) is _ADAM else kind
            place = f"{where}: " if where else ""
            raise ConfigError(f"{place}--{_option(name)} is for {what}, and has no meaning for {kind}; leave it out")


def check_effects(names: Collection[str], runs: Sequence[Run], recipe: Run) -> None:
    """Refuses options (optim.lora_alpha) that have no effect in any of these runs, given the runs' other options.

    An option with the recipe's own value is allowed. A run whose folder exists is not checked: it is resumed with the
    settings that it has.

    Args:
        names: the options that the user gave, as fields.
        runs: one run, or all runs of a grid.
        recipe: the run without the user's options.

    Raises:
        ConfigError: when an option has no effect.
    """
    usual = fields(recipe)
    new = [run for run in runs if not (run.dir and (Path(run.dir) / "run.json").exists())]
    for name in names:
        need = _NEEDS.get(name)
        changed = [run for run in new if fields(run).get(name) != usual.get(name)]
        if need and changed and not any(map(need.has_effect, changed)):
            raise ConfigError(f"{_option(name)} has no meaning {need.problem}")


def _option(name: str) -> str:
    return name.replace("_", "-")
