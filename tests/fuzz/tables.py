"""Tables of examples, raw text, sets of TFDS, and word vectors."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from contexture.data.config import DataConfig, TaskConfig
from contexture.data.pretraining.tokenize_corpus import prepare
from contexture.data.tasks.encode.encode_examples import encode
from contexture.data.tasks.read.read_examples import examples
from contexture.data.text.lines import sentences
from contexture.data.text.sources import expand, sentence_batches, texts, whole_texts
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.registry import learn
from contexture.data.word_vectors import read_word_vectors
from tests.fuzz.mutate import Mutation, of_bytes, of_json, of_json_lines, of_lines
from tests.fuzz.target import Target

LINES = ["The cat sat on the mat.", "Mr. Smith went to the U.S. yesterday. He left!", "naïve café 日本語", "a b c"]
CLASSIFY = TaskConfig(kind="classify")
_made: dict[str, Tokenizer] = {}


def tokenizer() -> Tokenizer:
    """One vocabulary for all cases of a process."""
    if "wordpiece" not in _made:
        _made["wordpiece"] = learn("wordpiece", LINES, 80, True)
    return _made["wordpiece"]


def write(name: str, text: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        folder.mkdir()
        (folder / name).write_text(text, "utf-8")

    return make


def _encode(name: str, task: TaskConfig) -> Callable[[Path, Path], None]:
    def read(folder: Path, to: Path) -> None:
        path = str(folder / name) if name else "tfds:glue/sst2:train"
        for labelled in (True, False):
            for _ in examples(path, task, labelled=labelled):
                pass
        store = encode(dataclasses.replace(task, train=(path,)), tokenizer(), to)
        store.verify()

    return read


def _rows(mark: str) -> str:
    rows = [["text", "label"], *([line.replace(mark, ";"), "yes" if n % 2 else "no"] for n, line in enumerate(LINES))]
    return "".join(mark.join(row) + "\n" for row in rows)


def _objects(**more: Any) -> str:
    return "".join(
        json.dumps({"text": line, "second": line[::-1], "label": n % 2, **more}) + "\n" for n, line in enumerate(LINES)
    )


CONLL = "-DOCSTART- -X- O O\n\nThe DT B-NP O\ncat NN I-NP B-ANIMAL\n\nMr. NNP B-NP B-PER\nSmith NNP I-NP I-PER\n"
COMMENTED = "".join(
    f"# id {n:08x}\tdomain=en\nanna _ _ B-PER\nsees _ _ O\n# _ _ O\n\n#Oslo _ _ B-LOC\n\n" for n in range(4)
)
LISTS = 'words,tags\n"[\'Anna\', \'sees\']","[\'B-PER\', \'O\']"\n"[\'a\' \'b\'\n \'c\']","[""O"", ""O"", ""O""]"\n'
CONLLU = "# sent_id = 1\n" + "".join(
    f"{n}\t{word}\t{word}\tNOUN\tNN\t_\t0\troot\t_\t_\n" for n, word in enumerate(["The", "cat", "sat"], 1)
) + "1-2\tdu\t_\t_\t_\t_\t_\t_\t_\t_\n\n"  # fmt: skip


def _table(name: str, file: str, text: str, mutate: Mutation, task: TaskConfig) -> Target:
    return Target(f"table.{name}", write(file, text), file, mutate, _encode(file, task))


def _text(stream: Any, documents: Any) -> Callable[[Path, Path], None]:
    def read(folder: Path, to: Path) -> None:
        sources = expand([str(folder)])
        list(texts(sources))
        list(whole_texts(sources, documents))
        for source in sources:
            list(sentence_batches(source, True))
        config = DataConfig(path=(str(folder),), documents=documents, dev_fraction=0.3, length=16)
        prepare(config, tokenizer(), to, stream=stream).verify()

    return read


def _sentences(folder: Path, to: Path) -> None:
    text = (folder / "text.txt").read_bytes().decode("utf-8", "replace")
    for line in text.split("\n"):
        assert "".join("".join(sentences(line)).split()) == "".join(line.split())


def _set(folder: Path) -> None:
    from tests.helpers.tfds_sets import build

    rows = [{"sentence": line, "label": n % 2} for n, line in enumerate(LINES)]
    build(folder, "glue/sst2", {"train": rows, "validation": rows[:2]})


def _binary_vectors(folder: Path) -> None:
    folder.mkdir()
    rows = b"".join(b"w%d " % n + np.array([n, n / 3, -n], np.float32).tobytes() + b"\n" for n in range(6))
    (folder / "v.bin").write_bytes(b"6 3\n" + rows)


def _vectors(file: str) -> Callable[[Path, Path], None]:
    return lambda folder, to: print(read_word_vectors(folder / file))


_VECTORS = "".join(f"w{n} {n / 7:.3f} -{n}.5 0.25\n" for n in range(6))
_SET = "glue/sst2/1.0.0"
_TEXT = "\n\n".join("\n".join(LINES) for _ in range(3)) + "\n"
_JSON = "".join(json.dumps({"text": "\n".join(LINES)}) + "\n" for _ in range(3))
TARGETS = (
    _table("tsv", "train.tsv", _rows("\t"), of_lines, CLASSIFY),
    _table("csv", "train.csv", _rows(","), of_lines, CLASSIFY),
    _table("csv-no-header", "train.csv", _rows(","), of_lines, TaskConfig(kind="classify", text="0", label="1")),
    _table("jsonl", "train.jsonl", _objects(), of_json_lines, CLASSIFY),
    _table("jsonl-regress", "train.jsonl", _objects(), of_json_lines, TaskConfig(kind="regress")),
    _table("jsonl-choice", "train.jsonl", _objects(choices=["a b", "c"]), of_json_lines,
           TaskConfig(kind="choice", text="text", choices=("choices",), label="label")),
    _table("jsonl-tag", "train.jsonl",
           '{"words": ["The", "cat"], "tags": ["O", "B-X"]}\n{"words": ["a"], "tags": ["O"]}\n', of_json_lines,
           TaskConfig(kind="tag")),
    _table("conll", "train.conll", CONLL, of_lines, TaskConfig(kind="tag")),
    _table("conll-comments", "train.conll", COMMENTED, of_lines, TaskConfig(kind="tag")),
    _table("csv-lists", "train.csv", LISTS, of_lines, TaskConfig(kind="tag", text="words", label="tags")),
    _table("csv-lists-bytes", "train.csv", LISTS, of_bytes, TaskConfig(kind="tag", text="words", label="tags")),
    _table("conllu", "train.conllu", CONLLU, of_lines, TaskConfig(kind="tag", text="form", label="upos")),
    Target("text.txt", write("text.txt", _TEXT), "text.txt", of_lines, _text("pairs", "blank_lines")),
    Target("text.txt-windows", write("text.txt", _TEXT), "text.txt", of_lines, _text("windows", "files")),
    Target("text.jsonl", write("text.jsonl", _JSON), "text.jsonl", of_json_lines, _text("pairs", "blank_lines")),
    Target("text.bytes", write("text.txt", _TEXT), "text.txt", of_bytes, _text("windows", "blank_lines")),
    Target("vectors.glove", write("v.txt", _VECTORS), "v.txt", of_lines, _vectors("v.txt")),
    Target("vectors.word2vec", write("v.txt", "6 3\n" + _VECTORS), "v.txt", of_lines, _vectors("v.txt")),
    Target("vectors.binary", _binary_vectors, "v.bin", of_bytes, _vectors("v.bin")),
    Target("text.sentences", write("text.txt", _TEXT), "text.txt", of_lines, _sentences),
    *(Target(f"tfds.{name}", _set, f"{_SET}/{file}", mutate, _encode("", CLASSIFY), slow=True)
      for name, file, mutate in (("features", "features.json", of_json), ("info", "dataset_info.json", of_json),
                                 ("label-names", "label.labels.txt", of_lines),
                                 ("records", "glue-train.array_record-00000-of-00001", of_bytes))),
)  # fmt: skip
