"""The pictures of pages and figures in docs/images, made from the golden runs.

python -m tests.analysis.pages.screenshots    # `make screenshots`; needs chromium and chromium-driver
"""

import hashlib
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image
from selenium.webdriver.support.ui import WebDriverWait

from contexture.cli import main as cli
from tests.analysis.pages.browser import CHROMIUM, DRIVER, press, started
from tests.conftest import ROOT
from tests.train.run.test_formats import GOLDEN

FOLDER = ROOT / "docs" / "images"
DIGESTS = FOLDER / "screenshots.json"
"""Digests of what the pictures were made from: a test compares them with the files as they are."""
MOST_BYTES = 150_000
RUNS = {"bert": "bert", "gpt": "gpt", "elmo": "elmo"}
TEXT = "the old cat sees the river"
SENSES = """text\tsense
the old cat sees the river\tanimal
a cat sees my letter\tanimal
my small cat eats two apples\tanimal
the cat sees a bird\tanimal
the cat paints two stars\tpainter
my brother the cat paints the sea\tpainter
one old cat paints a letter\tpainter
the cat paints a river\tpainter
"""
WORDS = {"NOUN": "cat dog river letter sea stars brother apple", "VERB": "sees paints writes eats",
         "DET": "the a my two", "ADJ": "old red small"}  # fmt: skip
"""Words of the treebank that is probed, by their part of speech."""


def sources() -> list[Path]:
    """Returns the files that decide how the pictures look."""
    pages = [*ROOT.glob("analysis/*/page/*"), *(ROOT / "analysis" / "pages" / "base").iterdir()]
    return sorted([*pages, ROOT / "analysis" / "probing" / "probe_figure.py", Path(__file__)])


def digests() -> dict[str, str]:
    """Returns the digest of each source, by its path."""
    return {file.relative_to(ROOT).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in sources()}


def _treebank(draw: random.Random, count: int) -> str:
    """Returns sentences such as `the old cat sees a river` with their parts of speech, as *.conllu."""
    rows = []
    for _ in range(count):
        tags = [*_phrase(draw), "VERB", *_phrase(draw)]
        words = [draw.choice(WORDS[tag].split()) for tag in tags]
        rows += [
            f"{at}\t{word}\t_\t{tag}" + "\t_" * 6 for at, (word, tag) in enumerate(zip(words, tags, strict=True), 1)
        ]
        rows.append("")
    return "\n".join(rows) + "\n"


def _phrase(draw: random.Random) -> list[str]:
    return ["DET", *["ADJ"] * draw.randrange(2), "NOUN"]


def _command(*words: object) -> None:
    if cli.main(list(map(str, words))):
        raise SystemExit(f"contexture {words[0]} failed")


def _shot(browser: Any, page: Path, size: tuple[int, int], keys: Sequence[str]) -> bytes:
    """Returns a picture of a page after keys, in a window of this size."""
    measures = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", measures)
    browser.get(page.as_uri())
    drawn = "return document.documentElement.dataset.drawn"
    WebDriverWait(browser, 60).until(lambda browser: browser.execute_script(drawn))
    for key in keys:
        press(browser, key)
        time.sleep(0.3)
    return browser.get_screenshot_as_png()


def _save(picture: Path, name: str) -> None:
    """Saves a picture with 64 colours: a page has few more, and the file has a quarter of the bytes."""
    to = FOLDER / f"{name}.png"
    Image.open(picture).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(to, optimize=True)
    if to.stat().st_size >= MOST_BYTES:
        raise SystemExit(f"{to} has {to.stat().st_size:,} bytes; make its window smaller")
    print(f"{to.relative_to(ROOT)}: {to.stat().st_size:,} bytes")


def make(folder: Path) -> None:
    """Makes all pictures; folder: for what they are made from."""
    for name, golden in RUNS.items():
        shutil.copytree(GOLDEN / golden, folder / name)
    (folder / "cat.tsv").write_text(SENSES)
    draw = random.Random(0)
    (folder / "train.conllu").write_text(_treebank(draw, 150))
    (folder / "dev.conllu").write_text(_treebank(draw, 50))
    _command("attention", folder / "bert", "--text", TEXT, "--to", folder / "attention.html")
    _command("score", folder / "gpt", "--text", TEXT, "--to", folder / "scores.html")
    _command("senses", folder / "bert", "--word", "cat", "--input", folder / "cat.tsv", "--to", folder / "senses.html")
    with started(folder / "profile") as browser:
        for name, page, size, keys in (
            ("attention", "attention", (1000, 600), "jjj"),
            ("neurons", "attention", (1000, 600), "3jjj"),
            ("scores", "scores", (1000, 340), "n"),
            ("senses", "senses", (1000, 620), "j"),
        ):
            picture = folder / f"{name}.png"
            picture.write_bytes(_shot(browser, folder / f"{page}.html", size, keys))
            _save(picture, name)
    for run in ("bert", "elmo"):
        _command("probe", folder / run, "--task", "pos", "--train", folder / "train.conllu", "--dev",
                 folder / "dev.conllu", "--to", folder / "probes", "--epochs", "3")  # fmt: skip
    _save(folder / "probes" / "probe.png", "probing")
    DIGESTS.write_text(json.dumps(digests(), indent=1) + "\n")


def main() -> None:
    if not (CHROMIUM.exists() and DRIVER.exists()):
        sys.exit("needs a browser: apt-get install chromium chromium-driver")
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder))


if __name__ == "__main__":
    main()
