"""One page that colours each token of a text by its log-probability, or by the entropy of the model's prediction."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from contexture.analysis.pages.one_page import write_one_page
from contexture.analysis.scoring.scorer import Prediction, ScoredToken
from contexture.data.visible import visible

_EXPLAINED = {
    "forward": "Each token is predicted from those before it.",
    "masked": "Each token is masked alone, and predicted from all others of its window (Salazar et al. 2020).",
    "backward": "Each word is predicted from those before it, and, backward, from those behind it.",
}


def write_score_page(
    to: Path, title: str, documents: Iterable[list[ScoredToken]], vocabulary: int, figures: Mapping[str, float]
) -> int:
    """Writes the page and returns its size in bytes.

    Args:
        to: the file, *.html.
        title: the page's title.
        documents: the tokens of each document or sentence, as `token_scores` yields them.
        vocabulary: how many tokens a prediction chooses from; the surprise of a uniform guess has the full colour.
        figures: numbers to show above the text, by name.
    """
    # The same token is guessed many times: the page holds each name once, and its number elsewhere.
    names: dict[str, int] = {}

    def number(token: str) -> int:
        return names.setdefault(token, len(names))

    directions: dict[str, None] = {}
    rows: list[list[list[Any]]] = []
    for document in documents:
        row: list[list[Any]] = []
        for each in document:
            directions.update(dict.fromkeys(each.predictions))
            row.append(
                [
                    number(each.token),
                    number(each.scored_as or each.token),
                    {name: _packed(one, number) for name, one in each.predictions.items()},
                ]
            )
        rows.append(row)
    explained = _EXPLAINED["backward" if "backward" in directions else next(iter(directions), "forward")]
    data: dict[str, Any] = {
        "title": visible(title),
        "names": [visible(name) for name in names],
        "directions": sorted(directions, reverse=True),  # forward first
        "documents": rows,
        "uniform": math.log(max(vocabulary, 2)),
        "figures": [[name.replace("_", " "), value] for name, value in figures.items()],
        "notes": f"{explained} Full colour: surprise or entropy of a uniform guess among {vocabulary:,} tokens.",
    }
    return write_one_page(to, "contexture.analysis.scoring", ("main",), data)


def _packed(one: Prediction, number: Any) -> list[Any]:
    guesses = [[number(guess["token"]), round(guess["score"], 5)] for guess in one.guesses]
    return [round(one.log_prob, 5), round(one.entropy, 5), one.rank, guesses]
