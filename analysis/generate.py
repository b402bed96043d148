"""Generates text with a GPT (Radford et al. 2019, section 3; sample.py of its code)."""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from contexture.analysis.options import GenerateOptions
from contexture.analysis.results import GeneratedText
from contexture.data.bucketing import bucket, check_batch, chunks
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.errors import DataError
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.checked_text import encode_checked
from contexture.models import decode
from contexture.models.config import GptConfig, Sampling
from contexture.models.model import Model
from contexture.models.shapes import Params
from contexture.train.run.trained_length import ANY_LENGTH, LengthWatch

BURST = 8
"""Tokens sampled on the device before the host looks whether a text has ended."""
T = TypeVar("T")
R = TypeVar("R")


class _Ending(NamedTuple):
    """When a text ends, unless at the end-of-document token: after `tokens` tokens, or before a text of `stop`."""

    tokens: int
    stop: tuple[str, ...]


@dataclass
class _Continuation:
    """A text that is being generated.

    Args:
        prompt: the ids of the prompt.
        ids: the ids sampled so far.
        text: the text of `ids`, cut at a stop text.
        stopped: why the text has ended; "" while it grows.
        shown: how many characters of `text` were yielded.
        truncated: how many ids the prompt has lost at its beginning.
    """

    prompt: list[int]
    ids: list[int] = field(default_factory=list)
    text: str = ""
    stopped: Literal["", "end", "stop", "length"] = ""
    shown: int = 0
    truncated: int = 0

    def truncate(self, length: int) -> None:
        """Keeps the last `length` ids of the prompt, but at least one."""
        self.truncated = max(len(self.prompt) - max(length, 1), 0)
        del self.prompt[: self.truncated]


def stream(
    model: Model,
    params: Params,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    how: GenerateOptions = GenerateOptions(),  # noqa: B008  # frozen
    *,
    cancel: CancelToken = NEVER,
    trained: LengthWatch = ANY_LENGTH,
    decode_params: decode.DecodeParams | None = None,
) -> Generator[tuple[int, str], None, list[GeneratedText]]:
    """Continues each prompt: yields (number, new characters) as each text grows, then returns the results.

    A text depends on the seed, its number among the prompts, and its prompt. It ends at the end-of-document token too,
    and an empty prompt starts behind that token. Results have "truncated" where prompts may lose their first tokens.

    Args:
        trained: warns where a text gets longer than the training sequences.
        decode_params: what `decoding_params` returned, kept for several calls; None: computed here.

    Raises:
        DataError: when the model is no GPT, a prompt is empty and the vocabulary has no end-of-document token, or a
            prompt leaves too little room for the tokens and is not to be truncated.
    """
    # The checks run at the call; `work` below is the generator.
    config = model.config
    if not isinstance(config, GptConfig):  # `models.decode` decodes no other
        raise DataError("only a GPT writes on from a prompt; this run is of another family (BERT fills gaps)")
    if not config.tied and "heads_lm" not in params:
        raise DataError("this run has no softmax over words: its own table was left behind; give a pretrained run")
    _check_options(prompts, how)
    check_batch(how.batch, "prompts")
    texts = [_Continuation(_encode_prompt(prompt, number, tokenizer)) for number, prompt in enumerate(prompts)]
    tokens = _make_room(texts, how.tokens, config.length, how.truncate)
    trained.check(max(len(text.prompt) for text in texts) + tokens)
    ending, unstacked = _Ending(tokens, how.stops), decode_params or decoding_params(config, params, tokenizer)

    def work() -> Generator[tuple[int, str], None, list[GeneratedText]]:
        for group in chunks(enumerate(texts), how.batch):
            cancel.check()
            bursts = _bursts(config, unstacked, group, how.sampling, tokens, how.seed)
            yield from _read_bursts(bursts, group, tokenizer, ending, cancel)
        results: list[GeneratedText] = [
            {"prompt": prompt, "text": text.text, "tokens": len(text.ids), "stopped": text.stopped or "length"}
            for prompt, text in zip(prompts, texts, strict=True)
        ]
        for result, text in zip(results, texts if how.truncate else (), strict=how.truncate):
            result["truncated"] = text.truncated
        return results

    return work()


def _check_options(prompts: Sequence[str], how: GenerateOptions) -> None:
    for wrong, message in (
        (how.tokens < 0, f"tokens={how.tokens} is not a number of tokens; give 1 or more, or 0 for as many as fit"),
        (not 0 <= how.seed < 2**31, f"seed={how.seed} is not in [0, 2^31)"),
        ("" in how.stops, "stop holds an empty text, which would end every text at once; leave it out"),
        (not prompts, "there is no prompt; give one"),
    ):
        if wrong:
            raise DataError(message)


def _make_room(texts: Sequence[_Continuation], tokens: int, limit: int, truncate: bool) -> int:
    """Returns how many tokens each text gets; prompts lose their first tokens if `truncate` is set.

    Raises:
        DataError: when a prompt leaves too little room.
    """
    # At least 1: a prompt that fills the model is an error below, which names both numbers.
    tokens = tokens or max(min(64, limit - max(len(text.prompt) for text in texts)), 1)
    for number, text in enumerate(texts):
        if truncate:
            text.truncate(limit - tokens)
        if len(text.prompt) + tokens > limit:
            raise DataError(
                f"prompt {number}: {len(text.prompt)} tokens and {tokens} to be written are more than the {limit} that "
                "the model takes; give a shorter prompt or fewer tokens"
            )
    return tokens


def decoding_params(config: GptConfig, params: Params, tokenizer: Tokenizer) -> decode.DecodeParams:
    """Returns a model's parameters as decoding reads them."""
    # Rows of the table beyond the vocabulary (it may be padded) are no tokens.
    return _unstack(params, config, min(tokenizer.size, config.vocab))


_unstack = jax.jit(decode.unstack_params, static_argnums=(1, 2))


def finish(work: Generator[T, None, R], show: Callable[[T], object] = lambda part: None) -> R:
    """Runs a generator to its end, calls `show` with each item, and returns the generator's return value."""
    while True:
        try:
            part = next(work)
        except StopIteration as done:
            return done.value
        show(part)


def _encode_prompt(prompt: str, number: int, tokenizer: Tokenizer) -> list[int]:
    """Returns the ids of a prompt; for an empty one the end-of-document token, after which a new document begins."""
    ids = encode_checked([prompt], [f"prompt {number}"], tokenizer)[0] if prompt else []
    if ids:
        return ids
    if tokenizer.end is None:
        raise DataError(
            f"prompt {number} has no token, and the vocabulary has none that a text could begin with; give a prompt"
        )
    return [tokenizer.end]


def _bursts(
    config: GptConfig,
    params: decode.DecodeParams,
    group: Sequence[tuple[int, _Continuation]],
    sampling: Sampling,
    tokens: int,
    seed: int,
) -> Iterator[jax.Array]:
    """Yields the sampled tokens of a batch, i32 [texts, 1] and then [texts, BURST], each when it is enqueued."""
    longest = max(len(text.prompt) for _, text in group)
    # Padded to a bucket: a program is compiled for each length.
    length = bucket(longest, config.length)
    tokens_BL = np.zeros((len(group), length), np.int32)
    mask_BL = np.zeros((len(group), length), np.int32)
    for row, (_, text) in enumerate(group):
        tokens_BL[row, : len(text.prompt)] = text.prompt
        mask_BL[row, : len(text.prompt)] = 1
    # The key of a text comes from its number among all prompts, so it does not depend on the batch that it falls in.
    root = jax.random.key(seed)
    keys_B = jax.vmap(lambda number: jax.random.fold_in(root, number))(jnp.array([number for number, _ in group]))
    count = -(-(tokens - 1) // BURST)  # the first token comes with the prompt
    state = decode.prefill(config, sampling, count * BURST, params, tokens_BL, mask_BL, keys_B)
    yield state.token_B[:, None] + 0  # a copy: the state's own array is donated to the next call
    for _ in range(count):
        state, sampled = decode.generate_tokens(config, sampling, BURST, params, state)
        yield sampled


def _read_bursts(
    bursts: Iterator[jax.Array],
    group: Sequence[tuple[int, _Continuation]],
    tokenizer: Tokenizer,
    ending: _Ending,
    cancel: CancelToken,
) -> Iterator[tuple[int, str]]:
    """Adds the tokens of each burst to the texts of a batch, and yields the new characters, until all have stopped."""
    for burst in _one_ahead(bursts):
        cancel.check()
        for (number, text), ids in zip(group, jax.device_get(burst).tolist(), strict=True):
            # A text that has ended still fills its row of the batch.
            if text.stopped:
                continue
            _append_ids(text, ids, tokenizer, ending)
            ready = len(text.text) if text.stopped else _settled_length(text.text, ending.stop)
            if ready > text.shown:
                yield number, text.text[text.shown : ready]
                text.shown = ready
        if all(text.stopped for _, text in group):
            return


def _one_ahead(bursts: Iterator[jax.Array]) -> Iterator[jax.Array]:
    """Yields each burst once the next is enqueued, so that the device works while the host reads."""
    burst = next(bursts)
    for following in bursts:
        yield burst
        burst = following
    yield burst


def _append_ids(text: _Continuation, ids: list[int], tokenizer: Tokenizer, ending: _Ending) -> None:
    """Adds ids to a text, up to where it ends."""
    # A burst may run past the end of a text: the rest is dropped.
    ids = ids[: ending.tokens - len(text.ids)]
    if tokenizer.end in ids:
        ids, text.stopped = ids[: ids.index(tokenizer.end)], "end"
    text.ids += ids
    # Decoded together with the prompt: a character or a space may be spread over its last token and the first new one.
    before = tokenizer.decode(text.prompt)
    text.text = tokenizer.decode(text.prompt + text.ids)[len(before) :]
    places = [at for stop in ending.stop if (at := text.text.find(stop)) >= 0]
    if places:
        text.text, text.stopped = text.text[: min(places)], "stop"
    elif not text.stopped and len(text.ids) == ending.tokens:
        text.stopped = "length"


def _settled_length(text: str, stop: tuple[str, ...]) -> int:
    """Returns how many characters can be shown: no further token will change them."""
    # Bytes that make no whole character yet decode to U+FFFD.
    ready = len(text.rstrip("\ufffd"))
    # An end of the text that begins a stop text may turn out to be one, which is cut off.
    for word in stop:
        for size in range(min(len(word) - 1, ready), 0, -1):
            if text[:ready].endswith(word[:size]):
                ready -= size
                break
    return ready
