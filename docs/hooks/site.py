"""What `make docs` adds to the pages of docs/: the READMEs of the folders, the commands, and links that fit the site.

Pages link to each other as files of the repository, so that they can be read there too. A link to a file that is no
page of the site is an error of the build, as a missing one is.
"""

import posixpath
import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).parent))  # MkDocs runs hooks by their paths

from command_reference import page as command_reference  # noqa: E402

FROM_ELSEWHERE = {
    "models/README.md": "architecture/models.md",
    "data/README.md": "architecture/data.md",
    "train/README.md": "architecture/train.md",
    "interchange/README.md": "architecture/interchange.md",
    "analysis/README.md": "architecture/analysis.md",
    "contexture/README.md": "architecture/contexture.md",
    "configs/README.md": "architecture/configs.md",
    "tests/README.md": "architecture/tests.md",
    "benchmarks/README.md": "performance.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Files of the repository outside of docs/, and their pages."""
_LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)\s#]+)")
_BLOCK = re.compile(r"(<pre\b.*?</pre>)", re.DOTALL)
_INLINE_CODE = re.compile(r"<code>([^<]*)</code>")
_BREAK = re.compile(r"(?<=\w)([/_=,]|::|\.(?=\w{4}))(?=[\w*&])")
"""Where a long word of code may be broken: behind a mark between two letters. `--model.dropout`: model.|dropout."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, page in FROM_ELSEWHERE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Returns the page; its links to files of the repository lead to the site's pages."""
    own = page.file.src_uri
    if own == "changelog.md":
        page.meta["search"] = {"boost": 0.1}  # it names everything: pages that explain a word come first
    if own == "commands.md":
        return command_reference()
    sources = {site: source for source, site in FROM_ELSEWHERE.items()}
    place = posixpath.dirname(sources.get(own, f"docs/{own}"))

    def on_site(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(place, link[1]))
        site = FROM_ELSEWHERE.get(target, target.removeprefix("docs/"))
        return posixpath.relpath(site, posixpath.dirname(own) or ".")

    return _LINK.sub(on_site, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Returns the page; words of code within a text are broken at marks only, never after the -- of an option. A page
    without headings gets the room of its table of contents."""
    if not any(heading.children for heading in page.toc):
        page.meta["hide"] = [*page.meta.get("hide", []), "toc"]
    pieces = _BLOCK.split(html)
    return "".join(piece if number % 2 else _INLINE_CODE.sub(_unbroken, piece) for number, piece in enumerate(pieces))


def _unbroken(code: re.Match[str]) -> str:
    text = code[1].replace("\\|", "|")  # as a table's source has to write it
    words = (_BREAK.sub(r"\1<wbr>", word) for word in text.split(" "))
    return "<code>" + " ".join(f'<span class="word">{word}</span>' for word in words) + "</code>"
