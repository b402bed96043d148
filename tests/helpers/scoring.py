"""Scores of texts by models that no run holds."""

from collections.abc import Iterable
from typing import Any

from contexture.analysis.scoring.families import token_scorer
from contexture.analysis.scoring.score import score


def score_texts(model: Any, params: Any, tokenizer: Any, documents: Iterable[str], batch: int = 8, **how: Any) -> Any:
    """The result of `score`; how: the options of `token_scorer`."""
    return score(token_scorer(model, params, tokenizer, **how), documents, batch=batch)
