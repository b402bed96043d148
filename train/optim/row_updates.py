"""Updates of the rows that a step reads, instead of the whole table.

Adagrad changes no row whose gradient is zero, neither its value nor its accumulator. So a step over a large softmax
reads, updates and writes the rows of its own words alone, with the numbers of an update of the whole.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import jax
from jax.sharding import PartitionSpec

from contexture.models.heads.sampled_softmax import READS, number_words
from contexture.models.shapes import dims_of, path_of
from contexture.models.sharding import partition_spec
from contexture.train.settings.run import Run

T = TypeVar("T")
WORDS = {"words": "_"}
"""The dims of the field that a batch gets for its rows."""


@dataclass(frozen=True)
class TableRows:
    """Rows of some tables: their numbers X, of which those past a table's end stand for no row; the tables' paths."""

    rows_X: jax.Array
    tables: tuple[str, ...]

    def take(self, tree: T) -> T:
        """Returns parameters, or an optimizer's state, in which each table is its rows alone."""
        # A row past the end reads the last one; nothing reads that copy, and `put` drops it.
        return self._map(lambda rows, table: rows(table.at[self.rows_X].get(mode="clip")), tree)

    def put(self, tree: T, taken: T) -> T:
        """Returns `taken`, whole again: each table is that of `tree` with its rows replaced."""
        return self._map(
            lambda rows, table, new: table.at[self.rows_X].set(rows(new), mode="drop", unique_indices=True), tree, taken
        )

    def shard(self, gradient: T, params: T) -> T:
        """Returns the gradient of taken parameters, in which each table's is sharded as `take` shards its rows."""
        return self._map(lambda rows, table, new: rows(new), params, gradient)

    def _map(self, function: Callable[..., jax.Array], tree: T, *taken: T) -> T:
        # An optimizer's state holds a tree like that of the parameters, so the path of a moment ends in that of its
        # parameter.
        def of_leaf(keys: tuple[object, ...], x: jax.Array, *taken: jax.Array) -> jax.Array:
            for path in self.tables:
                if path_of(keys).endswith(path):
                    return function(functools.partial(_shard_rows, dims=dims_of(path), table=x), x, *taken)
            return taken[0] if taken else x

        return jax.tree_util.tree_map_with_path(of_leaf, tree, *taken)


def _shard_rows(rows: jax.Array, *, dims: str, table: jax.Array) -> jax.Array:
    """Shards rows as their table is, but for the first dim, which is whole: then no device sends any."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return rows
    spec = partition_spec(dims, table.shape, dict(mesh.shape))
    return jax.lax.with_sharding_constraint(rows, PartitionSpec(None, *spec[1:]))


def select_rows(run: Run, batch: dict[str, jax.Array]) -> tuple[dict[str, jax.Array], TableRows | None]:
    """Returns (the batch, the rows that its step reads), where an update of these is one of the whole; else (the batch
    as it is, None).

    Adam moves a parameter by the gradients of earlier steps, and weight decay moves every one: they need the whole.
    """
    if run.objective != "bilm" or "negatives" not in batch:
        return batch, None
    fewer = sum(batch[name].size for name in READS) < run.model.vocab
    if run.optim.name != "adagrad" or run.optim.weight_decay or not fewer:
        return batch, None
    words_X, batch = number_words(batch, run.model.vocab)
    return batch, TableRows(words_X, ("heads_bilm/kernel", "heads_bilm/bias"))
