"""Command lines: options of every command with values that make little sense, on sound and on damaged runs.

A case of the first kind is a JSON list of words. They are run where nothing but the sandbox can be written: all paths
are relative to its folder `work`, or lie under `to`.
"""

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from contexture import requests
from contexture.cli.settings_file import read_settings, with_settings
from contexture.train.settings.run import Run, fields
from tests.conftest import ROOT
from tests.fuzz.mutate import Mutation, Rng, of_bytes, of_json, of_lines, words_of
from tests.fuzz.runs import golden
from tests.fuzz.tables import LINES
from tests.fuzz.target import Refused, Target, command

PATHS = [
    "../to/a", "../to/b.npz", "../to/c.jsonl", "../theirs/text.txt", "../theirs/run", "../theirs", "../theirs/none",
    "../theirs/loop", "../theirs/folder", "../theirs/empty", "../theirs/train.tsv", "../theirs/run/run.json",
    "../theirs/text.txt/x", "../theirs/run/checkpoints", "../to/" + "n" * 300, "../to/fifo",
]  # fmt: skip
NOT_HERE = ("mesh.distributed",)
"""Options that make a process wait for others."""


def _files(folder: Path) -> None:
    folder.mkdir()
    (folder / "text.txt").write_text("\n\n".join("\n".join(LINES) for _ in range(4)), "utf-8")
    rows = "".join(f"{line}\t{'yes' if n % 2 else 'no'}\n" for n, line in enumerate(LINES))
    (folder / "train.tsv").write_text("text\tlabel\n" + rows, "utf-8")
    (folder / "empty").write_bytes(b"")
    (folder / "folder").mkdir()
    os.symlink("loop", folder / "loop")


def _with_run(name: str, words: list[str]) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        _files(folder)
        if name:
            shutil.copytree(ROOT / "tests" / "golden" / name, folder / "run")
        (folder / "words.json").write_text(json.dumps(words), "utf-8")

    return make


@contextmanager
def _without_training() -> Iterator[None]:
    """A run's folder, description, vocabulary and data are made; nothing is compiled."""
    from contexture.train import loop, setup
    from contexture.train.run import folder as directory

    def open_alone(run: Run, recipe: Run, folder: Path, signals: Any, *shared: Any) -> None:
        with directory.lock_run_dir(folder):
            old = directory.open_or_create(run, folder)
            tokenizer, store = setup.open_data(run, folder, signals)
            directory.write_run_json(folder, run, tokenizer, store, old)
            figures = json.dumps({"step": 0, "split": "train", "loss": 1.0})
            (folder / "metrics.jsonl").write_text(figures + "\n", "utf-8")

    whole = loop._train  # pyright: ignore[reportPrivateUsage]
    loop._train = open_alone  # pyright: ignore[reportPrivateUsage]
    try:
        yield
    finally:
        loop._train = whole  # pyright: ignore[reportPrivateUsage]


def _run_words(trains: bool) -> Callable[[Path, Path], None]:
    def read(folder: Path, to: Path) -> None:
        words: list[str] = json.loads((folder / "words.json").read_bytes())
        to.mkdir()
        os.mkfifo(to / "fifo")
        with _without_training() if trains else nullcontext():
            command(words)

    return read


def _options(*kinds: Any) -> list[str]:
    names: list[str] = []
    for kind in kinds:
        names += fields(kind) if isinstance(kind, Run) else [field.name for field in dataclasses.fields(kind)]
    flags = sorted({"--" + name.replace("_", "-") for name in names if not name.startswith(NOT_HERE)})
    return [*flags, "--json", "-h"]


def _words(name: str, run: str, words: str, *kinds: Any, trains: bool = False, slow: bool = False) -> Target:
    mutate: Mutation = words_of(_options(*kinds), PATHS)
    make = _with_run(run, words.split())
    return Target(
        f"words.{name}", make, "words.json", mutate, _run_words(trains), slow=slow, places=_places, keeps=True
    )


def _places(case: bytes) -> list[str]:
    """Whatever a command line names may be the place of its results."""
    with suppress(ValueError):  # a case that is being made smaller
        return [place[:200] for word in json.loads(case) for place in (word, word.partition("=")[2]) if place]
    return []


def _recipe(name: str) -> Run:
    from contexture.configs import recipe

    return recipe(name)


def _task() -> Run:
    from contexture.configs import task

    return task("classify")


def _on_damaged(words: str) -> Callable[[Path, Path], None]:
    def read(folder: Path, to: Path) -> None:
        to.mkdir()
        try:
            command([word.format(folder=folder, to=to) for word in words.split()])
        except Refused:
            if not any(to.iterdir()):
                to.rmdir()
            raise

    return read


def _damaged(name: str, run: str, file: str, mutate: Mutation, words: str) -> Target:
    return Target(f"damaged.{name}", golden(run), file, mutate, _on_damaged(words), slow=True)


def _settings(folder: Path) -> None:
    folder.mkdir()
    lines = ("steps: 7", "optim:", "  peak-lr: 1e-3", "  no-decay: [bias, norm]", "data.path: text/", "seed: 0x10")
    (folder / "settings.yaml").write_text("\n".join(lines) + "\n", "utf-8")
    tree = {"steps": 7, "optim": {"peak-lr": 1e-3, "no-decay": ["bias", "norm"]}, "data.path": "text/", "seed": 16}
    (folder / "settings.json").write_text(json.dumps(tree), "utf-8")


_YAML_MARKS = (b"&a ", b"*a", b"!!int ", b"!!python/name:os ", b"<<: *a", b"? ", b"- ", b"{a: ", b"[*a, *a]", b"0100",
               b"1:30", b"0x", b"| ", b"--- ", b"%YAML 1.1", b"2026-13-41", b": ", b"~", b".nan")  # fmt: skip


def _of_yaml(raw: bytes, rng: Rng) -> bytes:
    """Lines made odd, and marks of YAML's anchors, tags, flows and numbers put into some."""
    lines = raw.split(b"\n")
    for _ in range(rng.choice([0, 1, 2, 8])):
        at = rng.randrange(len(lines))
        place = rng.choice([0, len(lines[at]), lines[at].find(b": ") + 2])
        lines[at] = lines[at][:place] + rng.choice(_YAML_MARKS) + lines[at][place:]
    raw = b"\n".join(lines)
    return raw if rng.random() < 0.5 else of_lines(raw, rng)


def _read_settings(name: str) -> Callable[[Path, Path], None]:
    def read(folder: Path, to: Path) -> None:
        file = str(folder / name)
        with_settings(_recipe("bert.tiny"), read_settings(file), file)

    return read


_TINY = "--data.path ../theirs/text.txt --model.vocab 90 --data.length 16"
_EMBED = "embed {folder} --input {folder}/text.txt --to {to}/v.npz"
TARGETS = (
    _words("recipes", "", "recipes", requests.NoOptions),
    _words("completion", "", "completion bash", requests.CompletionRequest),
    _words("show", "", "show bert.tiny", _recipe("bert.tiny"), slow=True),
    _words("tokenizer", "", "tokenizer wordpiece --input ../theirs/text.txt --vocab-size 80 --to ../to/t",
           requests.TokenizerRequest),
    _words("prepare", "", "prepare bert.tiny --input ../theirs/text.txt --to ../to/s", requests.PrepareRequest),
    _words("clean", "", "clean --input ../theirs/text.txt --to ../to/s --duplicates documents", requests.CleanRequest),
    _words("prepare-records", "", "prepare bert.tiny --input ../theirs/text.txt --to ../to/s --as google-tfrecord",
           requests.PrepareRequest),
    _words("pretrain-bert", "", f"pretrain bert.tiny --dir ../to/run {_TINY}", _recipe("bert.tiny"), trains=True),
    _words("pretrain-gpt", "", f"pretrain gpt.tiny --dir ../to/run {_TINY}", _recipe("gpt.tiny"), trains=True),
    _words("pretrain-elmo", "", "pretrain elmo.tiny --dir ../to/run --data.path ../theirs/text.txt",
           _recipe("elmo.tiny"), trains=True),
    _words("finetune", "bert_3_steps",
           "finetune ../theirs/run --task.kind classify --task.train ../theirs/train.tsv --dir ../to/run", _task(),
           trains=True),
    _words("evaluate", "bert_classify_3", "evaluate ../theirs/run --task.dev ../theirs/train.tsv",
           requests.EvaluationArgs, slow=True),
    _words("predict", "bert_classify_3", "predict ../theirs/run --input ../theirs/train.tsv --to ../to/p.jsonl",
           requests.PredictionRequest, slow=True),
    _words("embed", "bert_3_steps", "embed ../theirs/run --input ../theirs/text.txt --to ../to/e.npz",
           requests.EmbeddingRequest, slow=True),
    _words("fill", "bert_3_steps", "fill ../theirs/run --text [MASK]", requests.FillRequest, slow=True),
    _words("generate", "gpt_banded", "generate ../theirs/run --prompt a --tokens 2",
           requests.GenerationRequest, slow=True),
    _words("score", "gpt_banded", "score ../theirs/run --input ../theirs/text.txt", requests.ScoreRequest, slow=True),
    _words("import", "", "import hf ../theirs/folder --to ../to/run", requests.ImportRequest),
    _words("export", "bert_3_steps", "export ../theirs/run hf --to ../to/hf", requests.ExportRequest, slow=True),
    Target("settings.yaml", _settings, "settings.yaml", _of_yaml, _read_settings("settings.yaml")),
    Target("settings.json", _settings, "settings.json", of_json, _read_settings("settings.json")),
    _damaged("embed-run.json", "bert_3_steps", "run.json", of_json, _EMBED),
    _damaged("embed-vocab", "bert_3_steps", "tokenizer/vocab.txt", of_lines, _EMBED),
    _damaged("embed-text", "bert_3_steps", "text.txt", of_lines, _EMBED),
    _damaged("embed-elmo-text", "elmo", "text.txt", of_lines, _EMBED),
    _damaged("embed-arrays", "bert_3_steps", "checkpoints/3/state/_METADATA", of_json, _EMBED),
    _damaged("embed-manifest", "bert_3_steps", "checkpoints/3/state/manifest.ocdbt", of_bytes, _EMBED),
    _damaged("predict-run.json", "bert_classify_3", "run.json", of_json,
             "predict {folder} --input {folder}/text.txt --to {to}/p.jsonl"),
    _damaged("score-run.json", "gpt_banded", "run.json", of_json, "score {folder} --input {folder}/text.txt"),
)  # fmt: skip
