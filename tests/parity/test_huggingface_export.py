"""Runs that were made here, taken out by the commands: transformers answers as they do, by the rule of 1e-5."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

import contexture
from contexture.data.config import DataConfig, TaskConfig
from contexture.data.layouts import bert_texts
from contexture.data.tokenizers.byte_pair import BYTES, ByteBPE, Gpt1BPE
from contexture.interchange.huggingface_export import hf_files
from contexture.models.config import GptConfig
from contexture.models.families import example
from contexture.train.checkpoints.transfer import model_of
from contexture.train.objectives import batch_fields, batch_sizes
from contexture.train.settings.run import Run
from contexture.train.settings.run_file import RunRecord, read
from contexture.train.settings.sections import OptimConfig
from tests.conftest import ROOT
from tests.helpers.commands import done
from tests.helpers.parity_rule import close

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.usefixtures("one_device"),
]

GOLDEN = ROOT / "tests" / "golden"


def loaded(auto: str, folder: Path) -> Any:
    model, info = getattr(transformers, auto).from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    return model.double().eval()


def test_a_run_that_was_trained_here_answers_the_same_there(tmp_path: Path):
    """A pretrained BERT and one with a task; text goes through both tokenizers."""
    texts = ["the cat sat", "a dog"]
    for name, auto, head in (
        ("bert_3_steps", "AutoModelForPreTraining", "nsp"),
        ("bert_classify_3", "AutoModelForSequenceClassification", "classify"),
    ):
        done("export", GOLDEN / name, "hf", "--to", tmp_path / name)
        model, params, tokenizer = contexture.load(GOLDEN / name)
        batch = {**bert_texts(tokenizer, texts, 12), "slots": np.array([[1, 2], [1, 2]], np.int32)}
        got: Any = model.apply({"params": params}, {k: jnp.asarray(x) for k, x in batch.items()})
        theirs = loaded(auto, tmp_path / name)
        its = transformers.AutoTokenizer.from_pretrained(tmp_path / name)
        given = its(texts, padding="max_length", max_length=12, return_tensors="pt")
        assert np.array_equal(given["input_ids"], batch["tokens"])
        with torch.no_grad():
            out = theirs(**given)
        expected = {head: (out.seq_relationship_logits if head == "nsp" else out.logits).numpy()}
        if head == "nsp":
            logits = out.prediction_logits.numpy()[np.arange(2)[:, None], batch["slots"]]
            expected["mlm"] = logits
        for head_name, value in expected.items():
            close(got.heads[head_name][..., : value.shape[-1]], value, head_name)
        labels = read(GOLDEN / name).labels or ("LABEL_0", "LABEL_1")
        assert tuple(theirs.config.id2label.values()) == labels


@pytest.mark.parametrize(
    ("norm", "biases", "auto"), [("pre", True, "tag"), ("pre", False, "lm"), ("post", True, "lm")]
)  # fmt: skip
def test_a_gpt_that_was_made_here_answers_the_same_there(norm: Any, biases: bool, auto: str, tmp_path: Path):
    """Also one without biases, and with a head that tags; rows behind the vocabulary stay behind."""
    config = GptConfig(vocab=300, length=16, layers=2, hidden=24, heads=3, ffn=96, norm=norm, biases=biases)
    tokens = [*BYTES, "<|endoftext|>"] if norm == "pre" else ["<unk>", *BYTES]
    tokenizer = ByteBPE(tokens, []) if norm == "pre" else Gpt1BPE(tokens, [])
    data = DataConfig(length=16, max_predictions=1)
    task = TaskConfig(kind="tag") if auto == "tag" else TaskConfig()
    run = Run(model=config, data=data, task=task, optim=OptimConfig(warmup=0), steps=1)
    record = RunRecord(run=run, labels=("a", "b", "c") if auto == "tag" else ())
    model = model_of(run, record.labels)
    line = example(batch_fields(run), batch_sizes(run, 1))
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), line)["params"])
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: 0.2 * rng.standard_normal(x.shape, np.float32), shapes)
    files, tensors = hf_files(record, params, tokenizer)
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    theirs = loaded("AutoModelForTokenClassification" if auto == "tag" else "AutoModelForCausalLM", tmp_path)
    tokens_BL = rng.integers(0, 257, (3, 16), np.int32)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(tokens_BL.astype(np.int64))).logits.numpy()
    model = model.clone(heads={}) if auto == "lm" else model
    batch = {"tokens": jnp.asarray(tokens_BL), "mask": jnp.ones((3, 16), jnp.int32)}
    out: Any = model.apply({"params": params}, batch)
    got = out.heads.get("tag", out.encoding.hidden_BLD @ params["backbone"]["embeddings"]["tokens"][:257].T)
    close(got, expected, "logits")
