"""TensorFlow's own reading and writing of checkpoints against ours, which needs no TensorFlow.

TensorFlow runs in a process of its own; numbers go to it and come from it as npz.
"""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import contexture
from contexture.data.tokenizers.byte_pair import BYTES
from contexture.interchange.name_tables import BERT_HF_FORMAT, BERT_TF_FORMAT, GPT2_HF, GPT2_TF_FORMAT
from contexture.interchange.renaming import shapes_of, to_ours, to_theirs
from contexture.interchange.tf_checkpoint import open_bundle
from contexture.models import bert, gpt
from contexture.models.config import BertConfig, GptConfig
from tests.conftest import ROOT
from tests.helpers.commands import done

needs = pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="tensorflow-cpu is not installed")
pytestmark = [pytest.mark.parity, needs, pytest.mark.usefixtures("one_device")]
READ = """
import sys, numpy, tensorflow as tf
reader = tf.train.load_checkpoint(sys.argv[1])
numpy.savez(sys.argv[2], **{n.replace("/", "|"): reader.get_tensor(n) for n in reader.get_variable_to_shape_map()})
"""
WRITE = """
import sys, numpy, tensorflow as tf
given = {n.replace("|", "/"): x for n, x in numpy.load(sys.argv[2]).items()}
kind = getattr(tf, sys.argv[3])
given = {n: tf.cast(x, kind) if x.dtype == "float32" else x for n, x in given.items()}
names = sorted(given)
tf.raw_ops.SaveV2(prefix=sys.argv[1], tensor_names=names, shape_and_slices=[""] * len(names),
                  tensors=[given[n] for n in names])
"""


def tensorflow(code: str, *words: object) -> None:
    done = subprocess.run([sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]


def read_by_tensorflow(prefix: Path, folder: Path) -> dict[str, np.ndarray]:
    tensorflow(READ, prefix, folder / "read.npz")
    return {name.replace("|", "/"): x for name, x in np.load(folder / "read.npz").items()}


def write_by_tensorflow(prefix: Path, tensors: Mapping[str, np.ndarray | np.integer], kind: str = "float32") -> None:
    file: Any = prefix.with_name("given.npz")
    arrays: dict[str, Any] = {name.replace("/", "|"): x for name, x in tensors.items()}
    np.savez(file, **arrays)
    tensorflow(WRITE, prefix, file, kind)


def drawn(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def same(got: Any, expected: Any) -> None:
    for (path, a), b in zip(jax.tree.leaves_with_path(got), jax.tree.leaves(expected), strict=True):
        assert np.array_equal(a, b), path


def test_the_golden_checkpoint_is_read_as_tensorflow_reads_it(shared: Path, tmp_path: Path):
    """Every tensor; and the run's parameters are those that TensorFlow read, by the names of the table."""
    golden = shared / "data" / "golden_keras_bert_ckpt"
    expected = read_by_tensorflow(golden / "bert_model.ckpt", tmp_path)
    tensors = open_bundle(golden / "bert_model.ckpt")
    assert tensors.shapes.keys() == expected.keys() and len(expected) == 139
    for name, x in expected.items():
        got = tensors.load(name)
        assert got.dtype == x.dtype and np.array_equal(got, x), name
    done("import", "bert-tf", golden, "--to", tmp_path / "run")
    params: Any
    model, params, _ = contexture.load(tmp_path / "run")
    back = to_theirs(
        BERT_TF_FORMAT.table(("pooler", "mlm", "nsp")),
        params,
        bert.sizes(model.config),  # pyright: ignore[reportArgumentType]
    )
    assert len(back) == 46 and all(np.array_equal(x, expected[name]) for name, x in back.items())


@pytest.mark.parametrize("kind", ["float32", "float64", "float16", "bfloat16"])
def test_what_tensorflow_writes_is_read(kind: str, tmp_path: Path):
    """Of every kind of floats, and a tensor so long that its checksum is taken in rows; an empty one, and a number."""
    given = drawn({"a/long": (257, 1031), "b": (3, 1, 2), "c": (), "d": (0, 4)})
    write_by_tensorflow(tmp_path / "model.ckpt", {**given, "step": np.int64(7)}, kind)
    tensors = open_bundle(tmp_path / "model.ckpt")
    assert tensors.kinds == {**dict.fromkeys(given, kind), "step": "int64"}
    expected: Any = np.float32 if kind == "float32" else kind
    import ml_dtypes

    expected = ml_dtypes.bfloat16 if kind == "bfloat16" else np.dtype(kind)
    for name, x in given.items():
        assert tensors.shapes[name] == x.shape
        assert np.array_equal(tensors.read(name), x.astype(expected).astype(np.float32)), name


@pytest.mark.parametrize(("parts", "objective"), [(("pooler", "classify"), "classify"), (("pooler", "span"), "span")])
def test_googles_fine_tuned_models_come_in(parts: tuple[str, ...], objective: str, tmp_path: Path):
    config = BertConfig(vocab=9, length=8, segments=2, layers=2, hidden=12, heads=3, ffn=20)
    sizes = bert.sizes(config, 3 if objective == "classify" else 2)
    given = drawn(shapes_of(BERT_TF_FORMAT.table(parts), sizes))
    write_by_tensorflow(tmp_path / "bert_model.ckpt", {**given, "global_step": np.int64(7)})
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\nd\n", "utf-8")
    described = {"vocab_size": 9, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3,
                 "intermediate_size": 20, "max_position_embeddings": 8, "type_vocab_size": 2}  # fmt: skip
    (tmp_path / "bert_config.json").write_text(json.dumps(described), "utf-8")
    done("import", "bert-tf", tmp_path, "--to", tmp_path / "run")
    params: Any
    model, params, _ = contexture.load(tmp_path / "run")
    assert list(model.heads) == [objective]
    same(params, to_ours(BERT_TF_FORMAT.table(parts), given, sizes))
    theirs = to_theirs(BERT_HF_FORMAT.table(parts), params, sizes)
    back = to_ours(BERT_HF_FORMAT.table(parts), theirs, sizes)
    same(back, params)


def test_openais_gpt2_comes_in_as_transformers_has_it(tmp_path: Path):
    """The same numbers under both names are the same run's parameters."""
    config = GptConfig(vocab=257, length=16, layers=2, hidden=12, heads=3, ffn=48)
    sizes = gpt.sizes(config)
    table = GPT2_TF_FORMAT.table(("lm",))
    given = drawn(shapes_of(table, sizes))
    folder = tmp_path / "openai"
    folder.mkdir()
    write_by_tensorflow(folder / "model.ckpt", given)
    hparams = {"n_vocab": 257, "n_ctx": 16, "n_embd": 12, "n_head": 3, "n_layer": 2}
    (folder / "hparams.json").write_text(json.dumps(hparams), "utf-8")
    tokens = [*BYTES, "<|endoftext|>"]
    (folder / "encoder.json").write_text(json.dumps({token: n for n, token in enumerate(tokens)}), "utf-8")
    (folder / "vocab.bpe").write_text("#version: 0.2\n", "utf-8")
    done("import", "gpt2-tf", folder, "--to", tmp_path / "run")
    params: Any
    model, params, tokenizer = contexture.load(tmp_path / "run")
    assert tokenizer.end == 256 and isinstance(model.config, GptConfig) and model.config.norm == "pre"
    ours = to_ours(table, given, sizes)
    same(params, ours)
    kernel = given["model/h1/attn/c_attn/w"]
    assert kernel.shape == (1, 12, 36)
    theirs = to_theirs(GPT2_HF, params, sizes)
    assert np.array_equal(theirs["transformer.h.1.attn.c_attn.weight"], kernel[0])
    assert np.array_equal(theirs["transformer.ln_f.weight"], given["model/ln_f/g"])
