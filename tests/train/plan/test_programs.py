"""What no compiled step holds: an array of all attention's weights, a vocabulary's table that a loop moves again and
again, an array that the partitioner cannot cut anew."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from contexture import configs
from contexture.models.heads import chunked_softmax
from contexture.train import mesh as meshes
from contexture.train.plan.chips import CHIPS
from contexture.train.plan.hlo import Program, parse
from contexture.train.plan.topology import topology
from contexture.train.settings.sections import MeshConfig
from tests.conftest import ROOT
from tests.helpers.compile.recipe import findings, squares, tables_in_loops
from tests.models.layers.test_attention_compiled import COMPILERS, installed

# Few layers and sequences, at the length of the whole recipe. No other size of a model or a batch is its length: an
# array of all weights would not be known from others.
SMALL = {
    "v5e:2x2": "bert.large --data.length 512 --data.batch 8 --mesh.fsdp 4 --model.layers 2 --model.hidden 256 "
    "--model.heads 4 --model.ffn 1024 --model.vocab 3000",
    "h200:1x2": "gpt.gpt2_124m --data.batch 4 --mesh.fsdp 2 --model.layers 2",
}
WHOLE = [
    "bert.large --topology v5e:4x4 --data.length 512",
    "bert.large --topology v5e:4x4 --data.length 512 --mesh.fsdp 16 --data.batch 480",
    "gpt.gpt2_124m --topology h200:1x1 --data.batch 32",
    "gpt.gpt2_1558m --topology v5e:8x8 --mesh.fsdp 8",
    "gpt.gpt2_1558m --topology h200:1x8 --mesh.fsdp 8 --data.batch 64",
    "gpt.gpt3_6_7b --topology v5p:4x4x4 --mesh.fsdp 16 --mesh.tensor 4 --optim.accumulate 2 --model.remat dots",
    "elmo.original --topology v5e:4x4",
]


def compiled(words: str) -> dict[str, Any]:
    platform = CHIPS[words.partition("--topology ")[2].partition(":")[0]].platform
    if not installed(COMPILERS[platform]):
        pytest.skip(f"needs the compiler for a {platform}: pip install '.[plan-{platform}]'")
    command = [sys.executable, "-m", "tests.helpers.compile.recipe", *words.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", SMALL)
def test_a_step_of_few_layers_holds_none_of_these(name):
    made = compiled(f"{SMALL[name]} --topology {name}")
    assert made["loops"] > 1
    assert (made["squares"], made["tables_in_loops"], made["warnings"]) == ([], [], []), made


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("words", WHOLE)
def test_a_whole_recipes_step_holds_none_of_these(words):
    made = compiled(words)
    assert made["fits"] and made["loops"] > 1
    assert (made["squares"], made["tables_in_loops"], made["warnings"]) == ([], [], []), made


@pytest.mark.long
@pytest.mark.parametrize("name", SMALL)
def test_the_references_arrays_of_all_weights_are_seen(name):
    made = compiled(f"{SMALL[name]} --topology {name} --model.attention reference --model.unroll 1")
    assert made["squares"] and not made["tables_in_loops"]


@pytest.mark.long
@pytest.mark.usefixtures("own_programs")
@pytest.mark.parametrize("shape", [(1, 8, 1), (2, 2, 2)])
def test_no_chunk_of_positions_moves_the_table(monkeypatch, shape):
    """On CPUs, whose reference attention does hold arrays of all weights."""
    assert len(jax.devices()) == 8
    monkeypatch.setattr(chunked_softmax, "MAX_LOGITS", 4000)
    run, (data, fsdp, tensor) = configs.recipe("gpt.tiny"), shape
    run = dataclasses.replace(
        run, model=dataclasses.replace(run.model, layers=2, hidden=32, heads=2, ffn=64, vocab=1000, unroll=1),
        data=dataclasses.replace(run.data, batch=16, length=48), mesh=MeshConfig(data=data, fsdp=fsdp, tensor=tensor),
    )  # fmt: skip
    made = findings(run, topology("cpu:8"))
    assert made["loops"] > 2  # over the layers, forward and backward, and over the chunks
    assert (made["tables_in_loops"], made["warnings"]) == ([], []) and "f32[48,48]" in made["squares"]


def test_a_table_that_each_turn_gathers_or_reads_is_seen():
    """A gather over devices, and one of rows, of a table that changes from turn to turn."""
    mesh = meshes.build(MeshConfig(fsdp=8), jax.devices()[:8])

    def gathers(table_VD, x_TD):
        def turn(table_VD, x_D):
            whole_VD = jax.lax.all_gather(table_VD, "fsdp", axis=1, tiled=True)
            return table_VD + (whole_VD @ x_D).sum(), None

        return jax.lax.scan(turn, table_VD, x_TD)[0]

    def reads(table_VD, ids_TX):
        return jax.lax.scan(lambda table, i: (table + table[i].sum(), None), table_VD, ids_TX)[0]

    cut = PartitionSpec(None, "fsdp")
    gathers = jax.shard_map(gathers, mesh=mesh, in_specs=(cut, PartitionSpec()), out_specs=cut)
    gathering = program_of(gathers, jnp.ones((64, 16)), jnp.ones((5, 16)))
    assert "all-gather f32[64,16]" in tables_in_loops(gathering, {(64, 16)})
    assert not tables_in_loops(gathering, {(64, 17)}) and not tables_in_loops(gathering, {(64, 16)}, in_outer_loop=True)
    reading = program_of(reads, jnp.ones((64, 16)), jnp.ones((5, 3), int))
    assert "gather f32[64,16]" in tables_in_loops(reading, {(64, 16)})
    square = program_of(jnp.outer, jnp.ones(48), jnp.ones(48))
    assert squares(square, 48) == ["f32[48,48]"] and squares(square, 47) == []


def program_of(function: Callable[..., Any], *arguments: jax.Array) -> Program:
    return parse(str(jax.jit(function).lower(*arguments).compile().as_text()))
