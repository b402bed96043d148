"""Tables as files for a paper: LaTeX, CSV or Markdown, by the suffix of the name. Needs no jax."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from contexture.data.errors import DataError
from contexture.data.mirror import with_addresses
from contexture.data.storage import atomic_file
from contexture.data.visible import visible
from contexture.requests.arguments import check_place

SUFFIXES = (".tex", ".csv", ".md")


class PlusMinus(NamedTuple):
    """A mean and the standard deviation; None for a single value."""

    mean: float
    deviation: float | None


def plus_minus(mean: float | None, deviation: float | None) -> PlusMinus | None:
    """Returns both as one cell; None where there is no mean."""
    return None if mean is None else PlusMinus(mean, deviation)


Cell: TypeAlias = str | int | float | PlusMinus | None
_LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"},
}
_MARKDOWN = re.compile(r"([\\`*_|<>\[\]])")


def check_table(file: Path, *read: str) -> None:
    """Raises: DataError when no table can be written to `file`, or it is one of the files that the command reads."""
    try:
        check_place(file, *read, option="table")
    except ValueError as error:
        raise DataError(str(error)) from None
    if file.suffix not in SUFFIXES:
        raise DataError(f"--table {file}: a table ends in .tex, .csv or .md; give such a name")
    if not file.parent.is_dir():
        raise DataError(f"--table {file}: its folder is not there; make it, or give another name")


def write_table(file: Path, rows: Sequence[Mapping[str, Cell]]) -> None:
    """Writes a row for each record, replacing an existing file whole or not at all.

    Columns have the names of the records' fields. The cell of a field that a record lacks is empty in CSV, else a dash.
    In *.tex and *.md numbers have four digits, and deviations two.

    *.tex  a `tabular` with the rules of the package booktabs; special characters are escaped
    *.md   a table of GitHub's Markdown
    *.csv  numbers in full; a mean and its deviation in two columns
    """
    write = {".tex": _latex, ".csv": _csv}.get(file.suffix, _markdown)
    # Names of runs in a bucket are its addresses.
    rows = [
        {name: with_addresses(cell) if isinstance(cell, str) else cell for name, cell in row.items()} for row in rows
    ]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with atomic_file(file) as part:
        part.write_text(write(columns, rows), "utf-8", newline="\n")


def _is_number(cell: Cell) -> bool:
    return isinstance(cell, int | float | PlusMinus) or cell is None


def _right(columns: Sequence[str], rows: Sequence[Mapping[str, Cell]]) -> list[bool]:
    """Returns which columns are right-aligned: those whose cells are all numbers."""
    return [all(_is_number(row.get(name)) for row in rows) for name in columns]


def shown(cell: Cell) -> str:
    """Returns a cell as people read it, on one line."""
    if isinstance(cell, PlusMinus):
        return f"{cell.mean:.4g}" + ("" if cell.deviation is None else f" ± {cell.deviation:.2g}")
    if isinstance(cell, float):
        return f"{cell:.4g}"
    return "–" if cell is None or cell == "" else " ".join(visible(str(cell)).split())


def _latex(columns: Sequence[str], rows: Sequence[Mapping[str, Cell]]) -> str:
    def line(cells: Sequence[Cell]) -> str:
        return " & ".join(map(_latex_cell, cells)) + r" \\"

    kinds = "".join("r" if right else "l" for right in _right(columns, rows))
    return "\n".join(
        [
            "% needs \\usepackage{booktabs}",
            f"\\begin{{tabular}}{{{kinds}}}",
            "\\toprule",
            line(columns),
            "\\midrule",
            *(line([row.get(name) for name in columns]) for row in rows),
            "\\bottomrule",
            "\\end{tabular}\n",
        ]
    )


def _latex_cell(cell: Cell) -> str:
    text = "".join(_LATEX.get(sign, sign) for sign in shown(cell))
    # Numbers are set as mathematics, for the minus sign.
    text = re.sub(r"(?<!\S)-?\d+(\.\d+)?(e[+-]\d+)?(?!\S)", _latex_number, text) if _is_number(cell) else text
    # A mean and its deviation are one formula.
    text = text.replace("$ ± $", r" \pm ").replace("±", r"$\pm$").replace("–", "--")
    # After `\\`, the end of the row before, LaTeX would read `[…]` and `*` as its arguments.
    return "{}" + text if text.startswith(("[", "*")) else text


def _latex_number(match: re.Match[str]) -> str:
    mantissa, _, exponent = match[0].partition("e")
    return f"${mantissa}" + (f" \\cdot 10^{{{int(exponent)}}}" if exponent else "") + "$"


def _markdown(columns: Sequence[str], rows: Sequence[Mapping[str, Cell]]) -> str:
    def line(cells: Sequence[Cell]) -> str:
        texts = (shown(cell) if _is_number(cell) else _MARKDOWN.sub(r"\\\1", shown(cell)) for cell in cells)
        return f"| {' | '.join(texts)} |\n"

    rule = "".join("|--:" if right else "|---" for right in _right(columns, rows)) + "|\n"
    return line(columns) + rule + "".join(line([row.get(name) for name in columns]) for row in rows)


def _csv(columns: Sequence[str], rows: Sequence[Mapping[str, Cell]]) -> str:
    deviating = {name for row in rows for name, cell in row.items() if isinstance(cell, PlusMinus)}
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    names = [[name, f"{name} deviation"] if name in deviating else [name] for name in columns]
    writer.writerow([name for own in names for name in own])
    for row in rows:
        cells: list[Cell] = []
        for name in columns:
            cell = row.get(name)
            mean, deviation = cell if isinstance(cell, PlusMinus) else (cell, None)
            cells += [mean, deviation] if name in deviating else [mean]
        writer.writerow(cells)
    return written.getvalue()
