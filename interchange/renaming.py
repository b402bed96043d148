"""Renaming of published checkpoints: tensors by their published names → our parameters, and back.

A row of a table reads `(theirs, ours, "their dims -> our dims")`, in the letters of models/shapes.py:

    {layer}   in a name is replaced by each layer's number: they have a tensor per layer, we stack layers on a leading N
    (HK)      one dim of theirs that holds two of ours, H varying slower
    (qHK)     one dim of theirs that holds queries, keys and values one after the other; ours is the queries;
              (kHK) and (vHK) likewise
    X         a dim of size 1 that theirs has and ours has not

A row may bring sizes of its own for its letters. Nothing is computed: values and dtypes pass unchanged, bit for bit.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from contexture.models.shapes import Nested, nested

Array: TypeAlias = np.ndarray
Shape: TypeAlias = tuple[int, ...]
Sizes: TypeAlias = Mapping[str, int]
Row: TypeAlias = tuple[str, str, str] | tuple[str, str, str, Sizes]
Tree: TypeAlias = Mapping[str, "Tree | Array"]
"""Our parameters as nested mappings of NumPy arrays."""
_QKV = "qkv"
_LETTERS_ONLY = str.maketrans("", "", "()X" + _QKV)


@dataclass(frozen=True)
class NameTable:
    """The names of one model's tensors in a format.

    A repeat is written on export. On import it may be absent; if present it must equal the tensor that it repeats.

    Args:
        name: the format's name, for errors.
        rows: each tensor that a file holds, once.
        repeats: (name, other name): `name` stores the tensor `other name` again, as tied weights do.
    """

    name: str
    rows: tuple[Row, ...]
    repeats: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class CheckpointFormat:
    """All tensors that files of a format may hold, by part: `backbone` always, the others if a model has them.

    Args:
        name: the format's name, for errors.
        parts: part → rows.
        repeats: part → repeats, if the softmax is tied to the token table.
        untied: part → the rows that replace rows of `parts` if the softmax has a table of its own.
        untied_repeats: part → repeats, if the softmax is untied.
        ignored: a pattern of names that hold no parameter of the model.
    """

    name: str
    parts: Mapping[str, tuple[Row, ...]]
    repeats: Mapping[str, tuple[tuple[str, str], ...]]
    untied: Mapping[str, tuple[Row, ...]]
    untied_repeats: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    ignored: str = r"(?!)"  # matches no name

    def table(self, parts: Iterable[str] = (), tied: bool = True) -> NameTable:
        """Returns the table of a model with the backbone and these parts."""
        chosen = ("backbone", *parts)
        # By (theirs, ours): two parts may share a row, which the file holds once.
        rows = {row[0:2]: row for part in chosen for row in self.parts[part]}
        repeats: tuple[tuple[str, str], ...] = ()
        for part in chosen:
            repeats += (self.repeats if tied else self.untied_repeats).get(part, ())
            if not tied:
                # The parameter comes from another tensor now: the tied row for it is dropped.
                untied = self.untied.get(part, ())
                replaced = {row[1] for row in untied}
                rows = {key: row for key, row in rows.items() if row[1] not in replaced}
                rows |= {row[0:2]: row for row in untied}
        return NameTable(self.name, tuple(rows.values()), repeats)

    def names(self, part: str) -> set[str]:
        """Returns all names that a part may have in files, tied or not, with `{layer}` in place of a layer's number."""
        rows = (*self.parts[part], *self.untied.get(part, ()))
        return {row[0] for row in rows} | {name for name, _ in self.repeats.get(part, ())}

    def is_ignored(self, name: str) -> bool:
        """Returns whether a tensor of this name holds no parameter of the model."""
        return re.fullmatch(self.ignored, name) is not None


@dataclass(frozen=True)
class ParamMapping:
    """A row with its sizes: where one parameter of ours is among their tensors."""

    names: tuple[str, ...]
    """Theirs: one for each layer, or one."""
    ours: str
    layered: bool
    dims: tuple[str, str]
    """Theirs and ours, of one layer."""
    sizes: Sizes

    @property
    def their_shape(self) -> Shape:
        """The shape of one tensor of theirs."""
        return _shape(self.dims[0], self.sizes)

    @property
    def stacked(self) -> str:
        """The dims of our parameter, N included."""
        return "N" * self.layered + self.dims[1]

    @property
    def shape(self) -> Shape:
        """The shape of our parameter."""
        return _shape(self.stacked, self.sizes)

    def load(self, read: Callable[[str], Array]) -> Array:
        """Returns our parameter, from their tensors, which `read` returns by name, one at a time."""
        letters, qkv_slice = self.dims[0].translate(_LETTERS_ONLY), _qkv_slice(self.dims[0])
        # reshape splits their joint dims (and drops X), transpose puts the letters in our order.
        order, split = [letters.index(letter) for letter in self.dims[1]], [self.sizes[letter] for letter in letters]
        parameter: Array | None = None
        for number, name in enumerate(self.names):
            layer = qkv_slice(read(name)).reshape(split).transpose(order)
            # Filled layer by layer, so that only one of their tensors is in memory too. The first one tells the dtype.
            if parameter is None:
                parameter = np.empty(self.shape, layer.dtype)
            parameter[number if self.layered else ...] = layer
        assert parameter is not None, "a model has at least one layer"
        return parameter

    def store(self, parameter: Array, tensors: dict[str, Array]) -> None:
        """Writes our parameter into their tensors, creating those that do not exist yet."""
        letters, qkv_slice = self.dims[0].translate(_LETTERS_ONLY), _qkv_slice(self.dims[0])
        for name, layer in zip(self.names, parameter if self.layered else parameter[None], strict=True):
            transposed = layer.transpose([self.dims[1].index(letter) for letter in letters])
            # Queries, keys and values write a third each of one tensor: the first of them creates it.
            if name not in tensors:
                tensors[name] = np.empty(self.their_shape, layer.dtype)
            # A view: writing into it fills the third of the tensor.
            view = qkv_slice(tensors[name])
            view[...] = transposed.reshape(view.shape)


def param_mappings(table: NameTable, sizes: Sizes) -> list[ParamMapping]:
    """Returns the rows of a table with the sizes of a model."""
    mappings = []
    for theirs, ours, dims, *own_sizes in table.rows:
        layered = "{layer}" in theirs
        names = tuple(theirs.format(layer=n) for n in range(sizes["N"])) if layered else (theirs,)
        their_dims, our_dims = dims.split(" -> ")
        row_sizes = {**sizes, "X": 1, **(own_sizes[0] if own_sizes else {})}
        mappings.append(ParamMapping(names, ours, layered, (their_dims, our_dims), row_sizes))
    return mappings


def shapes_of(table: NameTable, sizes: Sizes) -> dict[str, Shape]:
    """Returns the shapes of their tensors by name, repeats left out."""
    return {name: mapping.their_shape for mapping in param_mappings(table, sizes) for name in mapping.names}


def check(table: NameTable, shapes: Mapping[str, Shape], sizes: Sizes) -> None:
    """Checks the names and shapes of their tensors.

    Raises:
        ValueError: when a tensor is missing, is in no row, or has another shape; it names the first.
    """
    expected = shapes_of(table, sizes)
    # Repeats may be absent, so they are no part of the comparison of names.
    _require_same_names(table, "tensor", expected.keys(), shapes.keys() - dict(table.repeats).keys())
    for mapping in param_mappings(table, sizes):
        for name in mapping.names:
            _require_shape(name, mapping.dims[0], shapes[name], mapping.their_shape)
    for name, source in table.repeats:
        _require_shape(name, f"like {source}", shapes.get(name, expected[source]), expected[source])


def check_repeats(table: NameTable, present: Iterable[str], read: Callable[[str], Array]) -> None:
    """Raises: ValueError if a tensor differs from the one that it repeats."""
    names = set(present)
    for name, source in table.repeats:
        if name in names and not np.array_equal(read(name), read(source)):
            raise ValueError(f"tensor {name} is not equal to {source}, which {table.name} ties it to")


def to_ours(table: NameTable, tensors: Mapping[str, Array], sizes: Sizes) -> "Nested[Array]":
    """Returns our nested parameters from their tensors by name: `to_ours(BERT_HF, state, bert.sizes(config))`.

    Raises:
        ValueError: when a tensor is missing, is in no row, has another shape, or differs from the one it repeats.
    """
    check(table, {name: tensor.shape for name, tensor in tensors.items()}, sizes)
    check_repeats(table, tensors, tensors.__getitem__)
    return nested({mapping.ours: mapping.load(tensors.__getitem__) for mapping in param_mappings(table, sizes)})


def to_theirs(table: NameTable, params: Tree, sizes: Sizes) -> dict[str, Array]:
    """Returns their tensors by name from our nested parameters, repeats included.

    Raises:
        ValueError: when a parameter is missing, is in no row, or has another shape.
    """
    leaves = _leaves(params)
    mappings = param_mappings(table, sizes)
    _require_same_names(table, "parameter", {mapping.ours for mapping in mappings}, leaves.keys())
    tensors: dict[str, Array] = {}
    for mapping in mappings:
        _require_shape(mapping.ours, mapping.stacked, leaves[mapping.ours].shape, mapping.shape)
        mapping.store(leaves[mapping.ours], tensors)
    return tensors | {name: tensors[source] for name, source in table.repeats}


def _qkv_slice(dims: str) -> Callable[[Array], Array]:
    """Returns a function: their array → a view of the third of its last dim that these dims name, or all of it."""
    third = next((_QKV.index(letter) for letter in dims if letter in _QKV), None)

    def view(array: Array) -> Array:
        width = array.shape[-1] // 3
        return array if third is None else array[..., third * width : (third + 1) * width]

    return view


def _shape(dims: str, sizes: Sizes) -> Shape:
    """`_shape("(HK)D", {"H": 3, "K": 4, "D": 12})` → (12, 12); `(qHK)` is three times (HK)."""
    shape: list[int] = []
    inside = False
    for letter in dims:
        if letter in "()":
            # "(" opens a dim of size 1, which each letter inside multiplies.
            inside = letter == "("
            shape += [1] * inside
        elif inside:
            shape[-1] *= 3 if letter in _QKV else sizes[letter]
        else:
            shape.append(sizes[letter])
    return tuple(shape)


def _leaves(tree: Tree, path: str = "") -> dict[str, Array]:
    leaves: dict[str, Array] = {}
    for name, value in tree.items():
        leaves |= _leaves(value, f"{path}{name}/") if isinstance(value, Mapping) else {path + name: np.asarray(value)}
    return leaves


def _require_same_names(table: NameTable, what: str, expected: Iterable[str], got: Iterable[str]) -> None:
    expected, got = set(expected), set(got)
    if missing := sorted(expected - got):
        raise ValueError(f"{what} {_listed(missing)} is missing; the format {table.name} has it")
    if unknown := sorted(got - expected):
        raise ValueError(f"{what} {_listed(unknown)} is not accounted for: the format {table.name} has no row for it")


def _listed(names: list[str]) -> str:
    """Returns the first three names, shortened."""
    more = f" (and {len(names) - 3} more)" if len(names) > 3 else ""
    return ", ".join(name if len(name) < 100 else name[:97] + "…" for name in names[:3]) + more


def _require_shape(name: str, dims: str, got: Shape, expected: Shape) -> None:
    if tuple(got) != expected:
        raise ValueError(f"{name} is {list(got)}, and {dims} = {list(expected)} is wanted")
