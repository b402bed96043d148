"""A pytest plugin: the modules under test are those of the folder where pytest runs, and of no other checkout."""

import sys
from pathlib import Path

import pytest

PACKAGES = ("contexture", "analysis", "configs", "data", "interchange", "models", "train")
"""The import name, and the folders that are installed under it."""


def foreign(root: Path) -> list[str]:
    """Modules of ours that were imported from outside of root."""
    modules = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name.partition(".")[0] in ("contexture", "tests") and file and root not in Path(file).resolve().parents:
            modules.append(f"{name} ({file})")
    return modules


def pytest_collection_finish(session: pytest.Session) -> None:
    _check(session)


def pytest_sessionfinish(session: pytest.Session) -> None:
    _check(session)


def _check(session: pytest.Session) -> None:
    if others := foreign(session.config.rootpath.resolve()):
        raise RuntimeError(f"not from {session.config.rootpath}: {', '.join(others[:3])}")
