"""Sequences that share rows: the tokens of a sequence out of the rows that hold several.

A packed batch has rows XY instead of a row for each sequence. `packs` numbers its sequences from 1 on, 0 at padding;
`positions` is each token's place in its sequence; `begins` says where a sequence begins in all rows, one after the
other. A sequence lies in one row, without a gap. What a head reads of a sequence is taken out of the rows by a gather.

A sentence of an ELMo has its begin at place -1 and its end behind its last word. These are context for the words, and
in no head's sequence: `mask` and `begins` know the words alone.
"""

import dataclasses

import jax
import jax.numpy as jnp

from contexture.models.encoding import Encoding
from contexture.models.layers.matmul import custom_gradient
from contexture.models.sharding import constrain

Batch = dict[str, jax.Array]
PACKED = "begins"
"""The field that a batch has where its sequences share rows."""


@custom_gradient()
def _taken(x_TD: jax.Array, token_S: jax.Array, home_T: jax.Array) -> jax.Array:
    """x_TD[token_S], 0 where token_S is -1; home_T is the reverse: the s that token t is taken to, -1 for none."""
    return jnp.where(token_S[:, None] >= 0, x_TD[token_S], 0)


def _taken_forward(
    x_TD: jax.Array, token_S: jax.Array, home_T: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _taken(x_TD, token_S, home_T), (token_S, home_T)


def _taken_backward(saved: tuple[jax.Array, jax.Array], dy_SD: jax.Array) -> tuple[jax.Array, None, None]:
    # No token is taken twice, so the gradient is a gather too; a scatter-add would be slow, most of all on a CPU.
    return _taken(dy_SD, saved[1], saved[0]), None, None


_taken.defvjp(_taken_forward, _taken_backward)


def _numbers(batch: Batch) -> jax.Array:
    """Returns the sequence of each token, from 0 on, -1 at padding: i32 XY."""
    return batch["packs"].astype(jnp.int32) - 1


def _inside(batch: Batch, lengths_B: jax.Array) -> jax.Array:
    """Returns which tokens belong to a sequence of so many tokens: bool XY."""
    position_XY = batch["positions"]
    return (batch["packs"] > 0) & (position_XY >= 0) & (position_XY < of_its_sequence(lengths_B, batch))


def of_its_sequence(x_B: jax.Array, batch: Batch) -> jax.Array:
    """Returns the number that each token's sequence has in x_B, XY; at padding that of the first sequence."""
    # Padding needs some sequence to look up; whoever reads the result leaves padding out.
    return x_B[jnp.maximum(_numbers(batch), 0)]


def apart(x_XYD: jax.Array, batch: Batch) -> jax.Array:
    """Returns a row for each sequence, BLD, out of the rows that they share; 0 at padding.

    batch: packs and positions i32 XY, begins i32 B, mask i32 BL.
    """
    mask_BL, D = batch["mask"], x_XYD.shape[-1]
    # A sequence's tokens follow each other; what lies behind its last one is another's, or padding.
    B, L = mask_BL.shape
    token_BL = jnp.where(mask_BL > 0, batch["begins"][:, None] + jnp.arange(L)[None], -1)
    home_XY = jnp.where(_inside(batch, mask_BL.sum(1)), _numbers(batch) * L + batch["positions"], -1)
    return _taken(x_XYD.reshape(-1, D), token_BL.reshape(-1), home_XY.reshape(-1)).reshape(B, L, D)


def first_tokens(x_XYD: jax.Array, batch: Batch) -> jax.Array:
    """Returns the vector of each sequence's first token, BD."""
    # A slot without a sequence has no token.
    if PACKED not in batch:
        return x_XYD[:, 0]
    home_XY = jnp.where(batch["positions"] == 0, _numbers(batch), -1)
    return _one_each(x_XYD, jnp.zeros_like(batch["begins"]), home_XY, batch)


def last_tokens(x_XYD: jax.Array, batch: Batch) -> jax.Array:
    """Returns the vector of each sequence's last token, BD."""
    # Where a sequence has no token at all, the first place is read, which is padding.
    if PACKED not in batch:
        last_B = jnp.maximum(batch["mask"].sum(1) - 1, 0)
        return jnp.take_along_axis(x_XYD, last_B[:, None, None], axis=1)[:, 0]
    last_B = batch["lengths"] - 1
    home_XY = jnp.where(batch["positions"] == of_its_sequence(last_B, batch), _numbers(batch), -1)
    return _one_each(x_XYD, last_B, home_XY, batch)


def at_places(x_XYD: jax.Array, place_BP: jax.Array, batch: Batch) -> jax.Array:
    """Returns the vectors of the tokens at P places of each sequence, BPD."""
    if PACKED not in batch:
        return _chosen(x_XYD, place_BP)
    # A place that only fills up the P may lie in padding, but in no other row than one of the batch's.
    token_BP = batch["begins"][:, None] + place_BP
    return constrain(jnp.take(x_XYD.reshape(-1, x_XYD.shape[-1]), token_BP, axis=0, mode="clip"), "BP_")


@custom_gradient()
def _chosen(x_BLD: jax.Array, place_BP: jax.Array) -> jax.Array:
    return jnp.take_along_axis(x_BLD, place_BP[:, :, None], axis=1)


def _chosen_backward(saved: tuple[jax.Array, int], dy_BPD: jax.Array) -> tuple[jax.Array, None]:
    # A product with ones where a place was read, in place of jax's scatter-add: for that one the partitioner would send
    # the rows of all copies of the model to each of them, also over the network between two slices.
    place_BP, length = saved
    is_read_BPL = jax.nn.one_hot(place_BP, length, dtype=dy_BPD.dtype)
    dx_BLD = jnp.einsum("BPL,BPD->BLD", is_read_BPL, dy_BPD, preferred_element_type=jnp.float32)
    return dx_BLD.astype(dy_BPD.dtype), None


_chosen.defvjp(lambda x, place: (_chosen(x, place), (place, x.shape[1])), _chosen_backward)


def means(x_XYD: jax.Array, batch: Batch) -> jax.Array:
    """Returns the mean over each sequence's tokens, BD; 0 where it has none."""
    # Padding does not count in the mean; a text without words divides by 1 instead of 0.
    if PACKED not in batch:
        mean_BL = batch["mask"] / jnp.maximum(batch["mask"].sum(1), 1)[:, None]
        return jnp.einsum("BLD,BL->BD", x_XYD, mean_BL.astype(x_XYD.dtype))
    # A product with 1/length at a sequence's own tokens and 0 elsewhere: its gradient is a product too, and no scatter.
    lengths_B = batch["lengths"]
    own_BXY = _inside(batch, lengths_B)[None] & (_numbers(batch)[None] == jnp.arange(lengths_B.size)[:, None, None])
    mean_BXY = own_BXY / jnp.maximum(lengths_B, 1)[:, None, None]
    return jnp.einsum("XYD,BXY->BD", x_XYD, mean_BXY.astype(x_XYD.dtype))


def _one_each(x_XYD: jax.Array, place_B: jax.Array, home_XY: jax.Array, batch: Batch) -> jax.Array:
    token_B = jnp.where(batch["lengths"] > 0, batch["begins"] + place_B, -1)
    home_XY = jnp.where(batch["packs"] > 0, home_XY, -1)
    return _taken(x_XYD.reshape(-1, x_XYD.shape[-1]), token_B, home_XY.reshape(-1))


def of_rows(batch: Batch) -> Batch:
    """Returns what a backbone reads of a packed batch: `mask` of the rows, and the `lengths` of the sequences."""
    return {**batch, "mask": (batch["packs"] > 0).astype(jnp.int32), "lengths": batch["mask"].sum(1)}


def of_parts(batch: Batch, parts: int) -> Batch:
    """Returns a batch with sequences and rows numbered within their microbatch: those of example b, and row x, are in
    part b % parts and x % parts."""
    if PACKED not in batch:
        return batch
    # Row x is row x // parts of its part, as `step._split` divides them, and example b likewise.
    begins, packs_XY = batch["begins"], batch["packs"]
    width, each = packs_XY.shape[1], begins.size // len(begins)
    number_XY = packs_XY - 1
    own_XY = number_XY // each // parts * each + number_XY % each
    begins = begins // width // parts * width + begins % width
    return {**batch, "begins": begins, "packs": jnp.where(packs_XY > 0, own_XY + 1, 0)}


@custom_gradient()
def turned(x_XYD: jax.Array, place_XY: jax.Array) -> jax.Array:
    """Returns the token at another place of its row for each place; place_XY is its own reverse, as a reversal is."""
    return jnp.take_along_axis(x_XYD, place_XY[:, :, None], 1)


def _turned_backward(place_XY: jax.Array, dy_XYD: jax.Array) -> tuple[jax.Array, None]:
    # As in `_taken`: no token is taken twice.
    return turned(dy_XYD, place_XY), None


turned.defvjp(lambda x_XYD, place_XY: (turned(x_XYD, place_XY), place_XY), _turned_backward)


def reversed_places(batch: Batch) -> jax.Array:
    """Returns the place in its row that each token has when every sentence is reversed where it lies, between its begin
    and its end, and padding stays: i32 XY."""
    position_XY = batch["positions"]
    # Each moves within its own lane, so that on a mesh no device is sent a lane of another. Padding must move nowhere:
    # then every place is taken once, as `turned` wants it.
    # Places -1 to n lie behind each other: p becomes n - 1 - p.
    moved_XY = of_its_sequence(batch["lengths"], batch) - 1 - 2 * position_XY
    return jnp.arange(position_XY.shape[1])[None] + jnp.where(batch["packs"] > 0, moved_XY, 0)


def encoding_apart(encoding: Encoding, batch: Batch) -> Encoding:
    """Returns the encoding of rows as one of sequences, of which each has a row of its own."""
    # What nobody reads of these is not computed: XLA leaves it out.
    states = tuple(apart(x_XYD, batch) for x_XYD in encoding.states)
    hidden_BLD = states[-1] if states else apart(encoding.hidden_BLD, batch)
    return dataclasses.replace(encoding, hidden_BLD=hidden_BLD, mask_BL=batch["mask"], states=states)
