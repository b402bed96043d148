"""The options of the commands that import and export models. Needs no jax."""

from dataclasses import dataclass
from typing import Annotated, Literal

from contexture.interchange.import_options import ImportOptions
from contexture.requests.arguments import DIR, FILE, POSITIONAL, RUN, STEP, Arg, check_place


@dataclass(frozen=True, kw_only=True)
class ImportRequest(ImportOptions):
    """A published model as a run."""

    format: Annotated[Literal["hf", "bert-tf", "gpt2-tf", "gpt1-npy", "bilm", "vectors"], POSITIONAL]
    """The format of the files. hf: a BERT, ERNIE 1.0, GPT-1 or GPT-2 as transformers saves it. bert-tf: Google's
    checkpoint, bert_config.json, vocab.txt. gpt2-tf: OpenAI's checkpoint, hparams.json, encoder.json, vocab.bpe.
    gpt1-npy: OpenAI's ten shards, params_shapes.json, encoder_bpe_40000.json, vocab_40000.bpe. bilm: ELMo as bilm-tf
    has it, options.json and weights in hdf5. vectors: static word vectors, a file of word2vec (text or binary), GloVe
    or fastText (*.vec)."""
    path: Annotated[str, DIR, POSITIONAL]
    """The folder of its files; of vectors the file; of hf also the name of a model on the Hugging Face hub,
    OWNER/NAME[@REVISION]."""
    to: Annotated[str, RUN]
    """The folder of the run to write."""
    vocabulary: Annotated[str, FILE] = ""
    labels: Annotated[tuple[str, ...], Arg(metavar="NAME …")] = ()

    def __post_init__(self) -> None:
        check_place(self.to)
        for name, usual, formats in (
            ("lowercase", "auto", ("hf", "bert-tf", "vectors")),
            ("labels", (), ("hf", "bert-tf")),
            ("gelu", "erf", ("bert-tf",)),
            ("word_splitter", "auto", ("bilm", "vectors")),
            ("vocabulary", "", ("hf", "bert-tf", "gpt2-tf", "gpt1-npy", "bilm")),
        ):
            if getattr(self, name) != usual and self.format not in formats:
                option = name.replace("_", "-")
                raise ValueError(f"--{option} has no meaning for {self.format}; it is for {', '.join(formats)}")


@dataclass(frozen=True, kw_only=True)
class SlimRequest:
    """Remove the optimizer state of a run, and all checkpoints but one."""

    run: Annotated[str, RUN, POSITIONAL]
    """The folder of the run. It can still be evaluated, exported and fine-tuned. Its training cannot be resumed."""
    step: Annotated[str, STEP] = ""
    """The checkpoint to keep: its step, or `best`. Without it, the best of a run with --evaluate.patience, else the
    newest good one."""


@dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """A run as files that others read."""

    run: Annotated[str, RUN, POSITIONAL]
    """The folder of the run."""
    format: Annotated[Literal["hf", "peft", "bilm", "stablehlo"], POSITIONAL]
    """What to write. hf: what transformers loads. peft: a LoRA run's adapters and heads, which peft loads onto the base
    model in hf. bilm: ELMo as bilm-tf has it, options.json and weights in hdf5. stablehlo: a program that jax runs
    without this library, with its weights."""
    to: Annotated[str, DIR]
    """The folder to write the files to."""
    pooling: Literal["", "mean", "cls", "max", "lasttoken"] = ""
    """Makes the hf files a model of sentence-transformers too, which pools the vectors of a text so."""
    overwrite: bool = False
    """Replace an earlier export in the folder, once the new one is complete. A folder with other files is refused."""
    step: Annotated[str, STEP] = ""
    """The checkpoint to use: its step, or `best`. Without it, the best of a run with --evaluate.patience, else the
    newest good one."""

    def __post_init__(self) -> None:
        check_place(self.to)
        if self.pooling and self.format != "hf":
            raise ValueError(f"--pooling has no meaning for {self.format}; it is for hf")
