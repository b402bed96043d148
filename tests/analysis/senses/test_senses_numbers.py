"""The figures of a word's vectors, against plain loops over all pairs; and what they say where senses are apart."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

import contexture
from contexture.analysis.cosines import mean_cosines, unit_length
from contexture.analysis.senses.clusters import cluster, silhouette
from contexture.analysis.senses.occurrences import Sample, collect, given_sentences
from contexture.analysis.senses.projections import project
from contexture.data.tokenizers.word_level import spaced_words
from tests.helpers.parity_rule import assert_close, close
from tests.train.run.test_formats import GOLDEN

pytestmark = pytest.mark.usefixtures("one_device")
TEXTS = [
    "the cat sees the river at night",
    "one old man finds the river",
    "the long river, the sea",
    "my brother likes that river.",
    "The queen paints a river",
]
SENSES = ["water", "find", "water", "find", "paint"]


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a.astype(np.float64) @ b / (np.linalg.norm(a.astype(np.float64)) * np.linalg.norm(b)))


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _slow_silhouette(vectors: np.ndarray, groups: Sequence[object]) -> float:
    """Rousseeuw's definition, an occurrence at a time; 0 for one alone in its group."""
    values = []
    for n, own in enumerate(groups):
        apart: dict[object, list[float]] = {}
        for m, other in enumerate(groups):
            if m != n:
                apart.setdefault(other, []).append(1 - _cosine(vectors[n], vectors[m]))
        if own not in apart:
            values.append(0.0)
            continue
        a = float(np.mean(apart[own]))
        b = min(float(np.mean(apart[other])) for other in apart if other != own)
        values.append((b - a) / max(a, b))
    return float(np.mean(values))


@pytest.fixture(params=["bert", "gpt", "elmo"])
def model(request) -> contexture.TrainedModel:
    return contexture.open(GOLDEN / request.param)


SHORT = ["the cat", "a cat sat", "the dog, cat", "cat sat"]


def test_figures_are_those_of_all_pairs_one_by_one(model):
    kinds = ["x", "y", "x", "y"]
    got = model.senses("cat", SHORT, kinds)
    assert got["texts"] == SHORT and got["senses"] == kinds and got["clusters"] is None
    layers = model.model.config.layers + 1
    assert got["vectors"].shape == (4, layers, model.model.config.width)
    for layer, row in enumerate(got["layers"]):
        cosines = {(i, j): _cosine(got["vectors"][i, layer], got["vectors"][j, layer])
                   for i, j in itertools.combinations(range(4), 2)}  # fmt: skip
        within = [cosine for (i, j), cosine in cosines.items() if kinds[i] == kinds[j]]
        between = [cosine for (i, j), cosine in cosines.items() if kinds[i] != kinds[j]]
        expected = [_mean([*cosines.values()]), _mean(within), _mean(between)]
        assert_close([row["self_similarity"], row["within"], row["between"]], expected, atol=1e-6)
        if layer or model.run.family != "elmo":
            assert_close(row["silhouette"], _slow_silhouette(got["vectors"][:, layer], kinds), atol=1e-5)
        else:  # the same vector everywhere
            assert row["silhouette"] == 0 and row["self_similarity"] == pytest.approx(1)


def test_a_words_vectors_are_those_of_embed_at_every_layer(model):
    texts = ["the cat sat", "a dog sat"]
    got = model.senses("sat", texts)
    words = model.embed(texts, of="words", layers="all")
    close(got["vectors"], np.stack([array[:, 2] for array in words]))


def test_a_gpt_reads_a_word_as_in_running_text():
    model = contexture.open(GOLDEN / "gpt")
    assert spaced_words(" a (cat), don't.") == [
        ("a", False), ("(", True), ("cat", False), (")", False), (",", False), ("don't", True), (".", False)
    ]  # fmt: skip
    text = "a dog, cat"
    got = model.senses("cat", [text, "cat sat"])["vectors"][0, -1]
    tokens = model.embed([text], of="tokens", layers="last")[0]
    ids = model.tokenizer.encode([text])[0]
    own = len(ids) - len(model.tokenizer.encode([" cat"])[0])
    assert ids[own:] == model.tokenizer.encode([" cat"])[0]
    close(got, tokens[own:].mean(0))


def test_adjusted_figures_are_above_the_mean_cosine_of_different_words(model):
    got = model.senses("cat", SHORT, adjust_anisotropy=True)
    words = [(text, word.strip(",.")) for text in SHORT for word in text.replace(",", " ,").split()]
    vectors = np.concatenate([
        each.swapaxes(0, 1)
        for each in model.embed([[w for w, _ in spaced_words(text)] for text in SHORT], of="words", layers="all")
    ])  # fmt: skip
    assert len(words) == len(vectors)
    if model.run.family == "gpt":  # a list of words has a space before each, also before a comma
        return
    for layer, row in enumerate(got["layers"]):
        pairs = [_cosine(vectors[i, layer], vectors[j, layer])
                 for i, j in itertools.combinations(range(len(words)), 2) if words[i][1] != words[j][1]]  # fmt: skip
        assert_close(row["baseline"], float(np.mean(pairs)), atol=1e-5)
        assert row["self_similarity"] is not None and row["adjusted_self_similarity"] is not None
        assert_close(row["adjusted_self_similarity"], row["self_similarity"] - np.mean(pairs), atol=1e-5)


def _apart(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of three senses around three directions."""
    groups = np.repeat([0, 1, 2], 20)
    return unit_length(np.eye(3, 16)[groups] * 4 + rng.standard_normal((60, 16)) * 0.5), groups


def test_where_senses_are_apart_clusters_are_the_senses():
    unit_ND, groups_N = _apart(np.random.default_rng(0))
    within, between = mean_cosines(unit_ND, groups_N)
    assert within and between and within > 0.75 > 0.2 > between
    assert (silhouette(unit_ND, groups_N) or 0) > 0.7
    assert (cluster(unit_ND) == groups_N + 1).all()  # three, chosen by silhouette
    assert len(np.unique(cluster(unit_ND, 5))) == 5
    within, between = mean_cosines(unit_ND, np.arange(60) % 2)
    assert within and between and abs(within - between) < 0.05


def test_vectors_that_are_the_same_are_one_cluster_and_one_point():
    unit_ND = unit_length(np.tile(np.arange(1.0, 9), (6, 1)))
    assert (cluster(unit_ND) == 1).all() and silhouette(unit_ND, np.arange(6) % 2) == 0
    assert (cluster(unit_ND, 3) == 1).all()
    for how in ("pca", "tsne"):
        assert not project(unit_ND[:, None], how)[0].any()


def test_two_occurrences_are_one_cluster_and_three_may_be_two():
    unit_ND = unit_length(np.array([[1, 0, 0], [1, 0.1, 0], [0, 0, 1.0]]))
    assert cluster(unit_ND[:2]).tolist() == [1, 1] and cluster(unit_ND).tolist() == [1, 1, 2]


def test_principal_components_are_those_of_the_covariance():
    unit_ND, _ = _apart(np.random.default_rng(1))
    points, shares = project(unit_ND[:, None], "pca")
    values, vectors = np.linalg.eigh(np.cov(unit_ND.T, bias=True))
    assert shares is not None
    close(shares[0], values[::-1][:2] / values.sum())
    expected = (unit_ND - unit_ND.mean(0)) @ vectors[:, ::-1][:, :2]
    close(np.abs(points[0]), np.abs(expected))


def test_an_axis_keeps_its_sign_from_layer_to_layer():
    unit_ND, _ = _apart(np.random.default_rng(2))
    turned = unit_ND @ np.diag([-1.0, 1, -1, *[1] * 13])
    points, _ = project(np.stack([unit_ND, turned], 1), "pca")
    close(points[0], points[1])


def test_t_sne_keeps_groups_apart():
    unit_ND, groups = _apart(np.random.default_rng(3))
    points = project(unit_ND[:, None], "tsne")[0][0]
    close(points.mean(0) + 1, [1, 1])
    spread = np.mean([points[groups == n].std() for n in range(3)])
    middles = [points[groups == n].mean(0) for n in range(3)]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(middles, 2)) > 2 * spread


def test_a_sample_is_uniform_and_keeps_the_order():
    counts = np.zeros(20)
    for seed in range(2000):
        sample = Sample[int](5, seed)
        for item in range(20):
            sample.offer(item)
        assert sample.items() == sorted(sample.items()) and len(sample.items()) == 5 and sample.count == 20
        counts[sample.items()] += 1
    assert np.abs(counts / 2000 - 0.25).max() < 0.05


def test_case_is_kept_unless_it_is_ignored():
    model = contexture.open(GOLDEN / "bert")
    sentences = given_sentences(["The cat, the dog", "the end", "The"], None)
    places = [(each.sentence.text, each.place) for each in collect(sentences, "the", model.tokenizer).occurrences]
    assert places == [("The cat, the dog", 3), ("the end", 0)]
    assert collect(sentences, "the", model.tokenizer, ignore_case=True).count == 4


def test_of_many_occurrences_a_sample_is_taken():
    model = contexture.open(GOLDEN / "bert")
    got = model.senses("cat", [f"the cat {'sat ' * (n % 3)}" for n in range(9)], max_occurrences=4)
    assert len(got["texts"]) == 4 and got["count"] == 9 and got["vectors"].shape[0] == 4


def test_a_sentence_longer_than_the_model_is_left_out_and_counted():
    model = contexture.open(GOLDEN / "bert")
    got = model.senses("cat", ["the cat", "a cat", "cat " + "the " * 60])
    assert got["left_out"] == 1 and len(got["texts"]) == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"word": "bank"}, r"the word 'bank' never occurs in the 2 sentences of the input; give more sentences that"),
        ({"word": "dog"}, "the word 'dog' occurs only once, and there is nothing to compare it with, in the 2 sente"),
        ({"word": "Cat"}, "never occurs in the 2 sentences of the input; it occurs 2 times in another case: --ignore-"),
        ({"word": "the cat"}, "is to be one word as the run splits text, and 'the cat' is 2: the, cat; give one"),
        ({"word": " "}, "the word is to be one word as the run splits text; give one"),
        ({"senses": ["a"]}, "2 texts and 1 senses; give each text one"),
        ({"senses": ["a", "b"], "clusters": 2}, "clusters=2 is for sentences without senses; leave it out"),
        ({"clusters": 3}, "clusters=3, and the word occurs 2 times; give fewer"),
        ({"texts": ["the cat", 3]}, "text 1: '3' is no text; give strings"),
        ({"max_occurrences": 1}, "max-occurrences=1 is not at least 2"),
        ({"seed": -1}, "seed=-1 is not in"),
        ({"seed": 2**31}, "seed=2147483648 is not in"),
        ({"texts": ["cat " * 80]}, "occurs 0 times in sentences that the model has room for; give"),
        ({"texts": ["cat", "cat"], "adjust_anisotropy": True}, "the sentences hold no two different words"),
    ],
)
def test_what_cannot_be_compared_is_one_clear_line(given, message):
    model = contexture.open(GOLDEN / "bert")
    with pytest.raises(contexture.DataError, match=message):
        model.senses(**{"word": "cat", "texts": ["the cat", "a cat, a dog"], **given})
