"""Models that transformers saved, brought in and taken out by the commands: the same states, logits and losses, and
taken out again the same bits.

Weights are drawn large enough to matter. The rule for each tensor is max|a - b| <= 1e-5 · max|b|, b being torch's in
float64, so that only this side's float32 noise is left.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import contexture
from contexture.cli import main as cli
from contexture.data.tokenizers.byte_pair import BYTES
from contexture.train.objectives import objective_of
from contexture.train.settings.run_file import read
from tests.helpers.commands import done
from tests.helpers.parity_rule import close
from tests.helpers.published_models import draw, torch, transformers

safetensors_torch = pytest.importorskip("safetensors.torch")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.usefixtures("one_device"),
]

PIECES = [*("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), *"abcdefghijklmnopqrstuvwxyz", *(f"##{c}" for c in "abcde")]
B, L = 4, 19
LENGTHS = {"padded": np.array([L, 7, L - 1, 11]), "unpadded": np.full(B, L)}
ODD: dict[str, dict[str, Any]] = {
    "3 layers, 3 heads of 16, tanh gelu": {
        "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 77,
        "hidden_act": "gelu_new",
    },
    "1 layer, 5 heads of 8, one type, eps 1e-5": {
        "hidden_size": 40, "num_hidden_layers": 1, "num_attention_heads": 5, "intermediate_size": 77,
        "type_vocab_size": 1, "layer_norm_eps": 1e-5,
    },
    "2 layers, one head of 33, relu, 3 types": {
        "hidden_size": 33, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 19,
        "hidden_act": "relu", "type_vocab_size": 3, "layer_norm_eps": 1e-3,
    },
    "untied, another form of tanh gelu, rows behind the vocabulary": {
        "hidden_size": 28, "num_hidden_layers": 2, "num_attention_heads": 7, "intermediate_size": 31,
        "hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": False, "vocab_size": len(PIECES) + 5,
    },
}  # fmt: skip
CLASSES = (
    "BertForPreTraining BertModel BertForMaskedLM BertForNextSentencePrediction BertForSequenceClassification "
    "BertForTokenClassification BertForQuestionAnswering BertForMultipleChoice ErnieForMaskedLM ErnieModel"
).split()
GPT_ODD: dict[str, dict[str, Any]] = {
    "3 layers, 3 heads of 16": {"n_embd": 48, "n_layer": 3, "n_head": 3},
    "1 layer, 5 heads of 8, eps 1e-3, other gelu": {
        "n_embd": 40, "n_layer": 1, "n_head": 5, "layer_norm_epsilon": 1e-3, "activation_function": "gelu",
        "n_inner": 77, "afn": "relu",
    },
    "one head of 33, untied": {
        "n_embd": 33, "n_layer": 2, "n_head": 1, "tie_word_embeddings": False, "n_inner": 19,
        "activation_function": "relu",
    },
}  # fmt: skip
GPT_CLASSES = "GPT2LMHeadModel GPT2Model GPT2ForTokenClassification OpenAIGPTLMHeadModel OpenAIGPTModel".split()
CASES = [
    *((name, odd) for name in CLASSES for odd in ODD),
    *((name, odd) for name in GPT_CLASSES for odd in GPT_ODD),
]


def made(name: str, odd: str) -> Any:
    """A model of theirs, its weights large."""
    kind = getattr(transformers, name)
    labels = {} if "Question" in name else {"num_labels": 5}
    if name in CLASSES:
        usual = {"vocab_size": len(PIECES), "max_position_embeddings": 23, "pad_token_id": None, **labels}
        config = kind.config_class(**{**usual, **ODD[odd]}, attn_implementation="eager")
    else:
        usual = {"vocab_size": 258, "n_positions": 23, "bos_token_id": None, "eos_token_id": None, **labels}
        config = kind.config_class(**{**usual, **GPT_ODD[odd]}, attn_implementation="eager")
    return draw(kind(config).eval(), len(odd))


def vocabulary(folder: Path, gpt: int) -> None:
    """Their tokenizer's files: BERT's, GPT-1's, GPT-2's."""
    if not gpt:
        (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n", "utf-8")
        return
    tokens = [*BYTES, "th", "<|endoftext|>"] if gpt == 2 else ["<unk>", *BYTES, "th"]
    (folder / "vocab.json").write_text(json.dumps({token: n for n, token in enumerate(tokens)}), "utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\nt h\n", "utf-8")


def batch_of(name: str, config: Any, padded: str) -> dict[str, np.ndarray]:
    """Ours, with what every objective reads."""
    rng, lengths = np.random.default_rng(3), LENGTHS[padded]
    shape = (B, 3, L) if "MultipleChoice" in name else (B, L)
    mask_BL = (np.arange(L) < lengths[:, None]).astype(np.int32)
    mask = np.broadcast_to(mask_BL[:, None] if len(shape) == 3 else mask_BL, shape).copy()
    tokens = rng.integers(0, config.vocab_size, shape, np.int32)
    slots = np.sort(rng.permuted(np.tile(np.arange(5), (B, 1)), axis=1)[:, :3], 1).astype(np.int32)
    tags = np.where((rng.random((B, L)) < 0.6) & (mask_BL > 0), rng.integers(0, 5, (B, L)), -1).astype(np.int32)
    tags[:, 0] = 1
    ones = np.ones(B, np.float32)
    classes = 3 if len(shape) == 3 else 5 if "SequenceClass" in name else 0
    return {
        "tokens": tokens,
        "segments": rng.integers(0, getattr(config, "type_vocab_size", 1), shape, np.int32),
        "mask": mask,
        "slots": slots,
        "labels": (
            rng.integers(0, classes, B, np.int32) if classes else np.take_along_axis(tokens, slots, 1)
        ),
        "slot_weights": np.ones((B, 3), np.float32),
        "is_random": np.array([0, 1, 1, 0], np.int32),
        "tags": tags,
        "tag_weights": (tags >= 0).astype(np.float32),
        "starts": rng.integers(0, lengths, B, np.int32),
        "ends": rng.integers(0, lengths, B, np.int32),
        "next": np.concatenate([tokens[..., 1:], tokens[..., :1]], -1),
        "next_weights": np.broadcast_to((np.arange(L) < L - 1), shape).astype(np.float32),
        "weights": ones,
        "valid": ones,
    }  # fmt: skip


def theirs(name: str, model: Any, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """States, logits and loss, as transformers has them."""
    gpt = name in GPT_CLASSES
    given: dict[str, Any] = {"input_ids": batch["tokens"]}
    if not gpt:
        given |= {"token_type_ids": batch["segments"], "attention_mask": batch["mask"]}
    masked = np.full((B, L), -100, np.int64)
    if "slots" in batch and ("MaskedLM" in name or "PreTraining" in name):
        np.put_along_axis(masked, batch["slots"].astype(np.int64), batch["labels"], 1)
        given["labels"] = masked
    if "PreTraining" in name or "NextSentence" in name:
        given["next_sentence_label" if "PreTraining" in name else "labels"] = batch["is_random"]
    if "SequenceClass" in name or "MultipleChoice" in name:
        given["labels"] = batch["labels"]
    if "TokenClass" in name:
        given["labels"] = np.where(batch["tags"] < 0, -100, batch["tags"])
    if "Question" in name:
        given |= {"start_positions": batch["starts"], "end_positions": batch["ends"]}
    if "LMHead" in name:
        given["labels"] = batch["tokens"]
    with torch.no_grad():
        out = model(
            **{k: torch.from_numpy(np.asarray(x, np.int64)) for k, x in given.items()}, output_hidden_states=True
        )
    if "Question" in name:
        # Padding is no place of an answer here (docs/differences.md): their own loss, over the logits that are left.
        padding = torch.from_numpy(batch["mask"] == 0)
        out["loss"] = sum(
            torch.nn.functional.cross_entropy(out[f"{end}_logits"].masked_fill(padding, -torch.inf),
                                              torch.from_numpy(batch[f"{end}s"].astype(np.int64)))
            for end in ("start", "end")
        ) / 2  # fmt: skip
    answers = {f"state {n}": x.numpy() for n, x in enumerate(out.hidden_states)}
    for key in ("logits", "prediction_logits", "seq_relationship_logits", "start_logits", "end_logits",
                "pooler_output", "loss"):  # fmt: skip
        if getattr(out, key, None) is not None:
            answers[key] = getattr(out, key).numpy()
    if "prediction_logits" in answers or "MaskedLM" in name:
        key = "prediction_logits" if "prediction_logits" in answers else "logits"
        answers[key] = np.take_along_axis(answers[key], batch["slots"].astype(np.int64)[:, :, None], 1)
    return answers


def ours(name: str, folder: Path, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same of an imported run."""
    model, params, _ = contexture.load(folder)
    run = read(folder).run
    objective = objective_of(run)

    def answer(params: Any, batch: dict[str, jax.Array]) -> Any:
        out: Any = model.apply({"params": params}, batch, states=True)
        sums = objective.sums(out, batch)
        return out, {term: sums[term].total / sums[term].weight for term in objective.terms}

    out, losses = jax.jit(answer)(params, {k: jnp.asarray(x) for k, x in batch.items()})
    encoding, heads = out.encoding, out.heads
    answers = {f"state {n}": x for n, x in enumerate(encoding.states)}
    if "PreTraining" in name:
        answers |= {"prediction_logits": heads["mlm"], "seq_relationship_logits": heads["nsp"]}
        answers["loss"] = losses["mlm_loss"] + losses["nsp_loss"]
    elif "MaskedLM" in name:
        answers |= {"logits": heads["mlm"], "loss": losses["mlm_loss"]}
    elif "NextSentence" in name:
        answers |= {"logits": heads["nsp"], "loss": losses["nsp_loss"]}
    elif "Question" in name:
        both = heads["span"]
        answers |= {"start_logits": both[:, :, 0], "end_logits": both[:, :, 1], "loss": losses["span_loss"]}
    elif "LMHead" in name:
        table_VD = params["heads_lm"]["table"] if "heads_lm" in params else encoding.table_VD
        answers["logits"] = jnp.einsum("BLD,VD->BLV", encoding.hidden_BLD, table_VD, precision="highest")
        answers["loss"] = losses["lm_loss"]
    elif name.endswith("Model"):
        answers |= {"pooler_output": encoding.pooled_BD} if name in CLASSES else {}
    else:
        answers |= {"logits": heads[run.objective], "loss": losses[f"{run.objective}_loss"]}
    return {key: np.asarray(x) for key, x in answers.items()}


@pytest.mark.parametrize(("name", "odd"), CASES)
def test_what_transformers_saved_answers_the_same_and_comes_out_alike(name: str, odd: str, tmp_path: Path):
    model = made(name, odd)
    model.save_pretrained(tmp_path / "theirs")
    vocabulary(tmp_path / "theirs", 0 if name in CLASSES else 2 if name.startswith("GPT2") else 1)
    done("import", "hf", tmp_path / "theirs", "--to", tmp_path / "run")
    done("export", tmp_path / "run", "hf", "--to", tmp_path / "back")
    again, info = getattr(transformers, name).from_pretrained(
        tmp_path / "back", output_loading_info=True, attn_implementation="eager"
    )
    assert not any(info.values()), info
    for padded in LENGTHS if name in CLASSES else ("unpadded",):
        batch = batch_of(name, model.config, padded)
        expected = theirs(name, model.float(), batch)
        for key, x in theirs(name, again.eval(), batch).items():
            assert np.array_equal(x, expected[key]), key
        got, expected = ours(name, tmp_path / "run", batch), theirs(name, model.double(), batch)
        assert got.keys() == expected.keys()
        for key, value in expected.items():
            close(got[key], value, key)


@pytest.mark.parametrize(
    ("name", "auto"),
    [
        ("BertForPreTraining", "AutoModelForPreTraining"),
        ("BertForMaskedLM", "AutoModelForMaskedLM"),
        ("BertModel", "AutoModel"),
        ("BertForSequenceClassification", "AutoModelForSequenceClassification"),
        ("BertForTokenClassification", "AutoModelForTokenClassification"),
        ("BertForQuestionAnswering", "AutoModelForQuestionAnswering"),
        ("GPT2LMHeadModel", "AutoModelForCausalLM"),
        ("OpenAIGPTLMHeadModel", "AutoModelForCausalLM"),
    ],
)
def test_auto_classes_load_an_export_with_nothing_missing_or_unexpected(name, auto, tmp_path):
    model = made(name, next(iter(ODD if name in CLASSES else GPT_ODD)))
    model.save_pretrained(tmp_path / "theirs")
    vocabulary(tmp_path / "theirs", 0 if name in CLASSES else 2 if name.startswith("GPT2") else 1)
    done("import", "hf", tmp_path / "theirs", "--to", tmp_path / "run")
    done("export", tmp_path / "run", "hf", "--to", tmp_path / "back")
    again, info = getattr(transformers, auto).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert type(again).__name__ == name and not any(info.values()), info
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    _, _, own = contexture.load(tmp_path / "run")
    texts = ["ab cde the", "", "Café a\tb"]
    assert tokenizer.is_fast
    assert tokenizer(texts, add_special_tokens=False)["input_ids"] == own.encode(texts)


def saved(name: str, folder: Path) -> dict[str, Any]:
    """A saved model's tensors, for a file of another kind."""
    model = made(name, next(iter(ODD)))
    model.save_pretrained(folder)
    vocabulary(folder, 0)
    return safetensors_torch.load_file(folder / "model.safetensors")


def arrays(run: Path) -> dict[str, np.ndarray]:
    _, params, _ = contexture.load(run)
    return {jax.tree_util.keystr(path): np.asarray(x) for path, x in jax.tree.leaves_with_path(params)}


@pytest.mark.parametrize("form", ["gamma and beta", "no prefix", "in parts", "a pickle of tensors", "old pickle"])
def test_every_form_of_a_file_is_read_alike(form: str, tmp_path: Path):
    name = "BertModel" if form == "no prefix" else "BertForPreTraining"
    state = saved(name, tmp_path / "plain")
    done("import", "hf", tmp_path / "plain", "--to", tmp_path / "run")
    shutil.copytree(tmp_path / "plain", tmp_path / "other")
    file = tmp_path / "other" / "model.safetensors"
    if form == "gamma and beta":
        old = {n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): x
               for n, x in state.items()}  # fmt: skip
        buffer = {"bert.embeddings.position_ids": torch.arange(23)[None]}
        safetensors_torch.save_file({**old, **buffer}, file)
    elif form == "no prefix":
        assert "embeddings.word_embeddings.weight" in state
        safetensors_torch.save_file({f"bert.{n}": x for n, x in state.items()}, file)
    elif form == "in parts":
        file.unlink()
        made(name, next(iter(ODD))).save_pretrained(tmp_path / "other", max_shard_size="20KB")
        assert len(list((tmp_path / "other").glob("*.safetensors"))) > 2
    else:
        file.unlink()
        torch.save(state, tmp_path / "other" / "pytorch_model.bin", _use_new_zipfile_serialization=form != "old pickle")
    done("import", "hf", tmp_path / "other", "--to", tmp_path / "again")
    expected, got = arrays(tmp_path / "run"), arrays(tmp_path / "again")
    assert got.keys() == expected.keys() and all(np.array_equal(got[n], x) for n, x in expected.items())


@pytest.mark.parametrize(("dtype", "line"), [
    ("float16", "float16 weights are held as float32: nothing of them is lost"),
    ("bfloat16", "bfloat16 weights are held as float32: nothing of them is lost"),
    ("float64", "float64 weights are cut to float32: by at most "),
])  # fmt: skip
def test_other_floats_are_read_and_what_is_lost_is_said(dtype: str, line: str, tmp_path: Path, capsys):
    model = made("BertForMaskedLM", next(iter(ODD))).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + 1e-9)
    model = model.to(getattr(torch, dtype))
    model.save_pretrained(tmp_path / "theirs")
    vocabulary(tmp_path / "theirs", 0)
    done("import", "hf", tmp_path / "theirs", "--to", tmp_path / "run")
    assert line in capsys.readouterr().err
    params: Any
    _, params, _ = contexture.load(tmp_path / "run")
    expected = model.bert.embeddings.word_embeddings.weight.detach().float().numpy()
    assert np.array_equal(params["backbone"]["embeddings"]["tokens"], expected)
    done("export", tmp_path / "run", "hf", "--to", tmp_path / "back")
    again = transformers.BertForMaskedLM.from_pretrained(tmp_path / "back")
    for (name, x), y in zip(model.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(x.float(), y.float()), name


def test_a_pickle_that_would_run_something_is_not_run(tmp_path: Path, capsys):
    import pickle

    class Harm:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "harm",))

    saved("BertModel", tmp_path / "theirs")
    (tmp_path / "theirs" / "model.safetensors").unlink()
    (tmp_path / "theirs" / "pytorch_model.bin").write_bytes(pickle.dumps({"a": Harm()}))
    capsys.readouterr()
    assert cli.main(["import", "hf", str(tmp_path / "theirs"), "--to", str(tmp_path / "run")]) == 2
    err = capsys.readouterr().err
    assert "pytorch_model.bin: cannot be read as torch's weights" in err and len(err.strip().splitlines()) == 1
    assert not (tmp_path / "harm").exists() and not (tmp_path / "run").exists()
