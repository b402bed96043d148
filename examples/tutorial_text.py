"""Text and a labelled task for the tutorials, both from what every Python carries.

The text is the language reference in `pydoc_data.topics` and the docstrings of the standard library's sources, read
with `ast` and never imported. The task: the commas and stops are taken out of a paragraph; which word did one follow?
Nothing is drawn by chance: shares and orders come from hashes.

    python examples/tutorial_text.py tutorial    # writes tutorial/text/*.txt and tutorial/task/*.jsonl
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import re
import sys
import sysconfig
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HELD = {"test": 0.09, "dev": 0.03}
"""Shares of the library's classes, functions and module docstrings that are held out."""
MOST = {"train": 400, "dev": 200, "test": 600}
"""Paragraphs to learn from, to choose by and to test on."""
TAGS = {",": "comma"} | dict.fromkeys(".:;?!", "stop")
"""What a word is tagged with by the mark that follows it; `none` where there is none."""

# ----------------------------------------------------------------------------------------------------------- paragraphs

SKIPPED = {"__pycache__", "_bundled", "dist-packages", "idlelib", "pydoc_data", "site-packages", "test", "tests"}
RULE = re.compile(r"[^\w\s]{3,}|[-=+*~^ ]{3,}")  # an underline, or the border of a table
WORD = re.compile(r"""["'(]*[A-Za-z][A-Za-z'’-]*["')]*[.,;:?!]*["')]*""")  # a plain word with its punctuation


def paragraphs(text: str) -> Iterator[str]:
    """Prose of reST or of a docstring, one paragraph a string: no tables, rules, doctests, code or grammar."""
    code: int | None = None  # the indentation of the line that announced a literal block with `::`
    for block in re.split(r"\n\s*\n", text.expandtabs()):
        lines = [line for line in block.split("\n") if line.strip() and not RULE.fullmatch(line.strip())]
        if not lines:
            continue
        indent = len(lines[0]) - len(lines[0].lstrip())
        if code is not None and indent > code:
            continue
        code = indent if lines[-1].endswith("::") else None
        for piece in items(lines):
            if prose(piece):
                yield plain(piece)


def items(lines: list[str]) -> Iterator[str]:
    """A block's lines joined, cut where a list item begins."""
    piece: list[str] = []
    for line in (line.strip() for line in lines):
        bullet = re.match(r"(?:[*•-]|\d+[.)])\s+", line)
        if bullet:
            yield " ".join(piece)
            piece, line = [], line[bullet.end() :]
        piece.append(line)
    yield " ".join(piece)


def prose(piece: str) -> bool:
    """Whether a joined paragraph reads as English rather than as code, grammar, a heading or a table."""
    tokens = piece.split()
    if len(tokens) < 5 or piece.startswith((">>>", "...", "|", "+-", "..")) or ">>> " in piece or "::=" in piece:
        return False
    return sum(bool(WORD.fullmatch(token)) for token in tokens) >= 0.7 * len(tokens)


def plain(piece: str) -> str:
    """A paragraph without reST's inline marks and roles."""
    piece = re.sub(r":[a-z:]+:`~?\.?([^`]*)`", r"\1", piece).replace("`", "")
    piece = re.sub(r"(?<!\w)(\*{1,2})(\w[^*]*)\1(?!\w)", r"\2", piece)
    return re.sub(r"\s+", " ", piece).replace("::", ":").strip()


def reference() -> Iterator[tuple[str, str]]:
    """Each topic of the language reference: its name and its text."""
    try:
        from pydoc_data.topics import topics  # type: ignore[import-untyped]
    except ImportError:
        return
    yield from sorted(topics.items())


class Paragraph(NamedTuple):
    text: str
    module: str  # xml.sax.handler
    unit: str  # held out as a whole: a module's own docstring, or a top-level class or function and all inside it


def library() -> Iterator[Paragraph]:
    """The paragraphs of all docstrings of the standard library whose source is there, module by module."""
    root = Path(sysconfig.get_paths()["stdlib"])
    sources = {source.relative_to(root): source for source in root.rglob("*.py")}
    for name, source in sorted(sources.items(), key=lambda item: item[0].parts):
        if SKIPPED.intersection(name.parts[:-1]):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # invalid escapes in old sources
                tree = ast.parse(source.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue
        module = ".".join(name.with_suffix("").parts).removesuffix(".__init__")
        for unit, text in units(tree, ""):
            for line in paragraphs(inspect.cleandoc(text)):
                yield Paragraph(line, module, f"{module}:{unit}")


def units(node: ast.AST, unit: str) -> Iterator[tuple[str, str]]:
    """Each docstring of a module, in the order of the source, with the name of the top-level one that it stands in."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    if isinstance(node, (ast.Module, *kinds)) and (text := ast.get_docstring(node, clean=False)):
        yield unit, text
    for child in ast.iter_child_nodes(node):
        yield from units(child, unit or (child.name if isinstance(child, kinds) else ""))


# ------------------------------------------------------------------------------------------------------------- held out


def draw(*words: str) -> float:
    """A number in [0, 1) that depends on the words alone."""
    return int.from_bytes(hashlib.sha256("\0".join(words).encode()).digest()[:7], "big") / 2**56


class Seen:
    """Paragraphs seen, and whether another has nearly the same words as one of them: half of their three-word runs."""

    def __init__(self) -> None:
        self.runs: list[frozenset[str]] = []
        self.where: dict[str, list[int]] = defaultdict(list)

    @staticmethod
    def cut(text: str) -> frozenset[str]:
        words = re.findall(r"[a-z]+|\d+", re.sub(r"\d", "0", text.lower()))
        return frozenset(" ".join(words[i : i + 3]) for i in range(max(len(words) - 2, 1)))

    def add(self, text: str) -> None:
        own = self.cut(text)
        for run in own:
            self.where[run].append(len(self.runs))
        self.runs.append(own)

    def holds(self, text: str) -> bool:
        own = self.cut(text)
        common = Counter(i for run in own for i in self.where.get(run, ()))
        return any(2 * n >= len(own | self.runs[i]) for i, n in common.items())


def split(everything: list[Paragraph]) -> dict[str, list[Paragraph]]:
    """The library's paragraphs as `rest`, which may be pretrained on, and as the task's train (also in rest), dev and
    test. No text stands twice; what is held out and nearly stands elsewhere is left out of all."""
    parts: dict[str, list[Paragraph]] = {"rest": [], "train": [], "dev": [], "test": []}
    held: list[tuple[str, Paragraph]] = []
    for p in everything:
        share = draw("split", p.unit)
        if share < HELD["test"] + HELD["dev"]:
            held.append(("test" if share < HELD["test"] else "dev", p))
        else:
            parts["rest"].append(p)
            parts["train"].append(p)
    seen = Seen()
    for text in (*(p.text for p in parts["rest"]), *(line for _, topic in reference() for line in paragraphs(topic))):
        seen.add(text)
    for part, p in held:
        if not seen.holds(p.text):
            seen.add(p.text)
            parts[part].append(p)
    gone = {p.text for _, p in held}
    return {**parts, "rest": [p for p in parts["rest"] if p.text not in gone]}


# ---------------------------------------------------------------------------------------------------------------- files


def write_text(folder: Path, rest: list[Paragraph]) -> dict[str, int]:
    """Writes language.txt and library.txt, a paragraph a line and a blank line between documents, in an order that
    mixes subjects, since each file's end is held out.

    A paragraph that stands in several places is kept where it comes first, so that nothing held out was trained on.
    Returns the documents, paragraphs and words written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    modules: dict[str, list[str]] = defaultdict(list)
    for p in rest:
        modules[p.module].append(p.text)
    topics = {name: list(paragraphs(text)) for name, text in reference()}
    seen: set[str] = set()
    counts = {"documents": 0, "paragraphs": 0, "words": 0}
    for file, source in (("language.txt", topics), ("library.txt", modules)):
        documents = []
        for name in sorted(source, key=draw):
            lines = [line for line in source[name] if not (line in seen or seen.add(line))]
            words = sum(len(line.split()) for line in lines)
            if len(lines) < 2 or words < 20:  # nothing to pair
                continue
            documents.append("\n".join(lines) + "\n")
            for key, count in zip(counts, (1, len(lines), words), strict=True):
                counts[key] += count
        if documents:
            (folder / file).write_text("\n".join(documents), encoding="utf-8")
    return counts


def write_task(folder: Path, parts: dict[str, list[Paragraph]]) -> dict[str, int]:
    """Writes train, dev and test.jsonl: paragraphs of 10 to 60 words without marks, and what followed each word.

    Returns how many paragraphs each has.
    """
    folder.mkdir(parents=True, exist_ok=True)
    counts: dict[str, int] = {}
    seen: set[str] = set()
    for part, limit in MOST.items():
        rows = []
        for p in sorted(parts[part], key=lambda p: draw("order", p.text)):
            words, tags = tagged(p.text)
            if 10 <= len(words) <= 60 and len(rows) < limit and p.text.lower() not in seen:
                seen.add(p.text.lower())
                rows.append(json.dumps({"words": words, "tags": tags}, ensure_ascii=False) + "\n")
        (folder / f"{part}.jsonl").write_text("".join(rows), encoding="utf-8")
        counts[part] = len(rows)
    return counts


def tagged(text: str) -> tuple[list[str], list[str]]:
    """`Return it, or None.` → words `Return it or None`, tags `none comma none stop`."""
    words: list[str] = []
    tags: list[str] = []
    for chunk in re.sub("[()]", " ", text).split():
        word = re.sub(r"^\W+|\W+$", "", chunk)
        mark = re.search(r"[,.:;?!](?=\W*$)", chunk)
        if word:
            words.append(word)
            tags.append(TAGS[mark[0]] if mark else "none")
        elif tags and mark and tags[-1] == "none":
            tags[-1] = TAGS[mark[0]]
    return words, tags


def main(folder: Path) -> None:
    """Writes text and task into a folder, and prints how much there is of both."""
    parts = split(list(library()))
    counts = {**write_text(folder / "text", parts["rest"]), **write_task(folder / "task", parts)}
    print(f"{folder}: " + ", ".join(f"{count:,} {name}" for name, count in counts.items()))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/tutorial_text.py FOLDER")
    main(Path(sys.argv[1]))
