"""Inputs that once broke a law of `tests.fuzz` break none now; and each target keeps its laws for a few cases."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fuzz import mutate
from tests.fuzz.__main__ import case_of
from tests.fuzz.target import FOUND, Absent, Clock, Refused, Sandbox, Target, _peak, command
from tests.fuzz.targets import TARGETS
from tests.fuzz.worker import smaller
from tests.helpers.long import long

pytestmark = pytest.mark.usefixtures("one_device")
FILES = sorted(FOUND.glob("*/*"))


@contextmanager
def sandbox(target: Target, base: Path) -> Iterator[Sandbox]:
    try:
        yield Sandbox(target, base)
    except Absent as error:
        pytest.skip(f"needs the folder of real data: {error}")


def by_name(name: str) -> Target:
    (target,) = [target for target in TARGETS if target.name == name]
    return target


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.name}")
def test_what_broke_a_law_breaks_none_now(file, tmp_path):
    with sandbox(by_name(file.parent.name), tmp_path / "sandbox") as place:
        broken = place.run(file.read_bytes())
    assert broken is None, broken


# tensorstore reports what it read to an event loop of Orbax that ended with a read that failed. It does so from C++:
# the warning names no object.
@pytest.mark.filterwarnings("ignore:Exception ignored in. None:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize("number", long(1, 2, 3))
def test_a_case_of_each_target_keeps_every_law(target, number, tmp_path):
    with sandbox(target, tmp_path / "sandbox") as place:
        broken = place.run(case_of(place.seed, target, 7, number), seconds=60)
    assert broken is None, broken


def test_targets_have_names_of_their_own_and_kept_inputs_have_targets():
    names = [target.name for target in TARGETS]
    assert len(names) == len(set(names)) and {file.parent.name for file in FILES} <= set(names)


# ------------------------------------------------------------------------------------------------- the laws themselves


GROWN = 100 << 20


def _makes(folder: Path) -> None:
    folder.mkdir()
    (folder / "a").write_bytes(b"valid")


def _breaks(case: str, folder: Path, to: Path) -> None:
    match case:
        case "raises":
            raise KeyError("x")
        case "hangs":
            while True:
                pass
        case "grows":  # some systems cannot forget an earlier, higher peak of this process
            before, held = _peak(), []
            while _peak() - before <= GROWN and len(held) < 128:
                held.append(bytearray(32 << 20))
        case "changes":
            (folder / "a").write_bytes(b"other")
        case "leaves":
            to.mkdir()
            raise ValueError("x")
        case "unexpected":
            raise Refused(1, "ValueError: unexpected error: x; rerun with --debug for a traceback")
        case "two lines":
            from contexture.train.errors import ConfigError

            raise ConfigError("one\ntwo")
        case "code":
            raise Refused(3, "DataError: x")


@pytest.mark.parametrize(
    ("case", "law"),
    [("raises", "traceback"), ("hangs", "hang"), ("changes", "files outside"), ("leaves", "traceback"),
     ("unexpected", "unexpected error"), ("two lines", "one line"), ("code", "exit code"), ("grows", "memory")],
)  # fmt: skip
def test_each_law_is_seen_broken(case, law, tmp_path, monkeypatch):
    monkeypatch.setattr("tests.fuzz.target.GROWTH", GROWN)

    def read(folder: Path, to: Path) -> None:
        _breaks(case, folder, to)

    target = Target("law", _makes, "a", mutate.of_bytes, read)
    broken = Sandbox(target, tmp_path / "sandbox").run(b"case", seconds=0.5 if case == "hangs" else 60)
    assert broken is not None and broken.law == law, broken


def test_waiting_for_a_core_is_no_hang(monkeypatch):
    """Only the longest wait of a thread counts, since threads wait at the same time."""
    waits = iter([{"1": 5.0, "2": 1.0}, {"1": 5.5, "2": 3.0, "3": 0.25}])
    monkeypatch.setattr(Clock, "_waits", staticmethod(lambda: next(waits)))
    monkeypatch.setattr("time.monotonic", iter([100.0, 112.0]).__next__)
    assert Clock().seconds() == 10.0


def test_a_refusal_in_one_line_breaks_no_law(tmp_path):
    from contexture.data.errors import DataError

    def read(folder: Path, to: Path) -> None:
        raise DataError("a: wrong; mend it")

    assert Sandbox(Target("law", _makes, "a", mutate.of_bytes, read), tmp_path / "sandbox").run(b"case") is None
    with pytest.raises(Refused) as refused:
        command(["nothing"])
    assert refused.value.code == 2 and "there is no command 'nothing'" in refused.value.stderr


def test_a_case_is_made_as_small_as_it_fails():
    assert smaller(b"a" * 300 + b"xy" + b"b" * 300, lambda case: b"x" in case and b"y" in case, 5.0) == b"xy"
    assert smaller(b"", lambda case: True, 5.0) == b""


def test_a_case_is_known_by_its_target_seed_and_number():
    target = by_name("table.tsv")
    cases = [case_of(b"a\tb\nc\td\n", target, 1, number) for number in range(20)]
    assert cases == [case_of(b"a\tb\nc\td\n", target, 1, number) for number in range(20)]
    assert cases[0] == b"a\tb\nc\td\n" and len(set(cases)) > 10


def test_a_message_that_is_not_mutated_is_written_as_it_was_read():
    inner = mutate._message([(1, 2, "Ġ".encode()), (2, 5, b"abcd"), (3, 0, 2**64 - 1)])
    message = mutate._message([(1, 2, inner), (2, 0, 300), (7, 1, b"12345678")])
    assert mutate._message(mutate._fields(message)) == message
    assert mutate.of_protobuf(message, random.Random(1)) != message
