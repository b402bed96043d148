"""One-line faults drawn by chance from all source lines: `python -m tests.mutants --random 300 --seed 1`.

A line is drawn, then one of the faults that it can have: another operator, comparison, constant, index, axis, argument,
default or condition. The tests that reach the line, or else the module, must see it, the fastest files first. What they
reach is recorded once by coverage's contexts, and again where the code or the tests have changed.
"""

import ast
import hashlib
import json
import os
import random
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.mutants.origin import PACKAGES
from tests.mutants.row import ROOT, Stale

LONGEST = 100.0
"""Seconds of tests that one fault may take: a line that each run passes has the fastest files of tests."""
REACHED = ROOT / ".cache" / "reached"
"""coverage.sqlite and seconds.json of the quick suite, and the digest of what they were made of."""
_OTHER = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "//", ast.BitOr: "&",
    ast.BitAnd: "|", ast.LShift: ">>", ast.RShift: "<<", ast.Pow: "*",
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.In: "not in",
    ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is", ast.And: "or", ast.Or: "and",
}  # fmt: skip
"""What stands in the place of an operator or a comparison."""


@dataclass(frozen=True)
class Fault:
    """A fault in one line, with the interface of a row of the tables. line: from 1; start, end: of the text that it
    replaces, in bytes of the line."""

    file: str
    line: int
    start: int
    end: int
    old: str
    new: str
    tests: tuple[str, ...] = ()
    """Those that reach the line."""
    others: tuple[str, ...] = ()
    """Those that import the module or reach other lines of it. A cache of programs or of what was read may have kept
    them from this line, when it was recorded what each test reaches, and a constant is read without any line."""
    seconds: float = field(default=0.0, repr=False, compare=False)  # what is kept of a fault goes by its `repr`
    """What the tests take without the fault."""

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line}:{self.start} {self.old} → {self.new}"

    def apply(self, text: str) -> str:
        lines = text.splitlines(keepends=True)
        raw = lines[self.line - 1].encode()
        if raw[self.start : self.end].decode() != self.old:
            raise Stale(f"{self.name}: the line is another one now")
        lines[self.line - 1] = (raw[: self.start] + self.new.encode() + raw[self.end :]).decode()
        return "".join(lines)

    def rounds(self) -> tuple[tuple[str, ...], ...]:
        return tuple(tests for tests in (self.tests, self.others) if tests)


def faults_of(file: str, source: str) -> list[Fault]:
    """Returns all faults that the lines of a file may have; `is_fault` says of one whether it is any."""
    lines = [line.encode() for line in source.splitlines()]
    found = {
        Fault(file, line, start, end, lines[line - 1][start:end].decode(), new)
        for node in _code(ast.parse(source))
        for line, start, end, new in _changes(node, lines)
    }
    return sorted(found, key=lambda fault: (fault.line, fault.start, fault.new))


def is_fault(fault: Fault, source: str) -> bool:
    """Returns whether a file with the fault can be read by Python, and says something else than without it."""
    try:
        return ast.dump(ast.parse(fault.apply(source))) != ast.dump(ast.parse(source))
    except (SyntaxError, ValueError):
        return False


def _code(tree: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes whose change is one of behaviour: no docstring, no type, no message of an error or a log."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns") or isinstance(tree, ast.JoinedStr | ast.Import | ast.ImportFrom):
            continue
        if name == "decorator_list" and isinstance(tree, ast.ClassDef):  # frozen or not, it computes the same
            continue
        for node in value if isinstance(value, list) else [value]:
            if not isinstance(node, ast.AST):
                continue
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                continue  # a docstring, or the text below an attribute
            if isinstance(node, ast.Raise) or _speaks(node) or _is_for_types(node):
                continue
            if _is_strict_zip(tree, node):  # its lists are as long
                continue
            yield node
            yield from _code(node)


def _is_strict_zip(call: ast.AST, word: ast.AST) -> bool:
    named = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "zip"
    return named and isinstance(word, ast.keyword) and word.arg == "strict"


def _speaks(node: ast.AST) -> bool:
    """Returns whether a node logs or warns."""
    call = node.value if isinstance(node, ast.Expr) else None
    owner = call.func if isinstance(call, ast.Call) else None
    return (
        isinstance(owner, ast.Attribute)
        and isinstance(owner.value, ast.Name)
        and owner.value.id in ("logger", "warnings")
    )


def _is_for_types(node: ast.AST) -> bool:
    """Returns whether a node is for the type checker alone: what it imports, a name of a type."""
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    if isinstance(node, ast.AnnAssign):
        return ast.unparse(node.annotation) == "TypeAlias"
    return isinstance(node, ast.Assign) and ast.unparse(node.value).startswith(("TypeVar(", "NewType("))


def _changes(node: ast.AST, lines: list[bytes]) -> Iterator[tuple[int, int, int, str]]:
    """Yields (line, first byte, byte behind, the new text) of the faults of a node that stands on one line."""
    if isinstance(node, ast.BinOp):
        yield from _between(node.left, node.right, node.op, lines)
    elif isinstance(node, ast.Compare):
        for left, op, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            yield from _between(left, right, op, lines)
    elif isinstance(node, ast.BoolOp):
        yield from _between(node.values[0], node.values[1], node.op, lines)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub) and _is_one_line(node):
        assert node.end_col_offset is not None
        yield node.lineno, node.col_offset, node.operand.col_offset, ""
    elif isinstance(node, ast.Constant) and _is_one_line(node):
        assert node.end_col_offset is not None
        for new in _constants(node.value):
            yield node.lineno, node.col_offset, node.end_col_offset, new
    elif isinstance(node, ast.If | ast.IfExp | ast.While) and _is_one_line(node.test):
        test = node.test
        assert test.end_col_offset is not None
        text = lines[test.lineno - 1][test.col_offset : test.end_col_offset].decode()
        yield test.lineno, test.col_offset, test.end_col_offset, f"(not ({text}))"
    elif isinstance(node, ast.Call):
        yield from _arguments(node, lines)


def _between(left: ast.expr, right: ast.expr, op: ast.AST, lines: list[bytes]) -> Iterator[tuple[int, int, int, str]]:
    """Yields the change of the operator between two operands on one line."""
    new = _OTHER.get(type(op))
    if new is None or left.end_lineno != right.lineno or left.end_col_offset is None:
        return
    gap = lines[right.lineno - 1][left.end_col_offset : right.col_offset].decode()
    old = gap.strip("() ")
    if old and gap.count(old) == 1:
        start = left.end_col_offset + len(gap[: gap.index(old)].encode())
        yield right.lineno, start, start + len(old.encode()), new


def _constants(value: object) -> Iterator[str]:
    if isinstance(value, bool) or value is None:
        yield str(not value) if value is not None else "0"
    elif isinstance(value, int):
        yield str(value + 1)
        yield str(value - 1) if value > 0 else "-1"
    elif isinstance(value, float):
        yield repr(value * 2 if value else 1.0)
    elif isinstance(value, str) and value and " " not in value:  # with a space it is a message
        yield repr(value + "x")


def _arguments(node: ast.Call, lines: list[bytes]) -> Iterator[tuple[int, int, int, str]]:
    """Yields a call without one of its named arguments, and one with its first two exchanged."""
    for each in node.keywords:
        if each.arg is None or _is_strict_zip(node, each) or not _is_one_line(each):
            continue
        assert each.end_col_offset is not None
        line, end = lines[each.lineno - 1], each.end_col_offset
        behind = end + 2 if line[end : end + 2] == b", " else end
        yield each.lineno, each.col_offset, behind, ""
    if len(node.args) > 1 and all(map(_is_one_line, node.args[:2])) and node.args[0].lineno == node.args[1].lineno:
        a, b = node.args[:2]
        is_symmetric = isinstance(node.func, ast.Attribute) and node.func.attr == "swapaxes"
        if isinstance(a, ast.Starred) or isinstance(b, ast.Starred) or is_symmetric:
            return
        assert a.end_col_offset is not None and b.end_col_offset is not None
        line = lines[a.lineno - 1]
        first, second = (line[x.col_offset : x.end_col_offset].decode() for x in (a, b))
        between = line[a.end_col_offset : b.col_offset].decode()
        yield a.lineno, a.col_offset, b.end_col_offset, f"{second}{between}{first}"


def _is_one_line(node: ast.expr | ast.keyword) -> bool:
    return node.lineno == node.end_lineno


def source_files() -> list[Path]:
    """Returns the source files, without those of tests, benchmarks and examples."""
    own = {file for name in PACKAGES for file in (ROOT / name).rglob("*.py") if "__pycache__" not in file.parts}
    return sorted({file.resolve() for file in own})


def drawn(count: int, seed: int) -> list[Fault]:
    """Returns so many faults of lines drawn by chance, each line at most once, with the tests that reach them."""
    record()
    sources = {str(file.relative_to(ROOT)): file.read_text("utf-8") for file in source_files()}
    by_line: dict[tuple[str, int], list[Fault]] = {}
    for name, source in sources.items():
        for fault in faults_of(name, source):
            by_line.setdefault((name, fault.line), []).append(fault)
    rng, reached = random.Random(seed), Reached()
    lines = sorted(by_line)
    rng.shuffle(lines)
    faults: list[Fault] = []
    for line in lines:
        fault = rng.choice(by_line[line])
        if len(faults) < count and is_fault(fault, sources[fault.file]):
            faults.append(reached.with_tests(fault))
    return faults


class Reached:
    """Which tests reach a line."""

    def __init__(self) -> None:
        self._db = sqlite3.connect(REACHED / "coverage.sqlite")
        spent = json.loads((REACHED / "seconds.json").read_text())["tests"]
        self._seconds = {name: each[0] for name, each in spent.items()}

    def with_tests(self, fault: Fault) -> Fault:
        """Returns the fault with its tests: no more than take LONGEST seconds, and as many others."""
        around = self._of_lines(fault.file, None) | self._of_module(fault.file) or self._of_text(r"\bdoor\(")
        # A line that is run at import, as a default is, has no test: all that reach the file are asked.
        tests = self._of_lines(fault.file, fault.line) or around
        chosen, others = self._chosen(tests), self._chosen(around - tests)
        seconds = sum(self._seconds.get(test, 1.0) for test in chosen + others)
        return replace(fault, tests=chosen, others=others, seconds=seconds)

    def _chosen(self, tests: set[str]) -> tuple[str, ...]:
        """Returns tests by file, so that what the tests of a file share is made once; the fastest files first."""
        files: dict[str, list[tuple[float, str]]] = {}
        for test in tests:
            files.setdefault(test.partition("::")[0], []).append((self._seconds.get(test, 1.0), test))
        chosen, spent = [], 0.0
        for _, name in sorted((sum(seconds for seconds, _ in group), file) for file, group in files.items()):
            for seconds, test in sorted(files[name]):
                if not chosen or spent + seconds <= LONGEST:
                    chosen.append(test)
                    spent += seconds
        return tuple(chosen)

    def _of_module(self, file: str) -> set[str]:
        """Returns the tests of the files that name a module."""
        module = file.removeprefix("contexture/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        folder, _, name = f"contexture.{module}".rpartition(".")
        listed = rf"from {re.escape(folder)} import (\([^)]*|.*)\b{name}\b"
        return self._of_text(rf"\bcontexture\.{re.escape(module)}\b|{listed}")

    def _of_text(self, pattern: str) -> set[str]:
        """Returns the tests of the files that hold a pattern: `door(` is in those that start processes."""
        files = {test.partition("::")[0] for test in self._seconds}
        holding = {each for each in files if re.search(pattern, (ROOT / each).read_text("utf-8"))}
        return {test for test in self._seconds if test.partition("::")[0] in holding}

    def _of_lines(self, file: str, line: int | None) -> set[str]:
        """Returns the tests that reach a line, or any line of the file. What is reached while a fixture is made is
        looked at by all tests of that test's file."""
        from coverage.numbits import numbits_to_nums

        tables = "line_bits join context on context.id = context_id join file on file.id = file_id"
        query = f"select context.context, numbits from {tables} where file.path = ?"
        rows = self._db.execute(query, (str(ROOT / file),))
        contexts = {context for context, bits in rows if line is None or line in numbits_to_nums(bits)} - {""}
        made = {context.partition("::")[0] for context in contexts if context.endswith("|setup")}
        names = {context.rpartition("|")[0] for context in contexts}
        return names | {test for test in self._seconds if test.partition("::")[0] in made}


def _digest() -> str:
    digest = hashlib.sha256()
    for file in [*source_files(), *sorted((ROOT / "tests").rglob("*.py"))]:
        digest.update(str(file).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def record() -> None:
    """Runs the quick suite and keeps which lines each test reaches, unless that is known."""
    known = REACHED / "digest"
    if known.is_file() and known.read_text() == _digest():
        return
    REACHED.mkdir(parents=True, exist_ok=True)
    known.unlink(missing_ok=True)  # what is there is written over
    print("recording which tests reach which lines: the quick suite, about twice as slow", flush=True)
    packages = [f"--cov={name}" for name in PACKAGES]
    env = {
        **os.environ,
        "COVERAGE_FILE": str(REACHED / "coverage.sqlite"),
        "PROCESSOR_TIME": str(REACHED / "seconds.json"),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", *packages, "--cov-context=test"]
    done = subprocess.run([*command, "--cov-report="], cwd=ROOT, env=env)
    if done.returncode:
        raise SystemExit("the quick suite fails without a fault; mend it first")
    known.write_text(_digest())
