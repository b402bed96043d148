"""Settings from a file, for --config: the run.json of a run, or names and values in YAML or JSON. Needs no jax."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contexture.data.storage import check_no_address
from contexture.overrides import with_options
from contexture.train.errors import ConfigError
from contexture.train.settings.run import Run, fields
from contexture.train.settings.run_file import read

_NOT_TAKEN = ("dir", "head.pair")
"""Settings of a run.json that another run does not take over: its folder, and its examples."""


def read_settings(file: str) -> dict[str, Any]:
    """Returns the settings of a file by their dotted names, with `_`; nothing for no file.

    Raises:
        ConfigError: when the file is missing, cannot be read, or holds no names and values.
    """
    if not file:
        return {}
    path = Path(file)
    if path.is_dir():
        raise ConfigError(f"--config {file} is a folder; give a file, as {path / 'run.json'}")
    check_no_address(file)
    if not path.is_file():
        raise ConfigError(f"--config {file}: no such file; give the run.json of a run, or a *.yaml or *.json of yours")
    if path.name == "run.json":
        run = read(path.parent).run
        return {"family": run.family, **{name: v for name, v in fields(run).items() if name not in _NOT_TAKEN}}
    try:
        tree = _parsed(path)
        if not isinstance(tree, _Object):
            raise ConfigError(f"{file} holds {_kind_of(tree)}, not names and values; write `steps: 1000`, a line each")
        settings = _flat(tree, file)
    except RecursionError:
        raise ConfigError(f"{path}: its lists and objects are nested too deep") from None
    if "model.family" in settings:
        settings["family"] = settings.pop("model.family")
    return settings


def with_settings(run: Run, settings: Mapping[str, Any], file: str) -> Run:
    """Returns the run with the settings that `read_settings` returns.

    Raises:
        ConfigError: naming the file, when a setting does not exist, does not fit, or belongs to another family.
    """
    settings = dict(settings)
    family = settings.pop("family", run.family)
    if family != run.family:
        raise ConfigError(f"{file} is for the family {family}, and this is a run of the family {run.family}")
    if not settings:
        return run
    return with_options(run, settings, file, whole=Path(file).name == "run.json")


@dataclass(frozen=True)
class _Object:
    """An object of a file as its pairs: a dict would silently keep only the last of two equal names."""

    pairs: list[tuple[Any, Any]]

    def __repr__(self) -> str:
        return "an object"


def _parsed(path: Path) -> Any:
    import yaml

    text = _text(path)
    try:
        if path.suffix == ".json":
            return json.loads(text, object_pairs_hook=_Object)
        return yaml.load(text, _loader())
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}:{error.lineno}: no JSON: {error.msg}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "a character that YAML does not know"
        raise ConfigError(f"{path}{f':{mark.line + 1}' if mark else ''}: no YAML: {problem}") from None
    # Python refuses to read integers of more than 4,300 digits.
    except ValueError:
        raise ConfigError(f"{path}: a number has thousands of digits; give a smaller one") from None


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8; give a text file with names and values") from None


_WORDS = {
    "null": (r"null|Null|NULL|~|", "nN~", lambda text: None),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF", lambda text: text.lower() == "true"),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789", lambda text: _whole(text)),
    "float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
        # Python reads `inf` and `nan` without YAML's dot.
        lambda text: float(re.sub(r"\.(?=[iInN])", "", text)),
    ),
}
"""Plain words that YAML 1.2's core schema does not read as text: their form, their first characters, their value."""


def _whole(text: str) -> int:
    return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))


def _loader() -> Any:
    """Returns a loader of YAML 1.2's core schema; PyYAML's own reads 1.1: `off` is false, 0100 is 64, and 1:30 is 90.

    Anchors and tags are refused: an alias may hold itself, and a few lines of them may expand to gigabytes.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            event: Any = self.peek_event()
            if getattr(event, "anchor", None) or getattr(event, "tag", None):
                problem = "anchors, aliases and tags (& * !) are not read; write the value itself, or quote it"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
            return super().compose_node(parent, index)

    def pairs(loader: Any, node: Any) -> _Object:
        return _Object([tuple(loader.construct_object(part, deep=True) for part in pair) for pair in node.value])

    # PyYAML's own resolvers are those of YAML 1.1.
    Loader.yaml_implicit_resolvers = {}
    for name, (form, first, value) in _WORDS.items():
        tag = f"tag:yaml.org,2002:{name}"
        # "": an empty value begins with nothing.
        Loader.add_implicit_resolver(tag, re.compile(f"^(?:{form})$"), [*first, *([""] if name == "null" else [])])
        Loader.add_constructor(tag, lambda loader, node, value=value: value(node.value))
    Loader.add_constructor("tag:yaml.org,2002:map", pairs)
    return Loader


def _flat(tree: _Object, file: str, prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    seen = set[str]()
    for key, value in tree.pairs:
        if not isinstance(key, str):
            raise ConfigError(f"{file}: {prefix}{key} is no name of an option")
        name = prefix + key.lstrip("-").replace("-", "_")
        inner = _flat(value, file, f"{name}.") if isinstance(value, _Object) else {name: value}
        # The same name twice, or once with dots and once within an object.
        if twice := {name} & seen or flat.keys() & inner.keys():
            raise ConfigError(f"{file}: {min(twice)} is given twice; give it once")
        if value is None:
            raise ConfigError(f"{file}: {name} has no value; give it one, or leave it out")
        seen.add(name)
        flat |= inner
    return flat


def _kind_of(tree: object) -> str:
    return "nothing" if tree is None else "a list" if isinstance(tree, list) else f"{str(tree)[:40]!r}"
