"""run.json as format 1 had it: the names of fields that have changed since, for reading old runs and for fingerprints.

A fingerprint is the same for ever, so it keeps counting fields by the names that they had when the first runs were
written.
"""

from collections.abc import Mapping
from typing import Any

from contexture.data.config import STREAMS
from contexture.train.config import Run, fields

_RENAMED = {
    "data.word_splitter": "split",
    "data.max_predictions": "predictions",
    "save.max_to_keep": "latest",
    "init.random": "scratch",
}
"""Field → its last word in format 1."""
_DERIVED = ("objective", "data.stream", "data.layout")
"""Fields of format 1 that follow from the model's family and the kind of task."""


def upgrade(tree: Mapping[str, object]) -> dict[str, object]:
    """Returns a run.json of format 1 as one of format 2. Values are not checked here."""
    upgraded: dict[str, object] = {**tree, "format": 2}
    config = tree.get("config") or {}
    if isinstance(config, dict):
        upgraded["config"] = config = dict(config)
        _upgrade_config(config)
    if "published" in tree:
        published = upgraded.pop("published")
        if isinstance(published, dict) and "drawn" in published:
            published = {"missing" if key == "drawn" else key: value for key, value in published.items()}
        upgraded["imported"] = published
    return upgraded


def _upgrade_config(config: dict[str, Any]) -> None:
    for name, was in _RENAMED.items():
        section, new = name.split(".")
        if isinstance(config.get(section), dict) and was in config[section]:
            config[section] = {new if key == was else key: value for key, value in config[section].items()}
    if isinstance(config.get("data"), dict):
        config["data"] = {key: value for key, value in config["data"].items() if f"data.{key}" not in _DERIVED}
    # a question-answering model that was imported had no kind of task
    if config.pop("objective", "") == "span" and isinstance(config.get("task", {}), dict):
        config["task"] = {**config.get("task", {}), "kind": "span"}


def format_1_fields(run: Run) -> dict[str, object]:
    """Returns every field of a run by the dotted name of format 1: {"data.split": "spaces", …}."""
    names = {name: f"{name.split('.')[0]}.{was}" for name, was in _RENAMED.items()}
    flat = {names.get(name, name): value for name, value in fields(run).items()}
    if run.task.kind == "span":
        flat["task.kind"] = "off"
    derived = (run.objective, STREAMS[run.family] if run.task.kind == "off" else "sentence_pairs", run.family)
    return flat | dict(zip(_DERIVED, derived, strict=True))


def default_fields(run: Run) -> dict[str, object]:
    """Returns the values that fields of format 1 have by default, for the run's family of models."""
    usual = format_1_fields(Run())
    return usual | {f"model.{name}": value for name, value in fields(type(run.model)()).items()}
