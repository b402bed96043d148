"""A browser for the tests of pages."""

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Any]:
    from tests.analysis.pages.browser import started

    with started(tmp_path_factory.mktemp("profile")) as driver:
        yield driver
