"""The alphabet at work: sizes by letter, parameters by path, and how arrays are cut over a mesh."""

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from contexture.configs import recipes
from contexture.data.families.registry import TEXT_FAMILIES
from contexture.data.pretraining.sequence_batches import BOUNDARIES
from contexture.models.config import BertConfig, ElmoConfig, GptConfig, HeadConfig, VectorsConfig
from contexture.models.families import build, example, family_of
from contexture.models.shapes import LETTERS, PARAMETER_DIMS, by_path, check, count, dims_of, path_of
from contexture.models.sharding import CONTEXT_AXES, MESH_AXES, RULES, constrain, partition_spec
from contexture.train.objectives import OBJECTIVES, batch_fields, batch_sizes
from tests.helpers.long import long

FIELDS = {"tokens": "i32 BL", "segments": "i32 BL", "mask": "i32 BL", "slots": "i32 BP", "next": "i32 BL",
          "next_weights": "f32 BL"}  # fmt: skip


def _shapes(config, heads=("mlm", "nsp")):
    model = build(config, heads)
    return jax.eval_shape(lambda: model.init(jax.random.key(0), example(FIELDS, {"B": 1, "L": 8, "P": 2}))["params"])


@functools.cache
def _parameters(name: str) -> dict[str, tuple[int, ...]]:
    """{path: shape} of a recipe, with the heads of its objective."""
    return {path: x.shape for path, x in _made(recipes()[name]())["params"].items()}


def _made(run):
    """What a recipe's model is begun with, by collection and path."""
    model, line = build(run.model, OBJECTIVES[run.objective].heads), example(batch_fields(run), batch_sizes(run, 1))
    made = jax.eval_shape(lambda: model.init(jax.random.key(0), line))
    return {collection: by_path(tree) for collection, tree in made.items()}


# Millions as published, with the pooler; in brackets with both heads.
PUBLISHED = {
    "bert.tiny": (4.39, None),
    "bert.mini": (11.17, None),
    "bert.small": (28.76, None),
    "bert.medium": (41.37, None),
    "bert.base": (109.48, 110.11),
    "bert.base_phase2": (109.48, 110.11),
    "bert.base_cased": (108.31, None),
    "bert.base_cased_phase2": (108.31, None),
    "bert.large": (335.14, 336.23),
    "bert.large_phase2": (335.14, 336.23),
    "bert.large_cased": (333.58, None),
    "bert.large_cased_phase2": (333.58, None),
    "bert.large_lamb": (335.14, 336.23),
    "bert.base_chinese": (102.27, None),
    "bert.base_chinese_wwm": (102.27, None),
    "ernie.base": (99.87, None),
    "bert.multilingual": (177.85, None),
}
PUBLISHED_GPT = {
    "gpt.gpt1": 116.53,
    "gpt.gpt2_124m": 124.44,
    "gpt.gpt2_355m": 354.82,
    "gpt.gpt2_774m": 774.03,
    "gpt.gpt2_1558m": 1557.61,
    "gpt.gpt3_125m": 125.23,
    "gpt.gpt3_350m": 355.87,
    "gpt.gpt3_760m": 760.30,
    "gpt.gpt3_1_3b": 1315.7,
    "gpt.gpt3_2_7b": 2651.6,
    "gpt.gpt3_6_7b": 6658.4,
    "gpt.gpt3_13b": 12853.4,
    "gpt.gpt3_175b": 174_600,
}

PUBLISHED_ELMO = {"elmo.small": 13.59, "elmo.medium": 28.03, "elmo.original": 93.60, "elmo.original_5_5b": 93.60}
QUICK = ("bert.tiny", "bert.base", "gpt.tiny", "gpt.gpt1", "gpt.gpt2_124m", "elmo.tiny", "elmo.small")
"""The others differ from them in sizes alone."""


def _cases(names: Iterable[str]) -> list[Any]:
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in names]


def test_every_published_size_has_a_recipe():
    ours = {"gpt.tiny", "gpt.shakespeare_char", "elmo.tiny"}
    assert recipes().keys() == PUBLISHED.keys() | PUBLISHED_GPT.keys() | PUBLISHED_ELMO.keys() | ours


@pytest.mark.parametrize("name", _cases(PUBLISHED_ELMO))
def test_an_elmo_recipe_has_as_many_parameters_as_were_published(name: str):
    c = recipes()[name]().model
    assert isinstance(c, ElmoConfig)
    F, J, U = 2048, c.projection, c.cells
    filters = sum(width * 16 * count + count for width, count in c.filters)
    words = 261 * 16 + filters + c.highway * 2 * (F * F + F) + F * J + J
    backbone = words + 2 * c.layers * (2 * J * 4 * U + 4 * U + U * J)
    counted = {path: int(np.prod(shape)) for path, shape in _parameters(name).items()}
    assert sum(n for path, n in counted.items() if path.startswith("backbone/")) == backbone
    assert sum(counted.values()) == backbone + c.vocab * (J + 1)
    assert round(backbone / 1e6, 2) == PUBLISHED_ELMO[name]


def test_what_elmo_carries_has_dims():
    run = recipes()["elmo.tiny"]()
    c = run.model
    assert isinstance(c, ElmoConfig)
    carried = _made(run)["carry"]
    assert len(carried) == 4
    for path, x in carried.items():
        sizes = {"B": 1, "N": c.layers, "U": c.cells, "J": c.projection}
        check(x, dims_of(f"carry/{path}"), **sizes)


@pytest.mark.parametrize("name", _cases(PUBLISHED_GPT))
def test_a_gpt_recipe_has_as_many_parameters_as_were_published(name: str):
    c, expected = recipes()[name]().model, PUBLISHED_GPT[name]
    assert isinstance(c, GptConfig)
    counted = sum(int(np.prod(shape)) for shape in _parameters(name).values())
    D = c.hidden
    assert counted == (c.vocab + c.length) * D + c.layers * (12 * D * D + 13 * D) + 2 * D * (c.norm == "pre")
    assert abs(counted / 1e6 - expected) <= (0.005 if expected < 1000 else 0.05 if expected < 1e5 else 5)


@pytest.mark.parametrize("name", _cases(PUBLISHED))
def test_a_recipe_has_as_many_parameters_as_were_published(name: str):
    c = recipes()[name]().model
    assert isinstance(c, BertConfig)
    V, L, T, N, D, F = c.vocab, c.length, c.segments, c.layers, c.hidden, c.ffn
    block = 4 * (D * D + D) + 2 * D * F + F + D + 4 * D
    backbone = (V + L + T + 2) * D + N * block + D * D + D
    heads = D * D + D + 2 * D + V + 2 * D + 2
    counted = {path: int(np.prod(shape)) for path, shape in _parameters(name).items()}
    assert sum(n for path, n in counted.items() if path.startswith("backbone/")) == backbone
    assert sum(counted.values()) == backbone + heads
    alone, with_heads = PUBLISHED[name]
    assert round(backbone / 1e6, 2) == alone
    assert with_heads is None or round((backbone + heads) / 1e6, 2) == with_heads
    assert F == 4 * D and D // c.heads == 64


@pytest.mark.parametrize("names", [QUICK, *long((tuple(recipes()),))], ids=["quick", "all"])
def test_every_parameter_has_dims(names):
    """Exactly one row matches (dims_of raises otherwise), with the right rank and, by letter, the right size."""
    for name, shapes in ((name, _parameters(name)) for name in names):
        c = recipes()[name]().model
        sizes = family_of(c).sizes(c, 2)
        for path, shape in shapes.items():
            check(np.broadcast_to(np.float32(0), shape), dims_of(path), **sizes)


def test_every_parameter_of_static_vectors_has_dims():
    config = VectorsConfig(vocab=9, hidden=4)
    model = build(config, ("tag",), 3, HeadConfig(mix="words", cells=2, crf=True))
    batch = example({**TEXT_FAMILIES["vectors"].sequences, "tags": "i32 BL"}, {"B": 1, "L": 8})
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), batch)["params"])
    for path, x in by_path(shapes).items():
        check(np.broadcast_to(np.float32(0), x.shape), dims_of(path), **family_of(config).sizes(config, 3))
    assert by_path(shapes)["backbone/embeddings/tokens"].shape == (9, 4)


def test_every_row_of_dims_is_some_parameters():
    paths = _parameters("bert.tiny").keys() | _parameters("gpt.tiny").keys()
    choice = _shapes(recipes()["gpt.tiny"]().model, ("choice", "span"))
    paths |= {path_of(path) for path, _ in jax.tree.leaves_with_path(choice)}
    paths |= by_path(_shapes(dataclasses.replace(recipes()["gpt.tiny"]().model, tied=False), ("lm",))).keys()
    elmo = _made(recipes()["elmo.tiny"]())
    head = HeadConfig(mix="all", place="both", cells=4, crf=True)
    tagger, line = build(recipes()["bert.tiny"]().model, ("tag",), 3, head), {**FIELDS, "tags": "i32 BL"}
    tagging = jax.eval_shape(lambda: tagger.init(jax.random.key(0), example(line, {"B": 1, "L": 8, "P": 2}))["params"])
    paths |= by_path(tagging).keys()
    spans, slots = build(recipes()["bert.tiny"]().model, ("boundary",)), FIELDS | BOUNDARIES
    shapes = jax.eval_shape(lambda: spans.init(jax.random.key(0), example(slots, {"B": 1, "L": 8, "P": 2}))["params"])
    paths |= by_path(shapes).keys()
    paths |= elmo["params"].keys() | {f"carry/{path}" for path in elmo["carry"]}
    for pattern, dims in PARAMETER_DIMS:
        assert set(dims) <= LETTERS
        # Those of adapters have a test of their own, in train/optim/test_lora.py.
        assert pattern.startswith("lora/") or any(re.fullmatch(pattern, path) for path in paths), pattern


def test_a_parameter_without_a_row_is_an_error():
    with pytest.raises(ValueError, match="parameter backbone/gate matches 0 rows"):
        dims_of("backbone/gate")


def test_parameters_are_the_backbones_and_each_heads():
    config = recipes()["bert.tiny"]().model
    assert _shapes(config).keys() == {"backbone", "heads_mlm", "heads_nsp"}
    assert _shapes(config, ()).keys() == {"backbone"}
    assert count(_shapes(config, ())) == 4_385_920


def test_check_reads_sizes_and_refuses_others():
    x = np.zeros((2, 8, 64))
    assert check(x, "BLD") == {"B": 2, "L": 8, "D": 64}
    assert check(x, "BLD", D=64) == {"D": 64, "B": 2, "L": 8}
    assert check(np.zeros((3, 4)), "__") == {}
    with pytest.raises(ValueError, match=r"shape \(2, 8, 64\) is not BL: 2 dims are wanted"):
        check(x, "BL")
    with pytest.raises(ValueError, match=r"shape \(2, 8, 64\) is not BLD: D=32 is wanted"):
        check(x, "BLD", D=32)
    with pytest.raises(ValueError, match="M=2 is wanted|is not MLM"):
        check(x, "MLM")


CUBE = {"data": 2, "fsdp": 2, "tensor": 2}
CONTEXT = {"data": 2, "fsdp": 1, "context": 2, "tensor": 2}


@pytest.mark.parametrize(
    ("dims", "shape", "axes", "expected"),
    [
        ("NDF", (3, 8, 16), CUBE, (None, "fsdp", "tensor")),
        ("NFD", (3, 16, 8), CUBE, (None, "tensor", "fsdp")),
        ("NDHK", (3, 8, 4, 2), CUBE, (None, "fsdp", "tensor", None)),
        ("ND", (3, 8), CUBE, (None, "fsdp")),
        ("BLD", (8, 5, 8), CUBE, (("data", "fsdp"), None, None)),
        ("BL", (2, 5), CUBE, ("data", None)),
        ("V_", (8, 8), CUBE, ("tensor", None)),
        ("BLD", (8, 4, 8), CONTEXT, ("data", "context", None)),
        ("BLD", (8, 5, 8), CONTEXT, ("data", None, None)),  # a length that does not divide is whole, and D is not cut
        ("BHMK", (8, 4, 4, 2), CONTEXT, ("data", "tensor", None, None)),  # all keys
        ("LD", (4, 8), CONTEXT, (None, None)),  # a parameter
        ("VD", (8, 8), CUBE, ("tensor", "fsdp")),
        ("VD", (7, 8), CUBE, (None, ("fsdp", "tensor"))),  # an odd vocabulary leaves its axis to D
        ("VD", (7, 6), CUBE, (None, "fsdp")),  # which takes it only where it divides
        ("VD", (7, 8), {"data": 8, "fsdp": 1, "tensor": 1}, (None, None)),
        ("VD", (119547, 768), {"data": 1, "fsdp": 1, "tensor": 2}, (None, "tensor")),
        ("V", (7,), CUBE, (None,)),
        ("NDHK", (3, 8, 3, 2), CUBE, (None, "fsdp", None, None)),  # three heads over two
        ("", (), CUBE, ()),
    ],
)
def test_an_array_is_cut_by_its_letters(dims, shape, axes, expected):
    assert partition_spec(dims, shape, axes) == PartitionSpec(*expected)


def test_no_axis_serves_twice_and_every_cut_divides():
    for axes in itertools.product((1, 2, 3, 4, 8), repeat=3):
        mesh: dict[str, int] = dict(zip(MESH_AXES, axes, strict=True))
        for name in ("bert.base", "bert.multilingual"):
            for path, shape in _parameters(name).items():
                taken = [
                    e if isinstance(e, tuple) else (e,) if e else () for e in partition_spec(dims_of(path), shape, mesh)
                ]
                flat = [axis for entry in taken for axis in entry]
                assert len(flat) == len(set(flat)) and all(mesh[axis] > 1 for axis in flat)
                for size, entry in zip(shape, taken, strict=True):
                    assert size % int(np.prod([mesh[axis] for axis in entry])) == 0, (path, shape, mesh)
    assert {axis for rule in RULES.values() for axis in rule} == set(CONTEXT_AXES)


def test_without_a_mesh_nothing_is_constrained():
    x = jnp.ones((4, 8, 8))
    assert constrain(x, "BLD") is x


def test_on_a_mesh_the_model_asks_for_its_cuts():
    config = recipes()["bert.tiny"]().model
    model = build(config, ("mlm", "nsp"))
    batch = example(FIELDS, {"B": 8, "L": 16, "P": 2})
    apply: Any = lambda params, batch: model.apply({"params": params}, batch)  # noqa: E731
    lower = jax.jit(lambda params, batch: apply(params, batch).heads).lower
    assert "sharding_constraint" not in lower(_shapes(config), batch).as_text()
    with jax.set_mesh(jax.make_mesh((2, 2, 2), MESH_AXES, axis_types=(AxisType.Auto,) * 3)):
        text = lower(_shapes(config), batch).as_text()
        y = jax.jit(lambda x: constrain(x * 2, "BLD"))(jnp.ones((8, 2, 4)))
    assert text.count("sharding_constraint") == 5  # three tables, the embeddings, the layer (one function for all)
    assert y.sharding.shard_shape(y.shape) == (2, 2, 4)


def test_paths_are_read_off_any_tree():
    tree = {"a": {"b": [1, 2]}}
    assert [path_of(path) for path, _ in jax.tree.leaves_with_path(tree)] == ["a/b/0", "a/b/1"]
