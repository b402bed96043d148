"""run.json: writing and reading a run, the fields that may change when it resumes, and its fingerprint."""

import dataclasses
import hashlib
import json
import logging
import os
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from contexture.data import mirror
from contexture.data.binary_files import misfit
from contexture.data.config import DataConfig
from contexture.data.errors import DataError, did_you_mean
from contexture.data.mixed_paths import split_weight
from contexture.data.plain_files import read_plain
from contexture.data.storage import atomic_file, check_no_address, check_run_path, is_address
from contexture.data.text import hub
from contexture.data.visible import visible_json
from contexture.train.errors import ConfigError
from contexture.train.settings.run import FAMILIES, Run, fields

logger = logging.getLogger(__name__)
FORMAT = 2
# A whole section, or a single field. None of these changes the numbers of a step: speed, length, places of files.
_MAY_CHANGE = (
    *("mesh", "save", "log", "evaluate", "steps", "epochs", "dir", "data.path", "data.dev", "data.tokenizer"),
    *("data.cache_gb", "data.features", "init.run", "task.train", "task.dev", "task.test"),
    *("model.attention", "model.remat", "model.unroll"),
)


@dataclass(frozen=True, kw_only=True)
class Imported:
    """The origin of an imported run, as run.json keeps it."""

    format: str
    """The format of its files, as `contexture import` names it."""
    source: str | None = None
    """The model on the hub whose files they are, OWNER/NAME@COMMIT; None for files of a folder."""
    config: dict[str, object] = field(default_factory=dict)
    """The configuration file of the weights, for an export to the same format."""
    parts: tuple[str, ...] | None = None
    """The heads, and `pooler`, in the files; None if the format does not name them."""
    special: dict[str, str | list[str]] = field(default_factory=dict)
    """The special tokens that the files named."""
    missing: tuple[str, ...] = ()
    """Parameters that the files lack, which were initialised randomly."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The content of run.json: a run, and facts about its data and its files."""

    run: Run
    versions: dict[str, str] = field(default_factory=dict)
    """Python and the libraries that the numbers may depend on."""
    tokenizer: str = ""
    """The fingerprint of the tokenizer; empty until there is one."""
    data: str = ""
    """The fingerprint of the tokenised text or examples; empty until there are any, and in an imported run."""
    labels: tuple[str, ...] = ()
    """For a task: its labels, in the order of the classes."""
    counts: tuple[int, ...] = ()
    """For a task: the number of training examples with each label."""
    pair: bool | None = None
    """For a task: whether its examples are pairs of texts; None if unknown."""
    words: int = 0
    """For an ELMo: the number of words in the vocabulary."""
    total_steps: int = 0
    """The run's length in steps, also if it is given in epochs."""
    imported: Imported | None = None
    slimmed: bool = False
    """Whether only the parameters of one checkpoint are left, so that the run cannot be resumed."""


def with_data_facts(run: Run, *, words: int = 0, pair: bool | None = None) -> Run:
    """Returns the run with the facts of its data that a model that reads words depends on; other families unchanged.

    An ELMo's softmax has one row for each of the vocabulary's `words`, since a row without a word would never be a
    target. The head has other parameters if examples are a `pair`. Raises ConfigError for an invalid number of words.
    """
    if not run.text.reads_words:
        return run
    # A text and an alternative are one sequence, so the head of a choice has no parameters of its own for pairs.
    pair = run.task.kind not in ("off", "choice") and bool(pair)
    try:
        model = dataclasses.replace(run.model, vocab=words or run.model.vocab)
    except ValueError as error:
        raise ConfigError(f"run.json: words={words} is not the size of a vocabulary ({error})") from None
    return dataclasses.replace(run, model=model, head=dataclasses.replace(run.head, pair=pair))


def may_change(name: str) -> bool:
    """Returns whether a field may differ when a run resumes.

    The paths of text and vocabulary may: their fingerprints show whether they are the same.
    """
    return name in _MAY_CHANGE or name.split(".")[0] in _MAY_CHANGE


def to_json(run: Run) -> dict[str, object]:
    """Returns a run as a JSON value, with the model's family as a field."""
    # The class of the model is not in its fields: the family says which one to build.
    # A path that stands for an address is written as the address, which `from_json` turns back.
    tree = json.loads(mirror.with_addresses(json.dumps(dataclasses.asdict(run))))
    return {**tree, "model": {"family": run.family, **tree["model"]}}


def from_json(tree: object, where: str) -> Run:
    """Returns the run of a JSON value. Raises ConfigError that names a field that is unknown or of the wrong type."""
    model = tree.get("model") if isinstance(tree, dict) else None
    if not isinstance(tree, dict) or not isinstance(model, dict):
        raise ConfigError(f"{where}: the configuration is not an object with a model, but {str(tree)[:60]!r}")
    # Copies: the caller's tree is not changed.
    tree, model = dict(tree), dict(model)
    family = model.pop("family", None)
    if not isinstance(family, str) or family not in FAMILIES:
        raise ConfigError(f"{where}: model.family is {family!r}, not one of {', '.join(FAMILIES)}")
    tree["model"] = model
    try:
        return _build(Run, tree, where, {"model": FAMILIES[family].config})
    except ConfigError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}") from None


def with_absolute_paths(run: Run) -> Run:
    """Returns the run with absolute paths, so that its folder can be opened from anywhere."""

    # A field is one path or a tuple of paths, and keeps its form.
    def absolute(section: Any, *names: str) -> Any:
        paths: dict[str, Any] = {}
        for name in names:
            value = getattr(section, name)
            paths[name] = _absolute(value) if isinstance(value, str) else tuple(map(_absolute, value))
        return dataclasses.replace(section, **paths)

    data, task = absolute(run.data, "path", "dev", "tokenizer"), absolute(run.task, "train", "dev", "test")
    return dataclasses.replace(run, data=data, task=task, init=absolute(run.init, "run"))


def with_pinned_addresses(run: Run, directory: Path) -> Run:
    """Returns the run with a commit in each address of the hub, so that it means the same files for ever: the commit
    that the run in `directory` began with, if there is one.

    Raises:
        DataError: when the hub does not have the data.
        ConnectionError: when it cannot be reached.
    """
    # The fields that may hold addresses of the hub.
    names = {"data": ("path", "dev"), "task": ("train", "dev", "test")}
    given = [path for section in names for name in names[section] for path in getattr(getattr(run, section), name)]
    # Only then is the network asked.
    if not any(hub.is_address(split_weight(path)[1]) for path in given):
        return run
    # A run that resumes keeps its commits, though the branch may have moved on.
    existing = read(directory).run if (directory / "run.json").exists() else run

    def pinned(section: str) -> Any:
        mine, before = getattr(run, section), getattr(existing, section)
        return dataclasses.replace(
            mine, **{name: hub.with_commits(getattr(mine, name), getattr(before, name)) for name in names[section]}
        )

    return dataclasses.replace(run, data=pinned("data"), task=pinned("task"))


def _absolute(path: str) -> str:
    # A source of a mixture has its weight in front.
    lead, path = split_weight(path)
    # An address of no bucket is refused where it is read; one of a bucket is a path by now.
    # Names of data sets are no paths, and stay as they are.
    is_name = path.startswith(("tfds:", "published:", hub.PREFIX)) or is_address(path)
    return lead + (os.path.abspath(path) if path and not is_name else path)


def predictions_of(run: Run) -> int:
    """Returns the effective data.max_predictions: a run that gives the number equals one whose length implies it. 0 for
    a run that masks nothing."""
    return run.data.slots if run.objective == "mlm_nsp" else 0


def fingerprint(run: Run, tokenizer: str, data: str) -> str:
    """Returns one hash of everything that a run's numbers depend on: its fixed fields, the tokenizer and the data.

    Fields at their default do not count, so that a field added later changes no existing run.
    """
    # Model fields are compared with the defaults of their own class: an ELMo's differ from a BERT's.
    usual = fields(Run()) | {f"model.{name}": value for name, value in fields(type(run.model)()).items()}
    # By its effect, not by its option: see predictions_of. A share was once written as a number.
    first, last = run.data.masked_fractions
    share = {"data.masked_fraction": first} if first == last else {}
    usual["data.masked_fraction"] = DataConfig().masked_fractions[0]
    values = fields(run) | {"data.max_predictions": predictions_of(run)} | share
    fixed = {name: value for name, value in values.items() if not may_change(name) and value != usual[name]}
    fixed["model.family"] = run.family
    return hashlib.sha256(json.dumps([fixed, tokenizer, data], sort_keys=True, default=list).encode()).hexdigest()


def _build(kind: type, tree: Any, where: str, override: dict[str, type] | None = None) -> Any:
    # A wrong name or type is an error with its place: a run with a misspelt field would train something else.
    if not isinstance(tree, dict):
        raise ConfigError(f"{where}: {kind.__name__} wants an object, not {tree!r}")
    # Built from the types of the dataclass itself, so a new field is read without a line of code here.
    hints = {**typing.get_type_hints(kind), **(override or {})}
    names = {f.name for f in dataclasses.fields(kind)}
    for name in tree:
        if name not in names:
            raise ConfigError(f"{where}: {kind.__name__} has no field {name!r}{did_you_mean(name, names)}")
    # A share that may be two, FIRST:LAST, was once a number, and is written as one in files of settings.
    share = tree.get("masked_fraction") if kind is DataConfig else None
    if isinstance(share, int | float) and not isinstance(share, bool):
        tree = {**tree, "masked_fraction": str(share)}
    # A missing field takes its default; __post_init__ checks the values.
    return kind(**{name: _value(hints[name], value, f"{where}: {name}") for name, value in tree.items()})


_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", dict: "an object"}


def _value(hint: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast(type, hint), value, where)
    origin = typing.get_origin(hint)
    # By type: one of several words, a tuple from a list, a number, a text.
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
    # JSON writes 1.0 as 1 in many tools. A bool is an int to Python, but no number to us.
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise ConfigError(f"{where} has too many digits for a number") from None
    # In the file an address stands for the path that it has in this process.
    if hint is str and isinstance(value, str):
        return mirror.placed(value)
    # True is an int to Python: refused where a number is wanted.
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise ConfigError(f"{where} is {value!r}, not {_KINDS[hint]}")
    return value


def difference(run: Run, other: Run) -> dict[str, tuple[object, object]]:
    """Returns the fields in which two runs differ: name → (run's value, other's value)."""
    # Models of two families have different fields: a field that one lacks is None there.
    mine, others = fields(run), fields(other)
    return {k: (mine.get(k), others.get(k)) for k in mine | others if mine.get(k) != others.get(k)}


def write_json(path: Path, tree: object) -> None:
    """Writes a JSON file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Control characters are escaped: the file is printed on terminals.
    with atomic_file(path) as part:
        part.write_text(visible_json(json.dumps(tree, indent=1, ensure_ascii=False)) + "\n", "utf-8")


_FACTS = {
    "words": int,
    "total_steps": int,
    "pair": bool,
    "labels": [str],
    "counts": [int],
    "tokenizer": str,
    "data": str,
    "versions": dict,
    "imported": {"format": str},
    "slimmed": bool,
}
"""Types of run.json's optional fields outside the configuration."""


def write(directory: Path, record: RunRecord) -> None:
    """Writes run.json, unless it holds the same already, so that its time is the time of the last change."""
    tree: dict[str, Any] = {"format": FORMAT, "config": to_json(record.run)}
    # Fields at their default are left out: a file of an imported run has no labels, and so on.
    for each in dataclasses.fields(record)[1:]:
        value, default = getattr(record, each.name), each.default
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            tree[each.name] = {name: kept for name, kept in dataclasses.asdict(value).items() if kept not in (None, {})}
        elif value != default:
            tree[each.name] = value
    # Compared as bytes, so a resumed run with nothing new leaves the file alone.
    path = directory / "run.json"
    text = visible_json(json.dumps(tree, indent=1, ensure_ascii=False)) + "\n"
    if not path.is_file() or path.read_bytes() != text.encode():
        write_json(path, tree)


def read(directory: Path) -> RunRecord:
    """Returns the record of a run's folder. Raises ConfigError if the folder holds no run."""
    path = directory / "run.json"
    # Every way in which a path may be no run has a line of its own, with the way out.
    try:
        check_no_address(directory)
        mirror.fetched(directory)
        check_run_path(directory, "run", writes=False)
        tree = json.loads(read_plain(path))
    except FileNotFoundError:
        raise ConfigError(f"{directory} is not a run: it holds no run.json; {_how_to_mend(directory)}") from None
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
    # The format before anything else: a newer file may mean something else by the same names.
    form = tree.get("format") if isinstance(tree, dict) else None
    if form != FORMAT:
        raise ConfigError(f"{path} has format {form!r}; this version reads format {FORMAT}")
    return _record(tree, path)


def _how_to_mend(directory: Path) -> str:
    """Returns advice for a path that holds no run: a published model has to be imported first."""
    to_run = f"contexture import hf {directory} --to RUN"
    # The commonest mistakes: a downloaded model, or its name on the hub, in place of a run.
    if (directory / "config.json").is_file():
        return f"it has the config.json of a published model, which becomes a run first: {to_run}"
    training = "give the --dir of a training"
    if not directory.exists() and hub.is_model_name(str(directory)):
        return f"{training}; a published model of this name becomes a run first: {to_run}"
    return training


def _record(tree: dict[str, Any], path: Path) -> RunRecord:
    # Unknown names are passed over; known ones must have their type.
    facts = {name: tree[name] for name in _FACTS.keys() & tree.keys() if not (name == "data" and tree[name] is None)}
    for name, value in facts.items():
        kind = _FACTS[name]
        if misfit({name: value}, {name: kind}) if kind is not dict else not isinstance(value, dict):
            raise ConfigError(f"{path}: {name} is {str(value)[:60]!r}, which no training writes; put it back")
    if "imported" in facts:
        facts["imported"] = _imported(facts["imported"], path)
    facts |= {name: tuple(facts[name]) for name in ("labels", "counts") if name in facts}
    run = from_json(tree.get("config") or {}, str(path))
    run = with_data_facts(run, words=facts.get("words", 0), pair=facts.get("pair"))
    return RunRecord(run=run, **facts)


def _imported(tree: dict[str, Any], path: Path) -> Imported:
    # Checked field by field: exports write from these facts, and a wrong type would fail late.
    known = {each.name for each in dataclasses.fields(Imported)}
    lists = {name: [str] for name in ("parts", "missing") if name in tree}
    texts = {name: str for name in ("source",) if name in tree}
    objects = [tree[name] for name in ("config", "special") if name in tree]
    if misfit(tree, {**lists, **texts}) or not all(isinstance(value, dict) for value in objects) or tree.keys() - known:
        raise ConfigError(f"{path}: imported is {str(tree)[:60]!r}, which no import writes; put it back")
    return Imported(**{**tree, **{name: tuple(tree[name]) for name in lists}})
