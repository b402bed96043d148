"""The files of WikiExtractor: AA/wiki_00, AA/wiki_01, … in a folder, with an article in each <doc …> … </doc> block.

With its option --json it writes an object a line instead, which `data.text.json_rows` reads.
"""

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from contexture.data.errors import DataError
from contexture.data.plain_files import WHOLE, Seen, Span, open_stream
from contexture.data.text.lines import LONGEST_DOCUMENT, lines

END = b"\n</doc>\n"
"""The last line of an article. Within one, < is written &lt;."""
BLOCKS = ".wiki"
"""Stands for the suffix that files of blocks lack."""
_NAME = re.compile(r"wiki_[0-9]+(\.(bz2|gz|xz|zst))?")
_BEGIN = re.compile(r"<doc (?P<fields>.*)>\s*")
# A title may hold quotes: a field ends where another one begins, or the tag ends.
_FIELD = re.compile(r'(\w+)="(.*?)"(?=\s+\w+="|\s*$)')


class Article(NamedTuple):
    """An article of a wiki."""

    line: int
    """The line of the file that it begins in, from 1."""
    id: str
    text: str
    """Its text as it was before it was escaped for HTML. WikiExtractor's first line, the title, is left out, as its
    JSON has it in a field of its own."""


def files_in(folder: Path) -> list[Path]:
    """Returns the files of WikiExtractor in a folder, or in its folders AA, AB, …, in their order."""
    # Both a whole extraction and one of its folders.
    files = [*folder.iterdir(), *folder.glob("[A-Z][A-Z]/*")]
    return sorted(file for file in files if is_name(file) and file.is_file())


def is_name(path: Path) -> bool:
    """Returns whether WikiExtractor gives a file this name."""
    return _NAME.fullmatch(path.name) is not None


def kind_of(path: Path) -> str:
    """Returns what a file of WikiExtractor holds, as a suffix: BLOCKS or ".jsonl"; "" for another file."""
    if not is_name(path):
        return ""
    # Both kinds have the same names: what is in one shows at its beginning.
    with open_stream(path) as file:
        head = file.read(64).lstrip()
    return BLOCKS if head.startswith(b"<doc ") else ".jsonl" if head.startswith(b"{") else ""


def articles(path: Path, seen: Seen = len, span: Span = WHOLE) -> Iterator[Article]:
    """Yields the articles of a file. span: the bytes to read, whole articles; lines are counted from there.

    Raises: DataError with file:line for what is not UTF-8, is in no article, or an article that does not end.
    """
    fields: dict[str, str] | None = None
    held: list[str] = []
    begin = size = 0
    for number, line in lines(path, seen, span=span):
        if fields is None:
            # Between two articles there is nothing, or an empty line.
            if match := _BEGIN.fullmatch(line):
                fields = {name: html.unescape(value) for name, value in _FIELD.findall(match["fields"])}
                held, begin, size = [], number, 0
            elif line.strip():
                raise DataError(f"{path}:{number}: not in a <doc …> … </doc> block of WikiExtractor; extract it again")
        # A line of its own: within the text < is escaped.
        elif line.rstrip("\r\n") == "</doc>":
            yield Article(begin, fields.get("id", ""), _without_title(html.unescape("".join(held)), fields))
            fields = None
        else:
            held.append(line)
            size += len(line)
            # Counted as it is read: without an end the whole file would be held.
            if size > LONGEST_DOCUMENT:
                break
    if fields is not None:
        raise DataError(f"{path}:{begin}: an article without </doc>; cut off? extract it again")


def _without_title(text: str, fields: dict[str, str]) -> str:
    # Some versions of WikiExtractor write no title.
    first, _, rest = text.partition("\n")
    return (rest if "title" in fields and first.strip() == fields["title"].strip() else text).strip("\n")
