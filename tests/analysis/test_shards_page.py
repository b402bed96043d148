"""What prepared text holds, shown and drawn: many sources, none, and mistakes."""

import json
from pathlib import Path

import pytest

from contexture.analysis import shards_page
from contexture.analysis.shards_page import describe_shards, grouped_sources, write_shards_page
from contexture.data.config import DataConfig
from contexture.data.pretraining.manifest import MANIFEST
from contexture.data.pretraining.tokenize_corpus import prepare
from contexture.data.tokenizers.wordpiece import WordPiece
from contexture.train.errors import ConfigError
from tests.helpers.commands import run_command
from tests.helpers.slow_pairs import vocabulary


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Of four files, one with a name that is HTML."""
    for number, name in enumerate(("a", "b", "<b>&c", "d")):
        (tmp_path / f"{name}.txt").write_text("w5 w6.\nw7 qqq.\n\n" * (10 - number))
    paths = tuple(sorted(str(file) for file in tmp_path.glob("*.txt")))
    prepare(DataConfig(path=paths, dev_fraction=0.3), WordPiece(vocabulary(), lowercase=True), tmp_path / "s")
    return tmp_path / "s"


def test_sources_add_up_and_the_smallest_are_shown_together(shards: Path, monkeypatch: pytest.MonkeyPatch):
    described = describe_shards(shards)
    assert sum(each["share"] for each in described["sources"]) == pytest.approx(1.0)
    assert sum(each["tokens"] for each in described["sources"]) == described["tokens"]
    # Of the six tokens of a document, "qqq" and two stops are unknown.
    assert described["unknown"] == pytest.approx(1 / 2)
    assert all(each["unknown"] == pytest.approx(1 / 2) for each in described["sources"])
    assert described["lengths"]["train"] == {"4-7": described["splits"]["train"]["documents"]}
    monkeypatch.setattr(shards_page, "_MOST", 2)
    rows = grouped_sources(described["sources"])
    assert [row["name"] for row in rows] == ["a.txt", "b.txt", "2 others"]
    assert rows[-1]["documents"] == "15" and rows[-1]["unknown"] == "50.000%"


@pytest.mark.parametrize("manifest", [True, False])
def test_a_page_is_whole_with_and_without_a_manifest(shards: Path, tmp_path: Path, manifest: bool):
    if not manifest:
        (shards / MANIFEST).unlink()
    write_shards_page(describe_shards(shards), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.startswith("<!doctype html>") and page.endswith("</html>\n") and "<b>&c" not in page
    assert ("&lt;b&gt;&amp;c.txt" in page) == manifest and "<svg" in page


def test_mistakes_are_one_line(shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for to, line in (
        ("page.png", "--to page.png: not a *.html; give such a name"),
        ("nowhere/page.html", "--to nowhere/page.html: its folder is not there; make it, or give another name"),
    ):
        code, printed = run_command(capsys, "show", shards, "--to", to)
        assert code == 2 and line in printed
    index = json.loads((shards / "index.json").read_text())
    (shards / "index.json").write_text(json.dumps({**index, "tokens": 1}))
    code, printed = run_command(capsys, "show", shards)
    assert code == 2 and "index.json: damaged, its content does not match its fingerprint" in printed
    with pytest.raises(ConfigError, match="its folder is not there"):
        shards_page.check_page(tmp_path / "x" / "y.html")
