"""One page that shows the attention of a text, or an ELMo's gates: it holds its data, and loads nothing."""

import base64
import logging
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from contexture.analysis.attention.gates import word_gates
from contexture.analysis.attention.maps import Numbers, check_transformer, chosen, layer_maps, token_sequence
from contexture.analysis.pages.one_page import check_page, write_one_page
from contexture.data.errors import DataError
from contexture.data.visible import visible

if TYPE_CHECKING:
    from contexture.analysis.trained_model import TrainedModel

logger = logging.getLogger(__name__)
FINE_WEIGHTS = 5_000_000
"""Weights that a page keeps to four decimals at most; more are kept to three. A row sums to 1, so that 512 weights in
thousandths take few bits each: 12 layers of 12 heads take less than 20 MB."""
LARGEST = 19_000_000
"""Characters of encoded arrays above which a page leaves out the queries and keys of some layers."""
_SCRIPTS = ("state", "columns", "head_view", "model_view", "neuron_view", "gates_view", "main")


class PageSummary(NamedTuple):
    """What a page shows.

    Args:
        tokens: how many tokens or words.
        layers: the numbers of its layers, from 1.
        heads: the numbers of its heads, from 1; none of an ELMo.
        query_key_layers: the layers whose queries and keys it holds.
        bytes: its size.
    """

    tokens: int
    layers: list[int]
    heads: list[int]
    query_key_layers: list[int]
    bytes: int


def write_page(
    to: Path,
    title: str,
    opened: "TrainedModel",
    text: str,
    second: str | None = None,
    *,
    layers: Numbers = None,
    heads: Numbers = None,
) -> PageSummary:
    """Writes the page of a text or a pair.

    Args:
        to: the file, *.html.
        title: the page's title.
        layers: as in `attention_maps`.
        heads: as in `attention_maps`.

    Raises:
        DataError: as `attention_maps`, and when `to` is no *.html, or an ELMo is asked for heads or a second text.
    """
    check_page(to)
    if opened.model.config.is_recurrent:
        if heads is not None:
            raise DataError("heads: an ELMo has no attention and no heads; leave heads out: the page shows its gates")
        if second is not None:
            raise DataError("second: an ELMo reads each text alone; leave the second one out")
        data, blocks = _gates_data(opened, text, layers), {}
    else:
        data, blocks = _attention_data(opened, text, second, layers, heads)
    size = write_one_page(to, "contexture.analysis.attention", _SCRIPTS, {"title": visible(title), **data}, blocks)
    if size > 20_000_000:
        logger.warning(f"the page has {size / 1e6:.0f} MB; --layers and --heads make a smaller one")
    layers_shown, heads_shown, kept = (data.get(name, []) for name in ("layers", "heads", "neurons"))
    return PageSummary(len(data["tokens"]), layers_shown, heads_shown, kept, size)


def _gates_data(opened: "TrainedModel", text: str, layers: Numbers) -> dict[str, Any]:
    numbers = chosen("layers", layers, opened.model.config.layers)
    gates = word_gates(opened.model, opened.params, opened.tokenizer, text, opened.run.head)
    means = gates["means"][:, np.array(numbers) - 1]
    mixes = [{**mix, "shares": None if (x := mix["shares"]) is None else _rounded(x, 4)} for mix in gates["mixes"]]
    return {
        "views": ["gates", "mix"] if mixes else ["gates"],
        "tokens": [visible(word) for word in gates["words"]],
        "special": [False] * len(gates["words"]),
        "segments": [0] * len(gates["words"]),
        "layers": numbers,
        "directions": gates["directions"],
        "gates": gates["gates"],
        "means": _rounded(means, 4),
        "mixes": mixes,
        "notes": f"{len(gates['words'])} words. Gates and shares are rounded to 4 decimals.",
    }


def _rounded(x: np.ndarray, decimals: int) -> list[Any]:
    return np.round(x.astype(np.float64), decimals).tolist()


def _attention_data(
    opened: "TrainedModel",
    text: str,
    second: str | None,
    layers: Numbers,
    heads: Numbers,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns (data that the page's scripts read at the start, arrays by name that they decode when they need them)."""
    config, tokenizer = check_transformer(opened.model.config), opened.tokenizer
    layer_numbers, head_numbers = chosen("layers", layers, config.layers), chosen("heads", heads, config.heads)
    sequence = token_sequence(config, tokenizer, text, second)
    names = [visible(tokenizer.token(id)) for id in sequence.ids]
    count = len(names)
    decimals = 4 if len(layer_numbers) * len(head_numbers) * count**2 <= FINE_WEIGHTS else 3
    weights, neurons = {}, {}
    maps = layer_maps(config, opened.params, tokenizer.pad, sequence, layer_numbers, head_numbers)
    for number, one in zip(layer_numbers, maps, strict=True):
        weights[f"weights-{number}"] = packed(np.round(one.weights * 10**decimals).astype(np.uint16))
        # float16 is packed as its bits, since `packed` takes 16-bit integers.
        neurons[number] = packed(np.stack([one.queries, one.keys]).astype(np.float16).view(np.uint16))
    # Weights come first: queries and keys share the room that is left.
    kept = _spread(layer_numbers, neurons, LARGEST - sum(map(len, weights.values())))
    # Layers are counted from 1 here: every second one is banded.
    windows = [config.local_window if n % 2 == 0 else 0 for n in layer_numbers]
    some = "" if kept == layer_numbers else f" (of the layers {', '.join(map(str, kept)) or 'none'})"
    return {
        "views": ["head", "model", "neuron"],
        "tokens": names,
        "special": sequence.special,
        "segments": sequence.segments,
        "groups": _groups(names, sequence.special),
        "layers": layer_numbers,
        "heads": head_numbers,
        "headCount": config.heads,
        "width": config.hidden // config.heads,
        "causal": config.is_causal,
        "windows": windows,
        "decimals": decimals,
        "neurons": kept,
        "notes": (
            f"{count} tokens. Weights are rounded to {decimals} decimals; queries and keys{some} are float16 "
            "(11 bits). In the view of the model, opacity is the root of a weight's share of its head's largest."
        ),
    }, {**weights, **{f"neurons-{number}": neurons[number] for number in kept}}


def _groups(names: Sequence[str], special: Sequence[bool]) -> dict[str, list[int]]:
    """Returns the positions of tokens that draw much attention, by name: special tokens, and the first one."""
    groups: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        if special[place]:
            groups.setdefault(name, []).append(place)
    return groups if special[0] else {"the first token": [0], **groups}


def packed(x: np.ndarray) -> str:
    """Returns 16-bit numbers as base64 of deflated bytes: all low bytes, then all high ones, which deflates better."""
    low_high = x.astype("<u2").ravel().view(np.uint8).reshape(-1, 2).T
    # Small numbers without repetitions: Z_FILTERED tries few matches and leaves more to the Huffman code of each byte.
    deflate = zlib.compressobj(6, strategy=zlib.Z_FILTERED)
    content = deflate.compress(np.ascontiguousarray(low_high).tobytes()) + deflate.flush()
    return base64.b64encode(content).decode()


def _spread(numbers: Sequence[int], sizes: dict[int, str], room: int) -> list[int]:
    """Returns as many layers as have room, spread evenly from the first to the last."""
    # The largest number of layers that fits.
    for count in range(len(numbers), 0, -1):
        kept = [numbers[place] for place in np.round(np.linspace(0, len(numbers) - 1, count)).astype(int)]
        if sum(len(sizes[number]) for number in kept) <= room:
            return kept
    return []
