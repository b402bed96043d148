"""The tables of mutations fit the code, and the runner tells a fault that was seen from one that was not."""

import ast
import fnmatch
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.helpers.long import long
from tests.mutants import __main__ as runner
from tests.mutants.origin import foreign
from tests.mutants.row import ROOT, Mutant, Stale
from tests.mutants.tables import MUTANTS
from tests.random_faults import Fault, Reached, faults_of, is_fault

AREAS = """masking nsp pairs draws negatives layout windows lanes characters words held-out ramp shards wordpiece bpe
tables conll labels align class-weights task-batches norm gelu linear ffn attention bert embeddings gpt1 gpt mlm choice
symmetric softmax sampled elmo dropout lstm char-cnn mix features crf mesh shapes interchange sampling decode schedule
adam decay clip adagrad lora rates step loss objective perplexity rank best unigram scores digest checkpoint metrics
identity may-change epochs resume transfer defaults signals exit recipes score embed generate
storage settle agree together slots packing logits tfds plan plugin quantization remat stacked
help scope alias config completion finetune progress columns trackers describe command grid redraw span cleaning
published evaluate context neighbours whitening zeroshot probe targets maps gates page senses tokens vectors""".split()


LONG_ALONE = set(
    """attention.tpu-sum-not-shrunk gpt.bands-of-a-kernel-in-the-other-layers softmax.a-gradient-sent-with-each-chunk
    sampled.rows-sharded-as-the-table lstm.kernels-gathered-in-the-loop step.rows-sharded-as-the-table
    checkpoint.late-evaluation-not-kept checkpoint.into-a-moved-run metrics.evaluation-twice
    trackers.the-user-s-run-of-wandb-taken trackers.deleted-run-of-mlflow-taken tokens.backward-in-reading-order
    embed.sorted-vectors""".split()
)
"""Rows that only tests of the long suite see: what they change shows in a program for a TPU, or in a whole run."""


def _is_for_long(mark: ast.expr) -> bool:
    """Whether a decorator leaves a test to the long suite or to parity: by its mark, or as all its cases are long."""
    if ast.unparse(mark) in ("pytest.mark.long", "pytest.mark.parity"):
        return True
    if not isinstance(mark, ast.Call):
        return False
    if ast.unparse(mark.func) == "pytest.mark.parametrize":
        given = mark.args[1]
    else:  # a fixture's
        given = next((each.value for each in mark.keywords if each.arg == "params"), None)
    cases = [each.value if isinstance(each, ast.Starred) else each for each in getattr(given, "elts", [given])]
    return all(isinstance(case, ast.Call) and ast.unparse(case.func) == "long" for case in cases)


def _functions() -> dict[str, dict[str, bool]]:
    """{"train/test_step.py": {"test_x": whether it is left to the long suite or to parity}}, of every file of tests."""
    tests = ROOT / "tests"
    found = {}
    for file in tests.rglob("test_*.py"):
        functions = [node for node in ast.parse(file.read_text("utf-8")).body if isinstance(node, ast.FunctionDef)]
        slow = {node.name: any(map(_is_for_long, node.decorator_list)) for node in functions}
        found[file.relative_to(tests).as_posix()] = {
            # By its marks, or those of a fixture of its own file.
            node.name: slow[node.name] or any(slow.get(each.arg, False) for each in node.args.args)
            for node in functions
        }
    return found


def test_every_row_fits_the_code_as_it_is():
    """`old` stands once in its file, and the tests are there, some quick."""
    functions, wrong, slow = _functions(), [], set[str]()
    for row in MUTANTS:
        try:
            row.apply((ROOT / row.file).read_text("utf-8"))
        except Stale as error:
            wrong.append(str(error))
        for test in row.tests:
            file, _, name = test.partition("::")
            if file not in functions or (name and name.partition("[")[0] not in functions[file]):
                wrong.append(f"{row.name}: there is no test {test}")
        named = [test.partition("::")[::2] for test in row.tests]
        if all(name and functions.get(file, {}).get(name.partition("[")[0]) for file, name in named):
            slow.add(row.name)
    assert not wrong, "\n".join(wrong)
    assert slow == LONG_ALONE


@pytest.mark.long
def test_python_can_read_the_file_of_every_row():
    for row in MUTANTS:
        ast.parse(row.apply((ROOT / row.file).read_text("utf-8")), row.name)


def test_rows_are_many_named_once_and_of_every_area():
    names = [row.name for row in MUTANTS]
    assert len(names) >= 120 and len(set(names)) == len(names)
    assert {name.partition(".")[0] for name in names} == set(AREAS)
    assert len({(row.file, row.old, row.new) for row in MUTANTS}) == len(MUTANTS)
    assert all(row.tests and fnmatch.fnmatch(row.name, "*.*") for row in MUTANTS)


def test_a_row_that_fits_no_more_or_twice_is_stale():
    row = Mutant("a.b", "x.py", "one", "two", ("test_x.py",))
    assert row.apply("one\n") == "two\n"
    for text, times in (("", 0), ("one one", 2)):
        with pytest.raises(Stale, match=f"a.b: 'one' stands {times} times in x.py, once is wanted; give the line"):
            row.apply(text)


TREE = {
    "contexture/__init__.py": "",
    "models/area.py": "def area(a, b):\n    return a * b\n\n\ndef unseen(a):\n    return a + 1\n",
    "tests/test_area.py": "import contexture.models.area as m\n\n\ndef test_area():\n    assert m.area(2, 3) == 6\n",
    "tests/test_red.py": "def test_red():\n    assert False\n",
    "tests/conftest.py": "",
    "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["."]\naddopts = "--import-mode=importlib"\n',
    ".gitignore": "/.cache/\n__pycache__/\n",
}
ROWS = (
    Mutant("area.sum", "models/area.py", "a * b", "a + b", ("test_area.py::test_area",)),
    Mutant("area.broken", "models/area.py", "return a * b", "return a *", ("test_area.py",)),
    Mutant("area.endless", "models/area.py", "    return a * b", "    while True: pass", ("test_area.py::test_area",)),
    Mutant("area.unseen", "models/area.py", "a + 1", "a - 1", ("test_area.py::test_area",)),
    Mutant("area.stale", "models/area.py", "a / b", "a", ("test_area.py",)),
    Mutant("area.red", "models/area.py", "a + 1", "a + 2", ("test_red.py",)),
    Mutant("area.no-test", "models/area.py", "a + 1", "a + 3", ("test_area.py::test_none",)),
)


@pytest.fixture
def small(tmp_path, monkeypatch) -> Path:
    """A tiny project, on which the runner works in place of this one."""
    root = tmp_path / "checkout"
    for name, text in TREE.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    shutil.copytree(
        ROOT / "tests" / "mutants", root / "tests" / "mutants", ignore=shutil.ignore_patterns("__pycache__")
    )
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    monkeypatch.setattr(runner, "ROOT", root)
    monkeypatch.setattr(runner, "KEPT", root / ".cache" / "mutants.json")
    monkeypatch.setattr(runner, "LEAST_TIMEOUT", 4.0)
    monkeypatch.setattr(runner, "MUTANTS", ROWS)
    return root


VERDICTS = {
    "area.sum": "killed", "area.unseen": "SURVIVED", "area.stale": "STALE", "area.broken": "killed",
    "area.endless": "killed (timeout)", "area.red": "BROKEN TESTS", "area.no-test": "BROKEN TESTS",
}  # fmt: skip


@pytest.mark.parametrize("count", [*long(7)])
def test_a_fault_is_seen_or_survives_and_the_tree_is_only_read(small, capsys, count):
    expected = dict(list(VERDICTS.items())[:count])
    before = {file: file.read_bytes() for file in small.rglob("*") if file.is_file() and ".git" not in file.parts}
    assert runner.main(["--jobs", "2", "--only", *expected]) == 1
    output = capsys.readouterr().out
    lines = [line.partition("] ")[2] for line in output.splitlines() if f"/{count}] " in line]
    assert {line.split()[-1]: line.partition("  ")[0].strip() for line in lines} == expected
    assert "'a / b' stands 0 times" in output and "1 SURVIVED" in output
    assert ("they fail without the fault" in output) == ("area.red" in expected)
    after = {file: file.read_bytes() for file in small.rglob("*") if file.is_file() and ".git" not in file.parts}
    assert {file: after[file] for file in before} == before
    assert {file.relative_to(small) for file in after.keys() - before.keys()} == {Path(".cache/mutants.json")}


@pytest.mark.long
def test_what_is_known_is_not_run_again_until_something_changes(small, capsys, monkeypatch):
    words = ["--only", "area.sum", "--jobs", "1"]
    assert runner.main(words) == 0 and " known" not in capsys.readouterr().out
    ran: list[tuple[str, ...]] = []
    run_tests = runner.run_tests

    def counted(tree, ids, timeout):
        ran.append(ids)
        return run_tests(tree, ids, timeout)

    monkeypatch.setattr(runner, "run_tests", counted)
    assert runner.main(words) == 0 and " known" in capsys.readouterr().out and not ran
    assert runner.main([*words, "--fresh"]) == 0 and len(ran) == 2  # without the fault, and with it
    (small / "models" / "area.py").write_text(TREE["models/area.py"] + "\n# another text\n")
    assert runner.main(words) == 0 and len(ran) == 4
    (small / "tests" / "test_area.py").write_text("def test_area():\n    pass\n")
    assert runner.main(words) == 1 and "SURVIVED" in capsys.readouterr().out


def test_modules_of_another_checkout_are_refused(tmp_path):
    assert foreign(ROOT) == []
    modules = foreign(tmp_path)
    assert any(name.startswith("tests.mutants.row (") for name in modules)


@pytest.mark.parametrize(("code", "outcome"), [(0, "SURVIVED"), (1, "killed"), (2, "killed"), (-11, "killed"),
                                             (3, "BROKEN TESTS"), (4, "BROKEN TESTS"), (5, "BROKEN TESTS"),
                                             (None, "killed (timeout)")])  # fmt: skip
def test_an_exit_code_of_pytest_has_one_meaning(code, outcome):
    assert runner.verdict(code, "")[0] == outcome


_SOURCE = '''def f(a, b=1):
    """Doc 1 < 2."""
    if a < b and a:
        return g(a, b, k="ä")[0]
    logger.info("x" + "y")
    raise ValueError(a < b)


T = TypeVar("T")
Of: TypeAlias = "list[int]"
if TYPE_CHECKING:
    from a import b
'''


def test_faults_by_chance_are_of_every_kind_and_of_code_alone():
    faults = [fault for fault in faults_of("x.py", _SOURCE) if is_fault(fault, _SOURCE)]
    assert {(fault.line, fault.old, fault.new) for fault in faults} == {
        *((1, "1", "2"), (1, "1", "0")),  # a default
        *((3, "<", "<="), (3, "and", "or"), (3, "a < b and a", "(not (a < b and a))")),
        *((4, "a, b", "b, a"), (4, 'k="ä"', ""), (4, '"ä"', "'äx'"), (4, "0", "1"), (4, "0", "-1")),
    }
    for fault in faults:
        before, after = _SOURCE.splitlines(), fault.apply(_SOURCE).splitlines()
        changed = [n for n, (a, b) in enumerate(zip(before, after, strict=True), 1) if a != b]
        assert changed == [fault.line]


@pytest.mark.long
def test_a_test_that_fails_without_the_fault_sees_none(small, capsys):
    red, area = "tests/test_red.py::test_red", "tests/test_area.py::test_area"
    product, more = ("models/area.py", 2, 13, 14, "*", "+"), ("models/area.py", 6, 13, 14, "+", "-")
    faults = [Fault(*product, (red, area)), Fault(*more, (red, area)), Fault(*product, (red,))]
    for fault, expected in zip(faults, (runner.KILLED, runner.SURVIVED, runner.BROKEN), strict=True):
        each = runner.Runner([fault], 1, fresh=True)
        assert each.run() == (expected == runner.KILLED)
        assert each.results[fault.name][0] == expected
    assert f"without the fault they fail too, or with it only behind others: {red}" in capsys.readouterr().out


def test_failed_tests_are_read_from_the_summary_of_pytest():
    ids = ("tests/a.py::test_b[c - d]", "tests/a.py::test_b", "tests/b.py::test_c", "tests/b.py::test_d")
    lines = ["1 failed", f"FAILED {ids[0]} - assert 1 == 2", "ERROR tests/b.py - ImportError: x"]
    assert runner.failed("\n".join(lines[:2]), ids) == ids[:1]
    assert runner.failed("\n".join(lines), ids) == (ids[0], *ids[2:])
    assert runner.failed("the process died", ids) == ids


@pytest.mark.parametrize(
    ("red", "slow", "outcome"),
    [
        ({"with": "ab", "without": ""}, "", "killed"),
        ({"with": "a", "without": "a"}, "", "SURVIVED"),  # a is left out, b sees nothing
        ({"with": "ab", "without": "a"}, "", "killed"),  # b sees it
        ({"with": "ab", "without": "ab"}, "", "BROKEN TESTS"),
        ({"with": "b", "without": "", "alone": ""}, "", "SURVIVED"),  # b fails behind a alone
        ({"with": "", "without": ""}, "with", "killed (timeout)"),
        ({"with": "", "without": ""}, "with without", "BROKEN TESTS"),
        ({"with": "", "without": ""}, "", "SURVIVED"),
    ],
)
def test_a_test_sees_a_fault_by_failing_with_it_and_passing_without(monkeypatch, tmp_path, red, slow, outcome):
    fault = Fault("x.py", 1, 4, 5, "1", "2", ("tests/x.py::a", "tests/x.py::b"))
    (tmp_path / "x.py").write_text("x = 1\n")

    def run_tests(tree: Path, ids: tuple[str, ...], timeout: float) -> tuple[int | None, str]:
        state = "without" if "1" in (tree / "x.py").read_text() else "with"
        if state in slow.split():
            return None, ""
        names = red.get("alone", red[state]) if state == "with" and len(ids) == 1 else red[state]
        lines = [f"FAILED {each} - x" for each in ids if each[-1] in names]
        return int(bool(lines)), "\n".join(lines[:1])

    monkeypatch.setattr(runner, "run_tests", run_tests)
    assert runner.Runner([fault], 1, fresh=False).look(fault, tmp_path)[0] == outcome
    assert (tmp_path / "x.py").read_text() == "x = 1\n"


def test_the_tests_of_a_fault_are_those_of_the_fastest_files():
    seconds = {"a.py::x": 70.0, "a.py::y": 2.0, "b.py::x": 40.0, "c.py::x": 1.0, "c.py::y": 3.0}
    reached = Reached.__new__(Reached)
    reached._seconds = seconds
    assert reached._chosen(set(seconds)) == ("c.py::x", "c.py::y", "b.py::x", "a.py::y")
    assert reached._chosen({"a.py::x"}) == ("a.py::x",)
