"""What one training gives to the next: every parameter accounted for, none by chance."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from contexture.models.shapes import by_path
from contexture.train import mesh as meshes
from contexture.train.checkpoints.manager import restore
from contexture.train.checkpoints.transfer import account, begin_from, model_of, redraw_layers
from contexture.train.errors import ConfigError
from contexture.train.settings import run_file
from contexture.train.settings.run import Run
from contexture.train.settings.sections import InitConfig, MeshConfig
from contexture.train.step import create
from tests.helpers.long import long
from tests.helpers.parity_rule import assert_differs
from tests.helpers.random_runs import drawn
from tests.train.run.test_formats import GOLDEN

RUN = Run(init=InitConfig(run="runs/a"))
THERE = {
    "backbone/embeddings/tokens": [10, 4],
    "backbone/layers/ffn/in/kernel": [2, 4, 8],
    "heads_mlm/bias": [10],
    "heads_classify/kernel": [4, 3],
}


def init(**more) -> Run:
    return dataclasses.replace(RUN, init=InitConfig(run="runs/a", **more))


def test_heads_go_and_the_rest_stays():
    here = {**THERE, "heads_tag/kernel": [4, 5]}
    del here["heads_mlm/bias"]
    transferred = account(THERE, here, RUN, same_task=False)
    assert set(transferred.kept) == {"backbone/embeddings/tokens", "backbone/layers/ffn/in/kernel"}
    assert transferred.new == {"heads_classify/kernel": [4, 3], "heads_tag/kernel": [4, 5]}
    assert transferred.dropped == {"heads_mlm/bias": [10], "heads_classify/kernel": [4, 3]} and not transferred.grown
    assert "heads_classify/kernel" in account(THERE, here, RUN, same_task=True).kept
    assert "heads_classify/kernel" in account(THERE, here, init(drop_heads=True), same_task=True).dropped
    assert ("kept", "backbone/… (2 tensors)", "104") in transferred.rows()


def test_a_softmax_of_its_own_goes_along_and_grows():
    existing, here = ({"backbone/embeddings/tokens": [n, 4], "heads_lm/table": [n, 4]} for n in (10, 13))
    assert account(existing, existing, RUN, same_task=False).kept == existing
    transferred = account(existing, here, init(grow=True), same_task=False)
    assert transferred.grown == {path: ([10, 4], [13, 4]) for path in existing}


@pytest.mark.parametrize(
    ("change", "run", "says"),
    [
        ({"backbone/embeddings/tokens": [12, 4]}, RUN, r"\[10, 4\], this model wants \[12, 4\]; allow it with"),
        ({"backbone/embeddings/tokens": [9, 4]}, init(grow=True), r"wants \[9, 4\]; give the same model"),
        ({"backbone/layers/ffn/in/kernel": [3, 4, 8]}, init(grow=True), r"wants \[3, 4, 8\]; give the same model"),
        ({"backbone/embeddings/tokens": None}, RUN, "embeddings/tokens .* for which this model has no place"),
        ({"backbone/pooler/bias": [4]}, RUN, "runs/a lacks backbone/pooler/bias"),
    ],
)  # fmt: skip
def test_a_tensor_that_is_not_accounted_for_is_an_error(change, run, says):
    here = {path: shape for path, shape in {**THERE, **change}.items() if shape}
    with pytest.raises(ConfigError, match=says):
        account(THERE, here, run, same_task=True)


@pytest.fixture(scope="module")
def source(tiny_run: Path) -> Run:
    return dataclasses.replace(run_file.read(tiny_run).run, init=InitConfig(run=str(tiny_run)))


def begin(run: Run, shape: tuple[int, int, int] = (1, 1, 1)):
    """(the parameters begun with by path, the drawn ones, what was told)."""
    mesh = meshes.build(MeshConfig(**dict(zip(("data", "fsdp", "tensor"), shape, strict=True))),
                        jax.devices()[: int(np.prod(shape))])  # fmt: skip
    messages: list[Any] = []
    with jax.set_mesh(mesh):
        _, shapes, shardings = create(model_of(run, ()), run, mesh)
        fresh = jax.device_put(drawn(shapes), shardings)
        state = begin_from(run, (), run.model.vocab, fresh, mesh, lambda title, columns, rows: messages.extend(rows))

        return arrays(state.params), arrays(fresh.params), messages


def arrays(tree: Any) -> dict[str, np.ndarray]:
    return {path: np.asarray(x) for path, x in by_path(tree).items()}


def stored(folder: Path) -> dict[str, np.ndarray]:
    run = run_file.read(folder).run
    mesh = meshes.build(MeshConfig(), jax.devices()[:1])
    with jax.set_mesh(mesh):
        _, shapes, shardings = create(model_of(run, ()), run, mesh)
        expected = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
                              shapes.params, shardings.params)  # fmt: skip
        params, _ = restore(folder / "checkpoints" / "40", expected, mesh, "params")
    return arrays(params)


@pytest.mark.parametrize("shape", [(1, 1, 1), *long(((2, 2, 2),))])
def test_what_is_kept_is_kept_to_the_bit_on_any_mesh(source, tiny_run, shape):
    params, _, messages = begin(source, shape)
    was = stored(tiny_run)
    assert params.keys() == was.keys() and {what for what, _, _ in messages} == {"kept"}
    assert all(np.array_equal(params[path], was[path]) for path in was)


def test_tables_grow_by_drawn_rows(source, tiny_run):
    model = dataclasses.replace(source.model, vocab=160, segments=3)
    run = dataclasses.replace(source, model=model, init=InitConfig(run=str(tiny_run), grow=True, drop_heads=True))
    params, fresh, messages = begin(run)
    was = stored(tiny_run)
    for name, rows in (("tokens", was["backbone/embeddings/tokens"].shape[0]), ("segments", 2)):
        path = f"backbone/embeddings/{name}"
        assert np.array_equal(params[path][:rows], was[path])
        assert np.array_equal(params[path][rows:], fresh[path][rows:])
    assert ("grown", "backbone/embeddings/segments", "2×32 → 3×32") in messages
    assert np.array_equal(params["heads_mlm/bias"], fresh["heads_mlm/bias"]) and was["heads_mlm/bias"].any()


def test_redrawn_layers_are_the_top_ones_and_the_rest_is_kept_to_the_bit(source, tiny_run):
    run = dataclasses.replace(source, init=InitConfig(run=str(tiny_run), redraw_layers=1))
    params, fresh, messages = begin(run)
    was, redrawn = stored(tiny_run), 0
    for path, x in params.items():
        if path.startswith("backbone/layers/"):
            assert np.array_equal(x[0], was[path][0]) and np.array_equal(x[1], fresh[path][1]), path
            redrawn += x[1].size
        else:
            pooler = path.startswith("backbone/pooler/")
            assert np.array_equal(x, (fresh if pooler else was)[path]), path
            redrawn += x.size * pooler
    assert_differs(params["backbone/layers/ffn/in/kernel"][1], was["backbone/layers/ffn/in/kernel"][1], 1e-2)
    assert_differs(params["backbone/pooler/kernel"], was["backbone/pooler/kernel"], 1e-2)
    assert ("redrawn", "top 1 of 2 layers, pooler", f"{redrawn:,}") in messages


@pytest.mark.parametrize(
    ("family", "count"),
    [
        ("bert", 1),
        ("gpt", 2),
        *long(("bert", 2), ("gpt", 1), ("elmo", 1), ("elmo", 2)),
    ],
)
def test_every_family_has_layers_to_redraw(family, count):
    """Of an ELMo both directions; embeddings, norms above the layers and heads stay."""
    run = run_file.read(GOLDEN / family).run
    mesh = meshes.build(MeshConfig(), jax.devices()[:1])
    with jax.set_mesh(mesh):
        old = drawn(create(model_of(run, ()), run, mesh)[1]).params
        fresh = jax.tree.map(lambda x: x + np.float32(1.0), old)
        kept, redrawn = jax.device_put((old, fresh), meshes.replicated(mesh))
        params = arrays(redraw_layers(kept, redrawn, count))
    old, fresh = arrays(old), arrays(fresh)
    layered = [path for path in params if path.startswith("backbone/layers/")]
    assert layered and any("backward" in path for path in layered) == (run.family == "elmo")
    for path, x in params.items():
        if path in layered:
            first = len(x) - count
            assert np.array_equal(x[:first], old[path][:first]) and np.array_equal(x[first:], fresh[path][first:]), path
        else:
            assert np.array_equal(x, (fresh if "pooler" in path else old)[path]), path


def test_from_scratch_nothing_is_taken(source, tiny_run):
    params, fresh, messages = begin(dataclasses.replace(source, init=InitConfig(run=str(tiny_run), random=True)))
    assert all(np.array_equal(params[path], fresh[path]) for path in fresh) and not messages


def test_a_damaged_checkpoint_is_skipped_and_said(source, tiny_run, tmp_path):
    import shutil

    shutil.copytree(tiny_run, tmp_path / "run")
    digest = tmp_path / "run" / "checkpoints" / "40" / "digest" / "metadata"
    digest.write_text(digest.read_text().replace("1", "2", 1))
    params, _, _ = begin(dataclasses.replace(source, init=InitConfig(run=str(tmp_path / "run"))))
    assert_differs(params["heads_mlm/bias"], stored(tiny_run)["heads_mlm/bias"])
    with pytest.raises(ConfigError, match="holds no checkpoint of step 7; those there are of step"):
        begin(dataclasses.replace(source, init=InitConfig(run=str(tiny_run), step=7)))


def test_a_backbone_without_layers_has_none_to_re_initialise():
    params: Any = {"backbone": {"embeddings": {"tokens": np.ones((4, 2), np.float32)}}}
    with pytest.raises(ConfigError, match="init.redraw-layers re-initialises layers, and this backbone has none"):
        redraw_layers(params, params, 1)
