"""Imports point downward only, and what needs no jax imports none.

The layers are read from the folders: a folder inside `models`, `data` or `train` is one layer, and a file that stands
beside such folders is one too. What imports what among them must have an order.
"""

import ast
import functools
import graphlib
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mutants.origin import PACKAGES

ROOT = Path(__file__).parents[1]
BELOW = {
    "models": "",
    "data": "",
    "train": "models data",
    "interchange": "models data train",
    "analysis": "models data train",
    "configs": "models data train",
}
"""What each top folder may import beside itself; `contexture` may import them all."""
HEAVY = {"jax", "flax", "optax", "orbax", "grain"}


def _modules() -> dict[str, Path]:
    """Every module of the project by its name: {"contexture.models.bert": …/models/bert.py, …}."""
    modules = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            modules[name if package == "contexture" else f"contexture.{name}"] = path
    return modules


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


@functools.cache
def _imported(module: str, inside_functions: bool = True) -> set[str]:
    return set(_imports(ast.parse(MODULES[module].read_text("utf-8")).body, inside_functions))


def _top(module: str) -> str:
    """contexture.data.text.sources → data; contexture.cli.parse → contexture."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in BELOW else "contexture"


def _layer(module: str) -> str:
    """contexture.data.text.sources → data.text; contexture.data.rng → data.rng; contexture.cli.parse →
    contexture.cli."""
    parts = module.split(".")
    return ".".join(parts[1:3] if _top(module) != "contexture" else parts[:2])


def test_imports_point_downward():
    for module in MODULES:
        for other in _imported(module) & MODULES.keys():
            allowed = {_top(module), *BELOW.get(_top(module), " ".join(BELOW)).split()}
            assert other == "contexture" or _top(other) in allowed, f"{module} imports {other}, which stands above it"


def test_layers_have_an_order():
    graph: dict[str, set[str]] = {}
    for name in MODULES:
        others = {_layer(other) for other in _imported(name) & MODULES.keys()}
        graph.setdefault(_layer(name), set()).update(others - {_layer(name), "contexture"})
    graphlib.TopologicalSorter(graph).prepare()


def test_no_imports_go_round():
    graph = {name: _imported(name) & MODULES.keys() - {name} for name in MODULES}
    graphlib.TopologicalSorter(graph).prepare()


def test_data_imports_no_jax():
    for name in MODULES:
        assert _top(name) != "data" or not {other.partition(".")[0] for other in _imported(name)} & {"jax", "flax"}, (
            name
        )


def _reached(module: str) -> set[str]:
    """All that importing a module imports, itself and the packages around it among it; jax by its name."""
    seen: set[str] = set()
    queue = [module]
    while queue:
        name = queue.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in MODULES:
            queue += _imported(name, inside_functions=False)
            queue += [parent] if (parent := name.rpartition(".")[0]) else []
    return seen


def test_what_needs_no_jax_imports_none():
    """The command line with its --help and recipes, and all of data; nor is grain reached, which imports jax."""
    for module in (name for name in MODULES if _top(name) in ("data", "configs", "contexture")):
        heavy = {name for name in _reached(module) if name.partition(".")[0] in HEAVY}
        assert not heavy, f"{module} imports {sorted(heavy)}"


def test_the_package_list_is_that_of_the_folders():
    import tomllib

    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert listed == sorted(name for name, path in MODULES.items() if path.name == "__init__.py")


MOST_LINES, MOST_LINES_OF_A_FUNCTION, MOST_PARAMETERS = 500, 60, 8
OF_PYTHONS_USERS = ("contexture/api.py", "analysis/trained_model.py")
"""Files of public functions, whose parameters are the options of commands."""
MOST_UNFORMATTED = 20
"""Places where a table is read, which the formatter leaves as they are."""


def test_no_file_and_no_function_is_too_long():
    others = (file for folder in ("tests", "benchmarks", "examples") for file in (ROOT / folder).rglob("*.py"))
    for file in [*MODULES.values(), *others]:
        text = file.read_text("utf-8")
        lines = len(text.splitlines())
        assert lines <= MOST_LINES, f"{file} has {lines} lines; part it in two"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                own = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
                count = len([name for name in own if name not in ("self", "cls")])
                public = str(file.relative_to(ROOT)) in OF_PYTHONS_USERS
                assert count <= MOST_PARAMETERS or public, f"{file}: {node.name} has {count} parameters; group them"
                lines = (node.end_lineno or 0) - node.lineno + 1
                assert lines <= MOST_LINES_OF_A_FUNCTION, f"{file}: {node.name} has {lines} lines; part it in two"


def test_the_formatter_formats_all_but_tables():
    skips = [
        f"{file}:{number}"
        for file in MODULES.values()
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1)
        if "fmt: skip" in line or "fmt: off" in line
    ]
    assert len(skips) <= MOST_UNFORMATTED, skips


FEWEST_COMMENTS = {"models": 0.08, "train": 0.08, "data": 0.08}
"""Shares of lines. The aim is 8 % in each: a comment says why, what the original does, which shape or unit there is."""


@pytest.mark.parametrize("folder", FEWEST_COMMENTS)
def test_ideas_have_comments(folder):
    lines = comments = 0
    for module, file in MODULES.items():
        if _top(module) == folder:
            text = file.read_text("utf-8")
            lines += len(text.splitlines())
            tokens = tokenize.generate_tokens(io.StringIO(text).readline)
            comments += len({each.start[0] for each in tokens if each.type == tokenize.COMMENT})
    assert comments >= FEWEST_COMMENTS[folder] * lines, f"{comments} of {lines} lines"


def test_names_of_tests_are_sentences_of_at_most_70_letters():
    """Each is there once in its file: of two of one name Python would run the second alone. No possessive is torn."""
    for file in (ROOT / "tests").rglob("test_*.py"):
        names = re.findall(r"^def (test_\w+)\(", file.read_text("utf-8"), re.M)
        assert len(names) == len(set(names)), f"{file}: {[name for name in names if names.count(name) > 1]}"
        for name in names:
            assert len(name) <= 70, f"{file}: {name} has {len(name)} letters; shorten it"
            assert not re.search(r"_s(_|$)", name), f"{file}: {name}: write an_elmos, not an_elmo_s"
