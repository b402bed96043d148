"""The options of an import, which the command line and Python build. Needs no jax."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """What the files of a published model do not say, or say otherwise than the user."""

    vocabulary: str = ""
    """Another vocabulary than the one beside the model. For bilm: the words of a softmax to train; without it,
    those that lie beside the model, or none."""
    lowercase: Literal["auto", "yes", "no"] = "auto"
    """Whether a BERT lower-cases text, or words are looked up among vectors in lower case; auto is what the files say,
    else no where the vocabulary has capitals."""
    labels: tuple[str, ...] = ()
    """Names for the classes of a classifier or a tagger, in their order: files often have LABEL_0, LABEL_1, … alone."""
    gelu: Literal["erf", "tanh"] = "erf"
    """Which gelu a model of bert-tf was trained with; its files do not say."""
    word_splitter: Literal["auto", "spaces", "punctuation"] = "auto"
    """How text is split into words: at spaces, as the original ELMo reads tokenised text, or punctuation off as well.
    auto: spaces for bilm, punctuation for vectors."""

    @property
    def lowers(self) -> bool | None:
        """Whether text is lower-cased; None: as the files say."""
        return {"auto": None, "yes": True, "no": False}[self.lowercase]
