"""GPT: windows over running text, each token predicted from those before it (Radford et al. 2018, 2019)."""

from contexture.data.cancel import CancelToken
from contexture.data.config import DataConfig
from contexture.data.families.base import TextFamily
from contexture.data.layouts import GPT_SPECIALS, Marks, gpt_specials
from contexture.data.pretraining.lm_windows import FIELDS, PACKED, HeldOutWindows, WindowBatches
from contexture.data.pretraining.shards import Shards
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.word_level import StaticWords, Words
from contexture.data.tokenizers.wordpiece import WordPiece


class GptText(TextFamily):
    name = "gpt"
    called, plain_name = "a GPT", "GPT"
    instead = "which writes on: contexture generate"
    is_causal = True
    stream = "windows"
    pretraining_options = ("documents", "packed")
    sequences = {"tokens": "i32 BL", "mask": "i32 BL"}
    # GPT-1 has ids 40478 to 40480 for these, behind its vocabulary; they are learned in fine-tuning.
    task_tokens = GPT_SPECIALS
    # The original's loss in fine-tuning is the task's and half of the language model's, which predicts these.
    own_tokens = {"next": "i32 BL", "next_weights": "f32 BL"}

    def pretraining_fields(self, config: DataConfig) -> dict[str, str]:
        return {**FIELDS, **PACKED} if config.packed else FIELDS

    def check_pretraining(self, config: DataConfig) -> None:
        # With one token in a window, each token is predicted from a single one, and no context is ever learned.
        if config.length < 2:
            raise ValueError(f"data.length={config.length} is too short for a window of text; give at least 2")

    def open_batches(
        self, shards: Shards, config: DataConfig, seed: int, cancel: CancelToken, parts: int = 1, devices: int = 1
    ) -> WindowBatches:
        # Windows are found by arithmetic: there is no long planning that `cancel` would stop.
        return WindowBatches(shards, config, seed=seed)

    def open_held_out(
        self, shards: Shards, config: DataConfig, lanes: int, cancel: CancelToken, devices: int = 1
    ) -> HeldOutWindows:
        return HeldOutWindows(shards, config)

    def why_not(self, kind: str) -> str:
        # Tokens of any kind can be predicted one after the other, but for rows of static vectors.
        return "" if kind != StaticWords.kind else not_static(self.name, kind)

    def why_not_learned(self, kind: str) -> str:
        # Neither takes added tokens (`with_added_tokens`), which tasks need.
        if kind in (WordPiece.kind, Words.kind):
            return (
                f"no {self.name} should start with a vocabulary of kind {kind}: fine-tuning could add no tokens to it; "
                "learn another, of kind byte-bpe, or give a published one"
            )
        return self.why_not(kind)

    def check_task_vocabulary(self, tokenizer: Tokenizer) -> None:
        gpt_specials(tokenizer)

    def marks(self, tokenizer: Tokenizer) -> Marks | None:
        # A pretrained GPT has no task tokens yet, and reads texts without them.
        return gpt_specials(tokenizer) if all(name in tokenizer.specials for name in self.task_tokens) else None


def not_static(family: str, kind: str) -> str:
    """Returns why one of vocabulary and model is of static vectors and the other is not."""
    return (
        f"a vocabulary of kind {StaticWords.kind} is that of static vectors, and this one, of {family}, is "
        f"{kind}; begin from the run that `contexture import vectors` wrote"
    )
