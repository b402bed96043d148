"""What text is cleaned by. A plain dataclass: importing this costs nothing."""

from dataclasses import dataclass
from typing import Literal

RuleSet = Literal["c4", "gopher"]
Duplicates = Literal["documents", "paragraphs", "near"]


@dataclass(frozen=True, kw_only=True)
class CleanConfig:
    """The text to clean, and the rules that are asked; `contexture.requests.CleanRequest` describes them."""

    input: tuple[str, ...] = ()
    text_column: str = "text"
    documents: Literal["blank_lines", "files"] = "blank_lines"
    languages: tuple[str, ...] = ()
    language_column: str = ""
    rules: tuple[RuleSet, ...] = ()
    bad_words: str = ""
    decontaminate: tuple[str, ...] = ()
    decontaminate_ngram: int = 13
    duplicates: tuple[Duplicates, ...] = ()
    near_threshold: float = 0.8
