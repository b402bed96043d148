"""Pretrain a small BERT, GPT and ELMo on the names of Unicode's characters, fine-tune, compare: `make demo`.

Text and task are written by `demo_names.py`. Commands of `contexture` are printed as they are run. Each family is
fine-tuned with three seeds by `contexture.finetune` in this process, which starts and compiles once for all. Settings
are the same for all seeds; the linear model is the best of many on the dev set.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import demo_names
from rich.console import Console
from rich.table import Table

import contexture
from contexture.data.storage import move_aside

ROOT = Path(__file__).resolve().parent.parent
TEXT, TASK, RUNS, LOG = Path("demo/text"), Path("demo/task"), Path("demo/runs"), Path("demo/finetuning.log")
BERT, GPT, ELMO = RUNS / "bert", RUNS / "gpt", RUNS / "elmo"
TRANSFORMER = (
    f"--data.path {TEXT} --data.dev-fraction 0.03 --model.vocab 2048 --data.length 32 --model.dropout 0 "
    "--model.attention-dropout 0 --lr 2e-3"
)
PRETRAIN = {
    "GPT": f"pretrain gpt.tiny --dir {GPT} {TRANSFORMER} --data.documents blank_lines --data.batch 32 "
    "--optim.warmup 50 --steps 200",
    "BERT": f"pretrain bert.tiny --dir {BERT} {TRANSFORMER} --data.batch 64 --data.max-predictions 7 "
    "--data.masked-fraction 0.2 --model.init-std 0.08 --optim.b2 0.98 --optim.warmup 60 --steps 260",
    "ELMo": f"pretrain elmo.tiny --dir {ELMO} --data.path {TEXT} --data.dev-fraction 0.03 --data.length 12 "
    "--data.batch 64 --optim.name adamw --optim.schedule linear --optim.eps 1e-8 --lr 5e-3 --optim.warmup 20 "
    "--steps 160",
}
TRIES = {
    "GPT": f'generate {GPT} --prompt "latin small letter" "black" "musical symbol" --tokens 12 --top-p 0.9',
    "BERT": f'fill {BERT} --text "greek [MASK] letter alpha with [MASK]"',
}
# Without dropout the seeds of a family share one compiled step.
SHARED = {
    "data.length": 32, "data.batch": 16, "optim.name": "adamw", "optim.schedule": "linear", "evaluate.every": 60,
    "model.dropout": 0.0, "model.head_dropout": 0.0,
}  # fmt: skip
TRANSFORMER_RATE = {"steps": 60, "optim.peak_lr": 1e-3, "model.attention_dropout": 0.0}
FINETUNE = {
    "BERT": {**SHARED, **TRANSFORMER_RATE},
    "GPT": {**SHARED, **TRANSFORMER_RATE, "task.lm_weight": 0.0},
    # The biLM is trained too, but for its biases: it has seen few misspelt words.
    "ELMo": {**SHARED, "steps": 60, "optim.peak_lr": 4e-3, "optim.frozen": ("bias",)},
}
SOURCES = {"BERT": BERT, "GPT": GPT, "ELMo": ELMO}
SEEDS = (0, 1, 2)
Figures = dict[str, float]


def run(command: str) -> str:
    """Runs `contexture COMMAND` in the checkout after printing it; its exit code becomes ours if it is not 0."""
    script = Path(sys.executable).with_name("contexture")
    program = [str(script)] if script.exists() else [sys.executable, "-m", "contexture"]
    shown = [Path(word).relative_to(ROOT).as_posix() if Path(word).is_relative_to(ROOT) else word for word in program]
    print(f"\n$ {shlex.join(shown)} {command}", flush=True)
    child = subprocess.Popen(program + shlex.split(command), cwd=ROOT, text=True, stdout=subprocess.PIPE)
    handlers = {
        signal.SIGINT: lambda *_: None,  # Ctrl-C reaches the command, which saves; we wait for it
        signal.SIGTERM: lambda *_: child.terminate(),
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    output, _ = child.communicate()
    for number, handler in before.items():
        signal.signal(number, handler)
    if child.returncode:
        print(f"\nThe demo ends here: the command above ended with exit code {child.returncode}.", file=sys.stderr)
        sys.exit(child.returncode if child.returncode > 0 else 128 - child.returncode)
    return output


def seeds(name: str, label: str, **options: object) -> list[Figures]:
    """Fine-tunes a family with each seed; returns accuracy and F1 of each on the test set, which chooses nothing."""
    results: list[Figures] = []
    for seed in SEEDS:
        with LOG.open("a", encoding="utf-8") as log, contextlib.redirect_stderr(log):
            folder = contexture.finetune(
                SOURCES[name],
                "tag",
                train=TASK / "train.jsonl",
                dev=TASK / "test.jsonl",
                dir=RUNS / f"{label}-{seed}",
                options={**FINETUNE[name], **options, "seed": seed},
            )
        lines = map(json.loads, (folder / "metrics.jsonl").read_text("utf-8").splitlines())
        results.append([line for line in lines if line["split"] == "dev"][-1])
        print(f"{folder}: F1 {results[-1]['f1_macro']:.1%}", flush=True)
    return results


def words_of(part: str, context: bool = False) -> tuple[list[str], list[str]]:
    """Every word of one file of the task, between < and >, with its neighbours or without; and its tag."""
    words, tags = list[str](), list[str]()
    for line in (TASK / f"{part}.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        around = ["", *row["words"], ""]
        for before, word, after in zip(around, around[1:], around[2:], strict=False):
            words.append(f"{before} <{word}> {after}" if context else f"<{word}>")
        tags += row["tags"]
    return words, tags


def linear() -> Figures:
    """Logistic regression over TF-IDF of the letters' n-grams of a word, with its neighbours or without: the best of 60
    on the dev set."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    best = (-1.0, Figures())
    for context in (False, True):
        (train, tags), (dev, dev_tags), (test, test_tags) = (
            words_of(part, context) for part in ("train", "dev", "test")
        )
        for lengths in ((1, 2), (1, 3), (1, 4), (2, 4), (3, 5)):
            letters = TfidfVectorizer(analyzer="char", ngram_range=lengths).fit(train)
            features = [letters.transform(part) for part in (train, dev, test)]
            for strength in (1, 10, 100):
                for weight in (None, "balanced"):
                    model = LogisticRegression(C=strength, class_weight=weight, max_iter=1000).fit(features[0], tags)
                    score = measure(dev_tags, list(model.predict(features[1])))["f1_macro"]
                    if score > best[0]:
                        best = (score, measure(test_tags, list(model.predict(features[2]))))
    return best[1]


def measure(gold: list[str], predicted: list[str]) -> Figures:
    from sklearn.metrics import accuracy_score, f1_score

    return {
        "accuracy": float(accuracy_score(gold, predicted)),
        "f1_macro": float(f1_score(gold, predicted, average="macro")),
    }


def compare(console: Console, baseline: Figures) -> None:
    """Fine-tunes all families, and sets them beside what needs no pretraining."""
    print(f"\ncontexture.finetune, three seeds each; what they report is in {LOG}", flush=True)
    rows = [(f"{name}, pretrained", seeds(name, name.lower())) for name in SOURCES]
    rows.append(("BERT, from scratch", seeds("BERT", "scratch", **{"init.random": True})))
    gold = words_of("test")[1]
    rows.append(("letters, linear", [baseline]))
    rows.append(("always ok", [measure(gold, [demo_names.OK] * len(gold))]))
    sizes = demo_names.SIZES
    table = Table(
        title=f"Which word lacks a letter? {sizes['train']} names to learn from, {sizes['test']:,} to test on"
    )
    for column in ("", "F1", "words right"):
        table.add_column(column, justify="right" if column else "left")
    for name, figures in rows:
        table.add_row(name, *(spread([figure[key] for figure in figures]) for key in ("f1_macro", "accuracy")))
    console.print()
    console.print(table)
    console.print(
        "F1 is the mean over both tags; mean and deviation of three seeds. Few labels is where pretraining pays: give "
        "more (SIZES in examples/demo_names.py), and the linear model catches up."
    )


def spread(values: list[float]) -> str:
    text = f"{statistics.mean(values):.1%}"
    return f"{text} ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else text


def ending(console: Console, began: float) -> None:
    """Draws pages and figures, and says where everything lies and what to try next."""
    run(f"compare {RUNS}/bert-0 {RUNS}/scratch-0 --to demo/comparison.html")
    run(f"layers {' '.join(f'{RUNS}/elmo-{seed}' for seed in SEEDS)} --to demo/layers.png")
    run(f'attention {BERT} --text "latin small letter a" --second "latin small letter e" --to demo/attention.html')
    demo_names.write_senses(TASK / "sign.tsv")
    print(run(f"senses {BERT} --word sign --input {TASK}/sign.tsv --to demo/senses.png").rstrip(), flush=True)
    for title, lines in {
        "Look at": (
            "demo/comparison.html      the curves of BERT's fine-tuning, pretrained and from scratch",
            "demo/layers.png           what the task makes of ELMo's layers, over three seeds",
            "demo/attention.html       what each head of BERT attends to, in two names",
            "demo/senses.png           `sign` in 120 names, by its sense: a point for each, at every layer",
            f"{RUNS}/*/loss.svg       the curves of each run",
        ),
        "What to try next": (
            "source .venv/bin/activate",
            f'contexture fill {BERT} --text "arabic letter [MASK] isolated form"',
            f'contexture generate {GPT} --prompt "box drawings light"',
            f"contexture predict {RUNS}/bert-0 --input {TASK}/test.jsonl --to demo/predictions.jsonl",
            f"contexture embed {ELMO} --input {TEXT}/names.txt --to demo/vectors.npy",
            "contexture pretrain bert.tiny --dir runs/mine --data.path my_text   # your own *.txt",
        ),
    }.items():
        console.print(f"\n{title}")
        for line in lines:
            console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"\n{time.monotonic() - began:.0f} seconds in all.", highlight=False)


def main() -> None:
    began = time.monotonic()
    os.chdir(ROOT)
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".cache/jax"))  # as the commands
    console = Console()
    counts = demo_names.write(TEXT, TASK)
    print(f"Wrote {TEXT}/: {counts.pop('text'):,} names of Unicode's characters")
    print(f"Wrote {TASK}/: " + ", ".join(f"{count:,} names of {part}" for part, count in counts.items()))
    if aside := move_aside(ROOT / RUNS.parent, [RUNS.name, LOG.name], "earlier"):
        print(f"Starting over: moved the runs of an earlier demo to {aside}")
    baseline = linear()
    console.print(
        f"To beat: a linear model over letters finds the word that lacks one with an F1 of {baseline['f1_macro']:.1%}."
    )
    for name, command in PRETRAIN.items():
        dev = json.loads(run(f"{command} --json"))["dev"]
        loss = dev[{"BERT": "mlm_loss"}.get(name, "loss")]
        console.print(
            f"{name}, on names it never saw: a loss of {loss:.2f}, by frequency alone {dev['unigram_loss']:.2f}; "
            f"{time.monotonic() - began:.0f} s since the start."
        )
        if name in TRIES:
            print(run(TRIES[name]).rstrip(), flush=True)
    try:
        compare(console, baseline)
    except contexture.Interrupted as stopped:
        print(f"\nThe demo ends here: {stopped}", file=sys.stderr)
        sys.exit(stopped.code)
    ending(console, began)


if __name__ == "__main__":
    main()
