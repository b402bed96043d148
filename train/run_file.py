"""run.json: a run written down and read back, the fields that may change when it resumes, and its fingerprint."""

import dataclasses
import hashlib
import json
import os
import types
import typing
from pathlib import Path
from typing import Any, Literal

from contexture.data.binary_files import misfit
from contexture.data.errors import DataError, did_you_mean
from contexture.data.plain_files import read_plain
from contexture.data.storage import atomic_file, is_bucket
from contexture.data.visible import visible_json
from contexture.models.config import LARGEST, ElmoConfig
from contexture.train.config import FAMILIES, Run, fields
from contexture.train.errors import ConfigError

FORMAT = 1
PREDICTIONS = 20
"""What data.predictions was by default when the first run.json files were written: their identity counts on it."""
_MAY_CHANGE = (
    *("mesh", "save", "log", "evaluate", "steps", "epochs", "dir", "data.path", "data.dev", "data.tokenizer"),
    *("init.run", "task.train", "task.dev", "task.test"),
)


def with_data_facts(run: Run, described: dict[str, Any]) -> Run:
    """The same run, an ELMo knowing what its data are: its softmax has a row for each word of the vocabulary and no
    more ("words"), since one without a word would never be predicted and never be told from one; its head knows whether
    examples are pairs ("pair"). Raises ConfigError."""
    if not isinstance(run.model, ElmoConfig):
        return run
    pair = run.task.kind != "off" and bool(described.get("pair"))
    try:
        model = dataclasses.replace(run.model, vocab=described.get("words") or run.model.vocab)
    except ValueError as error:
        raise ConfigError(f"run.json: words is not the number of a vocabulary's words ({error})") from None
    return dataclasses.replace(run, model=model, head=dataclasses.replace(run.head, pair=pair))


def may_change(name: str) -> bool:
    """Whether a field may differ when a run goes on. Where text and vocabulary lie may: that they are the same is seen
    from their fingerprints. All else is the run itself."""
    return name in _MAY_CHANGE or name.split(".")[0] in _MAY_CHANGE


def to_json(run: Run) -> dict[str, Any]:
    """The tree as plain JSON, the model's family named."""
    tree = dataclasses.asdict(run)
    family = next(name for name, kind in FAMILIES.items() if type(run.model) is kind)
    return {**tree, "model": {"family": family, **tree["model"]}}


def from_json(tree: dict[str, Any], where: str) -> Run:
    """The typed tree again. Raises ConfigError naming the field that is unknown or of the wrong kind."""
    model = tree.get("model") if isinstance(tree, dict) else None
    if not isinstance(model, dict):
        raise ConfigError(f"{where}: the configuration is not an object with a model, but {str(tree)[:60]!r}")
    tree, model = dict(tree), dict(model)
    family = model.pop("family", None)
    if not isinstance(family, str) or family not in FAMILIES:
        raise ConfigError(f"{where}: model.family is {family!r}, not one of {', '.join(FAMILIES)}")
    tree["model"] = model
    try:
        return _build(Run, tree, where, {"model": FAMILIES[family]})
    except ConfigError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}") from None


def with_absolute_paths(run: Run) -> Run:
    """The same run with its files named from the root, so that its folder can be opened from anywhere."""

    def absolute(section: Any, *names: str) -> Any:
        found: dict[str, Any] = {}
        for name in names:
            value = getattr(section, name)
            found[name] = _absolute(value) if isinstance(value, str) else tuple(map(_absolute, value))
        return dataclasses.replace(section, **found)

    data, task = absolute(run.data, "path", "dev", "tokenizer"), absolute(run.task, "train", "dev", "test")
    return dataclasses.replace(run, data=data, task=task, init=absolute(run.init, "run"))


def _absolute(path: str) -> str:
    return os.path.abspath(path) if path and not path.startswith("tfds:") else path


def resolve_schedule(run: Run, examples_per_epoch: int) -> Run:
    """The same run with its length told in steps: `epochs` passes, `warmup_fraction` of them, an evaluation a pass.

    As the original counts: steps = int(lines / batch · epochs), warm-up = int(steps · fraction); at least one step.
    GPT-1's schedule counts its warm-up in parts of a step, so its fraction stays as it is. A warm-up as long as the run
    or longer becomes a tenth of it.
    """
    steps = run.steps or max(int(examples_per_epoch / run.data.batch * run.epochs), 1)
    if steps > LARGEST:
        raise ConfigError(f"epochs={run.epochs:g} are {steps:.1e} steps, more than {LARGEST:,}; lower --epochs")
    optim = run.optim
    warmup = int(steps * optim.warmup_fraction) if optim.warmup_fraction else _warmup_within(steps, optim.warmup)
    if optim.schedule != "gpt1" or not optim.warmup_fraction:
        optim = dataclasses.replace(optim, warmup=warmup, warmup_fraction=0.0)
    every = run.evaluate.every or (-(-examples_per_epoch // run.data.batch) if run.epochs else 0)
    return dataclasses.replace(
        run,
        steps=steps,
        epochs=0.0,
        optim=optim,
        evaluate=dataclasses.replace(run.evaluate, every=every),
    )


def _warmup_within(steps: int, warmup: int) -> int:
    """The steps of the warm-up. One that leaves no step after it is a tenth of all steps instead. This depends on both
    numbers alone, and run.json keeps the warm-up as given: a resumed run has the same schedule, and a run made longer
    has the schedule that a run of that length has from the start."""
    return warmup if warmup < steps else steps // 10


def warmup_note(asked: Run, run: Run) -> str:
    """A line for a warm-up that `resolve_schedule` made shorter than the one asked for, or ""."""
    optim = asked.optim
    if optim.warmup_fraction or optim.warmup == run.optim.warmup:
        return ""
    return (
        f"warning: optim.warmup={optim.warmup} leaves none of the {run.steps} steps; the warm-up takes "
        f"{run.optim.warmup} steps instead; give --optim.warmup or --optim.warmup-fraction for another"
    )


def predictions_of(run: Run) -> int:
    """data.predictions as a number, so that a run whose number was given equals one that follows its length to the
    same. A run that predicts no masked tokens keeps the default of the first run.json files."""
    return run.data.slots if run.objective == "mlm_nsp" else run.data.predictions or PREDICTIONS


def fingerprint(run: Run, tokenizer: str, data: str) -> str:
    """One word for all that makes a run's numbers: its fixed fields and the fingerprints of tokenizer and data.

    Fields left at their default are not counted, so that a field added later changes no run that was begun before.
    """
    usual = fields(Run()) | {"data.predictions": PREDICTIONS}
    usual |= {f"model.{name}": value for name, value in fields(type(run.model)()).items()}
    values = fields(run) | {"data.predictions": predictions_of(run)}
    fixed = {name: value for name, value in values.items() if not may_change(name) and value != usual[name]}
    fixed["model.family"] = next(name for name, kind in FAMILIES.items() if type(run.model) is kind)
    return hashlib.sha256(json.dumps([fixed, tokenizer, data], sort_keys=True, default=list).encode()).hexdigest()


def _build(kind: type, tree: Any, where: str, override: dict[str, type] | None = None) -> Any:
    if not isinstance(tree, dict):
        raise ConfigError(f"{where}: {kind.__name__} wants an object, not {tree!r}")
    hints = {**typing.get_type_hints(kind), **(override or {})}
    names = {f.name for f in dataclasses.fields(kind)}
    for name in tree:
        if name not in names:
            raise ConfigError(f"{where}: {kind.__name__} has no field {name!r}{did_you_mean(name, names)}")
    return kind(**{name: _value(hints[name], value, f"{where}: {name}") for name, value in tree.items()})


def _value(hint: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast(type, hint), value, where)
    origin = typing.get_origin(hint)
    if origin is Literal:
        if value not in typing.get_args(hint):
            raise ConfigError(f"{where} is {value!r}, not one of {', '.join(map(str, typing.get_args(hint)))}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{where} is {value!r}, not a list")
        return tuple(_value(typing.get_args(hint)[0], v, where) for v in value)
    if origin in (typing.Union, types.UnionType):
        raise ConfigError(f"{where} is of no kind that a file can hold")
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise ConfigError(f"{where} has too many digits for a number") from None
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise ConfigError(f"{where} is {value!r}, not of kind {hint.__name__}")
    return value


def difference(run: Run, other: Run) -> dict[str, tuple[Any, Any]]:
    """The fields in which two runs differ: name → (run's value, other's value)."""
    mine, others = fields(run), fields(other)
    return {k: (mine.get(k), others.get(k)) for k in mine | others if mine.get(k) != others.get(k)}


def write_json(path: Path, tree: Any) -> None:
    """Write, then rename: the file is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as part:
        part.write_text(visible_json(json.dumps(tree, indent=1, ensure_ascii=False)) + "\n", "utf-8")


_DESCRIBED = {"words": int, "pair": bool, "labels": [str], "counts": [int], "tokenizer": str, "data": str}
"""What run.json holds of its data, where it holds it; an imported run has a `data` that is null."""


def read(directory: Path) -> tuple[Run, dict[str, Any]]:
    """The run of a folder, and all that its run.json says. Raises ConfigError where it is not a run's folder."""
    path = directory / "run.json"
    if is_bucket(directory):
        raise ConfigError(f"{directory}: buckets are not supported yet; give a folder on a disk of this machine")
    try:
        tree = json.loads(read_plain(path))
    except FileNotFoundError:
        raise ConfigError(f"{directory} is not a run: it holds no run.json; give the --dir of a training") from None
    except NotADirectoryError:
        raise ConfigError(f"{directory} is not a run but a file; give the --dir of a training") from None
    except DataError as error:
        raise ConfigError(str(error)) from None
    except RecursionError:
        raise ConfigError(f"{path} cannot be read: its lists and objects are nested too deep") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    if not isinstance(tree, dict) or tree.get("format") != FORMAT:
        got = tree.get("format") if isinstance(tree, dict) else None
        raise ConfigError(f"{path} has format {got!r}; this version reads format {FORMAT}")
    for name in _DESCRIBED.keys() & tree.keys():
        if not (name == "data" and tree[name] is None) and misfit({name: tree[name]}, {name: _DESCRIBED[name]}):
            raise ConfigError(f"{path}: {name} is {str(tree[name])[:60]!r}, which no training writes; put it back")
    return with_data_facts(from_json(tree.get("config") or {}, str(path)), tree), tree
