"""Docstrings show their examples as code: what `Example:` indents is put between fences before it is read."""

import re

import griffe


class FencedExamples(griffe.Extension):
    """An extension of griffe, which reads the code for mkdocstrings."""

    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        if not isinstance(obj, griffe.Alias) and obj.docstring:
            text = obj.docstring.value
            obj.docstring.value = re.sub(
                r"^Example:\n((?:    .*(?:\n|\Z)|\n)+)",
                lambda found: f"Example:\n    ```python\n    {found[1].strip()}\n    ```\n\n",
                text,
                flags=re.MULTILINE,
            )
