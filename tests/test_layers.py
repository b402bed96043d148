"""Imports point downward only, and what needs no jax imports none."""

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("models", "data", "train", "analysis", "configs", "contexture")
# The lowest floor first. A room's floor, or within train a file's.
FLOORS = (
    ("models", "data"),
    tuple(
        f"train.{name}"
        for name in (
            "config options mesh optim losses objectives metrics scores signals exits limits native_aborts processes "
            "orbax_logging events suggestions words asked tensors published vocabulary late_evaluation"
        ).split()
    ),
    tuple(
        f"train.{name}"
        for name in (
            "step checkpoint transfer report directory agreement answers first_checkpoint bundle hf hf_export "
            "originals bilm"
        ).split()
    ),
    (*(f"train.{name}" for name in "loop evaluate predict interchange".split()), "analysis"),
    ("configs",),
    ("contexture",),
)


def _modules() -> dict[str, Path]:
    """Every module of the project by its name: {"models.bert": …/models/bert.py, …}."""
    found = {"contexture": ROOT / "contexture.py"}
    for room in ROOMS[:-1]:
        for path in sorted((ROOT / room).rglob("*.py")):
            found[".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")] = path
    return found


MODULES = _modules()


def _imports(body: list[ast.stmt], inside_functions: bool) -> Iterator[str]:
    """What statements import, as full names; what is for type checkers alone is left out."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"a relative import: {ast.unparse(node)}"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES else str(node.module)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        elif inside_functions or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for part in ("body", "orelse", "finalbody", "handlers"):
                yield from _imports(getattr(node, part, []), inside_functions)


def _imported(module: str, inside_functions: bool = True) -> set[str]:
    return set(_imports(ast.parse(MODULES[module].read_text("utf-8")).body, inside_functions))


def _floor(module: str) -> int:
    found = [n for n, floor in enumerate(FLOORS) if module in floor or module.partition(".")[0] in floor]
    assert len(found) == 1, f"{module} stands on no floor: give it one here"
    return found[0]


@pytest.mark.parametrize("module", [name for name in MODULES if name != "train"])
def test_imports_point_downward(module: str):
    for other in _imported(module) & MODULES.keys():
        assert _floor(other) <= _floor(module), f"{module} imports {other}, which stands above it"


def test_no_imports_go_round():
    graph = {name: _imported(name) & MODULES.keys() - {name} for name in MODULES}
    graphlib.TopologicalSorter(graph).prepare()


def test_models_and_data_never_meet():
    for name in MODULES:
        room = name.partition(".")[0]
        rooms = {other.partition(".")[0] for other in _imported(name)}
        assert room != "models" or not rooms & {"data", "train", "configs", "contexture"}, name
        assert room != "data" or not rooms & {"models", "train", "configs", "contexture", "jax", "flax"}, name


def _reached(module: str) -> set[str]:
    """All that importing a module imports, itself among it; jax by its name."""
    seen: set[str] = set()
    queue = [module]
    while queue:
        name = queue.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in MODULES:
            queue += _imported(name, inside_functions=False)
    return seen


@pytest.mark.parametrize("module", ["contexture", "configs.bert", *(name for name in MODULES if name[:4] == "data")])
def test_what_needs_no_jax_imports_none(module: str):
    """The door with its --help and recipes, and all of data; grain, which imports jax, is not reached either."""
    heavy = {name for name in _reached(module) if name.partition(".")[0] in {"jax", "flax", "optax", "orbax", "grain"}}
    assert not heavy, f"{module} imports {sorted(heavy)}"
