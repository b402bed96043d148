"""Pretrain a small BERT, GPT and ELMo on the text that every Python carries, fine-tune, compare: `make demo`.

Text and task are written by `demo_text.py`. The rest is commands of `contexture`, printed as they are run. What is
fine-tuned from the pretrained parameters at one rate, chosen beforehand, is trained from scratch at three, and the one
that is best on the dev set counts. The GPT writes a few lines, and is fine-tuned as GPT-1 was. The ELMo stays as it is,
and the task learns what each of its layers counts.
"""

from __future__ import annotations

import json
import math
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from demo_text import library, split, write_task, write_text
from rich.console import Console
from rich.table import Table

from contexture.data.storage import move_aside

ROOT = Path(__file__).resolve().parent.parent
TEXT, TASK, RUNS = Path("demo/text"), Path("demo/task"), Path("demo/runs")
RUN, GPT, ELMO = RUNS / "bert", RUNS / "gpt", RUNS / "elmo"
PRETRAIN = (
    f"pretrain bert.tiny --dir {RUN} --data.path {TEXT} --data.dev-fraction 0.1 --model.vocab 4096 "
    "--data.length 32 --data.max-predictions 7 --data.masked-fraction 0.2 --data.batch 32 --model.init-std 0.08 "
    "--model.dropout 0 --model.attention-dropout 0 --optim.b2 0.98 --steps 4500 --evaluate.every 1500"
)
PRETRAIN_GPT = (
    f"pretrain gpt.tiny --dir {GPT} --data.path {TEXT} --data.dev-fraction 0.1 --data.documents blank_lines "
    "--model.vocab 4096 --data.length 64 --data.batch 16 --model.dropout 0 --model.attention-dropout 0 --steps 1500"
)
PRETRAIN_ELMO = f"pretrain elmo.tiny --dir {ELMO} --data.path {TEXT} --data.dev-fraction 0.1 --steps 400"
PROMPTS = ("Return the", "If the file", "A class that")
FINETUNE_ELMO = (
    f"--task.kind tag --task.train {TASK}/train.jsonl --task.dev {TASK}/dev.jsonl --data.length 64 "
    "--optim.name adamw --optim.schedule linear --steps 120 --evaluate.every 120"
)
FINETUNE = f"{FINETUNE_ELMO} --model.dropout 0.1 --model.attention-dropout 0.1"
RATE, SCRATCH_RATES = "1e-3", ("5e-4", "1e-3", "2e-3")


def run(command: str, *, capture: bool = False) -> str:
    """Runs `contexture COMMAND` in the checkout after printing it; its exit code becomes ours if it is not 0."""
    script = Path(sys.executable).with_name("contexture")
    program = [str(script)] if script.exists() else [sys.executable, "-m", "contexture"]
    shown = [Path(word).relative_to(ROOT).as_posix() if Path(word).is_relative_to(ROOT) else word for word in program]
    print(f"\n$ {shlex.join(shown)} {command}", flush=True)
    child = subprocess.Popen(
        program + shlex.split(command), cwd=ROOT, text=True, stdout=subprocess.PIPE if capture else None
    )
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C reaches the command, which saves; we wait for it
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    output, _ = child.communicate()
    if child.returncode:
        print(f"\nThe demo ends here: the command above ended with exit code {child.returncode}.", file=sys.stderr)
        sys.exit(child.returncode if child.returncode > 0 else 128 - child.returncode)
    return output or ""


class Row(NamedTuple):
    """A line of the table: accuracy of words, and F1 averaged over the tags, on dev and on test."""

    name: str
    rate: str
    dev: tuple[float, float]
    test: tuple[float, float]
    seconds: float


def ask(command: str) -> tuple[float, float]:
    """(accuracy, F1) of the last split that a command tells of."""
    result = json.loads(run(f"{command} --json", capture=True))
    figures = result["metrics"] if "metrics" in result else result["dev"]
    return figures["accuracy"], figures["f1_macro"]


def tuned(name: str, rate: str, folder: Path, words: str = FINETUNE, source: Path = RUN) -> Row:
    """Fine-tunes a run into the folder."""
    began = time.monotonic()
    dev = ask(f"finetune {source} {words} --dir {folder} --optim.peak-lr {rate}")
    seconds = time.monotonic() - began
    return Row(name, rate, dev, ask(f"evaluate {folder} --task.dev {TASK}/test.jsonl"), seconds)


def examples(part: str) -> tuple[list[str], list[str]]:
    """Every word of one file of the task with its neighbours, told apart by where they stand; and its tag."""
    texts, labels = [], []
    for line in (ROOT / TASK / f"{part}.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        words = ["", "", *(word.lower() for word in row["words"]), "", ""]
        for at in range(2, len(words) - 2):
            texts.append(" ".join(f"{place}={words[at + place]}" for place in range(-2, 3)))
        labels += row["tags"]
    return texts, labels


def counted_words() -> Row:
    """Logistic regression over TF-IDF of a word and its neighbours, its strength chosen on dev."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import f1_score
    from sklearn.pipeline import make_pipeline

    began, best = time.monotonic(), Row("", "", (-1.0, -1.0), (0.0, 0.0), 0.0)
    for strength in (1, 10, 100):
        words = TfidfVectorizer(token_pattern=r"\S+", lowercase=False)
        model = make_pipeline(words, LogisticRegression(C=strength, max_iter=1000)).fit(*examples("train"))
        parts: list[tuple[float, float]] = []
        for part in ("dev", "test"):
            texts, gold = examples(part)
            predictions = model.predict(texts)
            parts.append((float((predictions == gold).mean()), float(f1_score(gold, predictions, average="macro"))))
        dev, test = parts
        if dev[1] > best.dev[1]:
            best = Row("TF-IDF + logistic", "", dev, test, 0.0)
    return best._replace(seconds=time.monotonic() - began)


def majority() -> Row:
    """`none` for every word."""

    def figures(part: str) -> tuple[float, float]:
        tags = Counter(examples(part)[1])
        share = tags["none"] / tags.total()
        return share, 2 * share / (1 + share) / len(tags)

    return Row("always no mark", "", figures("dev"), figures("test"), 0.0)


def compare(console: Console) -> None:
    """Fine-tunes with and without the pretraining, and sets both beside what needs no neural network."""
    ours = tuned("BERT", RATE, RUNS / "pretrained")
    gpt = tuned("GPT + its words", RATE, RUNS / "gpt-pretrained", source=GPT)
    elmo = tuned("ELMo, frozen", RATE, RUNS / "elmo-pretrained", FINETUNE_ELMO, ELMO)
    anew = f"{FINETUNE} --init.random"
    scratch = [tuned("BERT, scratch", rate, RUNS / f"scratch-{rate}", anew) for rate in SCRATCH_RATES]
    best = max(scratch, key=lambda row: row.dev[1])
    sizes = [len((ROOT / TASK / f"{part}.jsonl").read_text("utf-8").splitlines()) for part in ("train", "test")]
    table = Table(title=f"Where do the commas and stops go? {sizes[0]} paragraphs to learn from, {sizes[1]} to test on")
    for name in ("", "learning rate", "dev F1", "test accuracy", "test F1", "seconds"):
        table.add_column(name, justify="right" if name else "left")
    for row in (ours, gpt, elmo, *scratch, counted_words(), majority()):
        name = "best from scratch" if row is best else row.name
        figures = (f"{figure:.1%}" for figure in (row.dev[1], *row.test))
        table.add_row(name, row.rate, *figures, f"{row.seconds:.0f}" if row.seconds else "")
    console.print()
    console.print(table)
    console.print(
        f"Pretraining gives BERT {100 * (ours.test[0] - best.test[0]):+.1f} points of accuracy and "
        f"{100 * (ours.test[1] - best.test[1]):+.1f} of F1 over the run from scratch that is best on dev. "
        "GPT does not see the word behind a mark, which BERT and ELMo do."
    )
    output = run(f"layers {RUNS}/elmo-pretrained --to {RUNS}/layers.png --json", capture=True)
    shares = json.loads(output)["mixes"][0]["weights"]
    names = ("the words alone", *(f"layer {n}" for n in range(1, len(shares))))
    shares_line = ", ".join(f"{name} {share:.0%}" for name, share in zip(names, shares, strict=True))
    console.print(f"What the task makes of ELMo's layers: {shares_line} ({RUNS}/layers.png).")


def pretrained(console: Console, result: dict) -> None:
    """What pretraining learned, against the unigram baseline."""
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


def writing(console: Console, result: dict) -> None:
    """What the GPT learned, and a few lines that it writes."""
    dev = result["dev"]
    console.print(
        f"\nGPT after {result['step']:,} steps, on text it never saw: {dev['loss']:.3f} nats a piece "
        f"(by frequency alone {dev['unigram_loss']:.3f}); it writes on from {', '.join(map(repr, PROMPTS))}:"
    )
    shown = " ".join(shlex.quote(prompt) for prompt in PROMPTS)
    output = run(f"generate {GPT} --prompt {shown} --tokens 40 --temperature 0.7 --top-k 40 --json", capture=True)
    for text in json.loads(output)["texts"]:
        console.print(f"  {text['prompt']}{text['text']}".replace("\n", "\n  "), highlight=False, markup=False)


def show_predictions(console: Console, result: dict) -> None:
    """What the ELMo learned, both directions together."""
    dev = result["dev"]
    console.print(
        f"\nELMo after {result['step']:,} steps, on text it never saw: perplexity {dev['full_perplexity']:.0f} "
        f"(by frequency alone {math.exp(dev['unigram_loss']):.0f}); forward {dev['forward_loss']:.3f} and backward "
        f"{dev['backward_loss']:.3f} nats a word."
    )


def ending(console: Console, words: int, seconds: float) -> None:
    """Where everything lies, and what to try next."""
    folder = ROOT / RUN
    steps = sorted(int(step.name) for step in (folder / "checkpoints").glob("*") if step.name.isdigit())
    events = sorted(path.parent.relative_to(ROOT) for path in folder.rglob("events.out.tfevents*"))
    places = [
        ("text", f"{TEXT}/ ({words:,} words)"),
        ("task", f"{TASK}/train.jsonl, dev.jsonl, test.jsonl"),
        ("run", f"{RUN}/"),
    ]
    places += [("GPT", f"{GPT}/"), ("ELMo", f"{ELMO}/")]
    for label, name in (("tokenizer", "tokenizer"), ("metrics", "metrics.jsonl"), ("loss curve", "loss.png")):
        if (folder / name).exists():
            places.append((label, f"{RUN / name}"))
    if steps:
        places.append(("checkpoints", f"{RUN}/checkpoints/ (steps {', '.join(map(str, steps))})"))
    if events:
        places.append(("TensorBoard", f"{events[0].as_posix()}/"))
    places.append(
        ("fine-tuned", f"{RUNS}/pretrained/, {RUNS}/gpt-pretrained/, {RUNS}/elmo-pretrained/, {RUNS}/scratch-*/")
    )
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
        f'contexture fill {RUN} --text "Return the [MASK] of the file."',
        f"contexture predict {RUNS}/pretrained --input {TASK}/test.jsonl --to demo/predictions.jsonl",
        f"contexture evaluate {RUNS}/pretrained --task.dev {TASK}/test.jsonl    # each tag's figures",
        f'contexture generate {GPT} --prompt "Raise an error" --tokens 60',
        f"contexture score {GPT} --input {TEXT}/language.txt --documents blank_lines",
        f"contexture embed {ELMO} --input {TEXT}/language.txt --to demo/vectors.hdf5",
        f"contexture finetune {RUN} {FINETUNE} --dir {RUNS}/seed-1 --optim.peak-lr {RATE} --seed 1",
        "contexture pretrain bert.tiny --dir runs/mine --data.path my_text   # your own *.txt",
    ):
        console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"\n{seconds:.0f} seconds in all.", highlight=False)


def main() -> None:
    began = time.monotonic()
    console = Console()
    parts = split(list(library()))
    counts, sizes = write_text(ROOT / TEXT, parts["rest"]), write_task(ROOT / TASK, parts)
    print(f"Wrote {TEXT}/: " + ", ".join(f"{count:,} {name}" for name, count in counts.items()))
    print(f"Wrote {TASK}/: " + ", ".join(f"{count} of {name}" for name, count in sizes.items()))
    if counts["words"] < 50_000 or not all(sizes.values()):
        sys.exit("This Python carries too little text: its library's sources are missing. Try another: make PYTHON=…")
    if aside := move_aside(ROOT / RUNS.parent, [RUNS.name], "earlier"):
        print(f"Starting over: moved the runs of an earlier demo to {aside}")
    run(PRETRAIN)
    pretrained(console, json.loads(run(f"evaluate {RUN} --json", capture=True)))
    writing(console, json.loads(run(f"{PRETRAIN_GPT} --json", capture=True)))
    show_predictions(console, json.loads(run(f"{PRETRAIN_ELMO} --json", capture=True)))
    compare(console)
    ending(console, counts["words"], time.monotonic() - began)


if __name__ == "__main__":
    main()
