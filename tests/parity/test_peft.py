"""Adapters that were trained here, on the base model that was exported: peft answers as the run does."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import contexture
from contexture.data.layouts import text_batch
from tests.helpers.commands import done
from tests.helpers.parity_rule import assert_differs, close

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("peft")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
    pytest.mark.usefixtures("one_device"),
]

TEXT = "the cat sees the river"
ALL = ("--optim.lora-targets", "all")


def loaded(run: Path, source: Path, folder: Path) -> tuple[Any, Any]:
    """(the base model, the same with the run's adapters and heads), as the model card says, in float64."""
    from peft import PeftModel  # pyright: ignore[reportMissingImports]

    done("export", source, "hf", "--to", folder / "base")
    done("export", run, "peft", "--to", folder / "peft")
    config = transformers.AutoConfig.from_pretrained(folder / "peft")
    base = [
        getattr(transformers, config.architectures[0]).from_pretrained(folder / "base", config=config) for _ in range(2)
    ]
    model = PeftModel.from_pretrained(base[1], folder / "peft")
    return base[0].double().eval(), model.double().eval()


def outputs_of(run: Path, heads: tuple[str, ...], **fields: Any) -> tuple[dict[str, Any], Any]:
    """(the inputs as torch has them, the run's own outputs)."""
    model, params, tokenizer = contexture.load(run)
    batch = {**text_batch(tokenizer, [TEXT]), **fields}
    names = {"tokens": "input_ids", "mask": "attention_mask"}
    if "bert" in type(model.config).__name__.lower():  # GPT-2's class would add embeddings for the others' segments
        names["segments"] = "token_type_ids"
    inputs = {theirs: torch.tensor(np.asarray(batch[name], np.int64)) for name, theirs in names.items()}
    arrays = {name: jnp.asarray(x) for name, x in batch.items()}
    return inputs, model.apply({"params": params}, arrays, only=heads)


def check(run: Path, source: Path, folder: Path, inputs: Any, expected: Any, answer: str = "logits") -> None:
    base, model = loaded(run, source, folder)
    with torch.no_grad():
        close(model(**inputs)[answer].numpy(), np.asarray(expected), answer)
        assert_differs(base(**inputs)[answer].numpy(), np.asarray(expected), 1e-3)
        close(model.merge_and_unload()(**inputs)[answer].numpy(), np.asarray(expected), answer)


@pytest.mark.parametrize(("kind", "targets"), [("classify", ()), ("tag", ALL)])
def test_a_tasks_adapters_and_head(tiny_run, task_words, tmp_path, kind, targets):
    run = tmp_path / "run"
    done(*task_words(kind), "--optim.lora-rank", "4", *targets, "--steps", "20", "--dir", run)
    inputs, outputs = outputs_of(run, (kind,))
    check(run, tiny_run, tmp_path, inputs, outputs.heads[kind])


@pytest.mark.filterwarnings("ignore:Input and output embeddings are no longer tied:UserWarning")
def test_a_pretrainings_adapters_and_heads(tiny_run, tiny_words, tmp_path):
    run = tmp_path / "run"
    lora = ("--init", tiny_run, "--optim.lora-rank", "4", "--optim.peak-lr", "1e-2", "--steps", "10")
    done(*tiny_words, *lora, "--dir", run)
    slots = np.arange(text_batch(contexture.load(run)[2], [TEXT])["tokens"].shape[1], dtype=np.int32)[None]
    inputs, outputs = outputs_of(run, ("mlm", "nsp"), slots=slots)
    size = contexture.load(run)[2].size
    check(run, tiny_run, tmp_path, inputs, outputs.heads["mlm"][:, :, :size], "prediction_logits")


@pytest.mark.parametrize(("norm", "targets"), [("pre", ()), ("post", ALL)])
def test_a_gpts_fused_kernel_has_one_adapter_of_more_ranks(gpt_run, gpt_words, tmp_path, targets, norm):
    """GPT-2 and GPT-1, whose queries, keys and values are one kernel there."""
    source, run = gpt_run, tmp_path / "run"
    if norm == "post":
        source = tmp_path / "gpt1"
        done(*gpt_words, "--model.norm", "post", "--model.ffn", "128", "--steps", "5", "--dir", source)
        gpt_words = [*gpt_words, "--model.norm", "post", "--model.ffn", "128"]
    lora = ("--init", source, "--optim.lora-rank", "4", "--optim.peak-lr", "3e-2", "--steps", "10", *targets)
    done(*gpt_words, *lora, "--dir", run)
    inputs, outputs = outputs_of(run, ())
    params, size = contexture.load(run)[1], contexture.load(run)[2].size
    table: Any = params["backbone"]["embeddings"]["tokens"]  # type: ignore[index]
    logits = np.einsum("bld,vd->blv", np.asarray(outputs.encoding.hidden_BLD, np.float64), np.asarray(table)[:size])
    check(run, source, tmp_path, inputs, logits)
