"""Stateless (counter-based) random numbers: 64 bits for every (key, counter), so that any row can be drawn alone and in
any order.

The mixing function is the finaliser of SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number
generators", section 4); `random_bits(key, c)` is the c-th output of the generator seeded with `key`.
"""

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]
_GOLDEN = 0x9E3779B97F4A7C15
_MUL1 = 0xBF58476D1CE4E5B9
_MUL2 = 0x94D049BB133111EB
_ALL = 0xFFFFFFFFFFFFFFFF

# What a draw is for: the first part of every key, so that two purposes never share numbers. Their values must stay:
# they are in what a seed means.
DOCUMENT, BLOCK_ORDER, WINDOW_ORDER, SURPLUS, CUT_A, CUT_B, MASK_CHOICE, MASK_ACTION = range(1, 9)
HELD_OUT, EXAMPLE_ORDER, WINDOW_SHIFT, WINDOW_PLACE, NEGATIVES, RECORD_ORDER, MIXTURE, SOURCE = range(9, 17)
SPAN, MASKING_LEVEL, DIALOGUE_ORDER, DIALOGUE_FAKE = range(17, 21)
_ROUNDS = 4
"""Rounds of the Feistel network; four of random functions make a strong pseudorandom permutation (Luby and Rackoff)."""


def key(*parts: int) -> int:
    """Mixes whole numbers (of any sign) into one 64-bit key; every part matters, so does their order."""
    # The mixing function of random_bits on Python's unbounded ints: & _ALL is arithmetic modulo 2⁶⁴.
    state = 0
    for part in parts:
        z = (state ^ (part & _ALL)) + _GOLDEN & _ALL
        z = (z ^ (z >> 30)) * _MUL1 & _ALL
        z = (z ^ (z >> 27)) * _MUL2 & _ALL
        state = z ^ (z >> 31)
    return state


def random_bits(key: int | U64, counter: NDArray[np.integer]) -> U64:
    """Returns uniform 64-bit numbers, one for each key and counter (broadcast):
    `random_bits(k_B[:, None], c_L[None, :])` → u64 BL."""
    # SplitMix64's state after c + 1 steps is key + (c + 1) · golden; the rest mixes it. NumPy's u64 wraps around.
    z = (counter.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN) + np.asarray(key, np.uint64)
    z ^= z >> np.uint64(30)
    z *= np.uint64(_MUL1)
    z ^= z >> np.uint64(27)
    z *= np.uint64(_MUL2)
    z ^= z >> np.uint64(31)
    return z


def uniform(numbers: U64) -> NDArray[np.float64]:
    """64-bit numbers → floats in [0, 1), by their upper 53 bits."""
    return (numbers >> np.uint64(11)).astype(np.float64) * 2.0**-53


def randint(numbers: U64, limit: int) -> NDArray[np.int64]:
    """64-bit numbers → whole numbers in [0, limit), by their upper 32 bits; limit < 2³¹ (bias at most limit / 2³²)."""
    # (u · limit) / 2³² for a u of 32 bits: a product and a shift, no rejection, so each takes one number.
    return ((numbers >> np.uint64(32)) * np.uint64(limit) >> np.uint64(32)).astype(np.int64)


def log_uniform(numbers: U64, limit: int) -> NDArray[np.int64]:
    """64-bit numbers → whole numbers k in [0, limit), the small ones more often: P(k) = log((k+2)/(k+1)) / log(limit+1)
    (Zipf's law, as in TensorFlow's log_uniform_candidate_sampler)."""
    # By the inverse of the distribution: P(k < n) = log(n+1) / log(limit+1). Rounding may reach `limit` itself.
    return np.minimum(np.exp(uniform(numbers) * np.log(limit + 1)).astype(np.int64) - 1, limit - 1)


def distinct_log_uniform(key: int, count: int, limit: int) -> tuple[NDArray[np.int64], int]:
    """Returns `count` distinct log-uniform numbers below `limit`, in the order in which they came, and how many draws
    it took, repeated ones counted: the sampled softmax's expected counts depend on it."""
    tries = 4 * count
    while True:
        drawn, place = log_uniform(random_bits(key, np.arange(tries)), limit), np.arange(tries)
        first = np.empty(limit, np.int64)
        # Written from the last to the first, so of a number that comes twice the earliest place stays.
        first[drawn[::-1]] = place[::-1]
        new = np.flatnonzero(first[drawn] == place)[:count]
        if len(new) == count:
            return drawn[new], int(new[-1]) + 1
        tries *= 2


def permutation(key: int, size: int) -> NDArray[np.int64]:
    """Returns a permutation of range(size), by sorting one number for each place."""
    return np.argsort(random_bits(key, np.arange(size)), kind="stable")


def permutation_at(key: int, places: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Returns the elements at these places of a permutation of range(size), without computing the others.

    A Feistel network (Luby and Rackoff 1988, "How to construct pseudorandom permutations") over the bits that `size`
    takes; a number that it maps to `size` or above goes through it again, until it is below (cycle walking).
    """
    bits = (size - 1).bit_length()
    width = np.uint64(bits - bits // 2)
    low, high = ((np.uint64(1) << n) - np.uint64(1) for n in (width, np.uint64(bits // 2)))
    keys = random_bits(key, np.arange(2 * _ROUNDS))
    elements = places.astype(np.uint64)
    rows = np.arange(len(elements))
    while len(rows):
        # Each half is changed by a function of the other, which can be undone: so the whole is one to one.
        a, b = elements[rows] >> width, elements[rows] & low
        for key_a, key_b in keys.reshape(-1, 2):
            a ^= random_bits(key_a, b) & high
            b ^= random_bits(key_b, a) & low
        elements[rows] = a << width | b
        # Fewer than half of all numbers of so many bits are too large, so few rows go round again.
        rows = rows[elements[rows] >= size]
    return elements.astype(np.int64)
