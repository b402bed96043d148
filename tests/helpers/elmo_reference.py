"""The original ELMo in PyTorch, one line per equation: slow, plain, and sharing nothing with the project's own code.

Weights are a dict of tensors with the names of the original's hdf5 file ("char_embed", "CNN/W_cnn_0", …); "softmax/W"
and "softmax/b" are added for training. Options are its options.json. Everything is computed in the weights' dtype.

    B rows   L positions   J width of a direction   U units of the cell   G its gates, 4U   V vocabulary   S negatives
    W characters   E their width   P places of a filter   K filters of one width   F all filters   T tokens, B times L

Character ids are everywhere those of inference: 0 stands for nothing, and every other id is the training id plus one.
A direction is 0 (forward) or 1 (backward), a state a list of (c_BU, h_BJ), one for each layer.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from torch import Tensor  # pyright: ignore[reportMissingImports]
from torch.nn.functional import cross_entropy  # pyright: ignore[reportMissingImports]

Weights = dict[str, Tensor]
State = list[tuple[Tensor, Tensor]]

CHARACTERS, WORD_WIDTH = 261, 50
BOS, EOS, BOW, EOW, PAD = 256, 257, 258, 259, 260
TF_EPS, TORCH_EPS = 1e-12, 1e-13  # of the layer norm of the mix, in bilm-tf and in AllenNLP


# Weights and characters


def cell_name(direction: int, layer: int) -> str:
    return f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"


def weight_shapes(options: dict[str, Any], vocab: int) -> dict[str, tuple[int, ...]]:
    """Every tensor's name and shape. The projection is there only where it changes the width."""
    cnn, lstm = options["char_cnn"], options["lstm"]
    E, J, U = cnn["embedding"]["dim"], lstm["projection_dim"], lstm["dim"]
    F = sum(count for _, count in cnn["filters"])
    shapes: dict[str, tuple[int, ...]] = {"char_embed": (CHARACTERS, E)}
    for n, (width, count) in enumerate(cnn["filters"]):
        shapes |= {f"CNN/W_cnn_{n}": (1, width, E, count), f"CNN/b_cnn_{n}": (count,)}
    for n in range(cnn["n_highway"]):
        for gate in ("carry", "transform"):
            shapes |= {f"CNN_high_{n}/W_{gate}": (F, F), f"CNN_high_{n}/b_{gate}": (F,)}
    if F != J:
        shapes |= {"CNN_proj/W_proj": (F, J), "CNN_proj/b_proj": (J,)}
    for direction in (0, 1):
        for layer in range(lstm["n_layers"]):
            name = cell_name(direction, layer)
            shapes |= {f"{name}/W_0": (2 * J, 4 * U), f"{name}/B": (4 * U,), f"{name}/W_P_0": (U, J)}
    return shapes | {"softmax/W": (vocab, J), "softmax/b": (vocab,)}


def random_weights(
    options: dict[str, Any], vocab: int, seed: int = 0, scale: float = 0.2, dtype: torch.dtype = torch.float64
) -> Weights:
    """All tensors normal with this deviation, biases too, so that each of them matters."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: scale * torch.randn(shape, generator=generator, dtype=dtype)
        for name, shape in weight_shapes(options, vocab).items()
    }


def read_weights(path: Path, dtype: torch.dtype = torch.float64) -> Weights:
    """The tensors of the original's hdf5 file."""
    import h5py

    weights: Weights = {}
    with h5py.File(path, "r") as file:
        file.visititems(
            lambda name, item: (
                weights.update({name: torch.tensor(item[()], dtype=dtype)}) if isinstance(item, h5py.Dataset) else None
            )
        )
    return weights


def word_characters(word: str) -> list[int]:
    """`<S>` and `</S>` are the boundaries; any other word is its UTF-8 bytes, at most 48 of them."""
    inside = {"<S>": [BOS], "</S>": [EOS]}.get(word) or list(word.encode("utf-8", "ignore")[: WORD_WIDTH - 2])
    row = [BOW, *inside, EOW]
    return [character + 1 for character in row + [PAD] * (WORD_WIDTH - len(row))]


def sentence_characters(sentences: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
    """Sentences of words → ids [B, L, 50] with the boundaries around each, zeros behind, and the lengths [B]."""
    rows = [[word_characters(word) for word in ("<S>", *words, "</S>")] for words in sentences]
    lengths = torch.tensor([len(row) for row in rows])
    chars_BLW = torch.zeros(len(rows), int(lengths.max()), WORD_WIDTH, dtype=torch.long)
    for b, row in enumerate(rows):
        chars_BLW[b, : len(row)] = torch.tensor(row)
    return chars_BLW, lengths


# From characters to token vectors


def token_vectors(chars: Tensor, w: Weights, options: dict[str, Any]) -> Tensor:
    """Ids [..., 50] → vectors [..., J]: embedding, filters and their maxima, highway, projection."""
    cnn = options["char_cnn"]
    activation = {"relu": torch.relu, "tanh": torch.tanh}[cnn["activation"]]
    nothing = torch.zeros_like(w["char_embed"][:1])
    x_WE = torch.cat([nothing, w["char_embed"]])[chars]
    pooled = []
    for n, (width, _) in enumerate(cnn["filters"]):
        windows_PEw = x_WE.unfold(-2, width, 1)
        y_PK = torch.einsum("...PEw,wEK->...PK", windows_PEw, w[f"CNN/W_cnn_{n}"][0]) + w[f"CNN/b_cnn_{n}"]
        pooled.append(activation(y_PK.amax(-2)))
    x_F = torch.cat(pooled, -1)
    for n in range(cnn["n_highway"]):
        carry_F = torch.sigmoid(x_F @ w[f"CNN_high_{n}/W_carry"] + w[f"CNN_high_{n}/b_carry"])
        new_F = torch.relu(x_F @ w[f"CNN_high_{n}/W_transform"] + w[f"CNN_high_{n}/b_transform"])
        x_F = carry_F * new_F + (1 - carry_F) * x_F
    if x_F.shape[-1] == options["lstm"]["projection_dim"]:
        return x_F
    return x_F @ w["CNN_proj/W_proj"] + w["CNN_proj/b_proj"]


# The two stacks of LSTMs


def zero_state(rows: int, w: Weights, options: dict[str, Any]) -> State:
    lstm, like = options["lstm"], w["char_embed"]
    return [(like.new_zeros(rows, lstm["dim"]), like.new_zeros(rows, lstm["projection_dim"]))] * lstm["n_layers"]


def clip(x: Tensor, limit: float | None) -> Tensor:
    return x if limit is None else x.clamp(-limit, limit)


def cell(
    x_BJ: Tensor, c_BU: Tensor, h_BJ: Tensor, w: Weights, name: str, options: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """One step of a projected LSTM: the new (c, h). A clip of None is off."""
    lstm = options["lstm"]
    z_BG = torch.cat([x_BJ, h_BJ], -1) @ w[f"{name}/W_0"] + w[f"{name}/B"]
    i, j, f, o = z_BG.chunk(4, -1)
    c_BU = torch.sigmoid(f + 1.0) * c_BU + torch.sigmoid(i) * torch.tanh(j)
    c_BU = clip(c_BU, lstm["cell_clip"])
    h_BJ = (torch.sigmoid(o) * torch.tanh(c_BU)) @ w[f"{name}/W_P_0"]
    h_BJ = clip(h_BJ, lstm["proj_clip"])
    return c_BU, h_BJ


def run_layers(
    x: Tensor,
    w: Weights,
    options: dict[str, Any],
    direction: int,
    state: State | None = None,
    lengths: Tensor | None = None,
    masks: Sequence[Tensor] | None = None,
) -> tuple[list[Tensor], State]:
    """x [B, L, J], in the order in which the direction reads → each layer's output [B, L, J], and the new state.

    A row's state stands still behind its length, where the outputs are zero. `masks` are dropout's multipliers of each
    layer's input, [B, L, J], zero or 1/keep; the skip connection adds the input as dropout left it.
    """
    B, L, _ = x.shape
    state = zero_state(B, w, options) if state is None else state
    lengths = torch.full((B,), L) if lengths is None else lengths
    outputs, new_state = [], []
    for layer, (c_BU, h_BJ) in enumerate(state):
        if masks is not None:
            x = x * masks[layer]
        hidden = []
        for t in range(L):
            new_c_BU, new_h_BJ = cell(x[:, t], c_BU, h_BJ, w, cell_name(direction, layer), options)
            going_B1 = (torch.asarray(lengths) > t)[:, None]
            c_BU = torch.where(going_B1, new_c_BU, c_BU)
            h_BJ = torch.where(going_B1, new_h_BJ, h_BJ)
            hidden.append(torch.where(going_B1, new_h_BJ, 0.0))
        y = torch.stack(hidden, 1)
        if layer > 0 and options["lstm"]["use_skip_connections"]:
            y = y + x  # behind a row's length both are zero
        outputs.append(y)
        new_state.append((c_BU, h_BJ))
        x = y
    return outputs, new_state


def reverse(x_BLJ: Tensor, lengths: Tensor) -> Tensor:
    """Each row reversed within its length; what lies behind stays. Twice is nothing."""
    positions_L = torch.arange(x_BLJ.shape[1])
    from_BL = torch.where(positions_L < lengths[:, None], lengths[:, None] - 1 - positions_L, positions_L)
    return x_BLJ.gather(1, from_BL[..., None].expand_as(x_BLJ))


def encode(
    chars: Tensor, lengths: Tensor, w: Weights, options: dict[str, Any], state: tuple[State, State] | None = None
) -> tuple[list[Tensor], tuple[State, State]]:
    """Sentences with their boundaries, [B, L, 50] → the layers [B, L, 2J], boundaries still inside, and the new states.

    Layer 0 is the token vector twice, also behind a row's length; the others are zero there.
    """
    before = (None, None) if state is None else state
    x_BLJ = token_vectors(chars, w, options)
    forward, new_forward = run_layers(x_BLJ, w, options, 0, before[0], lengths)
    reversed_outputs, new_backward = run_layers(reverse(x_BLJ, lengths), w, options, 1, before[1], lengths)
    backward = [reverse(y_BLJ, lengths) for y_BLJ in reversed_outputs]
    layers = [torch.cat(pair, -1) for pair in zip([x_BLJ, *forward], [x_BLJ, *backward], strict=True)]
    return layers, (new_forward, new_backward)


# Training


def full_loss(h: Tensor, targets: Tensor, w: Weights) -> Tensor:
    """h [T, J], targets [T] → the mean cross entropy over the whole vocabulary."""
    logits_TV = h @ w["softmax/W"].mT + w["softmax/b"]
    return cross_entropy(logits_TV, targets)


def log_expected_counts(words: Tensor, vocab: int, tries: int) -> Tensor:
    """The log of each word's probability of being among so many draws, which are log-uniform in the word's number."""
    k = words.double()
    p = ((k + 2) / (k + 1)).log() / math.log(vocab + 1)
    return (-torch.expm1(tries * torch.log1p(-p))).log()


def sampled_loss(h: Tensor, targets: Tensor, negatives: Tensor, tries: int, w: Weights) -> Tensor:
    """h [T, J], targets [T], distinct negatives [S] found in so many tries → the mean cross entropy of 1 + S logits."""
    W_VJ, b_V = w["softmax/W"], w["softmax/b"]
    vocab = len(b_V)
    label_T = (h * W_VJ[targets]).sum(-1) + b_V[targets]
    label_T = label_T - log_expected_counts(targets, vocab, tries).to(h.dtype)
    others_TS = h @ W_VJ[negatives].mT + b_V[negatives]
    others_TS = others_TS - log_expected_counts(negatives, vocab, tries).to(h.dtype)
    others_TS = others_TS.masked_fill(targets[:, None] == negatives, -1e30)  # the label is no negative of its own
    logits = torch.cat([label_T[:, None], others_TS], -1)
    return cross_entropy(logits, torch.zeros_like(targets))


def training_loss(
    chars: tuple[Tensor, Tensor],
    targets: tuple[Tensor, Tensor],
    w: Weights,
    options: dict[str, Any],
    states: tuple[State, State] | None = None,
    masks: tuple[Sequence[Tensor], Sequence[Tensor]] | None = None,
    samples: tuple[tuple[Tensor, int], tuple[Tensor, int]] | None = None,
) -> tuple[Tensor, tuple[Tensor, Tensor], tuple[State, State]]:
    """A batch of both directions' streams → half the sum of their losses, the two losses, and the states to carry on.

    Each pair is (forward, backward), each stream in the order in which it is read: chars [B, L, 50], targets [B, L].
    A direction's masks [B, L, J] are one for each layer's input and one for the last output; its samples are
    (negatives, tries), and without them the softmax is over all words. No gradient passes through carried states.
    """
    losses, carried = [], []
    for direction in (0, 1):
        x_BLJ = token_vectors(chars[direction], w, options)
        state = None if states is None else states[direction]
        dropped = None if masks is None else masks[direction]
        outputs, new_state = run_layers(x_BLJ, w, options, direction, state, masks=dropped)
        last_BLJ = outputs[-1] if dropped is None else outputs[-1] * dropped[-1]
        h_TJ, targets_T = last_BLJ.flatten(0, 1), targets[direction].flatten()
        losses.append(
            full_loss(h_TJ, targets_T, w) if samples is None else sampled_loss(h_TJ, targets_T, *samples[direction], w)
        )
        carried.append([(c_BU.detach(), h_BJ.detach()) for c_BU, h_BJ in new_state])
    forward, backward = losses
    return 0.5 * (forward + backward), (forward, backward), (carried[0], carried[1])


def start_accumulators(params: Weights) -> Weights:
    return {name: torch.ones_like(p) for name, p in params.items()}


@torch.no_grad()
def adagrad_step(
    params: Weights, grads: Weights, accumulators: Weights, times: float = 20.0
) -> tuple[Weights, Weights]:
    """The new parameters and accumulators. The original's loss is `times` this one: the number of unrolled steps."""
    scaled = {name: times * g for name, g in grads.items()}
    norm = torch.stack([g.square().sum() for g in scaled.values()]).sum().sqrt()
    clipped = {name: g * 10.0 / norm.clamp(min=10.0) for name, g in scaled.items()}
    new_accumulators = {name: accumulators[name] + g.square() for name, g in clipped.items()}
    new_params = {name: params[name] - 0.2 * g / new_accumulators[name].sqrt() for name, g in clipped.items()}
    return new_params, new_accumulators


# The mix of the layers


def norm_layer(x_BLD: Tensor, mask_BL: Tensor, eps: float) -> Tensor:
    """One mean and one variance for the layer, over all features of all positions with a token in the whole batch."""
    inside = x_BLD[mask_BL.bool()]
    mean = inside.mean()
    variance = (inside - mean).square().mean()
    return (x_BLD - mean) / (variance + eps).sqrt()


def scalar_mix(
    layers: Sequence[Tensor], s: Tensor, gamma: Tensor, mask: Tensor, layer_norm: bool = False, eps: float = TF_EPS
) -> Tensor:
    """γ · Σ softmax(s)_n · layer_n, of layers [B, L, D]. What is outside the mask [B, L] is mixed, but not counted."""
    if layer_norm:
        layers = [norm_layer(x_BLD, mask, eps) for x_BLD in layers]
    shares = torch.softmax(s, 0)
    return gamma * sum(share * x_BLD for share, x_BLD in zip(shares, layers, strict=True))


def weight_layers(
    layers: Sequence[Tensor],
    s: Tensor,
    gamma: Tensor,
    mask: Tensor,
    l2: float = 0.0,
    layer_norm: bool = False,
    top_only: bool = False,
) -> tuple[Tensor, Tensor]:
    """bilm-tf's mix and its penalty, which is on s alone; `top_only` takes γ times the last layer, without penalty."""
    if top_only:
        return gamma * layers[-1], s.new_zeros(())
    mixed = scalar_mix(layers, s + 1.0 / len(layers), gamma, mask, layer_norm)
    return mixed, l2 * s.square().sum()
