"""Dropout's masks: their rate, what they depend on, and that no two of them have anything in common."""

import itertools
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from contexture.models.heads import layer_mix, sampled_softmax, tasks
from contexture.models.layers import dropout as rooms
from contexture.models.layers.dropout import DropoutKey, bits, dropout, dropout_key, random_word, row_words
from tests.helpers.long import long
from tests.helpers.parity_rule import worst

SITES, B, C = 38, 32, 4096


@partial(jax.jit, static_argnums=(0, 2, 3))
def _words(seed: int, step: jax.Array, sites: int, shape: tuple[int, ...]) -> jax.Array:
    """The words of the first sites of a step: (sites, *shape)."""
    made = dropout_key(seed, step, jnp.arange(shape[0]))
    return jax.vmap(lambda site: bits(made, site, shape))(jnp.arange(sites))


@partial(jax.jit, static_argnums=1)
def _dropped(x: jax.Array, rate: float, step: int = 0, row_B: jax.Array | None = None) -> jax.Array:
    return dropout(x, rate, dropout_key(1, jnp.asarray(step), jnp.arange(len(x)) if row_B is None else row_B), 2)


@pytest.fixture(scope="module")
def words_SBC() -> np.ndarray:
    """A large step's words: each of BERT-base's sites, each row."""
    return np.asarray(_words(7, jnp.int32(123), SITES, (B, C)))


def _scores(words: np.ndarray, rate: float = 0.1) -> np.ndarray:
    """Masks as numbers of mean 0 and variance 1."""
    dropped = words < np.uint32(rate * 2**32)
    return ((dropped - rate) / np.sqrt(rate * (1 - rate))).astype(np.float32)


def _bound(count: int) -> float:
    """What `count` independent normal deviates exceed once in a million times."""
    return float(np.sqrt(2 * np.log(count * 1e6)))


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("shape", [(16, 2, 64, 128), *long(((256, 1031),), ((64, 32, 128),))])
def test_the_rate_is_the_rate(rate: float, shape: tuple[int, ...]):
    x = jnp.ones(shape)
    for step in range(3):
        y = np.asarray(_dropped(x, rate, step))
        off = ((y == 0).sum() - rate * y.size) / np.sqrt(rate * (1 - rate) * y.size)
        assert abs(off) < 5
        assert np.unique(y[y != 0]).tolist() == [np.float32(1 / (1 - rate))]


def test_the_mean_is_preserved():
    x = 1 + jax.random.uniform(jax.random.key(0), (256, 2048))
    for rate in (0.1, 0.5):
        y = np.asarray(_dropped(x, rate, 9), np.float64)
        deviation = np.sqrt(np.square(np.asarray(x, np.float64)).sum() * rate / (1 - rate))
        assert abs(y.sum() - np.asarray(x, np.float64).sum()) < 5 * deviation


def test_without_noise_or_rate_nothing_is_dropped():
    x, made = jnp.arange(12.0).reshape(3, 4), dropout_key(0, jnp.int32(0), jnp.arange(3))
    assert dropout(x, 0.5, None, 0) is x and dropout(x, 0.0, made, 0) is x


def test_what_was_dropped_has_no_gradient_and_the_rest_has_the_scale():
    x = jnp.ones((8, 64))
    gradient = jax.jit(jax.grad(lambda x: _dropped(x, 0.25).sum()))(x)
    assert (np.asarray(gradient) == np.asarray(_dropped(x, 0.25))).all()


def test_a_bfloat16_stays_one():
    assert _dropped(jnp.ones((4, 8), jnp.bfloat16), 0.1).dtype == jnp.bfloat16


def test_masks_of_rows_and_sites_are_independent(words_SBC: np.ndarray):
    """Every pair of the step's streams, column by column."""
    x = _scores(words_SBC).reshape(-1, C)
    z = (x @ x.T)[np.triu_indices(len(x), 1)] / np.sqrt(C)
    assert abs(z).max() < _bound(z.size)
    assert abs(z.var() - 1) < 5 * np.sqrt(2 / z.size)


def test_masks_of_steps_and_seeds_are_independent():
    every = [_words(seed, jnp.int32(step), 2, (8, 4096)) for seed in (0, 1, 2) for step in (0, 1, 2, 1000)]
    x = _scores(np.asarray(every)).reshape(-1, 4096)
    z = (x @ x.T)[np.triu_indices(len(x), 1)] / np.sqrt(4096)
    assert abs(z).max() < _bound(z.size)
    assert abs(z.var() - 1) < 5 * np.sqrt(2 / z.size)


def test_columns_are_independent(words_SBC: np.ndarray):
    """Each column against each other over all streams; each row against itself at every shift, by its spectrum."""
    x = _scores(words_SBC).reshape(-1, C)
    some = x[:, :: C // 512]
    z = (some.T @ some)[np.triu_indices(some.shape[1], 1)] / np.sqrt(len(some))
    assert abs(z).max() < _bound(z.size)
    power = np.abs(np.fft.rfft(x)[:, 1:-1]) ** 2 / C
    assert power.max() < np.log(power.size * 1e6)  # each is exponential with mean 1
    assert abs(power.mean() - 1) < 5 / np.sqrt(power.size)


def test_streams_are_independent_at_every_shift(words_SBC: np.ndarray):
    """Column j of a stream against column j + d of another, around a circle, all d, by the Fourier transform."""
    x = _scores(words_SBC).reshape(-1, C)
    spectrum = np.fft.rfft(x)
    chosen = np.random.default_rng(0).permutation(len(x))[:400]
    for a, b in chosen.reshape(-1, 2):
        z = np.fft.irfft(spectrum[a] * spectrum[b].conj()) / np.sqrt(C)
        assert abs(z).max() < _bound(200 * C), (a, b)


def _both_hold(words: np.ndarray) -> list[tuple[int, int]]:
    """Pairs of places (in the flat array) that hold the same word."""
    flat = words.ravel()
    order = np.argsort(flat, kind="stable")
    return [(int(order[i]), int(order[i + 1])) for i in np.flatnonzero(np.diff(flat[order]) == 0)]


def test_no_two_streams_share_a_run(words_SBC: np.ndarray):
    """In 5 million words some meet by chance, as many as chance has; not once are the next words equal too."""
    pairs = _both_hold(words_SBC)
    expected = words_SBC.size**2 / 2 / 2**32
    assert abs(len(pairs) - expected) < 5 * np.sqrt(expected)
    flat = words_SBC.ravel()
    for a, b in pairs:
        for stride in (-3, -2, -1, 1, 2, 3):
            assert not (0 <= a + stride < flat.size and 0 <= b + stride < flat.size) or (
                flat[a + stride] != flat[b + stride]
            )


def test_streams_whose_starts_are_near_are_independent():
    """Where one row starts within another's first columns, so that counters that went by one would overlap."""
    rows, columns = 512, 16384
    made = dropout_key(3, jnp.int32(5), jnp.arange(rows))
    keys = _keys(made)
    starts, strides = (np.asarray(k).ravel() for k in keys)
    order = np.argsort(starts)
    shifts = np.diff(starts[order])
    near = np.flatnonzero(shifts < columns // 2)
    assert len(near) > 300
    a_C, b_C = (
        np.asarray(
            jax.jit(rooms.random_word)(starts[of, None], strides[of, None], np.arange(columns, dtype=np.uint32)[None])
        )
        for of in (order[near], order[near + 1])
    )
    z = []
    for a, b, shift in zip(a_C, b_C, shifts[near], strict=True):
        for rate in (0.1, 0.5):
            x, y = _scores(a, rate)[shift:], _scores(b, rate)[: columns - shift]
            z.append((x * y).sum() / np.sqrt(len(x)))
    assert worst(map(abs, z)) < _bound(len(z))
    assert abs(np.var(z) - 1) < 5 * np.sqrt(2 * 2 / len(z))  # the two rates share words


@jax.jit
def _keys(made: DropoutKey) -> tuple[jax.Array, jax.Array]:
    """Each site's and row's start and stride."""
    return jax.vmap(lambda site: rooms.row_words(made, site))(jnp.arange(SITES))


def test_bytes_are_uniform(words_SBC: np.ndarray):
    """Chi-square of each byte of the words, and of neighbours' top nibbles, over a step and stream by stream."""
    for byte in range(4):
        values = (words_SBC >> np.uint32(8 * byte)) & np.uint32(255)
        _chi_square(np.bincount(values.ravel(), minlength=256))
        for stream in values.reshape(-1, C)[::SITES]:
            _chi_square(np.bincount(stream, minlength=256))
    top = words_SBC >> np.uint32(28)
    _chi_square(np.bincount((top[..., 1:] * 16 + top[..., :-1]).ravel(), minlength=256))
    _chi_square(np.bincount((top[:, 1:] * 16 + top[:, :-1]).ravel(), minlength=256))
    _chi_square(np.bincount((top[1:] * 16 + top[:-1]).ravel(), minlength=256))


def _chi_square(counts: np.ndarray) -> None:
    expected, freedom = counts.sum() / len(counts), len(counts) - 1
    assert abs(((counts - expected) ** 2 / expected).sum() - freedom) < 5.5 * np.sqrt(2 * freedom)


def test_one_bit_of_row_site_column_or_key_changes_half_of_the_word():
    """Averaged over 2048 places, each flipped input bit flips each output bit in near half of them."""
    rng = np.random.default_rng(0)
    key, row, site, column = (jnp.asarray(rng.integers(0, 2**k, n, np.uint32)) for k, n in (
        (32, 2), (16, 2048), (7, 2048), (16, 2048)))  # fmt: skip

    @jax.jit
    def word(key: jax.Array, row: jax.Array, site: jax.Array, column: jax.Array) -> jax.Array:
        def one(row: jax.Array, site: jax.Array, column: jax.Array) -> jax.Array:
            start, stride = rooms.row_words(DropoutKey(key, row[None]), site)
            return rooms.random_word(start, stride, column)[0]

        return jax.vmap(one)(row, site, column)

    before = np.asarray(word(key, row, site, column))
    inputs = {"row": row, "site": site, "column": column, "key": key}
    for name, width in (("row", 16), ("site", 7), ("column", 16), ("key", 32)):
        for bit in range(width):
            flip = jnp.uint32(1 << bit) if name != "key" else jnp.asarray([1 << bit, 0], jnp.uint32)
            after = np.asarray(word(**{**inputs, name: inputs[name] ^ flip}))
            flipped = ((before ^ after)[:, None] >> np.arange(32, dtype=np.uint32)) & 1
            assert abs(flipped.mean() - 0.5) < 0.01, (name, bit)
            assert abs(flipped.mean(0) - 0.5).max() < 0.5 * 6 / np.sqrt(2048), (name, bit)


def test_rows_in_parts_make_the_same_masks_as_the_whole():
    """Microbatches hold every fourth row, processes a block: a row's mask is its own."""
    x = np.ones((16, 3, 5, 7), np.float32)
    whole = np.asarray(_dropped(x, 0.3))
    for rows in (np.arange(1, 16, 4), np.arange(8, 16), np.array([15, 0])):
        part = _dropped(x[: len(rows)], 0.3, 0, rows)
        assert (np.asarray(part) == whole[rows]).all()


def test_a_part_of_an_array_has_the_mask_of_the_whole():
    key = dropout_key(7, jnp.int32(1), jnp.arange(4))
    whole = np.asarray(bits(key, 2, (4, 3, 6, 6)))
    assert (np.asarray(bits(key, 2, (4, 3, 4, 5), (3, 6, 6))) == whole[:, :, :4, :5]).all()


def test_a_mesh_changes_no_mask():
    x, rows = np.ones((8, 4, 8, 16), np.float32), np.arange(8)
    whole = np.asarray(_dropped(x, 0.3, 0, rows))
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 3)
    cut = jax.device_put(x, NamedSharding(mesh, PartitionSpec(("data", "fsdp"), "tensor")))
    rows = jax.device_put(rows, NamedSharding(mesh, PartitionSpec(("data", "fsdp"))))
    assert (np.asarray(_dropped(cut, 0.3, 0, rows)) == whole).all()


def test_seed_step_and_site_each_change_the_mask():
    def mask(seed: int, step: int, site: int) -> bytes:
        return np.asarray(_words(seed, jnp.int32(step), 3, (2, 8)))[site].tobytes()

    assert len({mask(*which) for which in itertools.product((0, 1), (0, 1, 2), (0, 1, 2))}) == 18


def test_masks_of_a_seed_stay_what_they_are():
    """A run that is resumed by a later version draws the same masks."""
    key = DropoutKey(jnp.array([0x01234567, 0x89ABCDEF], jnp.uint32), jnp.arange(3, dtype=jnp.uint32))
    start, stride = row_words(key, 5)
    assert (start.tolist(), stride.tolist()) == (
        [3463075199, 2001435738, 2954555371],
        [4050482000, 457544731, 1986772992],
    )
    columns = jnp.arange(4, dtype=jnp.uint32)
    assert random_word(start[0], stride[0], columns).tolist() == [2380364237, 2901698789, 2245891262, 1413862597]


def test_the_dropouts_of_heads_and_backbones_share_no_site():
    sites = [sampled_softmax.SITE, tasks.SITE, layer_mix.SITE]
    # A backbone has at most 3 · layers + 1 sites, a head of its own 4 and one for each layer of its LSTM.
    for lower, higher in pairwise([0, *sites]):
        assert higher - lower > 3 * 10_000
