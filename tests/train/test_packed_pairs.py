"""BERT's pretraining in shared rows: losses and gradients are the ones of sequences with a row each."""

import dataclasses
from pathlib import Path

import pytest

from contexture.data.batches import check_fields
from contexture.data.packing import apart
from contexture.data.pretraining.shards import Shards
from contexture.models.config import BertConfig
from contexture.train import mesh as meshes
from contexture.train.checkpoints.transfer import model_of
from contexture.train.evaluation.held_out import open_held_out
from contexture.train.objectives import batch_fields, objective_of
from contexture.train.programs import step_settings
from contexture.train.settings.run import Run
from contexture.train.settings.sections import MeshConfig, OptimConfig
from contexture.train.setup import open_batches
from contexture.train.step import computed as evaluated
from contexture.train.step import create, evaluation_step, train_step
from tests.data.pretraining.test_packed_pairs import BATCH, LENGTH, config, prepared
from tests.helpers.commands import devices
from tests.helpers.long import long
from tests.helpers.parity_rule import assert_close
from tests.helpers.random_runs import random_parameters
from tests.train.test_packed_tasks import SIZES, arrays, assert_same, computed

MODEL = BertConfig(**{**SIZES, "vocab": 95, "length": LENGTH}, attention_dropout=0.2)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return prepared(tmp_path_factory.mktemp("pairs"))


def run_of(shards: Shards, packed: bool, parts: int = 1) -> Run:
    optim = OptimConfig(accumulate=parts, warmup=1, peak_lr=1e-2)
    return Run(model=MODEL, data=config(Path(shards.folder).parent, packed=packed), optim=optim, steps=6, seed=3)


def test_spans_and_their_boundaries_are_the_same_in_shared_rows(shards: Shards):
    run = run_of(shards, True)
    run = dataclasses.replace(run, data=dataclasses.replace(run.data, masking="spans", span_boundary=True))
    model, objective = model_of(run, ()), objective_of(run)
    assert model.heads.keys() == {"mlm", "nsp", "boundary"}
    packed = open_batches(run, shards, shards.tokenizer).read(2)
    check_fields(packed, batch_fields(run))
    params = random_parameters(model, arrays(packed), deviation=0.3)
    expected = computed(model, objective, params, arrays(apart(packed)), None)
    assert_same(expected, computed(model, objective, params, arrays(packed), None))


@pytest.mark.parametrize("seed", [None, 4])
def test_a_step_of_packed_pairs_is_one_of_pairs_alone(shards: Shards, seed: int | None):
    """With a seed, under dropout."""
    run = run_of(shards, True)
    model, objective = model_of(run, ()), objective_of(run)
    packed = open_batches(run, shards, shards.tokenizer).read(2)
    alone = apart(packed)
    assert packed["tokens"].size < alone["tokens"].size
    params = random_parameters(model, arrays(packed), deviation=0.3)
    expected = computed(model, objective, params, arrays(alone), seed)
    assert_same(expected, computed(model, objective, params, arrays(packed), seed))


def metrics_of(
    shards: Shards, packed: bool, parts: int = 1, count: int = 1, config: MeshConfig | None = None
) -> list[list[float]]:
    """The metrics of three steps, with dropout, in so many microbatches on so many devices."""
    run, found = run_of(shards, packed, parts), []
    with devices(count):
        mesh = meshes.build(config or MeshConfig())
        shared = meshes.batch_devices(mesh)
        batches = open_batches(run, shards, shards.tokenizer, devices=shared)
        with meshes.use(mesh, "float32"):
            model, objective = model_of(run, ()), objective_of(run)
            state, settings = create(model, run, mesh)[0](7), step_settings(run)
            step = train_step(model, objective, run, mesh, batches.fields)
            for number in range(3):
                batch = meshes.shard_batch(mesh, batches.read(number), batches.fields, BATCH)
                assert batch["tokens"].shape[0] % (parts * shared) == 0
                state, metrics = step(state, batch, settings)
                found.append([float(metrics[name]) for name in sorted(metrics)])
    return found


@pytest.fixture(scope="module")
def expected(shards: Shards) -> list[list[float]]:
    return metrics_of(shards, False)


@pytest.mark.parametrize(
    ("parts", "count", "fsdp", "tensor"),
    [(2, 8, 2, 2), *long((1, 1, 1, 1), (2, 1, 1, 1), (1, 8, 1, 1), (2, 8, 1, 1), (1, 8, 4, 1))],
)
def test_packing_changes_no_step_in_any_division(shards, expected, parts: int, count: int, fsdp: int, tensor: int):
    actual = metrics_of(shards, True, parts, count, MeshConfig(fsdp=fsdp, tensor=tensor))
    for got, wanted in zip(actual, expected, strict=True):
        assert_close(got, wanted, rtol=2e-5)


@pytest.mark.parametrize("count", [1, 8])
def test_held_out_pairs_have_the_same_losses_in_shared_rows(shards: Shards, count: int):
    totals = []
    for packed in (False, True):
        run = run_of(shards, packed)
        model, objective = model_of(run, ()), objective_of(run)
        with devices(count):
            mesh = meshes.build(MeshConfig())
            held_out = open_held_out(run, shards, shards.tokenizer, 40, devices=count)
            assert held_out is not None and held_out.fields == batch_fields(run) and held_out.count % 40
            with meshes.use(mesh, "float32"):
                params = random_parameters(model, arrays(held_out.read(0)), deviation=0.3)
                step = evaluation_step(model, objective, mesh)
                sums = [each for _, each, _ in evaluated(step, params, held_out, mesh)]
        names = sorted(sums[0])
        totals.append([[float(x) for n in names for x in (s[n].total, s[n].weight)] for s in sums])
    assert_close(totals[1], totals[0], rtol=2e-5)
