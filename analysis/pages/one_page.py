"""Writes one page of HTML that holds its data, styles and scripts: it loads nothing, and no text is run as code."""

import base64
import hashlib
import html
import importlib.resources
import json
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contexture.data.errors import DataError
from contexture.data.storage import atomic_file

if TYPE_CHECKING:
    from contexture.analysis.trained_model import TrainedModel

_LONGEST = 60
"""Characters of a text that a title shows at most."""


def run_title(model: "TrainedModel") -> str:
    """Returns the name of a run and its checkpoint for titles."""
    return f"{model.folder.resolve().name}, step {model.step}"


def text_title(text: str) -> str:
    """Returns a text in quotes, cut to the length of a title."""
    words = " ".join(text.split())
    return f"“{words if len(words) <= _LONGEST else words[: _LONGEST - 1].rstrip() + '…'}”"


def check_page(to: Path) -> None:
    """Raises: DataError for a path where no page can be written."""
    if to.suffix != ".html":
        raise DataError(f"--to {to}: a page ends in .html; give such a name")
    check_folder(to)


def check_folder(to: Path) -> None:
    """Raises: DataError for a path in a folder that is not there."""
    if not to.parent.is_dir():
        raise DataError(f"--to {to}: its folder is not there; make it, or give another name")


def write_one_page(
    to: Path, package: str, scripts: Sequence[str], data: Mapping[str, Any], blocks: Mapping[str, str] | None = None
) -> int:
    """Writes a page, whole or not at all, and returns its size in bytes.

    Args:
        to: the file, *.html.
        package: has a folder `page` with page.css and the page's scripts, which run after the base ones.
        scripts: their names without .js, in order.
        data: what the scripts read at the start; it has a title and notes.
        blocks: texts by name, which the scripts read when they need them.
    """
    base, own = (
        importlib.resources.files(name) / folder
        for name, folder in (("contexture.analysis.pages", "base"), (package, "page"))
    )
    style = base.joinpath("base.css").read_text("utf-8") + own.joinpath("page.css").read_text("utf-8")
    files = [base.joinpath("base.js"), *(own.joinpath(f"{name}.js") for name in scripts)]
    # Wrapped in a function, so that no name of the scripts collides with one of the browser's.
    body = "\n".join(file.read_text("utf-8") for file in files)
    script = f'(() => {{\n"use strict";\n{body}\n}})();\n'
    # Within a script element only `</script` and `<!--` have a meaning: every `<` of the data is escaped.
    embedded = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    elements = [f'<script type="text/plain" id="{name}">{text}</script>' for name, text in (blocks or {}).items()]
    page = string.Template(base.joinpath("page.html").read_text("utf-8")).substitute(
        title=html.escape(data["title"]),
        style=style,
        script=script,
        data=embedded,
        style_hash=_digest(style),
        script_hash=_digest(script),
        blocks="\n".join(elements),
    )
    content = page.encode()
    with atomic_file(to) as part:
        part.write_bytes(content)
    return len(content)


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
