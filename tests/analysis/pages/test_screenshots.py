"""The pictures on the pages: small, shown, and made from the pages as they are."""

import json
import re

from tests.analysis.pages.screenshots import DIGESTS, FOLDER, MOST_BYTES, digests
from tests.conftest import ROOT


def test_the_pictures_were_made_from_the_pages_as_they_are():
    made_from, now = json.loads(DIGESTS.read_text("utf-8")), digests()
    changed = sorted(name for name in made_from.keys() | now.keys() if made_from.get(name) != now.get(name))
    assert not changed, (
        f"{', '.join(changed)} changed since the pictures were made: run make screenshots, and look at them"
    )
    assert len(now) > 10


def test_every_picture_is_small_and_shown_on_a_page():
    pages = "".join(page.read_text("utf-8") for page in (ROOT / "docs").rglob("*.md"))
    shown = set(re.findall(r"\]\((?:\.\./)?images/([\w.-]+\.png)\)", pages))
    pictures = sorted(FOLDER.glob("*.png"))
    assert {picture.name for picture in pictures} == shown
    assert all(picture.stat().st_size < MOST_BYTES for picture in pictures)
