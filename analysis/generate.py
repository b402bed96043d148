"""Texts that a GPT writes behind prompts (Radford et al. 2019, section 3; sample.py of its code)."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from contexture.data.cancel import NEVER, CancelToken
from contexture.data.errors import DataError
from contexture.data.tasks.encode_examples import check_batch, chunks
from contexture.data.tasks.word_alignment import encode_checked
from contexture.data.tokenizers.base import Tokenizer
from contexture.models import decode
from contexture.models.config import GptConfig, Sampling
from contexture.models.model import Model

logger = logging.getLogger(__name__)

LENGTHS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
"""Prompts are padded to the least of these that holds the longest of a batch, so that few programs are compiled."""
BURST = 8
"""Tokens written on the device before the host looks whether a text is at its end."""
Tell = Callable[[int, str], None]


@dataclass
class _Line:
    """A text on the way: the prompt's ids, those written, why it ended, and how much of its text has been told."""

    prompt: list[int]
    ids: list[int] = field(default_factory=list)
    text: str = ""
    stopped: str = ""
    told: int = 0


def generate(
    model: Model,
    params: Any,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    how: Sampling,
    *,
    tokens: int = 0,
    stop: str | Sequence[str] = (),
    seed: int = 0,
    batch: int = 16,
    tell: Tell = lambda line, text: None,
    cancel: CancelToken = NEVER,
    trained: int = 0,
) -> list[dict[str, Any]]:
    """What is written behind each prompt: [{"prompt", "text", "tokens", "stopped": "end" | "stop" | "length"}, …].

    A text ends after `tokens` tokens (0: 64, or as many as the model takes), at the token that ends documents, or
    before one of the texts `stop`. Up to there it depends on the seed, its number among the prompts and its prompt
    alone. Warns where it gets longer than the `trained` tokens of a training sequence.
    tell(line, text) is given each text as it grows; `cancel` may raise to stop the work. An empty prompt starts behind
    the token that ends documents.

    Raises: DataError where the model is no GPT, a prompt is empty and the vocabulary has no such token, or a prompt and
    what is to be written are longer than the model.
    """
    config = getattr(model.backbone, "config", None)
    if not isinstance(config, GptConfig):
        raise DataError("only a GPT writes on from a prompt; this run is of another family (BERT fills gaps)")
    if not config.tied and "heads_lm" not in params:
        raise DataError("this run has no softmax over words: its own table was left behind; give a pretrained run")
    stop = (stop,) if isinstance(stop, str) else tuple(stop)
    for wrong, told in (
        (tokens < 0, f"tokens={tokens} is not a number of tokens; give 1 or more, or 0 for as many as fit"),
        (not 0 <= seed < 2**31, f"seed={seed} is not in [0, 2^31)"),
        ("" in stop, "stop holds an empty text, which would end every text at once; leave it out"),
        (not prompts, "there is no prompt; give one"),
    ):
        if wrong:
            raise DataError(told)
    check_batch(batch, "prompts")
    lines = [_Line(_begin(prompt, number, tokenizer)) for number, prompt in enumerate(prompts)]
    longest = max(len(line.prompt) for line in lines)
    tokens = tokens or max(min(64, config.length - longest), 1)
    for number, line in enumerate(lines):
        if len(line.prompt) + tokens > config.length:
            raise DataError(
                f"prompt {number}: {len(line.prompt)} tokens and {tokens} to be written are more than the "
                f"{config.length} that the model takes; give a shorter prompt or fewer tokens"
            )
    if 0 < trained < longest + tokens:
        logger.warning(f"trained on sequences of at most {trained} tokens; text beyond that may degrade")
    unstack = jax.jit(decode.unstack_params, static_argnums=(1, 2))
    apart = unstack(params, config, min(tokenizer.size, config.vocab))
    for group in chunks(enumerate(lines), batch):
        _write(config, apart, tokenizer, group, how, tokens, stop, seed, tell, cancel)
    return [
        {"prompt": prompt, "text": line.text, "tokens": len(line.ids), "stopped": line.stopped}
        for prompt, line in zip(prompts, lines, strict=True)
    ]


def _begin(prompt: str, number: int, tokenizer: Tokenizer) -> list[int]:
    ids = encode_checked([prompt], [f"prompt {number}"], tokenizer)[0] if prompt else []
    if ids:
        return ids
    if tokenizer.end is None:
        raise DataError(
            f"prompt {number} has no token, and the vocabulary has none that a text could begin with; give a prompt"
        )
    return [tokenizer.end]


def _write(
    config: GptConfig,
    params: Any,
    tokenizer: Tokenizer,
    group: list[tuple[int, _Line]],
    how: Sampling,
    tokens: int,
    stop: tuple[str, ...],
    seed: int,
    tell: Tell,
    cancel: CancelToken,
) -> None:
    """Writes a batch, one burst ahead of what the host has looked at."""
    longest = max(len(line.prompt) for _, line in group)
    length = min(next((n for n in LENGTHS if n >= longest), longest), config.length)
    tokens_BL = np.zeros((len(group), length), np.int32)
    mask_BL = np.zeros((len(group), length), np.int32)
    for row, (_, line) in enumerate(group):
        tokens_BL[row, : len(line.prompt)] = line.prompt
        mask_BL[row, : len(line.prompt)] = 1
    root = jax.random.key(seed)
    keys_B = jax.vmap(lambda number: jax.random.fold_in(root, number))(jnp.array([number for number, _ in group]))

    def bursts() -> Iterator[jax.Array]:
        count = -(-(tokens - 1) // BURST)
        writing = decode.prefill(config, how, count * BURST, params, tokens_BL, mask_BL, keys_B)
        yield writing.token_B[:, None] + 0  # a copy: the writing's own is given away
        for _ in range(count):
            writing, more = decode.generate_tokens(config, how, BURST, params, writing)
            yield more

    waiting: list[jax.Array] = []
    stream = bursts()
    while True:
        cancel.check()
        if (burst := next(stream, None)) is not None:
            waiting.append(burst)
            if len(waiting) < 2:
                continue
        if not waiting:
            return
        for row, ids in enumerate(jax.device_get(waiting.pop(0)).tolist()):
            number, line = group[row]
            if not line.stopped:
                _take(line, ids, tokenizer, tokens, stop)
                ready = len(line.text) if line.stopped else _settled(line.text, stop)
                if ready > line.told:
                    tell(number, line.text[line.told : ready])
                    line.told = ready
        if all(line.stopped for _, line in group):
            return


def _take(line: _Line, ids: list[int], tokenizer: Tokenizer, tokens: int, stop: tuple[str, ...]) -> None:
    """Adds ids to a line, up to where it ends."""
    ids = ids[: tokens - len(line.ids)]
    if tokenizer.end in ids:
        ids, line.stopped = ids[: ids.index(tokenizer.end)], "end"
    line.ids += ids
    before = tokenizer.decode(line.prompt)
    line.text = tokenizer.decode(line.prompt + line.ids)[len(before) :]
    found = [at for text in stop if (at := line.text.find(text)) >= 0]
    if found:
        line.text, line.stopped = line.text[: min(found)], "stop"
    elif not line.stopped and len(line.ids) == tokens:
        line.stopped = "length"


def _settled(text: str, stop: tuple[str, ...]) -> int:
    """How much of a text will stay as it is: not a character half there, nor what may become a stop text."""
    ready = len(text.rstrip("\ufffd"))
    for word in stop:
        for size in range(min(len(word) - 1, ready), 0, -1):
            if text[:ready].endswith(word[:size]):
                ready -= size
                break
    return ready
