"""Sequences in shared rows: reversed in their places, and their means, against each by itself."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from contexture.data.packing import in_rows, pack
from contexture.models.layers.packed_rows import apart, means, of_rows, reversed_places, turned
from tests.helpers.parity_rule import close


def packed(lengths: list[int], width: int, slots: int = 0) -> tuple[Any, np.ndarray]:
    """(a batch of sentences of so many words, what stands at each place of its rows: 100 times the sentence's number
    from 1 on, and the place; 0 is padding)."""
    words, counts = max(lengths), np.array(lengths)
    mask = (np.arange(words) < counts[:, None]).astype(np.int32)
    fields = {"index": np.ones_like(mask), "types": np.zeros((4, 50), np.int32), "mask": mask}
    batch = of_rows(in_rows(fields, pack(counts + 2, width, ()), slots))  # pyright: ignore[reportArgumentType]
    return batch, np.where(batch["packs"] > 0, 100 * batch["packs"] + batch["positions"], 0)


LENGTHS = st.lists(st.integers(0, 14), min_size=1, max_size=9)


@settings(max_examples=40, deadline=None)
@given(LENGTHS, st.integers(16, 40))
def test_a_sentence_is_reversed_between_its_ends(lengths, width):
    batch, content = packed(lengths, width)
    places = np.asarray(reversed_places(batch))
    back = np.take_along_axis(content, places, 1)
    assert np.array_equal(np.take_along_axis(places, places, 1), np.broadcast_to(np.arange(width), places.shape))
    for n, count in enumerate(lengths, 1):
        own = batch["packs"] == n
        assert content[own].tolist() == [100 * n + p for p in range(-1, count + 1)]
        assert back[own].tolist() == content[own].tolist()[::-1]
    assert not back[batch["packs"] == 0].any()


def test_a_reversal_has_jaxs_own_gradient():
    batch, content = packed([3, 0, 7, 1, 5], 16)
    x, dy = (jnp.asarray(np.random.default_rng(n).normal(size=(*content.shape, 2)), jnp.float32) for n in range(2))
    places = reversed_places(batch)
    got = jax.grad(lambda x: (turned(x, places) * dy).sum())(x)
    assert np.array_equal(got, jax.grad(lambda x: (jnp.take_along_axis(x, places[:, :, None], 1) * dy).sum())(x))


@settings(max_examples=12, deadline=None)
@given(LENGTHS.filter(any), st.sampled_from([16, 24]), st.sampled_from([0, 12]))
def test_a_mean_and_a_row_are_of_the_words_alone(lengths, width, slots):
    batch, content = packed(lengths, width, slots)
    x = jnp.asarray(content, jnp.float32)[:, :, None]
    mask = jnp.asarray(mask_of(lengths, len(batch["begins"])))
    found = np.asarray(apart(x, {**batch, "mask": mask}))[..., 0]
    for n, count in enumerate(lengths):
        assert found[n].tolist() == [100 * (n + 1) + p for p in range(count)] + [0] * (found.shape[1] - count)
    expected = [np.mean([100 * n + p for p in range(count)]) if count else 0.0 for n, count in enumerate(lengths, 1)]
    close(means(x, batch)[:, 0], np.array(expected + [0.0] * (len(batch["begins"]) - len(lengths))))


def mask_of(lengths: list[int], slots: int) -> np.ndarray:
    counts = np.pad(np.array(lengths), (0, slots - len(lengths)))
    return (np.arange(max(lengths)) < counts[:, None]).astype(np.int32)
