"""A run's vocabulary: learned on its text, and checked against its model."""

from collections.abc import Iterator, Sequence

from contexture.data.cancel import CancelToken
from contexture.data.text.sources import Source, texts, whole_texts
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.registry import learn as learn_vocabulary
from contexture.data.tokenizers.unknown_tokens import LostMarks
from contexture.data.tokenizers.word_level import StaticWords, Words
from contexture.data.tokenizers.wordpiece import WordPiece
from contexture.train.errors import ConfigError
from contexture.train.settings.run import Run


def learn(
    kind: str,
    files: Sequence[Source],
    size: int,
    lowercase: bool,
    cancel: CancelToken,
    documents: str,
    split: str,
    marks: LostMarks | None = None,
) -> Tokenizer:
    """Returns a vocabulary of at most `size` tokens, learned on these files.

    WordPiece and words are learned on lines, the other kinds on whole documents: line ends are tokens too. `cancel` may
    raise to stop it. marks: counts what a lower-case WordPiece strips of the text.
    """

    def checked() -> Iterator[str]:
        for text in texts(files) if kind in (WordPiece.kind, Words.kind) else whole_texts(files, documents):
            cancel.check()
            if marks is not None:
                marks.add(text)
            yield text

    tokenizer = learn_vocabulary(kind, checked(), size, lowercase, split)
    cancel.check()
    return tokenizer


def check_tokenizer(run: Run, tokenizer: Tokenizer) -> None:
    """Raises ConfigError if the model has fewer rows than the vocabulary has tokens, or reads another kind."""
    _check_kind(run, tokenizer.kind)
    if tokenizer.size > run.model.vocab:
        raise ConfigError(
            f"the vocabulary has {tokenizer.size} tokens, more than model.vocab={run.model.vocab}; "
            f"give --model.vocab {tokenizer.size} or another --data.tokenizer"
        )
    if isinstance(tokenizer, Words | StaticWords) and tokenizer.split != run.data.word_splitter:
        raise ConfigError(
            f"the vocabulary splits words by {tokenizer.split}, and data.word-splitter is {run.data.word_splitter}; "
            f"give --data.word-splitter {tokenizer.split}, or another vocabulary"
        )


def _check_kind(run: Run, kind: str) -> None:
    if why := run.text.why_not(kind):
        raise ConfigError(why)


def check_tokenizer_kind(run: Run, kind: str) -> None:
    """Raises ConfigError for a vocabulary that no new run should start with.

    The model reads another kind, or could never be fine-tuned with it.
    """
    if why := run.text.why_not_learned(kind):
        raise ConfigError(why)
