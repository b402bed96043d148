"""A family is one object on each side: no other code asks which family it has."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from contexture.train.families import FAMILIES
from tests.mutants.origin import PACKAGES

ROOT = Path(__file__).parents[1]
MOST_QUESTIONS, MOST_FILES = 10, 12
CLASSES = {name for family in FAMILIES.values() for name in (family.config.__name__, type(family.text).__name__)}
OWN = {
    "bert": "analysis/scoring/bert.py configs/ernie.py",
    "gpt": "analysis/scoring/gpt.py models/decode.py analysis/generate.py",
    "elmo": "analysis/scoring/elmo.py analysis/attention/gates.py",
    "vectors": "",
}
"""Files that exist for one family alone, beside those named after it."""


def _sources() -> Iterator[tuple[str, ast.Module]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            # A format of other libraries holds the models of certain families.
            if path.parent.name != "interchange":
                yield str(path.relative_to(ROOT)), ast.parse(path.read_text("utf-8"))


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _tables(tree: ast.Module) -> set[str]:
    """The families that have a row in a table by family: a dict, a tuple or a Literal with two of them or more."""
    named: set[str] = set()
    for node in ast.walk(tree):
        parts = node.keys if isinstance(node, ast.Dict) else node.elts if isinstance(node, ast.Tuple) else []
        rows = FAMILIES.keys() & {part.value for part in parts if isinstance(part, ast.Constant)}
        named |= rows if len(rows) > 1 else set()
    return named


def _literals(node: ast.AST) -> set[str]:
    parts = ast.walk(node)
    return {part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)}


def _asks(node: ast.AST) -> bool:
    """Whether an expression asks for a family: by the class of a configuration, or by its name."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass"):
        return bool(_names(node) & CLASSES)
    if isinstance(node, ast.Compare):
        whole = ast.unparse(node)
        return bool(_names(node) & CLASSES) or ("family" in whole and bool(_literals(node) & FAMILIES.keys()))
    return False


def _questions(tree: ast.Module) -> Iterator[int]:
    stated = {id(part) for node in ast.walk(tree) if isinstance(node, ast.Assert) for part in ast.walk(node)}
    yield from (node.lineno for node in ast.walk(tree) if _asks(node) and id(node) not in stated)  # pyright: ignore[reportAttributeAccessIssue]


def test_hardly_any_code_asks_for_a_family():
    asked = [f"{name}:{line}" for name, tree in _sources() for line in _questions(tree)]
    assert len(asked) <= MOST_QUESTIONS, asked
    for place in asked:
        name, line = place.rsplit(":", 1)
        around = (ROOT / name).read_text("utf-8").splitlines()[int(line) - 2 : int(line)]
        assert any("#" in each for each in around), f"{place} asks for a family, and no comment says why"


def test_a_question_is_seen():
    for asking in (
        "isinstance(c, BertConfig)",
        'run.family == "gpt"',
        'family in ("elmo", "vectors")',
        "type(c) is GptConfig",
    ):
        assert list(_questions(ast.parse(f"if {asking}:\n    pass"))) == [1]
    for other in ("isinstance(c, TransformerConfig)", "run.family != source.family", "assert isinstance(c, GptConfig)"):
        assert not list(_questions(ast.parse(other)))


def _documented() -> set[str]:
    """The files, outside its own, that CONTRIBUTING has a new family enter."""
    (row,) = re.findall(r"^\| a family \| .*$", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.MULTILINE)
    return {name for name in re.findall(r"`([a-z_/]+\.py)`", row)}


def test_a_family_is_entered_where_contributing_says():
    documented = _documented()
    assert len(documented) <= MOST_FILES and all((ROOT / name).is_file() for name in documented)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_other_file_names_a_family(family: str):
    """What names it is its own file, or one that CONTRIBUTING has a new family enter."""
    classes = {FAMILIES[family].config.__name__, type(FAMILIES[family].text).__name__}
    # The default of a setting is no question.
    named = {
        name
        for name, tree in _sources()
        if name != "train/settings/run.py" and (_names(tree) & classes or family in _tables(tree))
    }
    # A family may build on another's text: `data/families/`, and the files of its name.
    own = {name for name in named if Path(name).stem in FAMILIES} | set(OWN.get(family, "").split())
    assert named - own <= _documented(), sorted(named - own - _documented())
