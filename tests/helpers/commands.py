"""Commands called in the process of the test: done, refused, on so many devices."""

import contextlib
import dataclasses
import importlib
import io
import json
import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import pytest

from contexture import requests
from contexture.cli import main as cli

_ALL_DEVICES = jax.devices  # also where one use of `devices` is inside another


@contextmanager
def devices(count: int) -> Iterator[None]:
    """The commands called in this process see so many devices."""
    seen = _ALL_DEVICES()[:count]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "devices", lambda: seen)
        yield


def done(*words: object) -> None:
    """One command in this process, which succeeds."""
    assert cli.main([str(word) for word in words]) == 0, words


def json_of(*words: object) -> dict[str, Any]:
    """What --json prints of one command in this process, which succeeds: also the place of its results, where given."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        done(*words, "--json")
    printed = json.loads(out.getvalue())
    if words[0] in ("attention", "embed", "export", "score", "senses", "similarity", "zeroshot") and "--to" in words:
        assert printed["to"] == str(words[words.index("--to") + 1])
    return printed


def run_command(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    """(exit code, all of stderr) of one command in this process."""
    code = cli.main([str(word) for word in words])
    return code, capsys.readouterr().err.strip()


def request_kinds() -> list[type]:
    """The types of the options that commands have beside a run's."""
    modules = [
        importlib.import_module(each.name) for each in pkgutil.iter_modules(requests.__path__, "contexture.requests.")
    ]
    kinds = [(module, kind) for module in modules for kind in vars(module).values() if isinstance(kind, type)]
    return [kind for module, kind in kinds if dataclasses.is_dataclass(kind) and kind.__module__ == module.__name__]
