"""The reference ELMo against the original's own vectors, against torch's LSTM, and against laws it must keep."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity

from tests.helpers import elmo_reference as elmo  # noqa: E402
from tests.helpers.parity_rule import worst  # noqa: E402

OPTIONS: dict[str, Any] = {
    "lstm": {"cell_clip": 3, "proj_clip": 3, "dim": 11, "projection_dim": 7, "n_layers": 2,
             "use_skip_connections": True},
    "char_cnn": {"activation": "relu", "embedding": {"dim": 5}, "filters": [[1, 3], [2, 4], [5, 6]], "n_highway": 2,
                 "n_characters": 262, "max_characters_per_token": 50},
}  # fmt: skip
B, L, J, U, V = 4, 6, 7, 11, 23
LENGTHS = torch.tensor([6, 1, 4, 3])


def with_lstm(**changes: Any) -> dict[str, Any]:
    options = copy.deepcopy(OPTIONS)
    options["lstm"] |= changes
    return options


def normal(*shape: int, seed: int = 5) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def integers(limit: int, *shape: int, seed: int = 6) -> Any:
    return torch.randint(limit, shape, generator=torch.Generator().manual_seed(seed))


def assert_near(a: Any, b: Any, tolerance: float = 1e-10) -> None:
    assert a.shape == b.shape
    assert b.detach().abs().max() > 0, "zeros alone"
    assert (a - b).abs().max() <= tolerance


# The original's vectors


def golden_error(model: Path, options: dict[str, Any], w: elmo.Weights, stateful: bool = True) -> float:
    """The largest difference from the original's top layer, over all rows, calls, positions and features."""
    import h5py

    rows = json.loads((model / "lm_embeddings_sentences.json").read_text("utf-8"))
    state, actual = None, []
    for call in range(10):
        chars, lengths = elmo.sentence_characters([row[call].split() for row in rows])
        layers, state = elmo.encode(chars, lengths, w, options, state if stateful else None)
        for k, length in enumerate(lengths.tolist()):
            with h5py.File(model / f"lm_embeddings_{k}.hdf5", "r") as file:
                dataset: Any = file[str(call)]
                expected = torch.tensor(dataset[()]).double()
            got = torch.stack(layers[-1][k, 1 : length - 1].double().chunk(2, -1))
            assert got.shape == expected.shape
            actual.append(float((got - expected).abs().max()))
    assert len(actual) == 30
    return worst(actual)


@pytest.fixture(scope="module")
def golden(shared: Path) -> tuple[Path, dict[str, Any]]:
    pytest.importorskip("h5py")
    model = shared / "data" / "golden_bilm_tf" / "model"
    return model, json.loads((model / "options.json").read_text("utf-8"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_all_30_sentences_are_the_originals(golden: tuple[Path, dict[str, Any]], dtype: Any) -> None:
    model, options = golden
    assert golden_error(model, options, elmo.read_weights(model / "lm_weights.hdf5", dtype)) <= 1e-6


def test_the_originals_sentences_catch_each_mistake(golden: tuple[Path, dict[str, Any]]) -> None:
    model, options = golden
    w = elmo.read_weights(model / "lm_weights.hdf5")
    assert golden_error(model, options, w, stateful=False) > 0.1
    unclipped = {**options, "lstm": {**options["lstm"], "cell_clip": None}}
    assert golden_error(model, unclipped, w) > 1e-4
    forgetful = {name: t.clone() for name, t in w.items()}
    for direction in (0, 1):
        for layer in (0, 1):
            forgetful[elmo.cell_name(direction, layer) + "/B"][128:192] -= 1.0
    assert golden_error(model, options, forgetful) > 0.1


def test_every_weight_of_the_original_is_named(golden: tuple[Path, dict[str, Any]]) -> None:
    model, options = golden
    shapes = {name: tuple(t.shape) for name, t in elmo.read_weights(model / "lm_weights.hdf5").items()}
    expected = elmo.weight_shapes(options, V)
    assert shapes == {name: shape for name, shape in expected.items() if not name.startswith("softmax/")}


# torch's own layers


def to_torch(w: elmo.Weights, direction: int, layer: int, bias: bool = True) -> list[Any]:
    """A cell's weights as torch has them: gates i, f, g, o in rows, the forget bias inside, two biases.

    With `bias` off the forget bias is left out, as gradients want it.
    """
    name = elmo.cell_name(direction, layer)

    def gates(t: Any) -> Any:
        i, j, f, o = t.chunk(4, -1)
        return torch.cat([i, f, j, o], -1)

    kernel = gates(w[f"{name}/W_0"])
    forget = torch.zeros(4 * U, dtype=torch.float64)
    forget[U : 2 * U] = 1.0 if bias else 0.0
    b = gates(w[f"{name}/B"]) + forget
    return [kernel[:J].mT, kernel[J:].mT, b, torch.zeros_like(b), w[f"{name}/W_P_0"].mT]


def load(lstm: Any, w: elmo.Weights, direction: int, layer: int, suffix: str) -> list[Any]:
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
    parameters = [getattr(lstm, f"{name}_{suffix}") for name in names]
    with torch.no_grad():
        for parameter, t in zip(parameters, to_torch(w, direction, layer), strict=True):
            parameter.copy_(t)
    return parameters


@pytest.mark.parametrize("clips", [None, 1e3], ids=["clips off", "clips far away"])
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["whole rows", "lengths"])
def test_two_layers_are_torchs_projected_lstm(clips: float | None, lengths: Any) -> None:
    options = with_lstm(cell_clip=clips, proj_clip=clips, use_skip_connections=False)
    w = {name: t.requires_grad_() for name, t in elmo.random_weights(options, V, scale=0.5).items()}
    lstm = torch.nn.LSTM(J, U, num_layers=2, batch_first=True, proj_size=J).double()
    parameters = [load(lstm, w, 1, layer, f"l{layer}") for layer in (0, 1)]
    x, their_x = normal(B, L, J).requires_grad_(), normal(B, L, J).requires_grad_()
    c, h = normal(2, B, U, seed=7), normal(2, B, J, seed=8)

    outputs, state = elmo.run_layers(x, w, options, 1, list(zip(c, h, strict=True)), lengths)
    row_lengths = torch.full((B,), L) if lengths is None else lengths
    packed = torch.nn.utils.rnn.pack_padded_sequence(their_x, row_lengths, batch_first=True, enforce_sorted=False)
    their_packed, (their_h, their_c) = lstm(packed, (h, c))
    theirs, _ = torch.nn.utils.rnn.pad_packed_sequence(their_packed, batch_first=True, total_length=L)
    assert_near(outputs[-1], theirs)
    for layer in (0, 1):
        assert_near(state[layer][0], their_c[layer])
        assert_near(state[layer][1], their_h[layer])

    weights_BLJ, weights_BU = normal(B, L, J, seed=9), normal(B, U, seed=10)
    ((outputs[-1] * weights_BLJ).sum() + (state[0][0] * weights_BU).sum()).backward()
    ((theirs * weights_BLJ).sum() + (their_c[0] * weights_BU).sum()).backward()
    assert_near(x.grad, their_x.grad)
    grads = {name: t.grad for name, t in w.items() if t.grad is not None}
    assert len(grads) == 6
    for layer in (0, 1):
        ours = to_torch(grads, 1, layer, bias=False)
        assert_near(ours[2], parameters[layer][3].grad)  # both of torch's biases have the same gradient
        for n in (0, 1, 2, 4):
            assert float(ours[n].abs().max()) > 1e-3
            assert_near(ours[n], parameters[layer][n].grad)


def test_both_directions_of_encode_are_torchs() -> None:
    options = with_lstm(n_layers=1, cell_clip=None, proj_clip=None)
    w = elmo.random_weights(options, V)
    chars = integers(262, B, L, 50)
    lstm = torch.nn.LSTM(J, U, batch_first=True, bidirectional=True, proj_size=J).double()
    load(lstm, w, 0, 0, "l0")
    load(lstm, w, 1, 0, "l0_reverse")
    x = elmo.token_vectors(chars, w, options)
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, LENGTHS, batch_first=True, enforce_sorted=False)
    theirs, _ = torch.nn.utils.rnn.pad_packed_sequence(lstm(packed)[0], batch_first=True, total_length=L)
    layers, _ = elmo.encode(chars, LENGTHS, w, options)
    assert_near(layers[0], torch.cat([x, x], -1))
    assert_near(layers[1], theirs)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("width", [J, 13], ids=["projected", "as wide as the filters"])
def test_token_vectors_are_those_of_torchs_convolution(activation: str, width: int) -> None:
    options = with_lstm(projection_dim=width)
    options["char_cnn"]["activation"] = activation
    w = elmo.random_weights(options, V, scale=0.4)
    assert ("CNN_proj/W_proj" in w) == (width == J)
    chars = integers(262, 3, 2, 50)
    chars[0, 0] = 0
    embedded = torch.nn.functional.pad(w["char_embed"], (0, 0, 1, 0))[chars.flatten(0, 1)].mT
    pooled = []
    for n in range(3):
        conv = torch.nn.functional.conv1d(embedded, w[f"CNN/W_cnn_{n}"][0].permute(2, 1, 0), w[f"CNN/b_cnn_{n}"])
        pooled.append(getattr(torch, activation)(conv).amax(-1))
    x = torch.cat(pooled, -1)
    for n in range(2):
        gate, new = (
            torch.nn.functional.linear(x, w[f"CNN_high_{n}/W_{which}"].mT, w[f"CNN_high_{n}/b_{which}"])
            for which in ("carry", "transform")
        )
        x = torch.lerp(x, torch.relu(new), torch.sigmoid(gate))
    if width == J:
        x = torch.nn.functional.linear(x, w["CNN_proj/W_proj"].mT, w["CNN_proj/b_proj"])
    assert_near(elmo.token_vectors(chars, w, options), x.unflatten(0, (3, 2)))


# Laws


def test_a_skip_connection_changes_the_output_and_not_the_state() -> None:
    w, x = elmo.random_weights(OPTIONS, V), normal(B, L, J)
    outputs, state = elmo.run_layers(x, w, OPTIONS, 0, lengths=LENGTHS)
    plain, plain_state = elmo.run_layers(x, w, with_lstm(use_skip_connections=False), 0, lengths=LENGTHS)
    assert_near(outputs[0], plain[0])
    assert_near(outputs[1], plain[1] + plain[0])
    for (c, h), (plain_c, plain_h) in zip(state, plain_state, strict=True):
        assert torch.equal(c, plain_c) and torch.equal(h, plain_h)
    assert all(outputs[1][b, length:].eq(0).all() for b, length in enumerate(LENGTHS.tolist()))


def test_the_skip_connection_adds_the_dropped_input() -> None:
    w, x = elmo.random_weights(OPTIONS, V), normal(B, L, J)
    masks = [(integers(10, B, L, J, seed=n) > 0).double() / 0.9 for n in (1, 2)]
    outputs, _ = elmo.run_layers(x, w, OPTIONS, 0, masks=masks)
    plain, _ = elmo.run_layers(x, w, with_lstm(use_skip_connections=False), 0, masks=masks)
    assert_near(outputs[1], plain[1] + plain[0] * masks[1])
    undropped, _ = elmo.run_layers(x * masks[0], w, OPTIONS, 0)
    assert_near(outputs[0], undropped[0])
    assert float((outputs[1] - undropped[1]).abs().max()) > 1e-3


def test_clips_bite() -> None:
    w, x = elmo.random_weights(OPTIONS, V, scale=0.6), normal(B, L, J)
    wide, wide_state = elmo.run_layers(x, w, OPTIONS, 0)
    assert max(float(c.abs().max()) for c, _ in wide_state) > 0.2
    _, narrow_state = elmo.run_layers(x, w, with_lstm(cell_clip=0.2), 0)
    assert all(float(c.abs().max()) == 0.2 for c, _ in narrow_state)
    narrow, narrow_state = elmo.run_layers(x, w, with_lstm(proj_clip=0.1), 0)
    assert all(float(h.abs().max()) == 0.1 for _, h in narrow_state)
    assert float(narrow[0].abs().max()) == 0.1 and float(wide[0].abs().max()) > 0.1
    assert 0.1 < float(narrow[1].abs().max()) <= 0.2  # the skip connection is behind the clip


def test_a_row_is_what_it_is_alone_and_its_state_carries_on() -> None:
    w, chars = elmo.random_weights(OPTIONS, V), integers(262, B, L, 50)
    layers, states = elmo.encode(chars, LENGTHS, w, OPTIONS)
    for b, length in enumerate(LENGTHS.tolist()):
        alone, own = elmo.encode(chars[b : b + 1, :length], LENGTHS[b : b + 1], w, OPTIONS)
        for ours, all_rows in zip(alone, layers, strict=True):
            assert_near(ours[0], all_rows[b, :length])
        assert_near(own[1][1][0][0], states[1][1][0][b])
    x = elmo.token_vectors(chars, w, OPTIONS)
    whole, end = elmo.run_layers(x, w, OPTIONS, 0)
    first, middle = elmo.run_layers(x[:, :2], w, OPTIONS, 0)
    second, carried_end = elmo.run_layers(x[:, 2:], w, OPTIONS, 0, middle)
    assert_near(torch.cat([first[1], second[1]], 1), whole[1])
    assert_near(carried_end[1][0], end[1][0])


def test_characters_of_words() -> None:
    assert elmo.word_characters("<S>") == [259, 257, 260] + [261] * 47
    assert elmo.word_characters("</S>") == [259, 258, 260] + [261] * 47
    assert elmo.word_characters("né") == [259, 111, 196, 170, 260] + [261] * 45
    assert elmo.word_characters("x" * 60) == [259, *[121] * 48, 260]
    chars, lengths = elmo.sentence_characters([["a", "b"], []])
    assert chars.shape == (2, 4, 50) and lengths.tolist() == [4, 2] and chars[1, 2:].eq(0).all()


def test_the_sampled_loss_is_what_its_equations_say() -> None:
    w, h = elmo.random_weights(OPTIONS, V, scale=0.5), normal(3, J)
    targets, negatives, tries = [0, 5, 22], [5, 1, 0, 17], 6
    total = 0.0
    for n, label in enumerate(targets):
        logits = []
        for word in [label, *(word for word in negatives if word != label)]:
            p = (math.log(word + 2) - math.log(word + 1)) / math.log(V + 1)
            logit = float(h[n] @ w["softmax/W"][word] + w["softmax/b"][word])
            logits.append(logit - math.log(1 - (1 - p) ** tries))
        total += math.log(sum(math.exp(logit) for logit in logits)) - logits[0]
    got = elmo.sampled_loss(h, torch.tensor(targets), torch.tensor(negatives), tries, w)
    assert abs(float(got) - total / 3) <= 1e-12


def test_with_every_word_drawn_the_sampled_loss_is_the_full_one() -> None:
    w, h, targets = elmo.random_weights(OPTIONS, V), normal(9, J), integers(V, 9)
    every = torch.randperm(V, generator=torch.Generator().manual_seed(1))
    assert_near(elmo.sampled_loss(h, targets, every, 100_000, w), elmo.full_loss(h, targets, w))


def streams() -> tuple[Any, Any, Any, Any]:
    """Characters, targets, dropout's masks and sampled negatives of both directions."""
    chars = tuple(integers(262, B, L, 50, seed=n) for n in (1, 2))
    targets = tuple(integers(V, B, L, seed=n) for n in (3, 4))
    masks: Any = tuple([(integers(10, B, L, J, seed=10 * d + n) > 0) / 0.9 for n in range(3)] for d in (0, 1))
    return chars, targets, masks, ((torch.tensor([0, 3, 8]), 4), (torch.tensor([1, 2, 0]), 5))


def test_the_training_loss_is_made_of_its_parts() -> None:
    w = elmo.random_weights(OPTIONS, V)
    chars, targets, masks, samples = streams()
    _, full, _ = elmo.training_loss(chars, targets, w, OPTIONS, masks=masks)
    _, sampled, _ = elmo.training_loss(chars, targets, w, OPTIONS, masks=masks, samples=samples)
    for d in (0, 1):
        outputs, _ = elmo.run_layers(elmo.token_vectors(chars[d], w, OPTIONS), w, OPTIONS, d, masks=masks[d][:2])
        h, labels = (outputs[1] * masks[d][2]).reshape(B * L, J), targets[d].reshape(B * L)
        assert_near(full[d], elmo.full_loss(h, labels, w))
        negatives, tries = samples[d]
        assert_near(sampled[d], elmo.sampled_loss(h, labels, negatives, tries, w))


def test_two_batches_with_carried_states_are_one_long_batch() -> None:
    w = elmo.random_weights(OPTIONS, V)
    chars, targets, masks, samples = streams()

    def part(at: slice, states: Any, **more: Any) -> Any:
        cut_chars, cut_targets = tuple(x[:, at] for x in chars), tuple(x[:, at] for x in targets)
        cut_masks: Any = tuple([m[:, at] for m in each] for each in masks)
        return elmo.training_loss(cut_chars, cut_targets, w, OPTIONS, states, cut_masks, **more)

    for more in ({}, {"samples": samples}):
        total, (forward, backward), end = part(slice(None), None, **more)
        first, _, states = part(slice(0, 3), None, **more)
        second, _, carried_end = part(slice(3, 6), states, **more)
        assert_near(total, 0.5 * (forward + backward))
        assert_near(total, 0.5 * (first + second))
        assert_near(carried_end[1][1][1], end[1][1][1])
        assert float((forward - backward).abs()) > 1e-4
    ones: Any = tuple([torch.ones_like(m) for m in each] for each in masks)
    assert_near(
        elmo.training_loss(chars, targets, w, OPTIONS, masks=ones)[0],
        elmo.training_loss(chars, targets, w, OPTIONS)[0],
    )


def test_every_weight_has_a_gradient_and_carried_states_have_none() -> None:
    w = {name: t.requires_grad_() for name, t in elmo.random_weights(OPTIONS, V).items()}
    chars, targets = (integers(262, B, L, 50), integers(262, B, L, 50)), (integers(V, B, L), integers(V, B, L))
    total, _, states = elmo.training_loss(chars, targets, w, OPTIONS)
    total.backward()
    assert all(t.grad is not None and float(t.grad.abs().max()) > 0 for t in w.values())
    assert not any(t.requires_grad for state in states for pair in state for t in pair)


@pytest.mark.parametrize("norm", [5.0, 40.0], ids=["below the clip", "above the clip"])
def test_the_optimiser_is_torchs_adagrad_on_clipped_gradients(norm: float) -> None:
    params = {"a": normal(3, 4), "b": normal(5, seed=1)}
    theirs = {name: p.clone().requires_grad_() for name, p in params.items()}
    adagrad = torch.optim.Adagrad(theirs.values(), lr=0.2, initial_accumulator_value=1.0, eps=0.0)
    accumulators = elmo.start_accumulators(params)
    for step in range(3):
        drawn = {"a": normal(3, 4, seed=20 + step), "b": normal(5, seed=30 + step)}
        length = torch.cat([g.flatten() for g in drawn.values()]).norm()
        for name, p in theirs.items():
            p.grad = drawn[name] / length * min(norm, 10.0)
        adagrad.step()
        grads = {name: g / length * norm / 20 for name, g in drawn.items()}
        params, accumulators = elmo.adagrad_step(params, grads, accumulators)
    for name in params:
        assert_near(params[name], theirs[name].detach())
        assert_near(accumulators[name], adagrad.state[theirs[name]]["sum"])


def test_the_mix_counts_the_masks_positions_alone() -> None:
    layers = [3 + 2 * normal(B, L, J, seed=n) for n in range(3)]
    mask = torch.arange(L) < LENGTHS[:, None]
    s, gamma = torch.tensor([0.3, -1.0, 0.7], dtype=torch.float64), torch.tensor(1.7, dtype=torch.float64)
    shares = s.exp() / s.exp().sum()
    mixed = gamma * (shares[0] * layers[0] + shares[1] * layers[1] + shares[2] * layers[2])
    assert_near(elmo.scalar_mix(layers, s, gamma, mask), mixed)
    one = torch.tensor([100.0, 0.0, 0.0]).double()
    normed = elmo.scalar_mix(layers, one, torch.tensor(1.0).double(), mask, layer_norm=True)[mask]
    assert abs(float(normed.mean())) <= 1e-9 and abs(float(normed.var(correction=0)) - 1) <= 1e-9
    assert float(normed.mean(-1).abs().max()) > 0.01  # not each token by itself
    noisy = [torch.where(mask[..., None], x, 1e3) for x in layers]
    for eps in (elmo.TF_EPS, elmo.TORCH_EPS):
        kept, changed = (elmo.scalar_mix(x, s, gamma, mask, layer_norm=True, eps=eps)[mask] for x in (layers, noisy))
        assert_near(kept, changed)


@pytest.mark.parametrize("eps", [elmo.TF_EPS, elmo.TORCH_EPS], ids=["TF", "torch"])
def test_the_eps_stands_under_the_root(eps: float) -> None:
    layer = torch.tensor([1e-6, -1e-6], dtype=torch.float64).expand(B, L, 2)
    zero, one, mask = torch.zeros(1).double(), torch.tensor(1.0).double(), torch.ones(B, L)
    assert_near(elmo.scalar_mix([layer], zero, one, mask, layer_norm=True, eps=eps), layer / math.sqrt(1e-12 + eps))


def test_weight_layers_is_the_mix_with_a_penalty_on_its_weights() -> None:
    layers = [normal(B, L, J, seed=n) for n in range(3)]
    mask = torch.arange(L) < LENGTHS[:, None]
    s, gamma = torch.tensor([0.3, -1.0, 0.7], dtype=torch.float64), torch.tensor(1.7, dtype=torch.float64)
    mixed, penalty = elmo.weight_layers(layers, s, gamma, mask, l2=0.001, layer_norm=True)
    assert_near(mixed, elmo.scalar_mix(layers, s, gamma, mask, layer_norm=True))
    assert_near(penalty, 0.001 * s.square().sum())
    top, none = elmo.weight_layers(layers, s, gamma, mask, l2=0.001, top_only=True)
    assert_near(top, gamma * layers[-1])
    assert float(none) == 0.0
