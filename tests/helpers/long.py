"""Cases of a law that the long suite alone runs."""

from typing import Any

import pytest


def long(*cases: Any) -> list[Any]:
    """Returns the cases, marked: `["bert", *long("gpt", "elmo")]`. A tuple is one case of several values."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.long) for case in cases]
