"""Lists that were written as text, as a column of lists becomes in a *.csv: of strings in quotes, or of numbers.

| text | written by |
|---|---|
| `['Anna', "it's"]`, `('a',)`, `[0, 1]` | Python, and so pandas and `datasets` |
| `["Anna", "sees"]` | JSON |
| `['Anna' 'sees']`, `[0 1]` | NumPy, whose lines are broken, and which leaves out the middle of a long list (`...`) |

A sentence with spaces between its words is none: in `[ ' quoted ' ]` the bracket is a word.
"""

import ast
import json
import re
import warnings

# Within quotes a backslash takes the next character along, so that an escaped quote ends no string.
_QUOTED = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?"
# With what follows an item, which tells Python's lists (commas) from NumPy's (white space alone).
_ITEM = re.compile(rf"({_QUOTED}|{_NUMBER}|None|nan|null)(\s*,\s*|\s+|$)", re.DOTALL | re.IGNORECASE | re.ASCII)
_QUOTED_FIRST = re.compile(r"""[\[(]['"]""")
_MISSING_FIRST = re.compile(r"\[(\]|None|nan|null)")
_NUMBER_FIRST = re.compile(r"\[\s*[-+.]?\d", re.ASCII)
_MISSING = ("none", "nan", "null")


def written_list(text: str, *, numbers: bool = False) -> list[str | None] | None:
    """Returns the strings of a list that was written as text, None for each missing one; None for a text that is no
    list.

    Args:
        text: the text.
        numbers: whether a list of numbers counts as one too; its numbers are returned as they are written.

    Raises:
        ValueError: with the reason, for a text that begins like a list of strings and cannot be read as one.
    """
    text = text.strip()
    if text[:1] + text[-1:] not in ("[]", "()") or text == "()":
        return None
    quoted = _QUOTED_FIRST.match(text)
    if not (quoted or _MISSING_FIRST.match(text) or (numbers and _NUMBER_FIRST.match(text))):
        return None
    try:
        # As JSON first, whose strings have escapes of their own.
        items = _json_strings(text) or _items(text)
        # Python's and JSON's escapes can spell lone surrogates, which no UTF-8 file could hold.
        if any("\ud800" <= character <= "\udfff" for item in items for character in item or ""):
            raise ValueError("half a character, \\ud800 to \\udfff")
        return items
    except ValueError:
        # Words in quotes within brackets are meant as a list; all else may be a sentence.
        if quoted and text[0] == "[":
            raise
        return None


def _json_strings(text: str) -> list[str | None] | None:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, list) and all(isinstance(each, str | None) for each in values) else None


def _items(text: str) -> list[str | None]:
    inner, place = text[1:-1].strip(), 0
    items: list[str | None] = []
    behind: list[str] = []
    while place < len(inner):
        match = _ITEM.match(inner, place)
        if match is None:
            raise ValueError("NumPy left out its middle" if "..." in inner else "not every item is in quotes")
        items.append(_item(match[1]))
        # What separates the items: commas, or only white space.
        behind.append(match[2].strip())
        place = match.end()
    # In Python ('a') is no tuple, and in NumPy no item is followed by a comma.
    if len({*behind[:-1]}) > 1 or (text[0] == "(" and "," not in behind):
        raise ValueError("commas are missing between its items")
    return items


def _item(written: str) -> str | None:
    if written[0] not in "'\"":
        return None if written.lower() in _MISSING else written
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of an escape that Python does not have
        try:
            return str(ast.literal_eval(written))
        except (SyntaxError, Warning):
            raise ValueError(f"{written[:20]!r} is no string of Python or JSON") from None
