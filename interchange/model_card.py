"""The README.md of an exported model: its kind, its use, its training, its measured figures."""

from collections.abc import Mapping
from pathlib import Path

from contexture.data.text import hub
from contexture.data.visible import visible
from contexture.models.config import TransformerConfig
from contexture.train.run.report import read_metrics
from contexture.train.settings.run import Run, fields
from contexture.train.settings.run_file import RunRecord

_TASKS = {
    "mlm_nsp": "fill-mask",
    "lm": "text-generation",
    "bilm": "feature-extraction",
    "static": "feature-extraction",
    "classify": "text-classification",
    "regress": "text-classification",
    "tag": "token-classification",
    "choice": "multiple-choice",
    "span": "question-answering",
}
_LIBRARIES = {
    "hf": "transformers",
    "sentence-transformers": "sentence-transformers",
    "peft": "peft",
    "bilm": "allennlp",
    "stablehlo": "jax",
}
_USE = {
    "hf": """```python
import transformers

tokenizer, config = transformers.AutoTokenizer.from_pretrained("."), transformers.AutoConfig.from_pretrained(".")
model = getattr(transformers, config.architectures[0]).from_pretrained(".")
outputs = model(**tokenizer("A text.", return_tensors="pt"))
```""",
    "sentence-transformers": """```python
import sentence_transformers

vectors = sentence_transformers.SentenceTransformer(".").encode(["A text.", "Another."])
```

transformers loads it too: `AutoModel.from_pretrained(".")`, `AutoTokenizer.from_pretrained(".")`.""",
    "peft": """These are adapters and heads. BASE is the folder of the model that they were trained on, exported as hf.

```python
import peft, transformers

config = transformers.AutoConfig.from_pretrained(".")
base = getattr(transformers, config.architectures[0]).from_pretrained("BASE", config=config)
model = peft.PeftModel.from_pretrained(base, ".")
```""",
    "bilm": """`options.json` and the weights in hdf5 are in the form of bilm-tf and of AllenNLP's `Elmo` module.""",
    "stablehlo": """The program needs jax and flatbuffers (`pip install jax flatbuffers`). `model.json` lists its
inputs and outputs, `tokenizer/` has the vocabulary.

```python
import jax, jax.export, numpy as np

program = jax.export.deserialize(bytearray(open("model.stablehlo", "rb").read()))
weights, example = dict(np.load("weights.npz")), np.load("example.npz")
inputs = {name.removeprefix("inputs/"): x for name, x in example.items() if name.startswith("inputs/")}
outputs = program.call(weights, inputs)  # jax.jit(program.call) compiles once for each size
```""",
}
_SETTINGS = (
    *(
        "steps",
        "epochs",
        "data.batch",
        "data.length",
        "optim.name",
        "optim.peak_lr",
        "optim.warmup",
        "optim.weight_decay",
    ),
    *("optim.schedule", "model.dropout", "model.dtype", "seed"),
)


def model_card(folder: Path, record: RunRecord, step: int, format: str, parameters: int) -> str:
    """Returns the Markdown of a model card with the metadata that model hubs read.

    It names files of the training only by their last part: the folders of a machine are private.
    """
    run = record.run
    name = visible(folder.resolve().name)
    task = "sentence-similarity" if format == "sentence-transformers" else _TASKS[run.objective]
    head = ["---", f"library_name: {_LIBRARIES[format]}", f"pipeline_tag: {task}", "tags:"]
    head += [f"- {tag}" for tag in ("contexture", run.family)] + ["---", ""]
    lines = [*head, f"# {name}", "", _summary(run, parameters, step), "", "## Use", "", _USE[format], ""]
    if format == "stablehlo":
        lines += [_limits(record), ""]
    if record.labels:
        lines += ["Labels: " + ", ".join(f"`{visible(label)}`" for label in record.labels[:50]), ""]
    lines += ["## Training", "", *_training(record), ""]
    if measured := _measured(folder, step):
        lines += ["## Held-out figures", "", "| metric | value |", "|---|---|"]
        lines += [f"| {metric} | {value:.6g} |" for metric, value in measured.items()] + [""]
    lines += ["## License", "", "Not stated. Name the license of the weights before you publish them.", ""]
    return "\n".join(lines)


def _summary(run: Run, parameters: int, step: int) -> str:
    c = run.model
    size = f"{c.layers} layers, {c.width} wide, {parameters:,} parameters"
    if isinstance(c, TransformerConfig):
        size = f"{c.layers} layers, {c.width} wide, {c.heads} heads, {parameters:,} parameters"
    trained = f"trained for {step:,} steps" if step else "imported"
    return f"A {run.text.plain_name} with {size}, {trained} with Contexture. Objective: {run.objective}."


def _limits(record: RunRecord) -> str:
    """Returns which inputs a program takes."""
    run = record.run
    length = "any number of words" if run.text.reads_words else f"at most {run.model.length} tokens"
    learned = f"; it was trained on sequences of at most {run.data.length}" if not record.imported else ""
    return f"A sequence (dim L) has {length}{learned}. A batch (dim B) has any number of sequences."


def _training(record: RunRecord) -> list[str]:
    run, values = record.run, fields(record.run)
    if run.steps:
        values = {**values, "epochs": 0}  # which the steps override
    lines = ["| setting | value |", "|---|---|"]
    lines += [f"| {name.replace('_', '-')} | {values[name]} |" for name in _SETTINGS if values.get(name)]
    sources = {"text": run.data.path, "examples": run.task.train, "held out": (*run.data.dev, *run.task.dev)}
    for what, paths in sources.items():
        kept = ("tfds:", "published:", hub.PREFIX)
        names = [visible(path if path.startswith(kept) else Path(path).name) for path in paths]
        lines += [f"| {what} | {', '.join(names)} |"] if names else []
    if run.init.run:
        lines.append(f"| initialised from | {visible(Path(run.init.run).name)} |")
    if record.imported:
        source = f"{visible(record.imported.source)}, " if record.imported.source else ""
        lines.append(f"| imported from | {source}files of the format {record.imported.format} |")
    lines += [f"| {name} | {record.versions[name]} |" for name in ("jax", "flax") if name in record.versions]
    return lines


def _measured(folder: Path, step: int) -> Mapping[str, float]:
    """Returns the held-out metrics of the last evaluation up to a step."""
    measured: dict[str, float] = {}
    # The last record up to the step stays.
    for record in read_metrics(folder / "metrics.jsonl"):
        if record["split"] == "dev" and record["step"] <= step:
            measured = {name: x for name, x in record.items() if isinstance(x, float)}
            measured = {"step": record["step"], **measured}
    return measured
