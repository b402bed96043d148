"""Static word vectors: each word is a row of a table that was made elsewhere (`contexture import vectors`)."""

from collections.abc import Sequence

from contexture.data.families.base import TextFamily
from contexture.data.families.gpt import not_static
from contexture.data.families.splitting import SplitWords, WordSplitter, whole_words
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.open_vocabulary import OpenVocabulary
from contexture.data.tokenizers.word_level import StaticWords, static_words


class VectorsText(TextFamily):
    name = "vectors"
    called, plain_name = "static vectors", "table of static word vectors"
    instead = "which predict no word: contexture embed"
    reads_words = True
    # A token is the number of a word, its row in the table of vectors. There are no segments and no special tokens.
    sequences = {"tokens": "i32 BL", "mask": "i32 BL"}

    def why_not(self, kind: str) -> str:
        return "" if kind == StaticWords.kind else not_static(self.name, kind)

    def check_task_vocabulary(self, tokenizer: Tokenizer) -> None:
        static_words(tokenizer)

    def word_splitter(self, tokenizer: Tokenizer | OpenVocabulary, length: int) -> WordSplitter:
        # An open vocabulary is made of an ELMo's words only (`example_tokens.reader`).
        assert not isinstance(tokenizer, OpenVocabulary)
        number = static_words(tokenizer).number

        # `spaced` is not read: no word of the table holds the space before it.
        def words(words: Sequence[str], origin: str, spaced: Sequence[bool] | None = None, /) -> SplitWords:
            return whole_words(number(words))

        return words
