"""The one way in which a number is read from a user's file.

Python's own `float` and `int` also take `1_0` for ten, and digits of other scripts; a file with such a cell means a
label, a year and a month, or a mistake.
"""

import re

# ASCII: `\d` would also match the digits of other scripts, which float() then reads.
_NUMBER = re.compile(r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|nan|inf(?:inity)?)", re.ASCII | re.IGNORECASE)
# 18 digits are below 2**63, so the number fits i64. A longer row of digits is no count and no place.
_WHOLE = re.compile(r"\d{1,18}", re.ASCII)
# The blanks of a cell. `strip` without an argument would also drop Unicode's, such as U+00A0.
_SPACES = " \t\r\n"


def written_number(text: str) -> float | None:
    """Returns the number that a text is, None where it is none.

    It has a sign or not, digits 0 to 9 with a point or not, an exponent or not: `+3`, `.5`, `1e-3`. `nan`, `inf` and
    `infinity` are numbers that are not finite, which a caller can name in its error. Spaces around it do not count.
    """
    text = text.strip(_SPACES)
    return float(text) if _NUMBER.fullmatch(text) else None


def whole_number(text: str) -> int | None:
    """Returns the whole number from 0 that a text is, None where it is none: digits 0 to 9, and spaces around them."""
    text = text.strip(_SPACES)
    return int(text) if _WHOLE.fullmatch(text) else None
