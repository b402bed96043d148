"""Updates only the rows of a table that a step reads, instead of the whole table.

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
"""Dims of the field that `select_rows` adds to a batch."""


@dataclass(frozen=True)
class TableRows:
    """Rows of some tables: row numbers X, where a number past the end is padding, and the paths of the tables."""

    rows_X: jax.Array
    tables: tuple[str, ...]

    def take(self, tree: T) -> T:
        """Returns parameters, or an optimizer's state, with each table reduced to its rows."""
        # A row past the end reads the last one; nothing reads that copy, and `put` drops it.
        return self._map(lambda rows, table: rows(table.at[self.rows_X].get(mode="clip")), tree)

    def put(self, tree: T, taken: T) -> T:
        """Returns `taken` with whole tables: those of `tree`, with the rows replaced."""
        # number_words lists each word once, so no row is written twice. Numbers past the end are padding, and dropped.
        return self._map(
            lambda rows, table, new: table.at[self.rows_X].set(rows(new), mode="drop", unique_indices=True), tree, taken
        )

    def shard(self, gradient: T, params: T) -> T:
        """Returns the gradient of taken parameters, with each table's part sharded as `take` shards the rows."""
        return self._map(lambda rows, table, new: rows(new), params, gradient)

    def _map(self, function: Callable[..., jax.Array], tree: T, *taken: T) -> T:
        # An optimizer's state holds trees like the parameters', so the path of a moment ends in its parameter's path.
        def of_leaf(keys: tuple[object, ...], x: jax.Array, *taken: jax.Array) -> jax.Array:
            # Tables go through `function`; all other leaves are already what they shall be.
            for path in self.tables:
                if path_of(keys).endswith(path):
                    return function(functools.partial(_shard_rows, dims=dims_of(path), table=x), x, *taken)
            return taken[0] if taken else x

        return jax.tree_util.tree_map_with_path(of_leaf, tree, *taken)


def _shard_rows(rows: jax.Array, *, dims: str, table: jax.Array) -> jax.Array:
    """Shards rows as their table, except for the first dim, which stays whole: then no device has to send rows."""
    # Without a mesh, or on one device, a constraint has no meaning.
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return rows
    spec = partition_spec(dims, table.shape, dict(mesh.shape))
    return jax.lax.with_sharding_constraint(rows, PartitionSpec(None, *spec[1:]))


def select_rows(run: Run, batch: dict[str, jax.Array]) -> tuple[dict[str, jax.Array], TableRows | None]:
    """Returns (the batch with its words renumbered, the rows that its step reads) if updating only these is exact; else
    (the batch unchanged, None).

    Adam moves a parameter by the gradients of earlier steps, and weight decay moves every parameter: both need the
    whole table.
    """
    if run.objective != "bilm" or "negatives" not in batch:
        return batch, None
    # A small vocabulary may have fewer rows than the batch reads: then the whole table is less work.
    fewer = sum(batch[name].size for name in READS) < run.model.vocab
    if run.optim.name != "adagrad" or run.optim.weight_decay or not fewer:
        return batch, None
    # From here on the batch's words are numbers of rows, 0 to X - 1.
    words_X, batch = number_words(batch, run.model.vocab)
    return batch, TableRows(words_X, ("heads_bilm/kernel", "heads_bilm/bias"))
