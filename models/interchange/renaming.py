"""A rename table at work: tensors by their published names → our parameters, and back.

A row reads `(theirs, ours, "their dims -> our dims")` in the letters of models/shapes.py. `{layer}` in a name stands
for each layer in turn: theirs are one tensor a layer, ours are stacked on a leading N. `(HK)` is one dim of theirs that
holds two of ours, H the slower; in `(qHK)`, `(kHK)`, `(vHK)` their dim holds queries, keys and values one after the
other, of which ours is one. `X` is a dim of theirs of size 1 that ours has not. A row may bring sizes of its own for
its letters. Nothing is computed: values and dtypes pass as they are, bit for bit.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray
Shape = tuple[int, ...]
Sizes = Mapping[str, int]
Row = tuple[str, str, str] | tuple[str, str, str, Sizes]
_PARTS = "qkv"
_PLAIN = str.maketrans("", "", "()X" + _PARTS)


@dataclass(frozen=True)
class NameTable:
    """rows: what a file holds, each tensor once. repeats: names that hold another name's tensor again.

    A repeat is written on the way out; on the way in it may be absent, and must else be equal.
    """

    name: str
    rows: tuple[Row, ...]
    repeats: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class CheckpointFormat:
    """All that files of a format may hold, by part: the `backbone` always, the others where a model has them.

    repeats: of a part, while its softmax is tied to the token table; untied: its rows in their stead, and
    untied_repeats what is written beside them. ignored: a pattern of the names that hold no parameter of the model.
    """

    name: str
    parts: Mapping[str, tuple[Row, ...]]
    repeats: Mapping[str, tuple[tuple[str, str], ...]]
    untied: Mapping[str, tuple[Row, ...]]
    untied_repeats: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    ignored: str = r"(?!)"

    def table(self, parts: Iterable[str] = (), tied: bool = True) -> NameTable:
        """The table of a model with these parts beside the backbone."""
        chosen = ("backbone", *parts)
        rows = {row[0:2]: row for part in chosen for row in self.parts[part]}
        repeats: tuple[tuple[str, str], ...] = ()
        for part in chosen:
            repeats += (self.repeats if tied else self.untied_repeats).get(part, ())
            if not tied:
                own = self.untied.get(part, ())
                taken = {row[1] for row in own}
                rows = {key: row for key, row in rows.items() if row[1] not in taken} | {row[0:2]: row for row in own}
        return NameTable(self.name, tuple(rows.values()), repeats)

    def names(self, part: str) -> set[str]:
        """Theirs of a part, tied or not; `{layer}` in those of layers."""
        rows = (*self.parts[part], *self.untied.get(part, ()))
        return {row[0] for row in rows} | {name for name, _ in self.repeats.get(part, ())}

    def is_ignored(self, name: str) -> bool:
        return re.fullmatch(self.ignored, name) is not None


@dataclass(frozen=True)
class ParamMapping:
    """A row with its sizes: where one parameter of ours is found among their tensors."""

    names: tuple[str, ...]
    """Theirs: one for each layer, or one."""
    ours: str
    layered: bool
    dims: tuple[str, str]
    """Theirs and ours, of one layer."""
    sizes: Sizes

    @property
    def their_shape(self) -> Shape:
        return _shape(self.dims[0], self.sizes)

    @property
    def stacked(self) -> str:
        return "N" * self.layered + self.dims[1]

    @property
    def shape(self) -> Shape:
        """Of ours."""
        return _shape(self.stacked, self.sizes)

    def take(self, read: Callable[[str], Array]) -> Array:
        """The parameter, of tensors that `read` gives by name, one at a time."""
        flat, third = self.dims[0].translate(_PLAIN), _qkv_slice(self.dims[0])
        order, split = [flat.index(letter) for letter in self.dims[1]], [self.sizes[letter] for letter in flat]
        whole: Array | None = None
        for number, name in enumerate(self.names):
            part = third(read(name)).reshape(split).transpose(order)
            if whole is None:
                whole = np.empty(self.shape, part.dtype)
            whole[number if self.layered else ...] = part
        assert whole is not None, "a model has at least one layer"
        return whole

    def put(self, parameter: Array, tensors: dict[str, Array]) -> None:
        """The parameter into their tensors, which are made where they are not there yet."""
        flat, third = self.dims[0].translate(_PLAIN), _qkv_slice(self.dims[0])
        for name, part in zip(self.names, parameter if self.layered else parameter[None], strict=True):
            joined = part.transpose([self.dims[1].index(letter) for letter in flat])
            if name not in tensors:
                tensors[name] = np.empty(self.their_shape, part.dtype)
            place = third(tensors[name])
            place[...] = joined.reshape(place.shape)


def places(table: NameTable, sizes: Sizes) -> list[ParamMapping]:
    """The rows of a table with the sizes of a model."""
    found = []
    for theirs, ours, dims, *own in table.rows:
        layered = "{layer}" in theirs
        names = tuple(theirs.format(layer=n) for n in range(sizes["N"])) if layered else (theirs,)
        their_dims, our_dims = dims.split(" -> ")
        found.append(
            ParamMapping(names, ours, layered, (their_dims, our_dims), {**sizes, "X": 1, **(own[0] if own else {})})
        )
    return found


def shapes_of(table: NameTable, sizes: Sizes) -> dict[str, Shape]:
    """Their tensors' shapes by name, repeats left out."""
    return {name: place.their_shape for place in places(table, sizes) for name in place.names}


def check(table: NameTable, shapes: Mapping[str, Shape], sizes: Sizes) -> None:
    """Raises ValueError where a tensor is missing, is in no row, or has another shape, naming the first."""
    wanted = shapes_of(table, sizes)
    _same_names(table, "tensor", wanted.keys(), shapes.keys() - dict(table.repeats).keys())
    for place in places(table, sizes):
        for name in place.names:
            _same_shape(name, place.dims[0], shapes[name], place.their_shape)
    for name, source in table.repeats:
        _same_shape(name, f"like {source}", shapes.get(name, wanted[source]), wanted[source])


def check_repeats(table: NameTable, present: Iterable[str], read: Callable[[str], Array]) -> None:
    """Raises ValueError where a tensor differs from the one that it repeats."""
    there = set(present)
    for name, source in table.repeats:
        if name in there and not np.array_equal(read(name), read(source)):
            raise ValueError(f"tensor {name} is not equal to {source}, which {table.name} ties it to")


def to_ours(table: NameTable, tensors: Mapping[str, Array], sizes: Sizes) -> dict[str, Any]:
    """Their tensors by name → our nested parameters: `to_ours(BERT_HF, state, bert.sizes(config))`.

    Raises ValueError where a tensor is missing, is in no row, has another shape, or differs from the one it repeats.
    """
    check(table, {name: tensor.shape for name, tensor in tensors.items()}, sizes)
    check_repeats(table, tensors, tensors.__getitem__)
    return nested({place.ours: place.take(tensors.__getitem__) for place in places(table, sizes)})


def to_theirs(table: NameTable, params: Mapping[str, Any], sizes: Sizes) -> dict[str, Array]:
    """Our nested parameters → their tensors by name, repeats among them.

    Raises ValueError where a parameter is missing, is in no row, or has another shape.
    """
    leaves = _leaves(params)
    rows = places(table, sizes)
    _same_names(table, "parameter", {place.ours for place in rows}, leaves.keys())
    tensors: dict[str, Array] = {}
    for place in rows:
        _same_shape(place.ours, place.stacked, leaves[place.ours].shape, place.shape)
        place.put(leaves[place.ours], tensors)
    return tensors | {name: tensors[source] for name, source in table.repeats}


def nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """What stands at paths as a tree: {"a/b": x} → {"a": {"b": x}}."""
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        *folders, name = path.split("/")
        place = tree
        for folder in folders:
            place = place.setdefault(folder, {})
        place[name] = leaf
    return tree


def _qkv_slice(dims: str) -> Callable[[Array], Array]:
    """A view of the third of an array that a row with these dims speaks of; of an array without thirds, all of it."""
    part = next((_PARTS.index(letter) for letter in dims if letter in _PARTS), None)

    def view(array: Array) -> Array:
        width = array.shape[-1] // 3
        return array if part is None else array[..., part * width : (part + 1) * width]

    return view


def _shape(dims: str, sizes: Sizes) -> Shape:
    """`_shape("(HK)D", {"H": 3, "K": 4, "D": 12})` → (12, 12); `(qHK)` is three times (HK)."""
    shape: list[int] = []
    inside = False
    for letter in dims:
        if letter in "()":
            inside = letter == "("
            shape += [1] * inside
        elif inside:
            shape[-1] *= 3 if letter in _PARTS else sizes[letter]
        else:
            shape.append(sizes[letter])
    return tuple(shape)


def _leaves(tree: Mapping[str, Any], path: str = "") -> dict[str, Array]:
    found: dict[str, Array] = {}
    for name, value in tree.items():
        found |= _leaves(value, f"{path}{name}/") if isinstance(value, Mapping) else {path + name: np.asarray(value)}
    return found


def _same_names(table: NameTable, what: str, wanted: Iterable[str], got: Iterable[str]) -> None:
    wanted, got = set(wanted), set(got)
    if missing := sorted(wanted - got):
        raise ValueError(f"{what} {_listed(missing)} is missing; the format {table.name} has it")
    if unknown := sorted(got - wanted):
        raise ValueError(f"{what} {_listed(unknown)} is not accounted for: the format {table.name} has no row for it")


def _listed(names: list[str]) -> str:
    more = f" (and {len(names) - 3} more)" if len(names) > 3 else ""
    return ", ".join(name if len(name) < 100 else name[:97] + "…" for name in names[:3]) + more


def _same_shape(name: str, dims: str, got: Shape, wanted: Shape) -> None:
    if tuple(got) != wanted:
        raise ValueError(f"{name} is {list(got)}, and {dims} = {list(wanted)} is wanted")
