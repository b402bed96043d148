"""Numbers that no model and no run can have are refused before anything is built, in one line."""

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import pytest

from contexture.cli import main as cli
from contexture.cli.parse import parse
from contexture.configs import recipe
from contexture.data.errors import DataError
from contexture.data.tokenizers.byte_pair import Gpt1BPE
from contexture.data.tokenizers.registry import load_tokenizer
from contexture.data.tokenizers.wordpiece import SPECIAL
from contexture.models.config import BertConfig, ElmoConfig, GptConfig
from contexture.train.errors import ConfigError
from contexture.train.settings.run import Run, fields
from contexture.train.settings.run_file import from_json, read, to_json
from tests.helpers.long import long

BAD = ("0", "-1", "1e15", "1000000000000000", "NaN", "Infinity", "-Infinity", '"many"', "null", "[]", "{}", "true",
       "9" * 400)  # fmt: skip


def _replaced(tree: dict, name: str, value: str) -> str:
    """The JSON of a run with one field written so."""
    tree = json.loads(json.dumps(tree))
    *sections, last = name.split(".")
    part = tree["config"]
    for section in sections:
        part = part[section]
    part[last] = "@"
    return json.dumps(tree).replace('"@"', value)


@pytest.mark.parametrize("name", ["bert.tiny", *long("gpt.tiny", "elmo.tiny")])
def test_every_number_of_run_json_is_taken_or_refused_in_one_line(tmp_path, name):
    tree = {"format": 2, "config": to_json(recipe(name))}
    started, refused = time.monotonic(), 0
    for option, usual in fields(recipe(name)).items():
        if isinstance(usual, int | float):
            for value in BAD:
                (tmp_path / "run.json").write_text(_replaced(tree, option, value))
                try:
                    run = read(tmp_path).run
                except ConfigError as error:
                    refused += 1
                    assert len(str(error).splitlines()) == 1 and len(str(error)) < 1000, (option, value)
                else:
                    value_read = fields(run)[option]
                    assert type(value_read) is type(usual) or isinstance(value_read, bool), (option, value)
                    assert isinstance(value_read, float) or abs(value_read) < 2**31, (option, value)
                    assert value_read == value_read, (option, value)
    assert refused > 300 and time.monotonic() - started < 60


@pytest.mark.parametrize(
    "value",
    [
        "-1",
        "nan",
        *(
            pytest.param(value, marks=pytest.mark.long)
            for value in ("1000000000000000", "1e15", "inf", "many", "9" * 400)
        ),
    ],
)
def test_every_number_of_the_command_line_is_taken_or_refused_in_one_line(value):
    base = recipe("bert.tiny")
    for option in ("model.vocab", "model.layers", "model.dropout", "data.batch", "data.length", "data.ramp-from",
                   "optim.peak-lr", "optim.warmup", "optim.accumulate", "save.every", "log.every", "evaluate.every",
                   "steps", "epochs", "seed", "mesh.tensor", "mesh.peer-minutes", "head.cells"):  # fmt: skip
        try:
            run = parse(Run, [f"--{option}={value}"], "pretrain", base)
        except (ConfigError, DataError) as error:
            assert len(str(error).splitlines()) == 1
        else:
            stored: Any = fields(run)[option.replace("-", "_")]
            assert stored == stored and (isinstance(stored, float) or abs(stored) < 2**31)


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: BertConfig(layers=10**9), "model.layers=1000000000 is more than 10,000"),
        (lambda: GptConfig(vocab=10**15), "model.vocab=1000000000000000 is more than 2,147,483,647"),
        (lambda: BertConfig(hidden=2**20, heads=1, ffn=2**30), "the model has about"),
        (lambda: BertConfig(segments=10**12), "model.segments=1000000000000 is more than"),
        (lambda: ElmoConfig(layers=10**9), "model.layers=1000000000 is more than 10,000"),
        (lambda: ElmoConfig(highway=10**9), "model.highway=1000000000 is more than 10,000"),
        (lambda: ElmoConfig(cells=2**31 - 1, projection=2**20), "the model has about"),
        (lambda: ElmoConfig(filters=((1, 2**40),)), "the model has about"),
    ],
)
def test_sizes_that_no_model_has_are_refused(make, line):
    with pytest.raises(ValueError) as caught:
        make()
    assert line in str(caught.value)


def test_the_largest_sizes_are_taken():
    assert BertConfig(layers=10_000, hidden=2, heads=1, ffn=2).layers == 10_000
    with pytest.raises(ValueError, match=r"model\.layers=10001 is more than 10,000"):
        BertConfig(layers=10_001, hidden=2, heads=1, ffn=2)
    for table, line in ((2**31 - 1, "the model has about"), (2**31, "model.vocab=2147483648 is more than")):
        with pytest.raises(ValueError, match=line):
            BertConfig(vocab=table, hidden=2**13, heads=1)


def test_every_recipe_is_within_the_bounds():
    from contexture.configs import recipes

    for name in recipes():
        run = recipe(name)
        assert from_json(to_json(run), name) == run and dataclasses.is_dataclass(run)


OPTIONS = {
    "lstm": {"use_skip_connections": True, "projection_dim": 4, "cell_clip": 3, "proj_clip": 3, "dim": 8,
             "n_layers": 2},
    "char_cnn": {"activation": "relu", "filters": [[1, 4]], "n_highway": 1, "embedding": {"dim": 4},
                 "n_characters": 262, "max_characters_per_token": 50},
}  # fmt: skip


@pytest.mark.parametrize("where", ["lstm.n_layers", "lstm.dim", "lstm.projection_dim", "char_cnn.n_highway"])
def test_an_elmo_of_a_billion_layers_is_refused_at_once(capsys, tmp_path, where):
    options = json.loads(json.dumps(OPTIONS))
    section, name = where.split(".")
    options[section][name] = 10**12
    (tmp_path / "options.json").write_text(json.dumps(options))
    (tmp_path / "weights.hdf5").write_bytes(b"")
    assert cli.main(["import", "bilm", str(tmp_path), "--to", str(tmp_path / "to")]) == 2
    err = capsys.readouterr().err
    assert len(err.strip().splitlines()) == 1 and "options.json: model." in err


@pytest.mark.parametrize(
    ("format", "file", "names"),
    [
        ("hf", "config.json", ("num_hidden_layers", "hidden_size", "vocab_size", "intermediate_size")),
        ("bert-tf", "bert_config.json", ("num_hidden_layers", "hidden_size", "vocab_size", "max_position_embeddings")),
        ("gpt2-tf", "hparams.json", ("n_layer", "n_embd", "n_vocab", "n_ctx")),
    ],
)
def test_published_sizes_are_bounded_before_anything_is_built(capsys, tmp_path, format, file, names):
    for name in names:
        # Of hparams.json an option that is not known is refused by its name.
        known = (
            {"n_vocab": 30} if format == "gpt2-tf" else {"model_type": "bert", "vocab_size": 30, "type_vocab_size": 2}
        )
        tree = {**known, name: 10**12}
        (tmp_path / file).write_text(json.dumps(tree))
        assert cli.main(["import", format, str(tmp_path), "--to", str(tmp_path / "to")]) == 2
        err = capsys.readouterr().err
        assert len(err.strip().splitlines()) == 1 and f"{file}: model." in err, err


def test_a_vocabulary_of_special_tokens_alone_is_refused(tmp_path):
    special = "holds special (tokens|words) alone"
    with pytest.raises(DataError, match=special):
        Gpt1BPE(["<unk>", "<start>"], [])
    for lines in (SPECIAL, ("<S>", "</S>", "<UNK>")):
        (tmp_path / "vocab.txt").write_text("\n".join(lines) + "\n")
        with pytest.raises(DataError, match=special):
            load_tokenizer(tmp_path / "vocab.txt")


@pytest.mark.parametrize("to", ["", " "])
@pytest.mark.parametrize(
    "words",
    [
        "tokenizer wordpiece --input a.txt",
        "prepare bert.tiny --input a.txt",
        "predict run --input a.tsv",
        "embed run --input a.txt",
        "import hf model",
        "export run hf",
    ],
)
def test_an_empty_place_to_write_to_is_not_the_folder_one_stands_in(tmp_path, monkeypatch, capsys, words, to):
    """As a shell's variable that is not set gives it."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert cli.main([*words.split(), "--to", to]) == 2
    assert capsys.readouterr().err.strip() == "ConfigError: to= is empty; give --to a path"
    assert not list((tmp_path / "here").iterdir())


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("pretrain gpt.tiny --init.run loop --dir run --data.path a.txt", "ConfigError: loop/run.json cannot be read"),
        ("finetune loop --task.kind classify --dir run", "ConfigError: loop/run.json cannot be read"),
        ("finetune loop --task.kind classify --dir loop", "ConfigError: --dir loop is the run to begin from"),
        ("tokenizer wordpiece --input a.txt --to loop", "DataError: loop: a link that leads to itself"),
        ("prepare bert.tiny --input a.txt --to loop", "DataError: loop: a link that leads to itself"),
        ("prepare bert.tiny --input loop --to to", "DataError: loop: input names no such file"),
    ],
)
def test_a_link_that_leads_to_itself_is_one_line(tmp_path, monkeypatch, capsys, words, line):
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("a text\n")
    Path("loop").symlink_to("loop")
    assert cli.main(words.split()) == 2
    err = capsys.readouterr().err.strip()
    assert err.startswith(line) and len(err.splitlines()) == 1, err
