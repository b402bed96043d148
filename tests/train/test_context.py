"""Sequences that are cut over devices (`mesh.context`): the same losses as whole ones, in less memory."""

import dataclasses
import re
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
import pytest

from contexture.data.config import DataConfig
from contexture.models.config import BertConfig, ElmoConfig, GptConfig, VectorsConfig
from contexture.train import mesh as meshes
from contexture.train.checkpoints.transfer import model_of
from contexture.train.errors import ConfigError
from contexture.train.objectives import batch_fields, objective_of
from contexture.train.plan.plan import CompiledPlan, plan
from contexture.train.plan.topology import topology
from contexture.train.programs import step_settings
from contexture.train.run.report import read_metrics
from contexture.train.settings.run import Run
from contexture.train.settings.sections import MeshConfig, OptimConfig
from contexture.train.step import create, train_step
from tests.helpers.commands import devices
from tests.helpers.jobs import finish, free_port, start_job
from tests.helpers.long import long
from tests.helpers.parity_rule import assert_close
from tests.helpers.random_runs import drawn
from tests.train.test_mesh import losses
from tests.train.test_packed_tasks import opened

BATCH, LENGTH, WORDS = 8, 32, 302
SIZES: dict[str, Any] = {"vocab": WORDS, "length": LENGTH, "layers": 2, "hidden": 32, "heads": 2, "ffn": 64}
GPT = DataConfig(batch=BATCH, length=LENGTH, vocabulary="byte-bpe")
OPTIM = OptimConfig(peak_lr=1e-3, warmup=2)
RUNS = {
    "gpt": Run(model=GptConfig(**SIZES, unroll=1, remat="full"), data=GPT, optim=OPTIM, steps=4),
    "banded": Run(model=GptConfig(**SIZES, local_window=8), data=GPT, optim=OPTIM, steps=4),
    "packed": Run(
        model=GptConfig(**SIZES, local_window=8), data=dataclasses.replace(GPT, packed=True), optim=OPTIM, steps=4
    ),
    "bert": Run(
        model=BertConfig(**SIZES), data=DataConfig(batch=BATCH, length=LENGTH, max_predictions=8), optim=OPTIM, steps=4
    ),
}


def made_up(run: Run, number: int) -> dict[str, np.ndarray]:
    """A batch: words at random, two documents a row, a third of the sequences padded."""
    rng, sizes = np.random.default_rng(number), {"B": BATCH, "L": run.data.length, "P": run.data.slots}
    first = run.data.length // 3
    documents = [1] * first + [2] * (run.data.length - first)
    rows = {"packs": documents, "positions": [*range(first), *range(run.data.length - first)]}
    batch = {}
    for name, field in batch_fields(run).items():
        kind, _, dims = field.partition(" ")
        most = {"slots": run.data.length, "tokens": WORDS, "next": WORDS, "labels": WORDS}.get(name, 2)
        x = rng.integers(0, most, [sizes[letter] for letter in dims])
        if name in ("mask", "valid"):
            x[...] = 1
        if name == "mask" and "packs" not in batch_fields(run):
            x[::3, -first:] = 0
        x = np.broadcast_to(rows[name], x.shape) if name in rows else x
        batch[name] = x.astype({"i32": np.int32, "f32": np.float32}[kind])
    return batch


def stepped(run: Run, config: MeshConfig, count: int, accumulate: int = 1) -> tuple[np.ndarray, Any, str]:
    """(losses of four steps under dropout, the last state, the compiled step) on so many devices."""
    run, found, text = dataclasses.replace(run, optim=dataclasses.replace(run.optim, accumulate=accumulate)), [], ""
    with devices(count):
        mesh = meshes.build(config)
        with meshes.use(mesh, "float32"):
            model = model_of(run, ())
            _, shapes, shardings = create(model, run, mesh)
            step, state = train_step(model, objective_of(run), run, mesh), jax.device_put(drawn(shapes), shardings)
            for number in range(4):
                batch = meshes.shard_batch(mesh, made_up(run, number), batch_fields(run), BATCH)
                if not number:
                    text = str(step.jitted.lower(state, batch, step_settings(run)).compile().as_text())
                state, metrics = step(state, batch, step_settings(run))
                found.append(float(metrics["loss"]))
    return np.array(found), state, text


def gathered(text: str) -> list[tuple[int, ...]]:
    """The shapes that a program gathers."""
    shapes = re.findall(r"= \w+\[([\d,]*)\]\S* all-gather", text)
    return [tuple(int(size) for size in shape.split(",") if size) for shape in shapes]


@pytest.mark.parametrize(
    ("name", "axes", "accumulate"),
    [
        ("packed", {"context": 2, "fsdp": 2, "tensor": 2}, 1),
        *long(
            ("banded", {"context": 4, "tensor": 2}, 1),
            ("bert", {"context": 4, "data": 2}, 1),
            ("gpt", {"context": 2, "fsdp": 2, "data": 2}, 2),
            ("gpt", {"context": 8}, 1),
            ("bert", {"context": 2, "fsdp": 2, "tensor": 2}, 2),
        ),
    ],
)
def test_cut_sequences_have_the_losses_of_whole_ones(name: str, axes: dict[str, Any], accumulate: int):
    """Under dropout; and each device keeps logits of its own tokens alone, and gathers keys and values of all."""
    expected, one, _ = stepped(RUNS[name], MeshConfig(), 1)
    got, state, text = stepped(RUNS[name], MeshConfig(**axes), 8, accumulate)
    assert_close(got, expected, rtol=1e-5)
    assert_close(
        state.params["backbone"]["embeddings"]["tokens"],
        one.params["backbone"]["embeddings"]["tokens"],
        rtol=1e-4,
        atol=1e-5,
    )
    rows = BATCH // accumulate // (8 // axes["context"] // axes.get("tensor", 1))
    heads = 2 // axes.get("tensor", 1)
    assert (rows, LENGTH, heads, 16) in gathered(text)
    assert not any(len(shape) > 2 and max(shape) > LENGTH for shape in gathered(text)), "logits are gathered"


@pytest.mark.parametrize(
    ("name", "remat"), [("gpt", "auto"), *long(("gpt", "full"), ("gpt", "dots"), ("bert", "dots"))]
)
def test_the_memory_of_a_step_falls_with_the_parts_of_its_sequences(name: str, remat: str):
    run, found = RUNS[name], []
    model = dataclasses.replace(run.model, length=512, attention="pallas", unroll=1, remat=remat)
    long_run = dataclasses.replace(run, model=model, data=dataclasses.replace(run.data, length=512, batch=2))
    for parts in (1, 4):
        made = plan(dataclasses.replace(long_run, mesh=MeshConfig(context=parts)), topology(f"cpu:{parts}"))
        memory = made["bytes_per_device"]
        found.append(memory["total"] - memory["parameters"] - memory["optimizer"] - memory["batch"])
        if parts == 4:
            assert made["mesh"] == {"data": 1, "fsdp": 1, "context": 4, "tensor": 1}
            assert "all-gather" in cast(CompiledPlan, made)["collectives"]
    assert found[1] < found[0] / 2


@pytest.mark.parametrize(
    ("case", "family"),
    [
        ("tag", "gpt2"),
        *long(
            ("classify", "bert"), ("pairs", "gpt"), ("both orders", "gpt2"), ("regress", "bert"), ("choice", "gpt"),
            ("span", "bert"), ("span", "gpt"), ("choice", "bert"), ("classify on a mix", "bert"),
            ("tag by an LSTM on a mix", "gpt"),
        ),
    ],
)  # fmt: skip
def test_a_task_has_the_losses_of_whole_sequences(case: str, family: str, tmp_path: Path):
    """Under dropout; texts share rows."""
    found = []
    for number, (config, count) in enumerate([(MeshConfig(), 1), (MeshConfig(context=2, fsdp=2), 4)]):
        (tmp_path / str(number)).mkdir()
        with devices(count):
            mesh = meshes.build(config)
            run, model, objective, batches = opened(case, family, tmp_path / str(number), 1, meshes.batch_devices(mesh))
            with meshes.use(mesh, "float32"):
                _, shapes, shardings = create(model, run, mesh)
                state = jax.device_put(drawn(shapes), shardings)
                step = train_step(model, objective, run, mesh, batches.fields)
                for batch in map(batches.read, range(2)):
                    placed = meshes.shard_batch(mesh, batch, batches.fields, run.data.batch)
                    state, metrics = step(state, placed, step_settings(run))
                    found.append(float(metrics["loss"]))
    assert_close(found[2:], found[:2], rtol=2e-5)


def test_what_cannot_be_cut_is_refused_in_one_line():
    for model in (ElmoConfig(), VectorsConfig()):
        with pytest.raises(ConfigError, match=f"context=2 cuts sequences for attention, and {model.family} has none"):
            meshes.check_context(MeshConfig(context=2), model, 32)
    with pytest.raises(
        ConfigError, match=r"data.length=30 is not a multiple of mesh.context=4; give --data.length 28 or 32"
    ):
        meshes.check_context(MeshConfig(context=4), BertConfig(), 30)
    with pytest.raises(ValueError, match="mesh.context=0 is not at least 1"):
        MeshConfig(context=0)
    with pytest.raises(ConfigError, match="data × fsdp × context × tensor = 1 × 1 × 3 × 1 = 3 does not fit 8 devices"):
        meshes.build(MeshConfig(context=3, data=1))


def test_parts_of_a_sequence_are_neighbours_within_a_group():
    mesh = meshes.build(MeshConfig(context=2, tensor=2, dcn_data=2))
    assert meshes.describe(mesh).endswith("as data 2 × fsdp 1 × context 2 × tensor 2")
    assert mesh.devices.reshape(2, 4).tolist() == [jax.devices()[:4], jax.devices()[4:]]
    batch = {"tokens": np.arange(8 * 4, dtype=np.int32).reshape(8, 4)}
    placed = meshes.shard_batch(mesh, batch, {"tokens": "i32 BL"}, 8)["tokens"]
    assert {shard.data.shape for shard in placed.addressable_shards} == {(4, 2)}
    assert np.array_equal(placed, batch["tokens"])


@pytest.mark.long
@pytest.mark.parametrize("family", ["tiny", "gpt"])
def test_two_processes_cut_sequences_and_one_goes_on_with_whole_ones(door, family, tmp_path, request):
    """Eight parts of each sequence, four in each process, stopped half-way."""
    words = [*request.getfixturevalue(f"{family}_words"), "--save.every", "10", "--optim.decay-steps", "20"]
    assert door(*words, "--steps", "20", "--dir", tmp_path / "whole").returncode == 0
    folder = tmp_path / "cut"
    cut = [*words, "--steps", "10", "--mesh.context", "8"]
    done = finish(start_job(door, cut, [folder, folder], free_port()))
    assert [code for code, _ in done] == [0, 0], done
    assert "as data 1 × fsdp 1 × context 8 × tensor 1, 2 processes" in done[0][1]
    again = door(*words, "--steps", "20", "--dir", folder)
    assert again.returncode == 0 and "resuming from step 10" in again.stderr, again.stderr
    assert_close(losses(folder), losses(tmp_path / "whole"), rtol=1e-5)

    def held_out(folder: Path) -> list[float]:
        return [r["loss"] for r in read_metrics(folder / "metrics.jsonl") if r["split"] == "dev"]

    assert_close(held_out(folder)[-1], held_out(tmp_path / "whole")[-1], rtol=1e-5)
