"""Models as their makers published them: Google's checkpoint, OpenAI's shards; and what is none is one clear line."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest

import contexture
from contexture.cli import main as cli
from contexture.data.errors import DataError
from contexture.data.tokenizers.wordpiece import wordpiece
from contexture.interchange import tf_checkpoint
from contexture.interchange.tf_checkpoint import open_bundle
from contexture.models.config import BertConfig, GptConfig
from tests.helpers.commands import run_command
from tests.helpers.long import long

WIDTH, LENGTH, LAYERS, VOCAB = 24, 16, 2, 6
LAYER = (
    [1, WIDTH, 3 * WIDTH], [3 * WIDTH], [1, WIDTH, WIDTH], [WIDTH], [WIDTH], [WIDTH], [1, WIDTH, 4 * WIDTH],
    [4 * WIDTH], [1, 4 * WIDTH, WIDTH], [WIDTH], [WIDTH], [WIDTH],
)  # fmt: skip
SHAPES = [[LENGTH, WIDTH], [VOCAB, WIDTH], *(LAYER * LAYERS)]


def refused(capsys: pytest.CaptureFixture[str], folder: Path, kind: str, line: str, *more: str) -> None:
    """In one line, and nothing lies there afterwards."""
    existing = sorted(folder.parent.iterdir())
    code, err = run_command(capsys, "import", kind, folder, "--to", folder.parent / "run", *more)
    assert code == 2 and line in err and err.startswith("DataError: ") and len(err.splitlines()) == 1, err
    assert sorted(folder.parent.iterdir()) == existing


@pytest.fixture
def gpt1(tmp_path: Path) -> Path:
    """OpenAI's files of a small GPT-1: every number another one, cut into ten shards that end within tensors."""
    folder = tmp_path / "gpt1"
    folder.mkdir()
    count = sum(int(np.prod(shape)) for shape in SHAPES)
    numbers = np.random.default_rng(0).standard_normal(count, np.float32)
    for number, part in enumerate(np.array_split(numbers, 10)):
        np.save(folder / f"params_{number}.npy", part)
    (folder / "params_shapes.json").write_text(json.dumps(SHAPES), "utf-8")
    tokens = ["<unk>", "a", "b", "a</w>", "b</w>", "ab</w>"]
    (folder / "encoder_bpe_40000.json").write_text(json.dumps({t: n for n, t in enumerate(tokens)}), "utf-8")
    (folder / "vocab_40000.bpe").write_text("#version: 0.2\na b</w>\n", "utf-8")
    return folder


def test_gpt1s_shards_are_cut_into_its_tensors(gpt1, tmp_path):
    """Positions, tokens, then twelve tensors a layer; queries, keys and values lie side by side in one of them."""
    assert cli.main(["import", "gpt1-npy", str(gpt1), "--to", str(tmp_path / "run")]) == 0
    params: Any
    model, params, tokenizer = contexture.load(tmp_path / "run")
    flat = np.concatenate([np.load(gpt1 / f"params_{number}.npy") for number in range(10)])
    cuts = np.cumsum([int(np.prod(shape)) for shape in SHAPES])
    tensors = [x.reshape(shape) for x, shape in zip(np.split(flat, cuts[:-1]), SHAPES, strict=True)]
    backbone, c = params["backbone"], model.config
    assert isinstance(c, GptConfig)
    assert (c.norm, c.layers, c.heads, c.ffn, c.gelu) == ("post", LAYERS, 12, 4 * WIDTH, "tanh")
    assert np.array_equal(backbone["embeddings"]["positions"], tensors[0])
    assert np.array_equal(backbone["embeddings"]["tokens"], tensors[1])
    layers = backbone["layers"]
    for layer in range(LAYERS):
        its = tensors[2 + 12 * layer : 14 + 12 * layer]
        for third, part in enumerate(("query", "key", "value")):
            kernel, bias = (x[..., third * WIDTH : (third + 1) * WIDTH] for x in its[:2])
            assert np.array_equal(layers["attention"][part]["kernel"][layer].reshape(WIDTH, WIDTH), kernel[0])
            assert np.array_equal(layers["attention"][part]["bias"][layer].ravel(), bias)
        assert np.array_equal(layers["attention"]["out"]["kernel"][layer].reshape(WIDTH, WIDTH), its[2][0])
        rest = (("attention", "out", "bias"), ("attention_norm", "scale"), ("attention_norm", "bias"),
                ("ffn", "in", "kernel"), ("ffn", "in", "bias"), ("ffn", "out", "kernel"), ("ffn", "out", "bias"),
                ("ffn_norm", "scale"), ("ffn_norm", "bias"))  # fmt: skip
        for path, tensor in zip(rest, its[3:], strict=True):
            value: Any = layers
            for name in path:
                value = value[name]
            assert np.array_equal(value[layer], tensor[0] if tensor.ndim == 3 else tensor), path
    assert tokenizer.kind == "gpt1-bpe" and tokenizer.encode(["Ab a"]) == [[5, 3]]
    text = contexture.open(tmp_path / "run").generate("ab", tokens=3, temperature=0.0)
    assert text["prompt"] == "ab" and text["tokens"] == 3


def _shapes(edit: Callable[[list[Any]], Any]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        shapes = json.loads((folder / "params_shapes.json").read_text("utf-8"))
        (folder / "params_shapes.json").write_text(json.dumps(edit(shapes)), "utf-8")

    return change


def _shard(number: int, array: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        np.save(folder / f"params_{number}.npy", array, allow_pickle=True)

    return change


def _claims(folder: Path) -> None:
    """A header that speaks of 2^60 numbers, before a few."""
    raw = (folder / "params_3.npy").read_bytes()
    start = raw.index(b"'shape'")
    end = raw.index(b"}", start)
    new = f"'shape': ({1 << 60},), ".encode()
    (folder / "params_3.npy").write_bytes(raw[:start] + new.ljust(end - start) + raw[end:])


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda folder: (folder / "params_4.npy").unlink(), "params_4.npy: cannot be read"),
        (lambda folder: (folder / "params_4.npy").write_bytes(b"x"), "params_4.npy: cannot be read as npy"),
        # A file that begins as a zip; none of its files is left open, or the suite's filter of warnings says so.
        (lambda folder: (folder / "params_4.npy").write_bytes(b"PK\3\4"), "params_4.npy: cannot be read as npy"),
        (_shard(2, np.array([{"a": 1}], object)), "params_2.npy: cannot be read as npy"),
        (_shard(2, np.zeros((2, 3), np.float32)), "params_2.npy: holds float32 [2, 3], not a row of floats"),
        (_shard(2, np.zeros(3, np.int32)), "params_2.npy: holds int32 [3], not a row of floats"),
        (_shard(2, np.zeros(3, np.float32)), "numbers, params_shapes.json wants"),
        (_claims, "params_3.npy: cannot be read as npy"),
        (_shapes(lambda shapes: shapes[:-1]), "params_shapes.json: not the shapes of positions, tokens and 12 tensors"),
        (_shapes(lambda shapes: {}), "params_shapes.json: not the shapes of"),
        (_shapes(lambda shapes: [[1 << 60, 2], *shapes[1:]]), "params_shapes.json: not the shapes of"),
        (_shapes(lambda shapes: [*shapes[:2], [1, 5, 15], *shapes[3:]]), "c_attn/w is [1, 5, 15], and [1, 24, 72]"),
        (_shapes(lambda shapes: [[16, 25], *shapes[1:]]), "model.hidden=25 is not a multiple of model.heads=12"),
        (lambda folder: (folder / "params_shapes.json").write_text("["), "params_shapes.json: cannot be read as JSON"),
        (lambda folder: (folder / "vocab_40000.bpe").unlink(), "vocab_40000.bpe: missing beside"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_gpt1s_files_is_said(gpt1, capsys, change, line):
    change(gpt1)
    refused(capsys, gpt1, "gpt1-npy", line)


def test_a_number_that_is_none_is_said(gpt1, capsys):
    array = np.load(gpt1 / "params_5.npy")
    array[7] = np.nan
    np.save(gpt1 / "params_5.npy", array)
    refused(capsys, gpt1, "gpt1-npy", "holds what is no number in float32; give files that were written whole")


@pytest.fixture
def google(shared: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(shared / "data" / "golden_keras_bert_ckpt", tmp_path / "google"))


def test_googles_checkpoint_is_a_run(google, tmp_path, capsys):
    file = google / "bert_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "residual_scale": 2.0, "use_cache": True}))
    code, err = run_command(capsys, "import", "bert-tf", google, "--to", tmp_path / "run", "--lowercase", "yes")
    assert code == 0 and "ignored 93 tensors of the optimizer" in err, err
    assert "bert_config.json has settings that are not known here and were not read: residual_scale" in err, err
    assert "gelu is taken as the one with erf" in err and "drawn" not in err
    params: Any
    model, params, tokenizer = contexture.load(tmp_path / "run")
    c = model.config
    assert isinstance(c, BertConfig)
    assert (c.vocab, c.hidden, c.heads, c.layers, c.ffn, c.length, c.gelu) == (15, 4, 4, 2, 16, 16, "erf")
    assert tokenizer.size == 15 and wordpiece(tokenizer).longest_word == 200
    tensors = open_bundle(google / "bert_model.ckpt")
    kernel = tensors.load("bert/encoder/layer_1/attention/self/query/kernel")
    assert np.array_equal(params["backbone"]["layers"]["attention"]["query"]["kernel"][1].reshape(4, 4), kernel)
    assert np.array_equal(params["heads_nsp"]["kernel"].T, tensors.load("cls/seq_relationship/output_weights"))
    code, err = run_command(capsys, "import", "bert-tf", google, "--to", tmp_path / "later", "--gelu", "tanh")
    assert code == 0 and "gelu is taken" not in err
    assert contexture.load(tmp_path / "later")[0].backbone.config.gelu == "tanh"


DATA, INDEX = "bert_model.ckpt.data-00000-of-00001", "bert_model.ckpt.index"


def _bytes(name: str, edit: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).chmod(0o644)
        (folder / name).write_bytes(edit((folder / name).read_bytes()))

    return change


def _config(**values: Any) -> Callable[[Path], None]:
    return _bytes("bert_config.json", lambda raw: json.dumps({**json.loads(raw), **values}).encode())


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (_bytes(DATA, lambda raw: raw[:-1]), "lies behind the end of its file"),
        (_bytes(DATA, lambda raw: raw[:3] + bytes([raw[3] ^ 1]) + raw[4:]), "does not match its checksum"),
        (lambda folder: (folder / DATA).unlink(), f"{DATA}: cannot be read (No such file or directory)"),
        (_bytes(INDEX, lambda raw: raw[:-1]), "no table of a checkpoint (it ends with no footer)"),
        (_bytes(INDEX, lambda raw: b""), "no table of a checkpoint (it ends with no footer)"),
        (_bytes(INDEX, lambda raw: raw[:99] + bytes([raw[99] ^ 4]) + raw[100:]), "a block does not match its checksum"),
        (lambda folder: (folder / INDEX).unlink(), "not one checkpoint *.index; give a folder with one"),
        (_config(num_hidden_layers=3), "tensor bert/encoder/layer_2/attention/output/LayerNorm/beta, "),
        (_config(num_hidden_layers=1), "bert/encoder/layer_1/attention/output/LayerNorm/beta, "),
        (_config(num_hidden_layers=9999), "46 tensors, too few for 9,999 layers"),
        (_config(num_hidden_layers=10**9), "model.layers=1000000000 is more than 10,000"),
        (_config(vocab_size=16), "bert/embeddings/word_embeddings is [15, 4], and VD = [16, 4] is wanted"),
        (_config(vocab_size="15"), "bert_config.json: vocab_size is '15', not of kind int"),
        (_config(hidden_size=None), "word_embeddings is [15, 4], and VD = [15, 768] is wanted"),
        (_config(directionality="left"), "bert_config.json: directionality is 'left', and only 'bidi' is known here"),
        (_config(hidden_act="swish"), "bert_config.json: hidden_act is 'swish', not one of gelu, relu"),
        (_config(initializer_range=0), "bert_config.json: model.init-std=0.0 is not above 0 and below 1"),
        (_bytes("bert_config.json", lambda raw: b"[]"), "bert_config.json: not a JSON object"),
        (_bytes("vocab.txt", lambda raw: raw.rstrip() + b"\nextra\n"), "has 16 tokens, the model 15 rows"),
        (_bytes("vocab.txt", lambda raw: b""), "vocab.txt: the vocabulary is empty"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_googles_files_is_said(google, capsys, change, line):
    for file in google.iterdir():
        file.chmod(0o644)
    change(google)
    refused(capsys, google, "bert-tf", line, "--lowercase", "yes", "--gelu", "tanh")


@pytest.mark.parametrize("places", [100, *long(600)])
def test_flipped_bytes_of_a_table_are_read_or_said(google, monkeypatch, places):
    """Also where the checksums are right: whoever wants to harm computes them."""
    raw, rng = (google / INDEX).read_bytes(), np.random.default_rng(0)
    (google / INDEX).chmod(0o644)
    failed = 0
    monkeypatch.setattr(tf_checkpoint, "masked_crc32c", lambda raw: ANY)
    for place in rng.integers(0, len(raw), places):
        harmed = bytearray(raw)
        harmed[place] ^= 1 << int(rng.integers(8))
        (google / INDEX).write_bytes(harmed)
        try:
            tensors = open_bundle(google / "bert_model.ckpt")
            for name in tensors.shapes:
                tensors.read(name)
        except DataError as error:
            failed += str(google) in str(error)
    assert failed > places // 12


TYPES = {1: ("float32", 4), 2: ("float64", 8), 3: ("int32", 4), 9: ("int64", 8), 10: ("bool", 1), 14: ("bfloat16", 2),
         19: ("float16", 2), 8: ("number 8", 3)}  # fmt: skip
"""TensorFlow's numbers of types, their names, and the bytes of one number; complex numbers are not read."""


@pytest.mark.parametrize(("number", "name", "size"), [(number, *each) for number, each in TYPES.items()])
def test_an_entry_names_the_type_and_the_place_of_a_tensor(number, name, size):
    dims = b"".join(b"\x12\x02\x08" + bytes([n]) for n in (2, 3))
    entry = b"\x08" + bytes([number]) + b"\x12\x08" + dims + b"\x18\x01\x20\x05\x28" + bytes([6 * size])
    entry += b"\x35" + (77).to_bytes(4, "little")
    read = tf_checkpoint._entry(b"a/b", entry, [0, 5 + 6 * size])
    assert read == ((2, 3), name, 1, 5, 6 * size, 77)
    with pytest.raises(ValueError, match="the tensor a/b lies behind the end of its file"):
        tf_checkpoint._entry(b"a/b", entry, [0, 4 + 6 * size])
