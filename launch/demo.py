"""Pretrain a small BERT on the text that every Python carries, fine-tune it, and compare: `make demo`.

Text and task are written by `demo_text.py`. The rest is commands of `contexture`, printed as they are run. What is
fine-tuned from the pretrained parameters at one rate, chosen beforehand, is trained from scratch at three, and the one
that is best on the dev set counts.
"""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from demo_text import library, split, write_task, write_text
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
TEXT, TASK, RUNS = Path("demo/text"), Path("demo/task"), Path("demo/runs")
RUN = RUNS / "bert"
PRETRAIN = (
    f"pretrain bert.tiny --dir {RUN} --data.path {TEXT} --data.dev-fraction 0.1 --model.vocab 4096 "
    "--data.length 32 --data.predictions 7 --data.masked-fraction 0.2 --data.batch 32 --model.init-std 0.08 "
    "--model.dropout 0 --model.attention-dropout 0 --optim.b2 0.98 --steps 4500 --evaluate.every 1500"
)
FINETUNE = (
    f"finetune {RUN} --task.kind classify --task.train {TASK}/train.tsv --task.dev {TASK}/dev.tsv --data.length 32 "
    "--model.dropout 0.1 --model.attention-dropout 0.1 --optim.name adamw --optim.schedule linear --steps 150 "
    "--evaluate.every 150"
)
RATE, SCRATCH_RATES = "2e-3", ("1e-3", "2e-3", "4e-3")


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


def ask(command: str) -> dict[str, float]:
    """The figures of the last split that a command tells of."""
    result = json.loads(run(f"{command} --json", capture=True))
    return result["metrics"] if "metrics" in result else result["dev"]


def tuned(folder: Path, options: str) -> tuple[float, float, float]:
    """Fine-tunes into the folder: accuracy on dev and on test, and the seconds it took to train."""
    began = time.monotonic()
    dev = ask(f"{FINETUNE} --dir {folder} {options}")["accuracy"]
    seconds = time.monotonic() - began
    return dev, ask(f"evaluate {folder} --task.dev {TASK}/test.tsv")["accuracy"], seconds


def examples(part: str) -> tuple[list[str], list[str]]:
    """The texts and the labels of one file of the task."""
    lines = (ROOT / TASK / f"{part}.tsv").read_text(encoding="utf-8").splitlines()[1:]
    texts, labels = zip(*(line.split("\t") for line in lines), strict=True)
    return list(texts), list(labels)


def counted_words() -> tuple[float, float, float]:
    """Logistic regression over weighted words and pairs of words, its strength chosen on dev; as `tuned`."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    began, best = time.monotonic(), (-1.0, 0.0)
    for strength in (1, 10, 100):
        model = make_pipeline(
            TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), LogisticRegression(C=strength, max_iter=1000)
        ).fit(*examples("train"))
        score = float(model.score(*examples("dev")))
        if score > best[0]:
            best = score, float(model.score(*examples("test")))
    return *best, time.monotonic() - began


def compare(console: Console) -> None:
    """Fine-tunes with and without the pretraining, and sets both beside what needs no neural network."""
    rows = [("pretrained", RATE, *tuned(RUNS / "pretrained", f"--optim.peak-lr {RATE}"))]
    scratch = [
        (rate, *tuned(RUNS / f"scratch-{rate}", f"--init.scratch --optim.peak-lr {rate}")) for rate in SCRATCH_RATES
    ]
    best = max(scratch, key=lambda row: row[1])
    rows += [("from scratch" + ", best on dev" * (row is best), *row) for row in scratch]
    rows.append(("TF-IDF + logistic regression", "", *counted_words()))
    labels = examples("test")[1]
    largest = Counter(labels).most_common(1)[0][1] / len(labels)
    title = f"Which package is it? {len(examples('train')[1])} examples to learn from, {len(labels)} to test on"
    table = Table(title=title)
    for name in ("", "learning rate", "dev", "test", "seconds"):
        table.add_column(name, justify="right" if name else "left")
    for name, rate, dev, test, seconds in rows:
        table.add_row(name, rate, f"{dev:.1%}", f"{test:.1%}", f"{seconds:.0f}")
    table.add_row("majority", "", "", f"{largest:.1%}", "")
    console.print()
    console.print(table)
    gain = rows[0][3] - best[2]
    console.print(
        f"Pretraining gives {100 * gain:+.1f} points over the run from scratch that is best on dev; one run each, and with as many "
        f"test examples chance alone moves a figure by about {100 * (0.25 / len(labels)) ** 0.5:.0f} points."
    )


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


def ending(console: Console, words: int, seconds: float) -> None:
    """Where everything lies, and what to try next."""
    folder = ROOT / RUN
    steps = sorted(int(step.name) for step in (folder / "checkpoints").glob("*") if step.name.isdigit())
    events = sorted(path.parent.relative_to(ROOT) for path in folder.rglob("events.out.tfevents*"))
    places = [
        ("text", f"{TEXT}/ ({words:,} words)"),
        ("task", f"{TASK}/train.tsv, dev.tsv, test.tsv"),
        ("run", f"{RUN}/"),
    ]
    for label, name in (("tokenizer", "tokenizer"), ("metrics", "metrics.jsonl"), ("loss curve", "loss.png")):
        if (folder / name).exists():
            places.append((label, f"{RUN / name}"))
    if steps:
        places.append(("checkpoints", f"{RUN}/checkpoints/ (steps {', '.join(map(str, steps))})"))
    if events:
        places.append(("TensorBoard", f"{events[0].as_posix()}/"))
    places.append(("fine-tuned", f"{RUNS}/pretrained/, {RUNS}/scratch-*/"))
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
        f"contexture predict {RUNS}/pretrained --input {TASK}/test.tsv --to demo/predictions.jsonl",
        f"contexture evaluate {RUNS}/pretrained --task.dev {TASK}/test.tsv    # each class's figures",
        f"contexture {FINETUNE} --dir {RUNS}/seed-1 --optim.peak-lr {RATE} --seed 1",
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
    if (ROOT / RUNS).exists():
        print(f"Starting over: removing {RUNS}/ of an earlier demo")
        shutil.rmtree(ROOT / RUNS)
    run(PRETRAIN)
    pretrained(console, json.loads(run(f"evaluate {RUN} --json", capture=True)))
    compare(console)
    ending(console, counts["words"], time.monotonic() - began)


if __name__ == "__main__":
    main()
