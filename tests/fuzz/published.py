"""Models that others published: each file of each format, through `import`."""

import importlib.util
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import ANY

from contexture.interchange import convert, tf_checkpoint
from tests.conftest import ROOT
from tests.fuzz.mutate import Mutation, Rng, after_length, of_bytes, of_json, of_lines
from tests.fuzz.target import Absent, Target
from tests.fuzz.tokenizers import export
from tests.interchange import test_mutated_files as made


def _importing(format: Any) -> Callable[[Path, Path], None]:
    def read(folder: Path, to: Path) -> None:
        convert.import_model(format, folder, to)

    return read


def _any_checksum(folder: Path, to: Path) -> None:
    """A table whose checksums are right, whatever is in it: whoever wants to harm computes them."""
    true, tf_checkpoint.masked_crc32c = tf_checkpoint.masked_crc32c, lambda raw: ANY
    try:
        _importing("bert-tf")(folder, to)
    finally:
        tf_checkpoint.masked_crc32c = true


def pickled(folder: Path) -> None:
    """The weights of `made.hf` as torch saves them."""
    if importlib.util.find_spec("torch") is None:
        raise Absent("torch, which reads pickles")
    import torch  # pyright: ignore[reportMissingImports]
    from safetensors.numpy import load_file

    made.hf(folder)
    arrays = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, folder / "pytorch_model.bin")


def google(folder: Path) -> None:
    original = ROOT.parent / "shared" / "data" / "golden_keras_bert_ckpt"
    if not original.is_dir():
        raise Absent(original)
    shutil.copytree(original, folder)
    for file in folder.iterdir():
        file.chmod(0o644)


def gpt2_tf(folder: Path) -> None:
    """OpenAI's hparams.json beside a checkpoint of another model: it is read first, and the rest is refused."""
    google(folder)
    for file in list(folder.glob("bert_model.ckpt*")):
        file.rename(folder / file.name.replace("bert_model.ckpt", "model.ckpt"))
    made.gpt1(folder / "pairs")
    (folder / "hparams.json").write_text(
        '{"n_vocab": 6, "n_ctx": 16, "n_embd": 12, "n_head": 2, "n_layer": 1}', "utf-8"
    )
    (folder / "encoder.json").write_text('{"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}', "utf-8")
    (folder / "vocab.bpe").write_text("#version: 0.2\na b\n", "utf-8")


def head(size: int) -> Mutation:
    """The first bytes of a file: what describes it, not its numbers."""

    def mutate(raw: bytes, rng: Rng) -> bytes:
        return of_bytes(raw[:size], rng) + raw[size:]

    return mutate


def _target(name: str, make: Callable[[Path], None], file: str, mutate: Mutation, format: str, read=None) -> Target:
    return Target(f"import.{name}", make, file, mutate, read or _importing(format), slow=True)


TARGETS = (
    _target("hf-weights", made.hf, "model.safetensors", after_length, "hf"),
    _target("hf-pickle", pickled, "pytorch_model.bin", of_bytes, "hf"),
    _target("hf-config", made.hf, "config.json", of_json, "hf"),
    _target("hf-tokenizer", made.hf, "tokenizer.json", of_json, "hf"),
    _target("hf-parts", made.hf_in_parts, "model.safetensors.index.json", of_json, "hf"),
    _target("hf-gpt-config", partial(export, "gpt_banded"), "config.json", of_json, "hf"),
    _target("hf-task-config", partial(export, "bert_classify_3"), "config.json", of_json, "hf"),
    _target("bert-tf-table", google, "bert_model.ckpt.index", of_bytes, "bert-tf", _any_checksum),
    _target("bert-tf-checksums", google, "bert_model.ckpt.index", of_bytes, "bert-tf"),
    _target("bert-tf-config", google, "bert_config.json", of_json, "bert-tf"),
    _target("bert-tf-vocab", google, "vocab.txt", of_lines, "bert-tf"),
    _target("gpt2-tf-hparams", gpt2_tf, "hparams.json", of_json, "gpt2-tf"),
    _target("gpt1-npy", made.gpt1, "params_3.npy", head(200), "gpt1-npy"),
    _target("gpt1-shapes", made.gpt1, "params_shapes.json", of_json, "gpt1-npy"),
    _target("gpt1-encoder", made.gpt1, "encoder_bpe_40000.json", of_json, "gpt1-npy"),
    _target("bilm-weights", made.elmo_files, "weights.hdf5", head(8000), "bilm"),
    _target("bilm-options", made.elmo_files, "options.json", of_json, "bilm"),
)
