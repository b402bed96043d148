"""The nearest of many vectors, exact and in bounded memory, and whitening, against slow computations in NumPy."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contexture.analysis.neighbours import nearest as module
from contexture.analysis.neighbours.nearest import nearest
from contexture.analysis.neighbours.whitening import fit_whitening
from contexture.data.errors import DataError
from tests.helpers.parity_rule import assert_close, close


def slow_nearest(vectors, queries, top):
    """(numbers, cosines) of each query by a sort of all cosines, in float64; of equals the first comes first."""
    numbers, cosines = [], []
    for query in np.asarray(queries, np.float64):
        own = []
        for vector in np.asarray(vectors, np.float64):
            norm = np.sqrt((query**2).sum() * (vector**2).sum())
            own.append(float(query @ vector / norm) if norm else 0.0)
        order = sorted(range(len(own)), key=lambda n: (-own[n], n))[:top]
        numbers.append(order)
        cosines.append([own[n] for n in order])
    return np.array(numbers), np.array(cosines)


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 8)
    monkeypatch.setattr(module, "_QUERIES", 4)


@settings(max_examples=20, deadline=None)
@given(
    count=st.integers(1, 40), queries=st.integers(1, 9), width=st.integers(1, 5), top=st.integers(1, 12),
    part=st.integers(1, 20), seed=st.integers(0, 1000),
)  # fmt: skip
def test_the_nearest_are_those_of_a_sort_of_all(count, queries, width, top, part, seed):
    rng = np.random.default_rng(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK", 8)
        patch.setattr(module, "_QUERIES", 4)
        vectors = rng.normal(size=(count, width)).astype("f4")
        asked = rng.normal(size=(queries, width)).astype("f4")
        got = nearest((vectors[at : at + part] for at in range(0, count, part)), asked, top)
    numbers, cosines = slow_nearest(vectors, asked, top)
    assert got.numbers.shape == (queries, min(top, count))
    assert_close(got.cosines, cosines, atol=1e-5)
    # Where two cosines are nearer to each other than float32 tells, either may come first.
    for row in range(queries):
        assert len({*got.numbers[row].tolist()}) == got.numbers.shape[1]
        clear = np.abs(np.diff(cosines[row])).min(initial=1.0) > 1e-5
        kept = slow_nearest(vectors, asked[row : row + 1], top + 1)[1][0]
        if clear and (len(kept) <= top or kept[top - 1] - kept[top] > 1e-5):
            assert got.numbers[row].tolist() == numbers[row].tolist()


def test_of_equals_the_first_comes_first_and_zeros_have_the_cosine_0(small_blocks):
    vectors = np.tile(np.array([[1, 0], [0, 0], [0, 2]], "f4"), (10, 1))
    got = nearest([vectors], np.array([[3, 0], [0, 0]], "f4"), 12)
    assert got.numbers[0].tolist() == [*range(0, 30, 3), 1, 2] and got.cosines[0].tolist() == [1.0] * 10 + [0.0] * 2
    assert got.numbers[1].tolist() == [*range(12)] and not got.cosines[1].any()


@pytest.mark.parametrize("scale", [1e-25, 1e30])
def test_cosines_do_not_depend_on_lengths_whose_squares_no_float32_holds(scale):
    vectors_ND = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    plain = nearest([vectors_ND], vectors_ND[:2], 3)
    scaled = nearest([vectors_ND * np.float32(scale)], vectors_ND[:2] * np.float32(scale), 3)
    assert (plain.numbers == scaled.numbers).all()
    close(scaled.cosines, plain.cosines)


@pytest.mark.parametrize(
    ("parts", "top", "message"),
    [
        ([], 3, "there are no vectors to search in"),
        ([np.zeros((2, 3), "f4")], 3, "vectors of shape [2, 3] where the queries have the width 2"),
        ([np.ones((9, 2), "f4"), np.array([[1, np.nan]], "f4")], 3, "vector 9 has a number that is not finite"),
        ([np.ones((2, 2), "f4")], 0, "top=0 is not a positive number of neighbours"),
    ],
)
def test_what_cannot_be_searched_is_one_line(small_blocks, parts, top, message):
    with pytest.raises(DataError) as error:
        nearest(parts, np.ones((1, 2), "f4"), top)
    assert str(error.value) == message


MILLION = """
import resource

import numpy as np
from contexture.analysis.neighbours.nearest import nearest
def parts():
    for number in range(100):
        yield np.random.default_rng(number).standard_normal((10_000, 256), np.float32)
queries = np.concatenate([np.random.default_rng(7).standard_normal((10_000, 256), np.float32)[:990],
                          np.random.default_rng(93).standard_normal((10_000, 256), np.float32)[-10:]])
got = nearest(parts(), queries, 10)
assert got.numbers[:990, 0].tolist() == [*range(70_000, 70_990)], got.numbers[:5]
assert got.numbers[990:, 0].tolist() == [*range(939_990, 940_000)]
assert got.cosines.min() > 0.2 and (np.diff(got.cosines, axis=1) <= 0).all()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.long
def test_a_million_vectors_are_searched_in_bounded_memory():
    """1,000,000 of 256, the ten nearest of 1,000: 1 GB of vectors, of which a block at a time is in memory."""
    out = subprocess.run(
        [sys.executable, "-c", MILLION], check=True, capture_output=True, text=True, timeout=500
    ).stdout
    assert int(out) < 1536


@settings(deadline=None)
@given(seed=st.integers(0, 1000), part=st.integers(1, 70))
def test_whitened_vectors_have_mean_0_and_the_identity_as_covariance(seed, part):
    rng = np.random.default_rng(seed)
    vectors = (rng.normal(size=(60, 5)) @ rng.normal(size=(5, 5)) + 100).astype("f4")
    whitening = fit_whitening(vectors[at : at + part] for at in range(0, 60, part))
    white = whitening(vectors).astype(np.float64)
    assert_close(white.mean(0) + 1, 1.0, atol=1e-3)
    assert_close(white.T @ white / 60, np.eye(5), atol=2e-3)
    # As by the singular values of the vectors around their mean, up to the sign of a direction.
    around = vectors - vectors.mean(0, dtype=np.float64)
    _, singular, directions = np.linalg.svd(around, full_matrices=False)
    expected = around @ directions.T / (singular / np.sqrt(60))
    close(np.abs(white), np.abs(expected), tolerance=2e-3)
    two = fit_whitening([vectors], 2)(vectors)
    close(np.abs(two), np.abs(expected[:, :2]), tolerance=2e-3)


def test_directions_that_do_not_vary_are_left_out():
    vectors = np.array([[1, 2, 5], [2, 4, 5], [4, 8, 5]], "f4")
    assert fit_whitening([vectors])(vectors).shape == (3, 1)
    for given_vectors, more, message in (
        (vectors, 2, "dimensions=2, and the vectors vary in 1 directions; give at most 1"),
        (vectors[:1], 0, "whitening takes two vectors or more, and there are 1; leave it out"),
        (vectors[[0, 0]], 0, "all vectors are the same, and nothing can be whitened; leave whitening out"),
    ):
        with pytest.raises(DataError) as error:
            fit_whitening([given_vectors], more)
        assert str(error.value) == message
