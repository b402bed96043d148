"""LAMBADA (Paperno et al. 2016): predict the last word of a passage, for which its last sentence is not enough."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from contexture.analysis.scoring.scorer import perplexity
from contexture.analysis.trained_model import TrainedModel
from contexture.analysis.zeroshot.continuations import score_continuations
from contexture.analysis.zeroshot.standard_error import standard_errors
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.errors import DataError

CONVENTION = (
    "accuracy: every token of the last word is the most probable one, without a filter of stop words; perplexity: of "
    "last words, exp of the mean of -log p(word); last_token_*: of the last token alone, as GPT-2's own evaluation"
)


def split_passage(text: str, number: int) -> tuple[str, str]:
    """Returns (a passage without its last word, the last word with the white space before it).

    Raises:
        DataError: when the passage has fewer than two words.
    """
    text = text.strip()
    at = max(text.rfind(space) for space in (" ", "\n", "\t"))
    if at < 1:
        raise DataError(f"passage {number}: {text[:40]!r} has fewer than two words; a context and a last word are read")
    return text[:at], text[at:]


def lambada(
    model: TrainedModel, passages: Sequence[str], *, batch: int = 16, cancel: CancelToken = NEVER
) -> dict[str, Any]:
    """Returns accuracy and perplexity of the last words of passages, and of the last tokens alone.

    Perplexities are exp of the losses, which are also returned, in nats, with `standard_errors` of accuracies and
    losses.

    Raises:
        DataError: when there is no passage, one has fewer than two words, and as `score_continuations`.
    """
    pairs = [split_passage(text, number) for number, text in enumerate(passages)]
    if not pairs:
        raise DataError("there are no passages; give a text with one in each line")
    scored = list(score_continuations(model, pairs, batch=batch, cancel=cancel))
    # An ELMo's log_prob covers the whole sentence in both directions; the last word alone is scored forward.
    both = model.run.model.is_recurrent
    means = {
        "accuracy": [each.greedy for each in scored],
        "loss": [-each.last if both else -each.log_prob for each in scored],
        "last_token_accuracy": [each.last_greedy for each in scored],
        "last_token_loss": [-each.last for each in scored],
    }
    loss, last_loss = (math.fsum(means[name]) / len(scored) for name in ("loss", "last_token_loss"))
    return {
        "examples": len(scored),
        "accuracy": float(np.mean(means["accuracy"])),
        "perplexity": perplexity(loss),
        "last_token_accuracy": float(np.mean(means["last_token_accuracy"])),
        "last_token_perplexity": perplexity(last_loss),
        "loss": loss,
        "last_token_loss": last_loss,
        "standard_errors": standard_errors(means),
        "truncated": sum(each.truncated > 0 for each in scored),
        "convention": CONVENTION,
    }
