"""Vocabularies and tokenizers, in our format, in the originals', and in that of transformers."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from contexture.data.tokenizers.byte_pair import GPT1_FILES, Gpt1BPE
from contexture.data.tokenizers.huggingface.read_folder import open_published
from contexture.data.tokenizers.registry import learn, load_tokenizer
from contexture.interchange import convert
from tests.conftest import ROOT
from tests.fuzz.mutate import Mutation, of_json, of_lines, of_protobuf
from tests.fuzz.target import Target

TEXT = ["The cat sat on the mat.", "A dog, 3 cats & naïve café 日本語 #x\u200d", "low lower lowest newer wider", ""] * 4
GPT1 = ["<unk>", "a", "b", "c", "a</w>", "b</w>", "c</w>", "ab</w>", "abc</w>"]


def use(tokenizer: object) -> None:
    """Whatever has been opened works: text, odd text, and back."""
    opened: Any = tokenizer
    for text in (*TEXT[:4], "\0\x1b \u2028\ufeff 🤦🏽 a" + "a" * 300, "[MASK] <|endoftext|> <unk> ##x </w>"):
        (ids,) = opened.encode([text])
        assert all(0 <= id < opened.size for id in ids)
        opened.decode(ids)
        opened.split_long(text, 5)
    for id in (0, opened.size - 1):
        opened.token(id)
    opened.files()


def learned(kind: str, size: int) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        learn(kind, TEXT, size, True).save(folder)

    return make


def gpt1(folder: Path) -> None:
    folder.mkdir()
    (folder / "encoder_bpe_40000.json").write_text(json.dumps({token: n for n, token in enumerate(GPT1)}), "utf-8")
    (folder / "vocab_40000.bpe").write_text("#version: 0.2\na b</w>\nb c</w>\na bc</w>\n", "utf-8")


def saved_gpt1(folder: Path) -> None:
    Gpt1BPE((*GPT1[:-1], "bc</w>"), (("a", "b</w>"), ("b", "c</w>"))).save(folder)


def export(name: str, folder: Path) -> None:
    """A run of tests/golden as `export … hf` writes it; its banded layers, which transformers lacks, become whole."""
    run = shutil.copytree(ROOT / "tests" / "golden" / name, folder.with_name("exported"))
    tree = json.loads((run / "run.json").read_text("utf-8"))
    if "local_window" in tree["config"]["model"]:
        tree["config"]["model"]["local_window"] = 0
        (run / "run.json").write_text(json.dumps(tree), "utf-8")
    convert.export_model(run, "hf", folder, None)
    shutil.rmtree(run)


def of_transformers(name: str) -> Callable[[Path], None]:
    """The tokenizer of such a folder."""

    def make(folder: Path) -> None:
        export(name, folder)
        (folder / "model.safetensors").unlink()

    return make


def _saved(folder: Path, to: Path) -> None:
    opened = load_tokenizer(folder)
    use(opened)
    opened.save(to)


def _file(name: str, **more: object) -> Callable[[Path, Path], None]:
    def read(folder: Path, to: Path) -> None:
        use(load_tokenizer(folder / name, **more))  # pyright: ignore[reportArgumentType]

    return read


def _published(kind: str) -> Callable[[Path, Path], None]:
    def read(folder: Path, to: Path) -> None:
        use(open_published(folder, kind, "", None, [])[0])

    return read


def _target(name: str, make: Callable[[Path], None], file: str, mutate: Mutation, read=_saved) -> Target:
    return Target(f"tokenizer.{name}", make, file, mutate, read)


TARGETS = (
    _target("wordpiece-vocab", learned("wordpiece", 60), "vocab.txt", of_lines),
    _target("wordpiece-file", learned("wordpiece", 60), "vocab.txt", of_lines, _file("vocab.txt")),
    _target("wordpiece-options", learned("wordpiece", 60), "tokenizer.json", of_json),
    _target("words-vocab", learned("words", 30), "vocab.txt", of_lines),
    _target("words-options", learned("words", 30), "tokenizer.json", of_json),
    _target("bpe-encoder", learned("byte-bpe", 300), "encoder.json", of_json),
    _target("bpe-merges", learned("byte-bpe", 300), "vocab.bpe", of_lines),
    _target("bpe-options", learned("byte-bpe", 300), "tokenizer.json", of_json),
    _target("gpt1-encoder", gpt1, "encoder_bpe_40000.json", of_json, lambda folder, to: use(load_tokenizer(folder))),
    _target("gpt1-merges", gpt1, "vocab_40000.bpe", of_lines, lambda folder, to: use(load_tokenizer(folder))),
    _target("gpt1-saved-encoder", saved_gpt1, GPT1_FILES[0], of_json),
    _target("characters", learned("characters", 40), "characters.json", of_json),
    _target("sentencepiece-unigram", learned("sentencepiece-unigram", 310), "sentencepiece.model", of_protobuf),
    _target("sentencepiece-bpe", learned("sentencepiece-bpe", 310), "sentencepiece.model", of_protobuf),
    _target("hf-bert", of_transformers("bert_3_steps"), "tokenizer.json", of_json, _published("wordpiece")),
    _target("hf-bert-config", of_transformers("bert_3_steps"), "tokenizer_config.json", of_json,
            _published("wordpiece")),
    _target("hf-bert-vocab", of_transformers("bert_3_steps"), "vocab.txt", of_lines, _published("wordpiece")),
    _target("hf-gpt", of_transformers("gpt_banded"), "tokenizer.json", of_json, _published("byte-bpe")),
    _target("hf-gpt-merges", of_transformers("gpt_banded"), "merges.txt", of_lines, _published("byte-bpe")),
)  # fmt: skip
