"""Recipes in a user's own file: my_recipes.py:big."""

from pathlib import Path

import pytest

import contexture
from contexture.cli.training_commands import _recipe
from contexture.train.errors import ConfigError

FILE = """
import dataclasses
from contexture.configs import recipe
from contexture.train.settings.run import Run

def big() -> Run:
    return dataclasses.replace(recipe("bert.tiny"), steps=7)

def _part(): ...
def sized(n): return big()
def other(): return {"steps": 1}
def fails(): raise KeyError("steps")
"""


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(FILE)
    Path("broken.py").write_text("x = 1\ndef big(:\n")
    Path("failing.py").write_text("import nothing_of_this_name\n")


def test_a_function_of_a_file_is_a_recipe():
    assert contexture.recipe("mine.py:big").steps == 7
    assert contexture.recipe("mine.py:big", {"steps": 9}).steps == 9
    run, base, name = _recipe(["mine.py:big", "--seed", "3"], "show")
    assert (run.steps, run.seed, base.seed, name) == (7, 3, 0, "mine.py:big")
    assert sorted(path.name for path in Path().iterdir()) == ["broken.py", "failing.py", "mine.py"]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("no.py:big", "no.py: no such file; give FILE.py:FUNCTION"),
        ("mine.py", "mine.py: no function is named; it has big, sized, other, fails; give mine.py:FUNCTION"),
        ("mine.py:bigg", "mine.py: there is no function 'bigg' (did you mean big?); it has big, sized, other, fails"),
        ("mine.py:recipe", "mine.py: there is no function 'recipe'"),
        ("mine.py:sized", "mine.py:sized wants n; a recipe is a function without parameters"),
        (
            "mine.py:other",
            "mine.py:other returns \"{'steps': 1}\"; a recipe returns a contexture.train.settings.run.Run",
        ),
        ("mine.py:fails", "mine.py:fails failed: KeyError: 'steps'"),
        ("broken.py:big", "broken.py:2: "),
        ("failing.py:big", "failing.py failed: ModuleNotFoundError: No module named 'nothing_of_this_name'"),
    ],
)
def test_what_is_wrong_with_it_is_one_line(name, line):
    with pytest.raises(ConfigError) as caught:
        contexture.recipe(name)
    assert str(caught.value).startswith(line)
