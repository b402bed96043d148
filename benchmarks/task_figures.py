"""Small models of the three families on openly licensed sets: what each learns of them, and what it generalises.

`python benchmarks/task_figures.py SETS --to FOLDER` pretrains a small BERT, GPT and ELMo on a few megabytes of
text in six languages, and then prints and runs one command of `contexture` for each figure:

- 64 training examples by heart (SWAG's fixture: all 11), and the held-out figure that comes of it;
- a whole set with three seeds, beside what answering always the commonest label would give.

A run that is there already is not trained again. The folder SETS holds the sets by the names below.
"""

from __future__ import annotations

import argparse
import collections
import csv
import json
import shlex
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

SETS = "cls_banking77 pair_snli tag_ud_en_ewt xling_ud_pos coref_gap mc_swag_fixture mc_xcopa_zh qa_squad2_subset"
LANGUAGES = ("de", "es", "fr", "ru", "zh")
FAMILIES = ("bert", "gpt", "elmo")
PRETRAIN = {
    "bert": "--model.vocab 8192 --model.dropout 0 --model.init-std 0.05 --data.no-lowercase --data.length 64 "
    "--data.masked-fraction 0.2 --batch 64 --lr 2e-3 --steps 4000 --evaluate.every 500",
    "gpt": "--model.vocab 8192 --model.dropout 0 --data.length 64 --batch 32 --lr 2e-3 --steps 1000",
    "elmo": "--steps 600",
}
TUNE = {"bert": "--lr 3e-4", "gpt": "--lr 5e-4 --task.lm-weight 0", "elmo": "--lr 4e-3 --optim.frozen bias"}
AT_THE_END = "--evaluate.every 1000000"  # what is held out is evaluated once
BY_HEART = "--model.dropout 0 --model.head-dropout 0"
KINDS = {"squad2": "span", "xcopa-zh": "choice", "swag": "choice", "gap": "choice",
         "banking77": "classify", "snli": "classify", "ud-ewt": "tag", "ud-five-languages": "tag"}  # fmt: skip
UPOS = "ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X _"  # a test set has rare ones
LENGTHS = {"squad2": 192, "xcopa-zh": 64, "swag": 64, "gap": 96,
           "banking77": 64, "snli": 64, "ud-ewt": 128, "ud-five-languages": 128}  # fmt: skip


def contexture(command: str) -> str:
    """Runs a command of `contexture` after printing it; returns its output."""
    print(f"$ contexture {command}", flush=True)
    return subprocess.run(
        [sys.executable, "-m", "contexture", *shlex.split(command)], check=True, text=True, stdout=subprocess.PIPE
    ).stdout


def write_rows(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return str(path)


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        comma = path.suffix == ".csv"
        return list(csv.DictReader(file, delimiter="," if comma else "\t", quoting=0 if comma else csv.QUOTE_NONE))


def gap_choice(row: dict[str, str]) -> dict[str, Any]:
    """Which of two names a pronoun, in brackets, stands for: a choice, of a row of GAP that has one of them."""
    at, pronoun = int(row["Pronoun-offset"]), row["Pronoun"]
    text, end = row["Text"], at + len(pronoun)
    marked = f"{text[max(at - 160, 0) : at]}[ {pronoun} ]{text[end : end + 60]}"
    return {"text": marked, "choices": [row["A"], row["B"]], "label": 0 if row["A-coref"] == "TRUE" else 1}


def questions(source: Path, to: Path, count: int) -> str:
    """The first questions of a SQuAD file, as a SQuAD file."""
    tree = json.loads(source.read_text("utf-8"))
    for article in tree["data"]:
        for paragraph in article["paragraphs"]:
            paragraph["qas"], count = paragraph["qas"][:count], count - len(paragraph["qas"][:count])
        article["paragraphs"] = [each for each in article["paragraphs"] if each["qas"]]
    tree["data"] = [article for article in tree["data"] if article["paragraphs"]]
    to.write_text(json.dumps(tree), "utf-8")
    return str(to)


def few_examples(data: Path, to: Path) -> dict[str, tuple[str, str]]:
    """Writes the sets to learn by heart: name → (at most 64 examples, others)."""
    pairs: dict[str, tuple[str, str]] = {}
    squad = data / "qa_squad2_subset"
    pairs["squad2"] = questions(squad / "train_part.json", to / "squad2.json", 64), str(squad / "dev_part.json")
    rows = [json.loads(line) for line in (data / "mc_xcopa_zh/val.zh.jsonl").read_text("utf-8").splitlines()]
    # What is asked for, the cause or the effect, stands before the premise.
    rows = [{"text": f"{'原因' if row['question'] == 'cause' else '结果'}：{row['premise']}",
             "choices": [row["choice1"], row["choice2"]], "label": row["label"]} for row in rows]  # fmt: skip
    pairs["xcopa-zh"] = write_rows(to / "xcopa.jsonl", rows[:64]), write_rows(to / "xcopa-dev.jsonl", rows[64:])
    gap = [row for row in read_rows(data / "coref_gap/gap-development.tsv") if row["A-coref"] != row["B-coref"]]
    choices = [gap_choice(row) for row in gap]
    pairs["gap"] = write_rows(to / "gap.jsonl", choices[:64]), write_rows(to / "gap-dev.jsonl", choices[64:464])
    swag = read_rows(data / "mc_swag_fixture/swag.csv")
    rows = [{"text": row["startphrase"], "choices": [row[f"ending{n}"] for n in range(4)], "label": int(row["label"])}
            for row in swag]  # fmt: skip
    # Eleven rows are all there is: what is held out are the same rows, and says nothing of its own.
    pairs["swag"] = write_rows(to / "swag.jsonl", rows), write_rows(to / "swag-again.jsonl", rows)
    return pairs


def whole_sets(data: Path) -> dict[str, tuple[str, str, str]]:
    """Name → (training files, held-out files, other options)."""
    bank, snli, ewt, five = (data / name for name in ("cls_banking77", "pair_snli", "tag_ud_en_ewt", "xling_ud_pos"))
    return {
        "banking77": (f"{bank}/train.csv", f"{bank}/test.csv", "--epochs 2"),
        "snli": (f"{snli}/train_subset.tsv", f"{snli}/dev_subset.tsv", "--epochs 4"),
        "ud-ewt": (f"{ewt}/train_subset.conllu", f"{ewt}/test.conllu", "--epochs 2"),
        "ud-five-languages": (
            " ".join(f"{five}/{each}.dev.conllu" for each in LANGUAGES),
            " ".join(f"{five}/{each}.test.conllu" for each in LANGUAGES),
            f"--epochs 3 --task.labels {UPOS}",
        ),
    }


def majority(train: str, dev: str) -> float:
    """The accuracy on `dev` of the commonest label of `train`."""

    def labels(files: str) -> list[str]:
        made: list[str] = []
        for path in map(Path, files.split()):
            if path.suffix == ".conllu":
                cells = [line.split("\t") for line in path.read_text("utf-8").splitlines() if line[:1].isdigit()]
                made += [line[3] for line in cells if line[0].isdecimal()]
            else:
                made += [row.get("category", row.get("label", "")) for row in read_rows(path)]
        return made

    common = collections.Counter(labels(train)).most_common(1)[0][0]
    held_out = labels(dev)
    return held_out.count(common) / len(held_out)


def text_of(data: Path, to: Path) -> str:
    """What the models are pretrained on: nine novels, Chinese articles, a thousand sentences in six languages."""
    parallel = read_rows(data / "par_pud/pud.tsv")
    lines = [row[each] for each in ("en", *LANGUAGES) for row in parallel]
    (to / "parallel.txt").write_text("\n".join(lines) + "\n", "utf-8")
    return f"{data}/pretrain_books {data}/zh_pretrain_wiki {to}/parallel.txt"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("data", type=Path, metavar="SETS")
    arguments.add_argument("--to", type=Path, default=Path("runs/task_figures"))
    arguments.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    arguments.add_argument("--tasks", nargs="+", choices=KINDS, default=list(KINDS))
    args = arguments.parse_args()
    if missing := [name for name in SETS.split() if not (args.data / name).is_dir()]:
        sys.exit(f"{args.data} has no {missing[0]}; name the folder of the sets")
    args.to.mkdir(parents=True, exist_ok=True)
    text, few, whole = text_of(args.data, args.to), few_examples(args.data, args.to), whole_sets(args.data)
    result: dict[str, dict[str, Any]] = {}
    for family in args.families:
        source = args.to / family
        if not (source / "checkpoints").exists():
            contexture(
                f"pretrain {family}.tiny --dir {source} --data.path {text} --data.dev-fraction 0.02 {PRETRAIN[family]}"
            )
        for task in args.tasks:
            common = f"--task.kind {KINDS[task]} --data.length {LENGTHS[task]} {TUNE[family]} {AT_THE_END}"
            run = args.to / f"{family}-{task}"
            if task in few:
                train, dev = few[task]
                contexture(f"finetune {source} {common} --task.train {train} --task.dev {dev} --steps 500 --batch 16 "
                           f"{BY_HEART} --dir {run}")  # fmt: skip
                metric = "exact_match" if KINDS[task] == "span" else "accuracy"
                figures = {
                    name: json.loads(contexture(f"evaluate {run} --task.dev {path} --json"))["metrics"][metric]
                    for name, path in (("train", train), ("dev", dev))
                }
            else:
                train, dev, more = whole[task]
                grid = json.loads(contexture(f"finetune {source} {common} {more} --task.train {train} --task.dev {dev} "
                                             f"--seeds 3 --dir {run} --json"))  # fmt: skip
                each = [seed["dev"]["accuracy"] for seed in grid["settings"][0]["runs"]]
                figures = {"majority": majority(train, dev), "dev": statistics.fmean(each),
                           "deviation": statistics.stdev(each)}  # fmt: skip
            result[f"{family} {task}"] = figures
            print(f"{family} {task}: {figures}", flush=True)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
