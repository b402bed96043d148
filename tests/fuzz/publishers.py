"""Data sets in the files of their publishers, as the named tasks read them."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

from contexture.analysis.zeroshot.minimal_pairs import pair_files, read_pairs
from contexture.configs import task
from contexture.data.tasks.encode.encode_examples import encode
from contexture.data.tasks.read.read_examples import examples
from tests.fuzz.mutate import Mutation, of_json, of_json_lines, of_lines
from tests.fuzz.tables import tokenizer
from tests.fuzz.target import Target

PASSAGE = {"article": "The cat sat.", "questions": ["Who?", "What _ ?"], "answers": ["A", "D"],
           "options": [["a", "b", "c", "d"], ["e", "f", "g", "h"]]}  # fmt: skip
STEM = {"answerKey": "E", "question": {"stem": "Who?", "choices": [{"label": x, "text": x} for x in "ABCDE"]}}
SWAG = "n,sent1,sent2,ending0,ending1,ending2,ending3,label\n" + '0,"The, cat.",It,a,b,c,d,2\n1,A,B,a,b,c,d,0\n' * 2
XNLI = "language\tgold_label\tsentence1\tsentence2\n" + "de\tneutral\tThe cat\ta b c\nar\tentailment\ta\tb\n" * 2
PAIR = {"sentence_good": "A cat sits.", "sentence_bad": "A cat sit.", "UID": "x", "linguistics_term": "y", "field": "z"}
CAUSE = {"premise": "It fell.", "choice1": "a", "choice2": "b", "question": "cause", "label": 1}


def _target(name: str, file: str, content: str, mutate: Mutation, path: str = "") -> Target:
    def make(folder: Path) -> None:
        (folder / name / file).parent.mkdir(parents=True)
        (folder / name / file).write_text(content, "utf-8")

    return Target(f"publishers.{name}", make, f"{name}/{file}", mutate, _read(name, path or file))


def _read_pairs(folder: Path, to: Path) -> None:
    read_pairs(pair_files([str(folder / "blimp")]))


def _make_pairs(folder: Path) -> None:
    (folder / "blimp").mkdir(parents=True)
    (folder / "blimp" / "a.jsonl").write_text(f"{json.dumps(PAIR)}\n" * 3)


def _read(name: str, file: str) -> Callable[[Path, Path], None]:
    def read(folder: Path, to: Path) -> None:
        # The sandbox names its folder by CONTEXTURE_DATA.
        path = f"published:{name}/{file}"
        config = dataclasses.replace(task(name).task, train=(path,), dev=(), test=())
        for labelled in (True, False):
            for _ in examples(path, config, labelled=labelled):
                pass
        encode(config, tokenizer(), to).verify()

    return read


TARGETS = (
    _target("sst5", "train.txt", "(3 (2 The) (4 cat))\n(0 (1 (2 a) (2 -LRB-)) (2 b))\n" * 3, of_lines),
    _target("swag", "train.csv", SWAG, of_lines),
    _target("xnli", "xnli.dev.tsv", XNLI, of_lines, "xnli.dev.tsv:de"),
    _target("race", "train/high/1.txt", json.dumps(PASSAGE), of_json, "train"),
    _target("commonsense_qa", "train_rand_split.jsonl", f"{json.dumps(STEM)}\n" * 3, of_json_lines),
    _target("copa", "train.jsonl", f"{json.dumps(CAUSE)}\n" * 3, of_json_lines),
    Target("publishers.blimp", _make_pairs, "blimp/a.jsonl", of_json_lines, _read_pairs),
    _target("msra_ner", "train.tsv", "text_a\tlabel\n" + "T\2h\2e\tO\2O\2B-X\na b\tO O\n" * 3, of_lines),
)
