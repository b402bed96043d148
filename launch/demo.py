"""Pretrain a small BERT on the text that every Python carries, then say what it learned: `make demo`.

The text is the language reference in `pydoc_data.topics` and the docstrings of the standard library's sources, read
with `ast` and never imported. The rest is two commands of `contexture`, printed as they are run.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
TEXT, RUNS = Path("demo/text"), Path("demo/runs")
RUN = RUNS / "bert"
PRETRAIN = (
    f"pretrain bert.tiny --dir {RUN} --data.path {TEXT} --data.dev-fraction 0.1 --model.vocab 8192 "
    "--data.length 64 --data.predictions 10 --data.batch 64 --model.dropout 0 --model.attention-dropout 0 "
    "--steps 1200 --evaluate.every 200"
)
EVALUATE = f"evaluate {RUN} --json"

# ---------------------------------------------------------------------------------------------------------------- text

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


def docstrings() -> Iterator[tuple[str, str]]:
    """Each module of the standard library whose source is there: its name and all its docstrings, in order."""
    library = Path(sysconfig.get_paths()["stdlib"])
    sources = {source.relative_to(library): source for source in library.rglob("*.py")}
    for name, source in sorted(sources.items(), key=lambda item: item[0].parts):
        if SKIPPED.intersection(name.parts[:-1]):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # invalid escapes in old sources
                tree = ast.parse(source.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        nodes = sorted(
            (node for node in ast.walk(tree) if isinstance(node, kinds)), key=lambda n: getattr(n, "lineno", 0)
        )
        found = [inspect.cleandoc(text) for node in nodes if (text := ast.get_docstring(node, clean=False))]
        if found:
            yield ".".join(name.with_suffix("").parts), "\n\n".join(found)


def write_text(folder: Path) -> dict[str, int]:
    """Writes language.txt and library.txt, a paragraph a line and a blank line between documents, in an order that
    mixes subjects, since each file's end is held out.

    A paragraph that stands in several places is kept where it comes first, so that nothing held out was trained on.
    Returns the documents, paragraphs and words written.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    seen: set[str] = set()
    counts = {"documents": 0, "paragraphs": 0, "words": 0}
    for file, source in (("language.txt", reference()), ("library.txt", docstrings())):
        documents = []
        for _, text in sorted(source, key=lambda item: hashlib.sha256(item[0].encode()).digest()):
            lines = [line for line in paragraphs(text) if not (line in seen or seen.add(line))]
            words = sum(len(line.split()) for line in lines)
            if len(lines) < 2 or words < 20:  # nothing to pair
                continue
            documents.append("\n".join(lines) + "\n")
            for name, count in zip(counts, (1, len(lines), words), strict=True):
                counts[name] += count
        if documents:
            (folder / file).write_text("\n".join(documents), encoding="utf-8")
    return counts


# ------------------------------------------------------------------------------------------------------------- commands


def run(command: str, *, capture: bool = False) -> str:
    """Runs `contexture COMMAND` in the checkout after printing it; its exit code becomes ours if it is not 0."""
    script = Path(sys.executable).with_name("contexture")
    door = [str(script)] if script.exists() else [sys.executable, "contexture.py"]
    shown = [Path(word).relative_to(ROOT).as_posix() if Path(word).is_relative_to(ROOT) else word for word in door]
    print(f"\n$ {shlex.join(shown)} {command}", flush=True)
    child = subprocess.Popen(
        door + shlex.split(command), cwd=ROOT, text=True, stdout=subprocess.PIPE if capture else None
    )
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C reaches the command, which saves; we wait for it
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    output, _ = child.communicate()
    if child.returncode:
        print(f"\nThe demo ends here: the command above ended with exit code {child.returncode}.", file=sys.stderr)
        sys.exit(child.returncode if child.returncode > 0 else 128 - child.returncode)
    return output or ""


def report(console: Console, result: dict, counts: dict[str, int], seconds: float) -> None:
    """What was learned against the unigram baseline, where it lies, and what to try next."""
    metrics = result["metrics"]
    table = Table(title=f"BERT after {result['step']:,} steps, on {result['examples']:,} examples it never saw")
    for name in ("", "this model", "unigram baseline"):
        table.add_column(name, justify="right" if name else "left")
    table.add_row("masked words: loss (nats)", f"{metrics['mlm_loss']:.3f}", f"{metrics['unigram_loss']:.3f}")
    table.add_row("masked words: accuracy", f"{metrics['mlm_accuracy']:.1%}", f"{metrics['unigram_accuracy']:.1%}")
    table.add_row("next sentence: accuracy", f"{metrics['nsp_accuracy']:.1%}", "")
    table.add_row("whole loss", f"{metrics['loss']:.3f}", "")
    console.print()
    console.print(table)

    folder = ROOT / RUN
    steps = sorted(int(step.name) for step in (folder / "checkpoints").glob("*") if step.name.isdigit())
    events = sorted(path.parent.relative_to(ROOT) for path in folder.rglob("events.out.tfevents*"))
    places = [("text", f"{TEXT}/ ({counts['words']:,} words)"), ("run", f"{RUN}/")]
    for label, name in (("tokenizer", "tokenizer"), ("metrics", "metrics.jsonl"), ("loss curve", "loss.png")):
        if (folder / name).exists():
            places.append((label, f"{RUN / name}"))
    if steps:
        places.append(("checkpoints", f"{RUN}/checkpoints/ (steps {', '.join(map(str, steps))})"))
    if events:
        places.append(("TensorBoard", f"{events[0].as_posix()}/"))
    grid = Table(title="Where everything lies", show_header=False, box=None, title_justify="left")
    for place in places:
        grid.add_row(*place)
    console.print()
    console.print(grid)

    console.print("\nWhat to try next")
    for line in (
        "source .venv/bin/activate",
        "contexture recipes                 # what can be trained",
        f"contexture show {RUN}     # the resolved config and the parameters",
        f"contexture {PRETRAIN.replace('demo/runs/bert', 'demo/runs/mini').replace('bert.tiny', 'bert.mini')}",
        "contexture pretrain bert.tiny --dir runs/mine --data.path my_text   # your own *.txt",
    ):
        console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"\n{seconds:.0f} seconds in all.", highlight=False)


def main() -> None:
    began = time.monotonic()
    console = Console()
    counts = write_text(ROOT / TEXT)
    print(f"Wrote {TEXT}/: " + ", ".join(f"{count:,} {name}" for name, count in counts.items()))
    if counts["words"] < 50_000:
        sys.exit("This Python carries too little text: its library's sources are missing. Try another: make PYTHON=…")
    if (ROOT / RUNS).exists():
        print(f"Starting over: removing {RUNS}/ of an earlier demo")
        shutil.rmtree(ROOT / RUNS)
    run(PRETRAIN)
    report(console, json.loads(run(EVALUATE, capture=True)), counts, time.monotonic() - began)


if __name__ == "__main__":
    main()
