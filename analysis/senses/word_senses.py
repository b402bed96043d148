"""How well the vectors of one word separate its senses, layer by layer."""

from collections.abc import Iterable
from typing import NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

from contexture.analysis.cosines import mean_cosines, unit_length
from contexture.analysis.options import SensesOptions
from contexture.analysis.senses.clusters import cluster, silhouette
from contexture.analysis.senses.layer_vectors import layer_vectors
from contexture.analysis.senses.occurrences import Occurrence, Sentence, collect
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.errors import DataError
from contexture.data.tokenizers.base import Tokenizer
from contexture.models.model import Model
from contexture.models.shapes import Params
from contexture.train.run.trained_length import ANY_LENGTH, LengthWatch


class Similarities(TypedDict):
    """Mean cosines of the vectors of one word at a layer; None if there is no such pair of vectors.

    Attributes:
        self_similarity: of two occurrences (Ethayarajh 2019, section 3.2).
        within: of two occurrences of one sense, or of one cluster.
        between: of two occurrences of different senses, or clusters.
        silhouette: how much nearer an occurrence is to its own sense than to the nearest other one, from -1 to 1.
    """

    self_similarity: float | None
    within: float | None
    between: float | None
    silhouette: float | None


class LayerSimilarities(Similarities):
    """Similarities at one layer.

    Attributes:
        layer: its number; 0 is without context.
        clusters: how many, if senses are not given.
        baseline: the mean cosine of two different words of the sentences. Adjusted figures are the figures minus the
            baseline, which corrects for the narrow cone that a layer's vectors lie in (Ethayarajh 2019, section 3.3).
    """

    layer: int
    clusters: NotRequired[int]
    baseline: NotRequired[float]
    adjusted_self_similarity: NotRequired[float | None]
    adjusted_within: NotRequired[float | None]
    adjusted_between: NotRequired[float | None]


class WordSenses(TypedDict):
    """The occurrences of a word, n of them, and their vectors at each layer.

    Attributes:
        word: as it was given.
        words: its spelling in each sentence.
        texts: the sentence of each occurrence.
        split: the words of that sentence.
        places: which of these words is the occurrence.
        senses: the sense of each occurrence; None if they are not given.
        clusters: i64 [layers, n], from 1, if senses are not given, else None.
        vectors: f32 [n, layers, D], the layer without context first.
        layers: the figures of each layer.
        count: how many occurrences the sentences have; `texts` is a sample if there are too many.
        left_out: occurrences in sentences with more tokens than the model takes.
    """

    word: str
    words: list[str]
    texts: list[str]
    split: list[list[str]]
    places: list[int]
    senses: list[str] | None
    clusters: NDArray[np.int64] | None
    vectors: NDArray[np.float32]
    layers: list[LayerSimilarities]
    count: int
    left_out: int


def word_senses(
    model: Model,
    params: Params,
    tokenizer: Tokenizer,
    sentences: Iterable[Sentence],
    word: str,
    how: SensesOptions = SensesOptions(),  # noqa: B008  # frozen
    *,
    cancel: CancelToken = NEVER,
    trained: LengthWatch = ANY_LENGTH,
) -> WordSenses:
    """Computes the vectors of a word in its sentences, and how well they separate its senses, or clusters.

    Raises:
        DataError: when the word occurs less than twice, only some occurrences have a sense, or clusters do not fit.
    """
    clusters, seed = how.clusters, how.seed
    given = collect(
        sentences,
        word,
        tokenizer,
        baseline=how.adjust_anisotropy,
        ignore_case=how.ignore_case,
        max_occurrences=how.max_occurrences,
        seed=seed,
    )
    senses = _senses(given.occurrences)
    if senses is not None and clusters:
        raise DataError(f"clusters={clusters} is for sentences without senses; leave it out")

    def vectors_of(them: list[Occurrence]) -> tuple[NDArray[np.float32], list[Occurrence]]:
        """Returns the vectors of the occurrences that fit into the model, and these occurrences."""
        vectors_NLD, kept = layer_vectors(
            model, params, tokenizer, them, batch=how.batch, cancel=cancel, trained=trained
        )
        return vectors_NLD, [each for each, own in zip(them, kept, strict=True) if own]

    vectors_NLD, occurrences = vectors_of(given.occurrences)
    # Counted again: occurrences in long sentences are left out.
    _check_enough(word, len(occurrences), clusters)
    baselines = None
    if how.adjust_anisotropy:
        others_NLD, others = vectors_of(given.others)
        # casefold: a word in another case is no different word.
        baselines = _baselines(others_NLD, [each.words[each.place].casefold() for each in others])
    return {
        "word": word,
        "words": [each.words[each.place] for each in occurrences],
        "texts": [each.sentence.text for each in occurrences],
        "split": [list(each.words) for each in occurrences],
        "places": [each.place for each in occurrences],
        "vectors": vectors_NLD,
        **_parted(occurrences, vectors_NLD, clusters, seed, baselines),
        "count": given.count,
        "left_out": len(given.occurrences) - len(occurrences),
    }


def _check_enough(word: str, count: int, clusters: int) -> None:
    if count < 2:
        raise DataError(
            f"the word {word!r} occurs {count} times in sentences that the model has room for; give shorter ones"
        )
    if clusters > count:
        raise DataError(f"clusters={clusters}, and the word occurs {count} times; give fewer")


class _Parted(TypedDict):
    senses: list[str] | None
    clusters: NDArray[np.int64] | None
    layers: list[LayerSimilarities]


def _parted(
    occurrences: list[Occurrence],
    vectors_NLD: NDArray[np.float32],
    clusters: int,
    seed: int,
    baselines: list[float] | None,
) -> _Parted:
    """Returns the senses or clusters of occurrences, and how well the vectors of each layer separate them."""
    unit_NLD, senses = unit_length(vectors_NLD.astype(np.float64)), _senses(occurrences)
    layers = range(unit_NLD.shape[1])
    # Clusters are found at each layer; senses are the same at all.
    if senses is None:
        groups = [cluster(unit_NLD[:, layer], clusters, seed) for layer in layers]
    else:
        groups = [np.unique(senses, return_inverse=True)[1]] * len(layers)
    return {
        "senses": senses,
        "clusters": np.stack(groups) if senses is None else None,
        "layers": [_layer(each, unit_NLD[:, each], groups[each], senses is None, baselines) for each in layers],
    }


def _senses(occurrences: list[Occurrence]) -> list[str] | None:
    senses = [each.sentence.sense for each in occurrences]
    given = [sense for sense in senses if sense is not None]
    if not given:
        return None
    if len(given) < len(senses):
        without = occurrences[senses.index(None)].sentence.origin
        raise DataError(f"{without}: no sense, where others have one; give every sentence one, or none")
    return given


def similarities(unit_ND: NDArray[np.float64], groups_N: NDArray[np.integer]) -> Similarities:
    """Returns the figures of vectors of length 1 in groups."""
    within, between = mean_cosines(unit_ND, groups_N)
    return {
        "self_similarity": mean_cosines(unit_ND, np.zeros(len(unit_ND), np.int64))[0],
        "within": within,
        "between": between,
        "silhouette": silhouette(unit_ND, groups_N),
    }


def _layer(
    layer: int,
    unit_ND: NDArray[np.float64],
    groups_N: NDArray[np.integer],
    clustered: bool,
    baselines: list[float] | None,
) -> LayerSimilarities:
    figures = similarities(unit_ND, groups_N)
    row: LayerSimilarities = {"layer": layer, **figures}
    if clustered:
        row["clusters"] = len(np.unique(groups_N))
    if baselines is not None:
        baseline = baselines[layer]
        row["baseline"] = baseline
        row["adjusted_self_similarity"] = _above(figures["self_similarity"], baseline)
        row["adjusted_within"] = _above(figures["within"], baseline)
        row["adjusted_between"] = _above(figures["between"], baseline)
    return row


def _above(value: float | None, baseline: float) -> float | None:
    return None if value is None else value - baseline


def _baselines(vectors_NLD: NDArray[np.float32], words: list[str]) -> list[float]:
    """Returns the mean cosine of two different words at each layer; a single word is a DataError."""
    types_N = np.unique(words, return_inverse=True)[1]
    means: list[float] = []
    for layer in range(vectors_NLD.shape[1]):
        _, between = mean_cosines(unit_length(vectors_NLD[:, layer].astype(np.float64)), types_N)
        if between is None:
            raise DataError(
                "the sentences hold no two different words, whose mean cosine adjusts for anisotropy; give more text, "
                "or leave it out"
            )
        means.append(between)
    return means
