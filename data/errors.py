"""The error of data/: a user's text, table or vocabulary is not as it should be."""

import difflib
from collections.abc import Iterable


class DataError(ValueError):
    """One line for the user: where (file:line), the value found, the value expected, how to mend it."""

    def __init__(self, line: str) -> None:
        super().__init__(line.replace("\n", "\\n"))  # names of files may hold line feeds


# No DataError, whose exit code 2 says that the user's file is wrong: here the same command may work next time.
class FileChanged(Exception):
    """Somebody wrote to a file while it was read: what was read is neither the old content nor the new one."""

    def __init__(self, path: object) -> None:
        super().__init__(f"{path}: changed while it was read; start again when nobody writes to it")


LONGEST_NAME = 100
"""Characters of a name that is compared with others: the time grows with the product of both lengths."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns ' (did you mean x?)', or '' where no known word is near."""
    if len(word) > LONGEST_NAME:
        return ""
    names = [name for name in known if len(name) <= LONGEST_NAME]
    # difflib tells capitals apart: a word in another case may be near none.
    same = [name for name in names if name.casefold() == word.casefold()]
    near = same or difflib.get_close_matches(word, names, n=1)
    return f" (did you mean {near[0]}?)" if near else ""
