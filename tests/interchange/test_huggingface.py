"""Folders of transformers without transformers: what goes out comes back, and what is broken or hostile is one clear
line that leaves nothing behind."""

import dataclasses
import json
import pickle
import signal
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import contexture
from contexture.cli import main as cli
from contexture.data.cancel import CancelToken
from contexture.interchange import convert
from contexture.interchange.huggingface_export import hf_files
from contexture.interchange.sentence_transformers import with_padding
from contexture.models.config import TransformerConfig
from contexture.train.run.signals import Interrupted
from contexture.train.settings.run_file import read
from tests.helpers.commands import done, run_command
from tests.helpers.long import long
from tests.interchange.hf_folders import GOLDEN, Change, config_with, raw_with, refused

pytestmark = pytest.mark.usefixtures("one_device")


class Calling(CancelToken):
    """A token that calls a function, which may raise."""

    def __init__(self, function: Callable[[], None]) -> None:
        self.function = function

    def check(self) -> None:
        self.function()


def leaves(run: Path) -> dict[str, np.ndarray]:
    _, params, _ = contexture.load(run)
    return {jax.tree_util.keystr(path): np.asarray(x) for path, x in jax.tree.leaves_with_path(params)}


@pytest.mark.parametrize("name", ["bert_classify_3", *long("bert_3_steps")])
def test_a_run_that_goes_out_comes_back_bit_for_bit(name: str, tmp_path: Path):
    """Parameters, vocabulary, labels, and what makes the model."""
    golden = GOLDEN / name
    assert cli.main(["export", str(golden), "hf", "--to", str(tmp_path / "out")]) == 0
    assert cli.main(["import", "hf", str(tmp_path / "out"), "--to", str(tmp_path / "back")]) == 0
    expected, got = leaves(golden), leaves(tmp_path / "back")
    vocab = contexture.load(golden)[2].size
    assert expected.keys() == got.keys()
    for path, x in expected.items():
        rows = x[:vocab] if "tokens" in path or "mlm']['bias" in path else x
        assert np.array_equal(got[path], rows), path
    back, first = read(tmp_path / "back"), read(golden)
    model, before = back.run.model, first.run.model
    assert isinstance(model, TransformerConfig) and isinstance(before, TransformerConfig)
    assert (model.hidden, model.eps) == (before.hidden, before.eps)
    assert (back.run.objective, back.labels, back.tokenizer) == (first.run.objective, first.labels, first.tokenizer)
    if name == "bert_classify_3":
        asked = ["the cat", "a dog sat"]
        assert contexture.predict(tmp_path / "back", asked) == contexture.predict(golden, asked)


def test_an_export_with_pooling_has_the_files_of_sentence_transformers(tmp_path: Path):
    """Beside those that transformers reads; the vector of a text is made as `--pooling` says."""
    done("export", GOLDEN / "bert_3_steps", "hf", "--to", tmp_path / "out", "--pooling", "lasttoken")
    tree = {
        name: json.loads((tmp_path / "out" / name).read_text("utf-8"))
        for name in ("modules.json", "1_Pooling/config.json", "sentence_bert_config.json", "tokenizer_config.json")
    }
    modules = [(module["path"], module["type"].rpartition(".")[2]) for module in tree["modules.json"]]
    assert modules == [("", "Transformer"), ("1_Pooling", "Pooling")]
    pooled = {name for name, value in tree["1_Pooling/config.json"].items() if value is True}
    model = read(GOLDEN / "bert_3_steps").run.model
    assert isinstance(model, TransformerConfig) and pooled == {"pooling_mode_lasttoken"}
    assert tree["1_Pooling/config.json"]["word_embedding_dimension"] == model.hidden
    assert tree["sentence_bert_config.json"]["max_seq_length"] == model.length
    assert tree["tokenizer_config.json"]["pad_token"] == "[PAD]"
    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    head = "library_name: sentence-transformers\npipeline_tag: sentence-similarity\ntags:\n- contexture\n- bert\n---\n"
    assert card.startswith(f"---\n{head}")
    done("import", "hf", tmp_path / "out", "--to", tmp_path / "back")


def test_a_tokenizer_without_a_padding_token_pads_with_another():
    assert (
        json.loads(with_padding(b'{"eos_token": "<|endoftext|>", "unk_token": "<unk>"}'))["pad_token"]
        == "<|endoftext|>"
    )
    assert json.loads(with_padding(b'{"unk_token": "<unk>"}'))["pad_token"] == "<unk>"


def test_pooling_is_for_hf_alone_and_one_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    code, err = run_command(
        capsys, "export", GOLDEN / "bert_3_steps", "stablehlo", "--to", tmp_path / "out", "--pooling", "mean"
    )
    assert code == 2 and "--pooling has no meaning for stablehlo; it is for hf" in err
    with pytest.raises(contexture.ConfigError, match="hf has one of mean, cls, max, lasttoken"):
        contexture.export_model(GOLDEN / "bert_3_steps", "hf", tmp_path / "out", pooling="sum")  # pyright: ignore[reportArgumentType]
    assert not (tmp_path / "out").exists()


def test_rows_behind_the_vocabulary_never_reach_a_file():
    """They stand for no token: a table made wider for the matrix products has them."""
    record = read(GOLDEN / "bert_3_steps")
    run = record.run
    _, params, tokenizer = contexture.load(GOLDEN / "bert_3_steps")
    wider = dataclasses.replace(run, model=dataclasses.replace(run.model, vocab=128))

    def wide(path: Any, x: Any) -> np.ndarray:
        more = (
            128 - tokenizer.size if x.shape[0] == tokenizer.size and "layers" not in jax.tree_util.keystr(path) else 0
        )
        return np.concatenate([x, np.full((more, *x.shape[1:]), 7, np.float32)])

    padded = jax.tree_util.tree_map_with_path(wide, params)
    assert padded["backbone"]["embeddings"]["tokens"].shape[0] == padded["heads_mlm"]["bias"].shape[0] == 128
    files, tensors = hf_files(dataclasses.replace(record, run=wider), padded, tokenizer)
    plain_files, plain = hf_files(record, params, tokenizer)
    assert files == plain_files and tensors.keys() == plain.keys()
    assert all(np.array_equal(tensors[name], x) for name, x in plain.items())


@pytest.mark.long
def test_an_imported_run_is_a_run_like_any_other(door, task_files, task_words, folder, tmp_path):
    """It is fine-tuned, over four devices, and what comes of that goes out and comes in again."""
    run, tuned = tmp_path / "run", tmp_path / "tuned"
    assert cli.main(["import", "hf", str(folder), "--to", str(run)]) == 0
    (mask,) = contexture.open(run).fill("the cat [MASK] .", top=2)
    assert len(mask) == 2
    words = [*task_words("classify"), "--data.length", "16", "--steps", "2", "--dir", tuned]
    words[1] = run
    done = door(*words, "--mesh.fsdp", "2", "--mesh.tensor", "2", devices=4)
    assert done.returncode == 0 and f"parameters from {run}, step 0" in done.stderr, done.stderr
    assert cli.main(["export", str(tuned), "hf", "--to", str(tmp_path / "out")]) == 0
    assert cli.main(["import", "hf", str(tmp_path / "out"), "--to", str(tmp_path / "back")]) == 0
    dev = str(task_files / "classify.dev.tsv")
    figures = [contexture.evaluate(folder, dev=dev, batch=16)["metrics"] for folder in (tuned, tmp_path / "back")]
    assert figures[1] == {name: x for name, x in figures[0].items() if name in figures[1]} and "f1_macro" in figures[1]


def test_an_imported_run_is_not_begun_anew(folder, tmp_path, capsys):
    """A training in its folder would wipe it out."""
    run = tmp_path / "run"
    assert run_command(capsys, "import", "hf", folder, "--to", run)[0] == 0
    before = leaves(run)
    text = tmp_path / "text.txt"
    text.write_text("the cat sat .\n" * 50, "utf-8")
    code, err = run_command(
        capsys, "pretrain", "bert.tiny", "--dir", run, "--data.path", text, "--steps", 2, "--optim.warmup", 0
    )
    assert code == 2 and "was imported: begin from it, --init.run" in err and len(err.splitlines()) == 1, err
    after = leaves(run)
    assert before.keys() == after.keys() and all(np.array_equal(after[path], x) for path, x in before.items())


WORDS = "bert.embeddings.word_embeddings.weight"
NORM = "bert.encoder.layer.1.output.LayerNorm.bias"


def tensors_with(**changes: Any) -> Change:
    """The file with some tensors put in (an array) or left out (None)."""

    def change(folder: Path) -> None:
        file = folder / "model.safetensors"
        tensors: dict[str, Any] = {**load_file(file), **changes}
        save_file({name: x for name, x in tensors.items() if x is not None}, file)

    return change


def header_with(edit: Callable[[dict[str, Any]], Any]) -> Change:
    """The file with another header over the same bytes."""

    def change(folder: Path) -> None:
        file = folder / "model.safetensors"
        raw = file.read_bytes()
        size = struct.unpack("<Q", raw[:8])[0]
        header = json.loads(raw[8 : 8 + size])
        edit(header)
        new = json.dumps(header).encode()
        file.write_bytes(struct.pack("<Q", len(new)) + new + raw[8 + size :])

    return change


def index_with(weight_map: Any) -> Change:
    """The weights under another name, and an index that says where they are."""

    def change(folder: Path) -> None:
        file = folder / "part.safetensors"
        (folder / "model.safetensors").rename(file)
        names = dict.fromkeys(load_file(file), "part.safetensors")
        weights = weight_map(names) if callable(weight_map) else weight_map
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}), "utf-8")

    return change


def as_pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"a": [1]}))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (raw_with("model.safetensors", lambda raw: raw[:-4]), "model.safetensors: cannot be read as safetensors"),
        (raw_with("model.safetensors", lambda raw: raw[:100]), "model.safetensors: cannot be read as safetensors"),
        (raw_with("model.safetensors", lambda raw: b""), "model.safetensors: cannot be read as safetensors"),
        (raw_with("model.safetensors", lambda raw: struct.pack("<Q", 1 << 60) + raw[8:]), "cannot be read as safeten"),
        (header_with(lambda h: h[NORM].update(data_offsets=h[WORDS]["data_offsets"])), "cannot be read as safetensors"),
        (header_with(lambda h: h[NORM].update(data_offsets=[0, 1 << 60])), "cannot be read as safetensors"),
        (header_with(lambda h: h[NORM].update(shape=[1 << 60])), "cannot be read as safetensors"),
        (header_with(lambda h: h[NORM].update(shape=[-8])), "cannot be read as safetensors"),
        (tensors_with(**{NORM: np.full(8, np.nan, np.float32)}), f"the tensor {NORM} holds what is no number"),
        (tensors_with(**{NORM: np.full(8, 1e200)}), f"the tensor {NORM} holds what is no number in float32"),
        (tensors_with(**{NORM: np.zeros(8, np.int32)}), f"the tensor {NORM} is of kind I32, not one of float32,"),
        (tensors_with(**{NORM: None}), f"tensor {NORM} is missing; the format transformers has it"),
        (tensors_with(**{NORM: np.zeros(9, np.float32)}), f"{NORM} is [9], and D = [8] is wanted"),
        (tensors_with(more=np.zeros(2, np.float32)), "tensor bert.more is not accounted for"),
        (tensors_with(**{"score.weight": np.zeros(2, np.float32)}), "tensor score.weight is not accounted for"),
        (tensors_with(**{"embeddings.LayerNorm.gamma": np.zeros(8, np.float32)}), "are one parameter; leave one out"),
        (tensors_with(**{"cls.predictions.decoder.weight": np.zeros((40, 8), np.float32)}), "decoder.weight is ["),
        (config_with(num_hidden_layers=8), "tensor bert.encoder.layer.2.attention.output.LayerNorm.bias, "),
        (config_with(num_hidden_layers=1), "tensor bert.encoder.layer.1.attention.output.LayerNorm.bias, "),
        (config_with(num_hidden_layers=9999), "tensors, too few for 9,999 layers"),
        (config_with(num_hidden_layers=10**12), "model.layers=1000000000000 is more than 10,000"),
        (config_with(hidden_size=10**6, num_attention_heads=1), "and VD = "),
        (config_with(hidden_size=10**15, num_attention_heads=1), "model.hidden=1000000000000000 is more than"),
        (config_with(hidden_size="8"), "config.json: hidden_size is '8', not of kind int"),
        (config_with(hidden_size=True), "config.json: hidden_size is 'True', not of kind int"),
        (config_with(layer_norm_eps=float("inf")), "config.json: model.eps=inf is not above 0 and below 1"),
        (config_with(layer_norm_eps=10**400), "config.json: "),
        (config_with(num_attention_heads=3), "model.hidden=8 is not a multiple of model.heads=3"),
        (config_with(hidden_act="mish"), "config.json: hidden_act is 'mish', not one of gelu, gelu_python, gelu_new"),
        (config_with(model_type="roberta"), "model_type is 'roberta', not one of bert, ernie, gpt2, openai-gpt"),
        (config_with(model_type=["bert"]), "model_type is \"['bert']\", not one of"),
        (config_with(position_embedding_type="relative_key"), "position_embedding_type is 'relative_key', and only"),
        (config_with(is_decoder=True), "config.json: is_decoder is 'True', and only False is known here"),
        (config_with(add_cross_attention=True), "add_cross_attention is 'True', and only False is known here"),
        (config_with(use_task_id=True), "config.json: use_task_id is 'True', and only False is known here"),
        (config_with(pruned_heads={"0": [1]}), "pruned_heads is \"{'0': [1]}\", and only {} is known here"),
        (config_with(quantization_config={"bits": 8}), "quantization_config is \"{'bits': 8}\", and only None"),
        (config_with(vocab_size=4), "word_embeddings.weight is ["),
        (raw_with("config.json", lambda raw: b"[1]"), "config.json: not a JSON object"),
        (raw_with("config.json", lambda raw: raw[:-5]), "config.json: cannot be read as JSON"),
        (raw_with("config.json", lambda raw: b"[" * 100_000), "config.json: cannot be read as JSON"),
        (raw_with("config.json", lambda raw: b"\xff"), "config.json: cannot be read as JSON"),
        (lambda folder: (folder / "config.json").unlink(), "config.json: cannot be read (No such file"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no model.safetensors and no pytorch_model.bin"),
        (index_with({}), "index.json: weight_map does not say in which file each tensor lies"),
        (index_with([1]), "index.json: weight_map does not say in which file each tensor lies"),
        (index_with({WORDS: "../theirs/part.safetensors"}), "weight_map names '../theirs/part.safetensors', which"),
        (index_with({WORDS: "/etc/passwd"}), "weight_map names '/etc/passwd', which is no file of this folder"),
        (index_with({WORDS: "part.safetensors\0"}), "which is no file of this folder"),
        (index_with({WORDS: "x" * 5000}), "which is no file of this folder"),
        (index_with({WORDS: ".."}), "weight_map names '..', which is no file of this folder"),
        (index_with({WORDS: "part.safetensors"}), "is not in weight_map"),
        (index_with(lambda names: {**names, "more": "part.safetensors"}), "the tensor more lies in no file"),
        (as_pickle, "pytorch_model.bin: "),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "tokenizer.json: model is of type None"),
        (lambda folder: (folder / "tokenizer.json").write_text("["), "tokenizer.json:1: not JSON"),
        (lambda folder: (folder / "tokenizer_config.json").write_text("3"), "tokenizer_config.json: not a JSON object"),
        (
            lambda folder: [(folder / name).unlink() for name in ("tokenizer.json", "vocab.txt")],
            "no tokenizer.json and no vocab.txt; put one of them beside the model, or give --vocabulary",
        ),
    ],
)  # fmt: skip
def test_what_is_broken_or_hostile_is_one_line_and_leaves_nothing(folder, capsys, change, line):
    change(folder)
    refused(capsys, folder, line)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (config_with(architectures={"a": 1}), "config.json: architectures is {'a': 1}, and a classifier wants one of"),
        (config_with(architectures=[]), "config.json: architectures is [], and a classifier wants one of"),
        (config_with(problem_type="multi_label_classification"), "is 'multi_label_classification', not one of single"),
        (config_with(problem_type="regression"), "its classifier has 2 rows, and one number is what classify reads"),
        (config_with(architectures=["BertForMultipleChoice"]), "its classifier has 2 rows, and one number is what"),
        (config_with(id2label={"1": "a", "2": "b"}), "and the classifier's 2 classes count from 0"),
        (config_with(id2label={"0": None}), "config.json: id2label holds what is no name; give each class one"),
        (config_with(id2label={"0": "\ud800"}), "config.json: id2label holds what is no name; give each class one"),
        (config_with(id2label={"0": "a", "1": "a"}), "config.json: id2label names a class twice"),
        (tensors_with(**{"classifier.weight": np.zeros((30_000_000, 0), np.float32)}), "is [30000000, 0], and CD ="),
        (tensors_with(**{"classifier.bias": np.zeros(3, np.float32)}), "classifier.bias is [3], and C = [2] is wanted"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_head_is_said(tmp_path, capsys, change, line):
    folder = tmp_path / "theirs"
    convert.export_model(GOLDEN / "bert_classify_3", "hf", folder, None)
    change(folder)
    refused(capsys, folder, line)


def test_heads_of_pretraining_beside_that_of_a_task_are_left_out_and_said(folder, tmp_path, capsys):
    config_with(architectures=["BertForSequenceClassification"])(folder)
    tensors_with(**{"classifier.weight": np.ones((3, 8), np.float32), "classifier.bias": np.ones(3, np.float32)})(
        folder
    )
    code, err = run_command(capsys, "import", "hf", folder, "--to", tmp_path / "run")
    assert code == 0 and "ignoring pretraining heads (mlm, nsp): the checkpoint also has a task head" in err
    params: Any
    model, params, _ = contexture.load(tmp_path / "run")
    assert list(model.heads) == ["classify"] and params["heads_classify"]["kernel"].shape == (8, 3)


def test_a_softmax_that_should_be_tied_and_is_not_is_said(folder, capsys):
    words = load_file(folder / "model.safetensors")[WORDS]
    tensors_with(**{"cls.predictions.decoder.weight": words + 1})(folder)
    refused(capsys, folder, f"tensor cls.predictions.decoder.weight is not equal to {WORDS}, which transformers ties")


def test_an_imported_choice_is_evaluated_and_asked(folder, tmp_path):
    """Its files do not say how many alternatives there are: the examples do."""
    config_with(architectures=["BertForMultipleChoice"])(folder)
    gone = {name: None for name in load_file(folder / "model.safetensors") if name.startswith("cls.")}
    head = {"classifier.weight": np.ones((1, 8), np.float32), "classifier.bias": np.ones(1, np.float32)}
    tensors_with(**gone, **head)(folder)
    assert cli.main(["import", "hf", str(folder), "--to", str(tmp_path / "run")]) == 0
    dev = tmp_path / "dev.jsonl"
    rows = [{"text": "the cat", "choices": ["sat", "a dog", "the"], "label": n % 3} for n in range(5)]
    dev.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    assert contexture.evaluate(tmp_path / "run", dev=str(dev))["examples"] == 5
    (answer,) = contexture.predict(tmp_path / "run", [("the cat", ["sat", "a dog", "the"])])
    assert len(answer["scores"]) == 3


@pytest.mark.long
def test_two_imports_into_one_folder_leave_one_whole_run(door, folder, tmp_path):
    both = [door("import", "hf", folder, "--to", tmp_path / "run", wait=False) for _ in range(2)]
    errors = [process.communicate()[1] for process in both]
    codes = sorted(process.returncode for process in both)
    assert codes in ([0, 2], [0, 0]) and sum("already holds something" in error for error in errors) == codes[1] // 2
    assert contexture.load(tmp_path / "run")[2].size == 48
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run", "theirs"]


def test_a_place_that_is_a_link_is_filled(folder, tmp_path, capsys):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert run_command(capsys, "import", "hf", folder, "--to", tmp_path / "link")[0] == 0
    assert (tmp_path / "real" / "run.json").is_file() and (tmp_path / "link").is_symlink()


def test_what_was_stopped_leaves_nothing(folder, tmp_path):
    """Between two tensors."""
    seen = []

    def check() -> None:
        seen.append(1)
        if len(seen) == 9:
            raise Interrupted(signal.SIGINT, "stopped")

    with pytest.raises(Interrupted):
        convert.import_model("hf", folder, tmp_path / "run", Calling(check))
    assert len(seen) == 9 and [file.name for file in tmp_path.iterdir()] == ["theirs"]


def test_a_folder_that_is_none_and_options_of_other_formats_are_said(folder, tmp_path, capsys):
    refused(capsys, tmp_path / "nowhere", "nowhere: no such folder; give the one that a model was saved in")
    for words, line in (
        (("--word-splitter", "punctuation"), "--word-splitter has no meaning for hf; it is for bilm"),
        (("--gelu", "tanh"), "--gelu has no meaning for hf; it is for bert-tf"),
    ):
        code, err = run_command(capsys, "import", "hf", folder, "--to", tmp_path / "run", *words)
        assert code == 2 and line in err, err


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("gpt_banded", "transformers' GPT-2 has no banded layers, and this run has model.local-window=4"),
        ("elmo", "transformers has no ELMo; export it as bilm"),
    ],
)
def test_what_transformers_has_no_class_for_is_said(name: str, line: str, tmp_path: Path, capsys):
    code, err = run_command(capsys, "export", GOLDEN / name, "hf", "--to", tmp_path / "out")
    assert code == 2 and line in err and len(err.splitlines()) == 1 and not list(tmp_path.iterdir()), err
