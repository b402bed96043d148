"""Export of runs as StableHLO programs (`jax.export`), which run without this library, on CPUs, GPUs and TPUs."""

import dataclasses
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from contexture.data.layouts import text_batch
from contexture.data.tokenizers.base import Tokenizer
from contexture.models.config import WORD_CHARS, ModelConfig, TransformerConfig
from contexture.models.model import Model, Outputs
from contexture.models.shapes import by_path, nested
from contexture.train.checkpoints.transfer import model_of
from contexture.train.families import FAMILIES
from contexture.train.mesh import numerics
from contexture.train.objectives import batch_fields, objective_of
from contexture.train.settings.run import Run
from contexture.train.settings.run_file import RunRecord

PROGRAM, WEIGHTS, EXAMPLE, DESCRIPTION = "model.stablehlo", "weights.npz", "example.npz", "model.json"
PLATFORMS = ("cpu", "cuda", "tpu")
Arrays: TypeAlias = Mapping[str, jax.Array]
_EXAMPLE = ("A text.", "Another text, which is longer.")


def stablehlo_files(
    record: RunRecord, params: object, tokenizer: Tokenizer
) -> tuple[dict[str, bytes], dict[str, np.ndarray]]:
    """Returns (the files of the folder by name, the weights by their paths).

    model.stablehlo   the program: (weights, inputs) → outputs, dicts of arrays; batches and lengths are free
    weights.npz       the weights, by their paths
    model.json        inputs and outputs with their dims, labels
    example.npz       inputs and outputs, to check an installation
    tokenizer/        the files of the tokenizer
    """
    run, weights = record.run, {path: np.asarray(x) for path, x in by_path(params).items()}
    run = _as_program(run)
    model, fields = model_of(run, record.labels), _inputs(run)
    compute = _compute(run, model, _vocabulary(run, tokenizer))
    shapes = {path: jax.ShapeDtypeStruct(x.shape, x.dtype) for path, x in weights.items()}
    with numerics(run.model.dtype):
        # Dims are symbolic: one program serves every size of batch and length up to the model's.
        exported = jax.export.export(jax.jit(compute), platforms=PLATFORMS)(shapes, _symbolic(run, fields))
        example = _example(run, fields, tokenizer)
        outputs = {name: np.asarray(x) for name, x in jax.jit(compute)(weights, example).items()}
    letters = dict(zip(outputs, _output_dims(run, outputs), strict=True))
    description = {
        "family": run.family,
        "objective": run.objective,
        "inputs": fields,
        "outputs": letters,
        "labels": list(record.labels),
        "length": _limit(run),
    }
    files = {
        PROGRAM: bytes(exported.serialize()),
        DESCRIPTION: (json.dumps(description, indent=2, ensure_ascii=False) + "\n").encode(),
        EXAMPLE: _npz({f"inputs/{n}": x for n, x in example.items()} | {f"outputs/{n}": x for n, x in outputs.items()}),
        **{f"tokenizer/{name}": content for name, content in tokenizer.files().items()},
    }
    return files, weights


def write_stablehlo_weights(folder: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes weights.npz."""
    np.savez(folder / WEIGHTS, allow_pickle=False, **tensors)


def _as_program(run: Run) -> Run:
    """Returns the run as any platform computes it: without kernels of one kind of device, layers in a loop."""
    if not isinstance(run.model, TransformerConfig):
        return run
    # Kernels of one kind of device do not run on others, and unrolled layers make a large program.
    model = dataclasses.replace(run.model, attention="reference", unroll=1, remat="none")
    return dataclasses.replace(run, model=model)


def _inputs(run: Run) -> dict[str, str]:
    """Returns the inputs of the program: {"tokens": "i32 BL", …}."""
    # A program takes each sequence in a row of its own.
    several = run.task.kind != "off" and "A" in batch_fields(run)["mask"]
    inputs = {name: spec.replace("BL", "BAL" if several else "BL") for name, spec in run.text.sequences.items()}
    # Questions may have different numbers of alternatives; a further input array marks which are there.
    inputs |= {"choices": batch_fields(run)["choices"]} if run.task.kind == "choice" else {}
    return {**inputs, "slots": "i32 BP"} if "mlm" in objective_of(run).heads else inputs


def _limit(run: Run) -> int | None:
    """Returns the longest sequence that the program takes; None: any."""
    return None if run.text.reads_words else run.model.length


def _symbolic(run: Run, fields: Mapping[str, str]) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns inputs whose dims are letters. L has the model's length as its limit; W and A are known."""
    limit = _limit(run)
    # A CRF scores pairs of neighbours.
    limits = [f"L <= {limit}"] if limit else ["L >= 2"] if run.head.crf else []
    scope = jax.export.SymbolicScope(limits)
    known = {"W": str(WORD_CHARS), "A": "2"} if run.task.kind != "choice" else {"W": str(WORD_CHARS)}

    def shape(kind: str) -> jax.ShapeDtypeStruct:
        letters = kind.partition(" ")[2]
        dims = jax.export.symbolic_shape(", ".join(known.get(letter, letter) for letter in letters), scope=scope)
        return jax.ShapeDtypeStruct(dims, jnp.float32 if kind.startswith("f32") else jnp.int32)

    return {name: shape(kind) for name, kind in fields.items()}


def _vocabulary(run: Run, tokenizer: Tokenizer) -> int:
    """Returns how many rows of the softmax are tokens."""
    return min(tokenizer.size, run.model.vocab)


def _compute(run: Run, model: Model, tokens: int) -> Callable[[Arrays, Arrays], dict[str, jax.Array]]:
    """Returns the function that becomes the program.

    A fine-tuned run answers as `contexture predict` does. A pretrained run gives `hidden`, the last layer; an ELMo also
    all layers as `states`, since its tasks mix them; a BERT also the masked-LM `logits` at `slots`; a GPT also the
    next-token `logits` at every position.
    """
    objective, config, mixed = objective_of(run), run.model, FAMILIES[run.family].mix == "all"

    def compute(weights: Arrays, inputs: Arrays) -> dict[str, jax.Array]:
        variables = {"params": nested(weights)}
        inputs = dict(inputs)
        if run.task.kind != "off":
            if run.objective == "tag":  # a CRF reads tags with the text; -1: none
                inputs["tags"] = jnp.full_like(inputs["mask"], -1)
            outputs = model.apply(variables, inputs, only=tuple(h for h in objective.heads if h != "lm"))
            assert isinstance(outputs, Outputs)
            # The logits of all tokens: choosing among them depends on options that a program cannot take.
            span = outputs.heads.get("span")
            answers = objective.predictions(outputs) if span is None else {"logits": span}
            return {name: x for name, x in answers.items() if name != "may_hit"}
        heads = ("mlm",) if "mlm" in model.heads else ()
        outputs = model.apply(variables, inputs, only=heads, states=mixed)
        assert isinstance(outputs, Outputs)
        result = {"hidden": outputs.encoding.hidden_BLD.astype(jnp.float32)}
        if mixed:
            result["states"] = jnp.stack(outputs.encoding.states).astype(jnp.float32)
        if heads:
            result["logits"] = outputs.heads["mlm"][:, :, :tokens]
        elif config.is_causal and (table := _table(config, weights)) is not None:
            hidden_BLD, table_VD = outputs.encoding.hidden_BLD, table[:tokens].astype(jnp.dtype(config.dtype))
            result["logits"] = jnp.einsum("BLD,VD->BLV", hidden_BLD, table_VD, preferred_element_type=jnp.float32)
        return result

    return compute


def _table(config: ModelConfig, weights: Arrays) -> jax.Array | None:
    return weights.get("backbone/embeddings/tokens" if config.tied else "heads_lm/table")


def _output_dims(run: Run, outputs: Mapping[str, np.ndarray]) -> list[str]:
    """Returns the dims of each output in letters, as models/README.md has them; N counts layers, the words' first."""
    last = {"classify": "BC", "choice": "BA", "regress": "B", "span": "BLC", "tag": "BL"}
    pretrained = {"hidden": "BLD", "states": "NBLD", "logits": "BLV" if run.text.is_causal else "BPV"}
    names = {np.dtype("float32"): "f32", np.dtype("int32"): "i32"}
    dims = pretrained if run.task.kind == "off" else dict.fromkeys(outputs, last[run.objective])
    return [f"{names[x.dtype]} {dims[name]}" for name, x in outputs.items()]


def _example(run: Run, fields: Mapping[str, str], tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    """Returns inputs of two texts; if an example has several sequences, both texts belong to one example."""
    if run.task.kind != "off":
        tokenizer = run.text.with_task_tokens(tokenizer)
    limit = _limit(run)
    try:
        batch = text_batch(tokenizer, _EXAMPLE, limit)
    except ValueError:  # a vocabulary that cannot spell them
        batch = text_batch(tokenizer, ("", ""), limit)
    batch: dict[str, np.ndarray] = {name: np.asarray(x, np.int32) for name, x in batch.items() if name in fields}
    batch = {name: x[None] if "A" in fields[name] else x for name, x in batch.items()}
    if "choices" in fields:
        batch["choices"] = np.ones((1, len(_EXAMPLE)), np.float32)
    # One slot a row, at position 0.
    if "slots" in fields:
        batch["slots"] = np.zeros((2, 1), np.int32)
    return batch


def _npz(arrays: Mapping[str, np.ndarray]) -> bytes:
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **arrays)
    return content.getvalue()
