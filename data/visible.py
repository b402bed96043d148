"""Text for a terminal: control characters in other people's files are shown, and do not act."""

import re

from contexture.data.mirror import with_addresses

# A carriage return or ESC would let a file's text overwrite or colour the lines around it. Direction marks show text
# in another order than it is stored in. A lone surrogate makes `print` raise a UnicodeEncodeError.
_HIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|[\ud800-\udfff]")
"""C0 but tab and line feed, DEL, C1, marks that turn the direction of writing, lone surrogates."""


def visible(text: str) -> str:
    r"""Returns the text with its control characters escaped: ESC is `\x1b`. Tabs and line feeds stay.
    Paths that stand for addresses are shown as addresses."""
    # All that people read passes here, so no caller need know that its path stands for an address.
    return _HIDDEN.sub(lambda match: _escaped(match[0]), with_addresses(text))


def visible_json(text: str) -> str:
    """Returns a JSON text with these characters as JSON escapes them: its value stays the same,
    but for paths that stand for addresses."""
    # All of these characters are below U+10000, so four hex digits suffice.
    return _HIDDEN.sub(lambda match: f"\\u{ord(match[0]):04x}", with_addresses(text))


def _escaped(one: str) -> str:
    return f"\\x{ord(one):02x}" if ord(one) < 0x100 else f"\\u{ord(one):04x}"
