"""Models whose products have 8-bit factors train, on any mesh, and write."""

import dataclasses
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contexture.data.batches import Batches
from contexture.models.config import GptConfig, Quantization
from contexture.models.decode import extend, init_state, unstack_params
from contexture.models.encoding import Encoding
from contexture.models.gpt import Gpt
from contexture.models.shapes import Params
from contexture.train.settings.run import Run
from tests.helpers.commands import run_command
from tests.helpers.long import long
from tests.helpers.parity_rule import assert_close, assert_differs
from tests.train.test_mesh import BERT, GPT, batches_of, losses_on, on_text

NEAR = {"int8": 0.005, "fp8": 0.02}
"""How far a loss may be from that of whole factors."""


def quantized(run: Run, kind: Quantization) -> Run:
    return dataclasses.replace(run, model=dataclasses.replace(run.model, quantization=kind))


@pytest.fixture(scope="module")
def text(
    text_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Run, Batches, np.ndarray]]:
    """family → a run, its batches, and its losses with whole factors."""

    @cache
    def made(family: str) -> tuple[Run, Batches, np.ndarray]:
        run = on_text({"bert": BERT, "gpt": GPT}[family], text_folder)
        batches = batches_of(run, tmp_path_factory.mktemp("quantized") / family)
        return run, batches, losses_on(run, batches, (1, 1, 1), 1)[0]

    return made


@pytest.mark.parametrize(("family", "kind"), long(("bert", "int8"), ("gpt", "fp8")))
def test_losses_are_near_those_of_whole_factors_on_any_mesh(text, family, kind):
    run, batches, whole = text(family)
    losses = losses_on(quantized(run, kind), batches, (1, 1, 1), 1)[0]
    assert losses[-1] < losses[0]
    assert_close(losses, whole, rtol=NEAR[kind])
    assert_differs(losses, whole, 1e-6)
    # Where devices sum in another order a number may round to the next of 8 bits.
    on_mesh = losses_on(quantized(run, kind), batches, (2, 2, 2), 2)[0]
    assert_close(on_mesh, losses, rtol=NEAR[kind] / 5)


@pytest.mark.parametrize("kind", long("int8", "fp8"))
def test_a_model_writes_what_it_computes_of_the_whole_text(kind):
    """Decoding multiplies each token by kernels of queries, keys and values apart; the model does so at once."""
    config = GptConfig(vocab=50, length=16, layers=2, hidden=16, heads=2, ffn=32, quantization=kind)
    batch = {"tokens": jnp.asarray(np.random.default_rng(0).integers(0, 50, (2, 12))), "mask": jnp.ones((2, 12), int)}
    params = jax.jit(Gpt(config).init)(jax.random.key(0), batch)["params"]
    expected = _states(config, params, batch)
    decoded = unstack_params({"backbone": params}, config, 50)
    state, parts = init_state(config, 2, 12), []
    for start, end in ((0, 7), (7, 8), (8, 12)):
        x, state = jax.jit(extend, static_argnums=0)(
            config, decoded, state, batch["tokens"][:, start:end], batch["mask"][:, start:end]
        )
        parts.append(x)
    assert_close(jnp.concatenate(parts, 1), expected, atol=1e-4)
    assert_differs(expected, _states(dataclasses.replace(config, quantization="none"), params, batch), 1e-3)


def _states(config: GptConfig, params: Params, batch: dict[str, jax.Array]) -> jax.Array:
    return cast(Encoding, jax.jit(Gpt(config).apply)({"params": params}, batch)).hidden_BLD


def test_another_number_of_bits_is_one_clear_line(capsys, text_folder: Path, tmp_path: Path):
    words = ["pretrain", "bert.tiny", "--data.path", text_folder, "--dir", tmp_path / "run", "--model.quantization"]
    code, err = run_command(capsys, *words, "int4")
    assert code == 2 and "quantization" in err and "int8" in err and not (tmp_path / "run").exists()
