"""The commands, one entry each: where its code is, which options it has, and what its help says. Needs no jax.

A new command is a function argv → result in one of the *_commands.py files, a type for its options in
`contexture.requests`, and an entry here: the help, the completion of shells and the suggestions follow from it.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

GROUPS = ("Train", "Use a run", "Exchange models", "Look before you train", "Set up")
"""The groups of `contexture --help`, in their order."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command of `contexture`."""

    group: str
    summary: str
    """What it does, in at most 44 characters."""
    run: str
    """Its function, `module.name` or `folder.module.name` in contexture.cli."""
    request: str
    """The type of its options: `Run`, or a class of contexture.requests."""
    usage: str
    """What a user has to give, after the command's name."""
    examples: tuple[str, ...]
    arguments: tuple[tuple[str, str], ...] = ()
    """Of a command with the options of a run: the words before them, (metavar, sentence) each."""
    first: tuple[str, ...] = ()
    """The options that its short help shows; empty: all of them."""
    required: tuple[str, ...] = ()
    """Options that a new run needs although they have a default."""

    @property
    def of_run(self) -> bool:
        """Whether its options are a run's settings, which --config can give."""
        return self.request in ("Run", "FinetuneRequest", "PlanRequest")

    def kind(self) -> type:
        """Returns the type of its options."""
        module = "contexture.train.settings.run" if self.request == "Run" else "contexture.requests"
        return getattr(importlib.import_module(module), self.request)

    def function(self) -> Callable[[list[str]], Any]:
        """Returns its function, argv → result; the module is imported now, since some import much."""
        module, _, name = self.run.rpartition(".")
        return getattr(importlib.import_module(f"contexture.cli.{module}"), name)


_RECIPE = (("RECIPE", "A name that `contexture recipes` lists, or a function of your own file: my_recipes.py:big."),)

COMMANDS: dict[str, Command] = {
    "pretrain": Command(
        group="Train",
        summary="Train a recipe on text, or resume it",
        run="training_commands.pretrain_command",
        request="Run",
        usage="RECIPE --dir RUN --data.path FILE … [options]",
        arguments=_RECIPE,
        first=(
            *("dir", "data.path", "data.dev-fraction", "steps", "optim.peak-lr", "data.batch", "data.length"),
            *("model.dtype", "init.run", "config"),
        ),
        required=("dir", "data.path"),
        examples=("contexture pretrain {recipe} --dir runs/mine --data.path my_text/ --data.dev-fraction 0.05",),
    ),
    "finetune": Command(
        group="Train",
        summary="Teach a run a task from labelled examples",
        run="training_commands.finetune_command",
        request="FinetuneRequest",
        usage="RUN --task NAME | --task.kind KIND --task.train FILE --dir RUN [options]",
        arguments=(("RUN", "The folder of the run to begin from: pretrained, imported or fine-tuned."),),
        first=(
            *("dir", "task.name", "task.kind", "task.train", "task.dev", "task.dev-fraction", "epochs"),
            *("optim.peak-lr", "data.batch", "grid", "seeds", "config"),
        ),
        required=("dir",),
        examples=(
            "contexture finetune {run} --task.kind classify --task.train train.tsv --task.dev-fraction 0.1 "
            "--dir runs/films",
            "contexture finetune {run} --task sst2 --dir runs/sst2",
            "contexture finetune {run} --task sst2 --dir runs/rates --grid optim.peak-lr=2e-5,3e-5,5e-5 --seeds 5",
        ),
    ),
    "status": Command(
        group="Train",
        summary="Show step, loss and speed of runs",
        run="query_commands.status_command",
        request="StatusRequest",
        usage="RUN … [options]",
        examples=("contexture status runs/*",),
    ),
    "compare": Command(
        group="Train",
        summary="Draw losses, metrics, settings that differ",
        run="query_commands.compare_command",
        request="CompareRequest",
        usage="RUN RUN … [options]",
        examples=("contexture compare runs/low runs/high --to comparison.html",),
    ),
    "evaluate": Command(
        group="Use a run",
        summary="Measure runs on held-out examples",
        run="evaluation_commands.evaluate_command",
        request="EvaluationArgs",
        usage="RUN … [options]",
        first=("split", "dev", "step", "watch", "batch", "to", "figures", "table", "submission"),
        examples=(
            "contexture evaluate runs/films",
            "contexture evaluate runs/films --dev other.tsv --step best",
            "contexture evaluate runs/films --step all --watch",
            "contexture evaluate runs/films runs/intent --split test",
            "contexture evaluate runs/films --figures figures/",
            "contexture evaluate runs/cola --submission glue/",
        ),
    ),
    "predict": Command(
        group="Use a run",
        summary="Label new examples with a fine-tuned run",
        run="query_commands.predict_command",
        request="PredictionRequest",
        usage="RUN --input FILE --to FILE [options], or RUN --text TEXT [options]",
        examples=(
            "contexture predict runs/films --input new.tsv --to answers.jsonl",
            'contexture predict runs/films --text "A bore from start to end."',
        ),
    ),
    "fill": Command(
        group="Use a run",
        summary="Fill in each [MASK] of a text, with a BERT",
        run="query_commands.fill_command",
        request="FillRequest",
        usage="RUN --text TEXT [options]",
        examples=('contexture fill runs/mine --text "The [MASK] is here."',),
    ),
    "generate": Command(
        group="Use a run",
        summary="Continue a prompt, with a GPT",
        run="query_commands.generate_command",
        request="GenerationRequest",
        usage="RUN --prompt TEXT … | --input FILE [options]",
        first=("prompt", "input", "tokens", "temperature", "top-k", "top-p", "stop", "seed"),
        examples=('contexture generate runs/gpt --prompt "Once upon a time" --tokens 80 --temperature 0.8',),
    ),
    "score": Command(
        group="Use a run",
        summary="Measure how well a run predicts a text",
        run="query_commands.score_command",
        request="ScoreRequest",
        usage="RUN --input FILE … | --text TEXT [options]",
        examples=(
            "contexture score runs/gpt --input text.txt --stride 64",
            'contexture score runs/gpt --text "The cat sat on the mat." --to page.html',
        ),
    ),
    "embed": Command(
        group="Use a run",
        summary="Write the vectors of each line of a text",
        run="inspection.embed.embed_command",
        request="EmbeddingRequest",
        usage="RUN --input FILE --to FILE [options]",
        examples=(
            "contexture embed runs/mine --input text.txt --to vectors.npy",
            "contexture embed runs/mine --input text.txt --to words.hdf5 --of words --layers last",
        ),
    ),
    "zeroshot": Command(
        group="Use a run",
        summary="Evaluate a pretrained run zero-shot",
        run="inspection.zeroshot.zeroshot_command",
        request="ZeroshotRequest",
        usage="RUN --task TASK --input FILE … [options]",
        first=(
            *("run", "task", "input", "shots", "examples", "group", "to", "table", "labels", "references", "length"),
            "stride",
        ),
        examples=(
            "contexture zeroshot runs/gpt --task lambada --input lambada_test.jsonl",
            "contexture zeroshot runs/gpt --task blimp --input blimp/data/ --table blimp.tex",
            "contexture zeroshot runs/gpt --task qa --input coqa-dev-v1.0.json --to answers.jsonl",
            "contexture zeroshot runs/gpt --task choice --input swag.csv --shots 4 --examples train.csv",
        ),
    ),
    "attention": Command(
        group="Use a run",
        summary="Draw which tokens read which, in a page",
        run="inspection.attention.attention_command",
        request="AttentionRequest",
        usage="RUN --text TEXT --to FILE [options]",
        examples=(
            'contexture attention runs/mine --text "The cat sat on the mat." --to attention.html',
            'contexture attention runs/mine --text "A cat." --second "It slept." --to pair.html --layers 1,2',
        ),
    ),
    "neighbours": Command(
        group="Use a run",
        summary="Find the nearest sentences or words",
        run="inspection.vectors.neighbours_command",
        request="NeighboursRequest",
        usage="RUN --input FILE --text TEXT … | --queries FILE [options]",
        examples=(
            'contexture neighbours runs/mine --input text.txt --text "The cat sleeps." --top 5',
            'contexture neighbours runs/mine --input text.txt --text "He sat on the bank" --word bank',
        ),
    ),
    "similarity": Command(
        group="Use a run",
        summary="Compare the vectors of pairs of texts",
        run="inspection.vectors.similarity_command",
        request="SimilarityRequest",
        usage="RUN --input FILE [options]",
        first=("run", "input", "to", "text", "second", "label", "pool", "layers", "whiten", "dimensions"),
        examples=("contexture similarity runs/mine --input sts.tsv --whiten",),
    ),
    "senses": Command(
        group="Use a run",
        summary="Compare a word's vectors in its sentences",
        run="inspection.senses.senses_command",
        request="SensesRequest",
        usage="RUN --word WORD --input FILE … [options]",
        first=(
            *("run", "word", "input", "to", "text", "sense", "ignore-case", "clusters", "adjust-anisotropy", "layers"),
            *("projection", "step"),
        ),
        examples=(
            "contexture senses runs/mine --word bank --input bank.tsv --to bank.html",
            "contexture senses runs/mine --word bank --input text.txt --adjust-anisotropy --to bank.png",
        ),
    ),
    "layers": Command(
        group="Use a run",
        summary="Show the layer weights that tasks learned",
        run="query_commands.layers_command",
        request="LayersRequest",
        usage="RUN … [options]",
        examples=("contexture layers runs/films runs/intent --to layers.png",),
    ),
    "probe": Command(
        group="Use a run",
        summary="Probe the layers with labelled spans",
        run="inspection.probe.probe_command",
        request="ProbeRequest",
        usage="RUN … --task NAME … --train FILE … --dev FILE … --to DIR [options]",
        first=("task", "train", "dev", "test", "to", "layers", "step", "lr", "seeds"),
        examples=(
            "contexture probe runs/mine --task pos dependencies --train train.conllu --dev dev.conllu --to probes/",
            "contexture probe runs/mine --train edges.jsonl --dev edges.dev.jsonl --to probes/ --layers each",
            "contexture probe runs/mine --task pos --train train.conllu --dev dev.conllu --to steps/ --step all",
        ),
    ),
    "import": Command(
        group="Exchange models",
        summary="Turn a published model into a run",
        run="query_commands.import_command",
        request="ImportRequest",
        usage="FORMAT DIR --to RUN [options]",
        examples=("contexture import hf bert-base-uncased/ --to runs/bert",),
    ),
    "export": Command(
        group="Exchange models",
        summary="Write a run as files that others read",
        run="query_commands.export_command",
        request="ExportRequest",
        usage="RUN FORMAT --to DIR [options]",
        examples=("contexture export runs/films hf --to films/",),
    ),
    "slim": Command(
        group="Exchange models",
        summary="Drop what only training needs from a run",
        run="query_commands.slim_command",
        request="SlimRequest",
        usage="RUN [options]",
        examples=("contexture slim runs/films",),
    ),
    "recipes": Command(
        group="Look before you train",
        summary="List the recipes and the named tasks",
        run="training_commands.recipes_command",
        request="NoOptions",
        usage="",
        examples=("contexture recipes",),
    ),
    "show": Command(
        group="Look before you train",
        summary="Show settings, parameters or prepared text",
        run="training_commands.show_command",
        request="Run",
        usage="RECIPE|RUN|SHARDS [options]",
        arguments=(
            ("RECIPE|RUN", "A recipe, with options of `contexture pretrain`; or the folder of a run."),
            ("SHARDS", "The folder of prepared text; --to page.html draws what it holds."),
        ),
        first=("model.vocab", "model.layers", "data.length", "data.batch", "init.run", "config"),
        examples=("contexture show {recipe}", "contexture show {run}", "contexture show shards/ --to shards.html"),
    ),
    "plan": Command(
        group="Look before you train",
        summary="Predict memory and time on given devices",
        run="training_commands.plan_command",
        request="PlanRequest",
        usage="RECIPE|RUN --topology DEVICES [options]",
        arguments=(
            ("RECIPE|RUN", "A recipe, or the folder of a run; with --task.kind, the model that is fine-tuned."),
        ),
        first=(
            *("topology", "suggest", "data.batch", "data.length", "model.dtype", "model.remat", "mesh.fsdp"),
            *("mesh.tensor", "optim.accumulate", "config"),
        ),
        required=("topology",),
        examples=(
            "contexture plan {recipe} --topology v5e:4x4 --suggest",
            "contexture plan bert.base --task.kind classify --topology t4",
        ),
    ),
    "check": Command(
        group="Look before you train",
        summary="Test a host: devices, folder, port, clock",
        run="training_commands.check_command",
        request="CheckRequest",
        usage="[options]",
        examples=("contexture check --dir runs/mine", "srun contexture check --dir /shared/runs/mine --json"),
    ),
    "tokenizer": Command(
        group="Set up",
        summary="Learn a vocabulary from text",
        run="preparation_commands.tokenizer_command",
        request="TokenizerRequest",
        usage="KIND --input FILE … --to DIR [options]",
        first=("kind", "input", "languages", "vocab-size", "to", "lowercase", "sample-gb", "workers", "part", "join"),
        examples=("contexture tokenizer wordpiece --input my_text/ --vocab-size 8192 --to vocabulary/",),
    ),
    "clean": Command(
        group="Set up",
        summary="Drop duplicates and poor text of a corpus",
        run="preparation_commands.clean_command",
        request="CleanRequest",
        usage="--input FILE … --to DIR [options]",
        first=(
            *("input", "to", "languages", "rules", "duplicates", "near-threshold", "decontaminate", "workers", "part"),
            "join",
        ),
        examples=(
            "contexture clean --input my_text/ --to clean/ --languages en --rules gopher --duplicates documents near",
            "contexture clean --input my_text/ --to clean/ --decontaminate dev.tsv test.tsv",
        ),
    ),
    "prepare": Command(
        group="Set up",
        summary="Tokenise text once, for many runs",
        run="preparation_commands.prepare_command",
        request="PrepareRequest",
        usage="RECIPE --input FILE … --to DIR [options]",
        first=(
            "input",
            "to",
            "tokenizer",
            "dev",
            "dev-fraction",
            "workers",
            "runner",
            "part",
            "join",
            "format",
            "config",
        ),
        examples=(
            "contexture prepare bert.tiny --input my_text/ --to shards/",
            "contexture prepare bert.base --input my_text.txt --tokenizer vocab.txt --to records/ --as google-tfrecord",
        ),
    ),
    "completion": Command(
        group="Set up",
        summary="Print a script for completion in a shell",
        run="completion.completion_command",
        request="CompletionRequest",
        usage="bash|zsh|fish",
        examples=(
            "echo 'source <(contexture completion bash)' >> ~/.bashrc",
            "echo 'source <(contexture completion zsh)' >> ~/.zshrc",
            "contexture completion fish | source",
        ),
    ),
}
