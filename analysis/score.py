"""Scores text by a run of any family: perplexity of a GPT and an ELMo, pseudo-perplexity of a BERT."""

import math
from collections.abc import Iterable, Iterator
from functools import partial

import jax
import numpy as np

from contexture.analysis.bilm_score import direction_nats
from contexture.analysis.masked_score import check_predicts, pseudo_nats
from contexture.analysis.results import TextCounts, TextScore
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.errors import DataError
from contexture.data.tasks.encode_examples import check_batch, chunks
from contexture.data.tasks.word_alignment import encode_checked
from contexture.data.tokenizers.base import Tokenizer
from contexture.models.config import BertConfig, ElmoConfig, GptConfig
from contexture.models.heads.chunked_softmax import TokenLosses
from contexture.models.layers.stacked import unstack_layers
from contexture.models.model import Model, Outputs, build
from contexture.models.shapes import Params


def score(
    model: Model,
    params: Params,
    tokenizer: Tokenizer,
    documents: Iterable[str],
    *,
    length: int = 0,
    stride: int = 0,
    batch: int = 8,
    split_sentences: bool = True,
    cancel: CancelToken = NEVER,
) -> TextScore:
    """Computes how well a model predicts documents, each of them alone.

        GPT   each token from those before it:
              perplexity      = exp(nats / tokens)
              word_perplexity = exp(nats / words)             words between white space
              bits_per_byte   = nats / ln 2 / bytes           bytes of UTF-8
        BERT  each token, masked alone, from all others of its window (Salazar et al. 2020):
              pseudo_perplexity, word_pseudo_perplexity       the same of these nats
        ELMo  each word of a sentence from those before it, and from those behind it:
              forward_perplexity, backward_perplexity         exp(nats / tokens) of a direction
              perplexity                                      of the mean of both directions' nats

    What the vocabulary of a BERT or an ELMo lacks is scored as its unknown token, and counted in `unknown`.

    length           tokens of a window, a BERT's [CLS] and [SEP] too; 0: as many as the model takes
    stride           tokens from one window to the next; 0: so many that windows do not overlap
    batch            windows, or an ELMo's sentences, at a time
    split_sentences  of an ELMo, whether lines are split into sentences

    Tokens of a window that the window before has scored are context alone. Where a GPT's vocabulary has a token that
    ends documents, each document begins behind it and all its tokens are scored; else its first token is neither scored
    nor counted. `convention` of the result repeats this.

    Raises: DataError for a run without the head that predicts words, a length or stride that does not fit, and
    documents without a token.
    """
    config, params = check_predicts(model.config), unstack_layers(params, model.config)
    check_batch(batch, "sentences" if isinstance(config, ElmoConfig) else "windows")
    totals: TextCounts = {"documents": 0, "tokens": 0, "words": 0, "bytes": 0}
    if isinstance(config, ElmoConfig):
        if length or stride:
            raise DataError(
                "length and stride have no meaning for an ELMo, which reads whole sentences; leave them out"
            )
        both, unknown = direction_nats(
            model, params, tokenizer, documents, totals, split_sentences=split_sentences, batch=batch, cancel=cancel
        )
        tokens = _counted(totals)
        loss = sum(both.values()) / 2 / tokens
        return {
            **totals,
            "loss": loss,
            "perplexity": perplexity(loss),
            "forward_perplexity": perplexity(both["forward"] / tokens),
            "backward_perplexity": perplexity(both["backward"] / tokens),
            "unknown": unknown,
            "convention": (
                f"each {'sentence' if split_sentences else 'line'} alone, from a state of zeros; tokens are words and "
                "the end of the sentence, backward its beginning; a word that the vocabulary lacks is read by its "
                "characters and scored as <UNK>; the loss is the mean of both directions"
            ),
        }
    length = length or config.length
    # A BERT's [CLS] and [SEP] take two places.
    fewest, room = (3, length - 2) if isinstance(config, BertConfig) else (2, length)
    stride = stride or max(room, 1)
    if not fewest <= length <= config.length:
        raise DataError(f"length={length} is not between {fewest} and the {config.length} tokens that the model takes")
    if not 1 <= stride <= room:
        raise DataError(f"stride={stride} is not between 1 and {f'length={length}' if fewest == 2 else room}")
    windows = f"windows of {length} tokens, {stride} new in each; words are what stands between white space"
    if isinstance(config, BertConfig):
        nats, unknown = pseudo_nats(
            model, params, tokenizer, documents, totals, length=length, stride=stride, batch=batch, cancel=cancel
        )
        loss = nats / _counted(totals)
        result: TextScore = {
            **totals,
            "loss": loss,
            "pseudo_perplexity": perplexity(loss),
            "unknown": unknown,
            "length": length,
            "stride": stride,
            "convention": (
                "each document alone; each token is masked alone, and predicted from all others of its window; [CLS] "
                "and [SEP] stand around it and are not scored; what the vocabulary lacks is scored as [UNK]; "
                f"{windows}"
            ),
        }
        # A text without words has no figure by word.
        if totals["words"]:
            result["word_pseudo_perplexity"] = perplexity(nats / totals["words"])
        return result
    nats = _next_token_nats(config, params, tokenizer, documents, totals, length, stride, batch, cancel)
    loss = nats / _counted(totals)
    first = "scored behind the token that ends documents" if tokenizer.end is not None else "neither scored nor counted"
    result = {
        **totals,
        "loss": loss,
        "perplexity": perplexity(loss),
        "bits_per_byte": nats / math.log(2) / max(totals["bytes"], 1),
        "length": length,
        "stride": stride,
        "convention": f"each document alone, its first token {first}; {windows}; bytes are UTF-8",
    }
    if totals["words"]:
        result["word_perplexity"] = perplexity(nats / totals["words"])
    return result


def _counted(totals: TextCounts) -> int:
    """Returns the number of tokens. Raises: DataError where there is none."""
    if not totals["tokens"]:
        raise DataError("there is no token to score in the text; give text")
    return totals["tokens"]


def _next_token_nats(
    config: GptConfig,
    params: Params,
    tokenizer: Tokenizer,
    documents: Iterable[str],
    totals: TextCounts,
    length: int,
    stride: int,
    batch: int,
    cancel: CancelToken,
) -> float:
    """Returns -Σ log p(token | those before it). Raises: DataError for a model without a softmax over words."""
    if not config.tied and "heads_lm" not in params:
        raise DataError("this run has no softmax over words: its own table was left behind; give a pretrained run")
    nats = 0.0
    for group in chunks(next_token_windows(documents, tokenizer, length, stride, totals), batch):
        cancel.check()
        fields = {name: np.zeros((batch, length), np.int32) for name in ("tokens", "mask", "next")}
        weights_BL = np.zeros((batch, length), np.float32)
        for row, (ids, new) in enumerate(group):
            # Position i predicts token i + 1, so a window of n + 1 ids makes n inputs and n targets.
            size = len(ids) - 1
            fields["tokens"][row, :size], fields["next"][row, :size] = ids[:-1], ids[1:]
            fields["mask"][row, :size] = 1
            # The last `new` targets are scored; those before them are context.
            weights_BL[row, size - new : size] = 1.0
        loss_BL = np.asarray(_losses(config, params, {**fields, "next_weights": weights_BL}), np.float64)
        nats += float((loss_BL * weights_BL).sum())
    return nats


@partial(jax.jit, static_argnums=0)
def _losses(config: GptConfig, params: Params, batch: dict[str, jax.Array]) -> jax.Array:
    # Built anew: a fine-tuned GPT's own heads are not needed, and `lm` needs no parameters where embeddings are tied.
    outputs = build(config, ("lm",)).apply({"params": params}, batch)
    assert isinstance(outputs, Outputs)
    lm: TokenLosses = outputs.heads["lm"]
    return lm.loss_BL


def perplexity(nats: float) -> float:
    """Returns exp of a mean of -log p, infinity where a float has no room."""
    with np.errstate(over="ignore"):
        return float(np.exp(nats))


def next_token_windows(
    documents: Iterable[str], tokenizer: Tokenizer, length: int, stride: int, totals: TextCounts
) -> Iterator[tuple[list[int], int]]:
    """Yields (at most length + 1 ids, how many of them, at the end, no window before has scored); counts in totals."""
    for text in documents:
        (ids,) = encode_checked([text], [f"document {totals['documents']}"], tokenizer)
        row = ids
        if tokenizer.end is not None:
            row = [tokenizer.end, *ids]
        else:
            # The first token is not scored, so its words and bytes are not counted either.
            first = tokenizer.decode(ids[:1])
            text = text[len(first if tokenizer.lossless else first.strip()) :]
        totals["documents"] += 1
        totals["tokens"] += max(len(row) - 1, 0)
        totals["words"] += len(text.split())
        totals["bytes"] += len(text.encode())
        start = scored = 0
        while scored < len(row) - 1:
            # Windows share an id: the last target of one is the first input of the next (stride = length).
            ids = row[start : start + length + 1]
            yield ids, start + len(ids) - 1 - scored
            scored = start + len(ids) - 1
            start += stride
