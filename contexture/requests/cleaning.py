"""The options of `contexture clean`. Needs no jax."""

from dataclasses import dataclass, fields
from typing import Annotated, Literal

from contexture.data.cleaning.config import CleanConfig, Duplicates, RuleSet
from contexture.requests.arguments import DIR, FILE, FILES, Arg, check_effect, check_place
from contexture.requests.training import part_of_count


@dataclass(frozen=True, kw_only=True)
class CleanRequest:
    """Clean raw text before it is tokenised: what stays becomes *.jsonl in a new folder, where report.json says what
    each rule took, with examples."""

    input: Annotated[tuple[str, ...], FILES] = ()
    """The text to clean: files, a folder of *.txt and *.jsonl, or TFDS sets (tfds:NAME)."""
    text_column: str = "text"
    """The column of the text in tables (*.jsonl, *.json, *.parquet, TFDS sets, …)."""
    to: Annotated[str, DIR]
    """The folder to write to, which `contexture prepare --input` reads."""
    documents: Literal["blank_lines", "files"] = "blank_lines"
    """What a document of a *.txt file is: the text between blank lines, or the whole file."""
    languages: Annotated[tuple[str, ...], Arg(metavar="LANGUAGE …")] = ()
    """The languages to keep, by their ISO codes: en de. fastText's small model tells them (extra [clean])."""
    language_column: Annotated[str, Arg(metavar="NAME")] = ""
    """The column of tables that has the language of a text, in place of the model."""
    rules: tuple[RuleSet, ...] = ()
    """Rules of published corpora. c4: lines that are no sentences, and pages of code or placeholders (Raffel et al.
    2020). gopher: documents by length, symbols and repetition (Rae et al. 2021)."""
    bad_words: Annotated[str, FILE] = ""
    """A file with a word or phrase in each line: C4's rules take documents with any of them."""
    decontaminate: Annotated[tuple[str, ...], FILES] = ()
    """Files of tasks, as finetune reads them, or plain text: documents with an n-gram of theirs go."""
    decontaminate_ngram: int = 13
    """The words of such an n-gram. A text of 8 words up to that is looked for as a whole."""
    duplicates: tuple[Duplicates, ...] = ()
    """What goes where an earlier one is the same: documents, or paragraphs (lines). near: documents that share most of
    their 5-grams of words with one that stays (extra [clean])."""
    near_threshold: float = 0.8
    """The least Jaccard index of the 5-grams of two documents that are near-duplicates."""
    part: Annotated[str, Arg(metavar="I/N")] = ""
    """Clean only part I of N, from 0, into TO.parts, unless it is there. Parts may be made in any order, on any
    machines that share the folder; --join finds the duplicates among them."""
    join: bool = False
    """Join the parts in TO.parts, to the same as without parts. Needs no other option but --to."""
    workers: int = 1
    """How many processes clean. What they have done stays where the work is stopped; the same command resumes."""
    per_worker: bool = False
    """Show what each worker is at."""

    def __post_init__(self) -> None:
        check_place(self.to, self.input)
        if self.join:
            others = [field.name for field in fields(self) if field.name not in ("to", "join")]
            check_effect(self, others, False, "making parts; leave --join out")
            return
        if not self.input:
            raise ValueError("input names no text; give a file, several, or a folder")
        if not (self.rules or self.duplicates or self.languages or self.decontaminate):
            raise ValueError("rules= asks for no cleaning; give --rules c4 gopher, --duplicates documents, or others")
        if self.workers < 1:
            raise ValueError(f"workers={self.workers} is not a positive number of processes")
        if self.decontaminate_ngram < 1:
            raise ValueError(f"decontaminate-ngram={self.decontaminate_ngram} is not a positive number of words")
        if not 0.0 < self.near_threshold <= 1.0:
            raise ValueError(f"near-threshold={self.near_threshold} is not in (0, 1]")
        self._check_effects()
        if self.part:
            part_of_count(self.part)
            check_effect(self, ("workers",), False, "a whole cleaning, not one part; leave --part out")

    def _check_effects(self) -> None:
        check_effect(self, ("language_column",), bool(self.languages), "languages; give --languages en")
        check_effect(self, ("bad_words",), "c4" in self.rules, "C4's rules; give --rules c4")
        benchmarks = "benchmarks; give --decontaminate FILE"
        check_effect(self, ("decontaminate_ngram",), bool(self.decontaminate), benchmarks)
        check_effect(self, ("near_threshold",), "near" in self.duplicates, "near-duplicates; give --duplicates near")
        check_effect(self, ("per_worker",), self.workers > 1, "several workers; give --workers 4")

    @property
    def config(self) -> CleanConfig:
        """Returns the text and the rules alone."""
        return CleanConfig(**{field.name: getattr(self, field.name) for field in fields(CleanConfig)})
