"""Settings from a file, for --config: the run.json of a run, or names and values in YAML or JSON. Needs no jax."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contexture.data.storage import check_no_bucket
from contexture.options import with_options
from contexture.train.config import Run, fields
from contexture.train.errors import ConfigError
from contexture.train.run_file import read

_NOT_TAKEN = ("dir", "head.pair")
"""What a run.json says of its run alone: another run has its own folder, and its own examples."""


def read_settings(file: str) -> dict[str, Any]:
    """Returns the settings of a file by their dotted names, with `_`; nothing for no file.

    Raises: ConfigError for a file that is missing, that cannot be read, or that holds no names and values.
    """
    if not file:
        return {}
    path = Path(file)
    if path.is_dir():
        raise ConfigError(f"--config {file} is a folder; give a file, as {path / 'run.json'}")
    check_no_bucket(file)
    if not path.is_file():
        raise ConfigError(f"--config {file}: no such file; give the run.json of a run, or a *.yaml or *.json of yours")
    if path.name == "run.json":
        run = read(path.parent).run
        return {"family": run.family, **{name: v for name, v in fields(run).items() if name not in _NOT_TAKEN}}
    tree = _parsed(path)
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{file} holds {_kind_of(tree)}, not names and values; write `steps: 1000`, a line each")
    settings = _flat(tree, file)
    if "model.family" in settings:
        settings["family"] = settings.pop("model.family")
    return settings


def with_settings(run: Run, settings: Mapping[str, Any], file: str) -> Run:
    """Returns the run with the settings that `read_settings` returns.

    Raises: ConfigError, naming the file, for settings that do not exist, do not fit, or are of another family.
    """
    settings = dict(settings)
    family = settings.pop("family", run.family)
    if family != run.family:
        raise ConfigError(f"{file} is for the family {family}, and this is a run of the family {run.family}")
    if not settings:
        return run
    return with_options(run, settings, file, whole=Path(file).name == "run.json")


def _parsed(path: Path) -> Any:
    import yaml

    text = _text(path)
    try:
        return json.loads(text) if path.suffix == ".json" else yaml.load(text, _loader())
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}:{error.lineno}: no JSON: {error.msg}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "a character that YAML does not know"
        raise ConfigError(f"{path}{f':{mark.line + 1}' if mark else ''}: no YAML: {problem}") from None
    except RecursionError:
        raise ConfigError(f"{path}: its lists and objects are nested too deep") from None
    except ValueError as error:  # such as a date that no calendar has
        raise ConfigError(f"{path}: {error}") from None


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8; give a text file with names and values") from None


def _loader() -> Any:
    """Returns PyYAML's safe loader without two traps of YAML 1.1: `off` and `yes` are words, and 1e-4 is a number."""
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    replaced = ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")
    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in replaced]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|false|False)$"), list("tTfF"))
    number = re.compile(r"^[-+]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+.0123456789"))
    return Loader


def _flat(tree: Mapping[Any, Any], file: str, prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if not isinstance(key, str):
            raise ConfigError(f"{file}: {prefix}{key} is no name of an option")
        name = prefix + key.lstrip("-").replace("-", "_")
        inner = _flat(value, file, f"{name}.") if isinstance(value, Mapping) else {name: value}
        if twice := flat.keys() & inner.keys():
            raise ConfigError(f"{file}: {min(twice)} is given twice; give it once")
        if value is None:
            raise ConfigError(f"{file}: {name} has no value; give it one, or leave it out")
        flat |= inner
    return flat


def _kind_of(tree: object) -> str:
    return "nothing" if tree is None else "a list" if isinstance(tree, list) else f"{str(tree)[:40]!r}"
