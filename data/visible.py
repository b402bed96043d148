"""Text that people read on a terminal: control characters of others' files are shown, never obeyed."""

import re

_HIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|[\ud800-\udfff]")
"""C0 but tab and line feed, DEL, C1, marks that turn the direction of writing, half characters."""


def visible(text: str) -> str:
    r"""The same text with its control characters escaped: ESC is `\x1b`. Tabs and line feeds stay."""
    return _HIDDEN.sub(lambda found: _escaped(found[0]), text)


def visible_json(text: str) -> str:
    """A JSON text with such characters as JSON writes them: the value stays the same."""
    return _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _escaped(one: str) -> str:
    return f"\\x{ord(one):02x}" if ord(one) < 0x100 else f"\\u{ord(one):04x}"
