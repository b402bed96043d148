"""Docstrings as pages show them: what `Example:` indents is code, and names in a column are a list of definitions."""

import re

import griffe

_NAMED = re.compile(r"(\w+(?:, \w+)*)(  +)(\S.*)")


class ReadableDocstrings(griffe.Extension):
    """An extension of griffe, which reads the code for mkdocstrings."""

    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        if not isinstance(obj, griffe.Alias) and obj.docstring:
            text = obj.docstring.value
            text = re.sub(
                r"^Example:\n((?:    .*(?:\n|\Z)|\n)+)",
                lambda found: f"Example:\n    ```python\n    {found[1].strip()}\n    ```\n\n",
                text,
                flags=re.MULTILINE,
            )
            obj.docstring.value = "\n\n".join(map(_with_definitions, text.split("\n\n")))


def _with_definitions(paragraph: str) -> str:
    """Returns a paragraph; one of several names with their meanings beside them, in one column, as definitions."""
    lines = paragraph.split("\n")
    first = _NAMED.match(lines[0])
    if not first:
        return paragraph
    column, definitions = first.start(3), []
    for line in lines:
        if (named := _NAMED.match(line)) and named.start(3) == column:
            definitions.append(f"`{named[1]}`\n:   {named[3]}")
        elif line.startswith(" " * column) and line[column : column + 1].strip():
            definitions[-1] += f"\n    {line.strip()}"
        else:
            return paragraph
    return "\n\n".join(definitions)
