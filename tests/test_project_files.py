"""Files beside the code agree with it and with each other: make targets, hosted CI, hooks, citation, changelog."""

import re

import pytest

import contexture
from tests.conftest import ROOT


def _text(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def _phony() -> set[str]:
    (names,) = re.findall(r"^\.PHONY: (.*)$", _text("Makefile"), re.MULTILINE)
    return set(names.split())


def test_every_target_is_listed():
    header = _text("Makefile").splitlines()[0].partition("PYTHON=")[0]
    named = {part.split()[0] for part in header.removeprefix("# make ").split("|")}
    assert named == _phony()
    table = set(re.findall(r"`make ([a-z-]+)", _text("CONTRIBUTING.md")))
    assert table == _phony()


def test_targets_have_rules():
    rules = set(re.findall(r"^([a-z-]+):", _text("Makefile"), re.MULTILINE))
    assert rules == _phony()


@pytest.mark.parametrize("name", [".ci/run", ".github/workflows/ci.yml", ".pre-commit-config.yaml"])
def test_what_is_run_elsewhere_is_a_target(name: str):
    pattern = r"^step ([a-z-]+)" if name == ".ci/run" else r"\bmake ([a-z-]+)"
    named = set(re.findall(pattern, re.sub(r"^#.*", "", _text(name), flags=re.MULTILINE), re.MULTILINE))
    assert named and named <= _phony()


def test_hosted_ci_runs_what_our_own_does():
    ours = set(re.findall(r"^step ([a-z-]+)", _text(".ci/run"), re.MULTILINE))
    hosted = set(re.findall(r"\bmake ([a-z-]+)", _text(".github/workflows/ci.yml").partition("\n")[2]))
    assert hosted == ours | {"test-oldest"}


SUBJECT = "Keep what fuzzing found"


@pytest.mark.parametrize(
    "message, good",
    [
        (SUBJECT, True),
        (f"{SUBJECT}\n", True),
        (f"{SUBJECT}\n\nThe body. It is as long as it takes.\n", True),
        (f"{SUBJECT}\n# what git adds\n", True),
        ("M" * 71 + "\n", True),
        ("M" * 72 + "\n", False),
        (f"{SUBJECT}.\n", False),
        ("keep what fuzzing found\n", False),
        (f"{SUBJECT}\nThe body, without a blank line.\n", False),
        ("\n", False),
    ],
)
def test_the_hook_knows_a_good_subject(message: str, good: bool):
    (pattern,) = re.findall(r"^ +entry: '(.*)'$", _text(".pre-commit-config.yaml"), re.MULTILINE)
    assert bool(re.search(pattern, message, re.MULTILINE | re.DOTALL)) == good


def test_the_citation_has_the_packages_version():
    assert re.findall(r"^version: (.*)$", _text("CITATION.cff"), re.MULTILINE) == [contexture.__version__]


def test_the_changelog_has_the_headings_of_its_format():
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    releases = re.split(r"^## ", _text("CHANGELOG.md"), flags=re.MULTILINE)[1:]
    assert releases[0].startswith("[Unreleased]\n")
    for release in releases:
        assert re.match(r"\[(Unreleased\]\n|\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d\n)", release)
        headings = re.findall(r"^### (.*)$", release, re.MULTILINE)
        assert set(headings) <= kinds and len(headings) == len(set(headings))
