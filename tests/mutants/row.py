"""A row of the tables: one fault in one line, and the tests that must see it."""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Stale(Exception):
    """A row no longer fits the code: what is wrong, and where."""


@dataclass(frozen=True)
class Mutant:
    """name: area and fault, `lstm.forget-bias`. `old` stands exactly once in `file`; tests: pytest's ids without the
    folder, "test_x.py::test_y", the fewest and fastest that see the fault."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def apply(self, text: str) -> str:
        """The file's text with the fault in it. Raises: Stale unless `old` stands in it exactly once."""
        times = text.count(self.old)
        if times != 1 or self.old == self.new:
            raise Stale(
                f"{self.name}: {self.old!r} stands {times} times in {self.file}, once is wanted; "
                "give the line as it is now in tests/mutants"
            )
        return text.replace(self.old, self.new)

    def rounds(self) -> tuple[tuple[str, ...], ...]:
        """The tests as pytest names them, in the order of its runs: here one run of all."""
        return (tuple(f"tests/{test}" for test in self.tests),)


def mutants_of(file: str, *rows: tuple[str, str, str, str]) -> tuple[Mutant, ...]:
    """Rows (name, old, new, tests with spaces between) of one file."""
    return tuple(Mutant(name, file, old, new, tuple(tests.split())) for name, old, new, tests in rows)
