"""Suggestions for an option that does not exist: the usual names of other libraries, then the nearest name."""

import difflib
from collections.abc import Collection, Iterable, Mapping

from contexture.data.errors import LONGEST_NAME

_OTHER_NAMES = {
    "optim.peak-lr": "lr learning-rate peak-learning-rate max-lr base-lr init-lr",
    "data.batch": "batch-size bs train-batch-size per-device-train-batch-size global-batch-size batch",
    "epochs": "num-epochs n-epochs num-train-epochs max-epochs epoch",
    "steps": "max-steps num-steps num-train-steps train-steps total-steps iterations iters max-iters step",
    "optim.warmup": "warmup-steps num-warmup-steps warmup-iters warmup-updates",
    "optim.warmup-fraction": "warmup-ratio warmup-proportion",
    "optim.weight-decay": "wd decay l2",
    "optim.clip": "clip-norm grad-clip gradient-clip gradient-clip-norm max-grad-norm clip-grad-norm",
    "optim.schedule": "scheduler lr-scheduler lr-scheduler-type lr-schedule",
    "optim.name": "optimizer optimiser optim",
    "optim.b1": "beta1 adam-beta1",
    "optim.b2": "beta2 adam-beta2",
    "optim.eps": "epsilon adam-epsilon adam-eps",
    "optim.accumulate": "grad-accumulation gradient-accumulation gradient-accumulation-steps accumulation-steps "
    "grad-accum accum",
    "data.length": "max-length max-len max-seq-length max-seq-len seq-len seq-length sequence-length block-size "
    "context-length max-sequence-length",
    "data.path": "data train-file train-data data-dir input dataset train-path",
    "data.dev-fraction": "val-fraction validation-split valid-fraction val-split dev-split",
    "data.dev": "validation-file val-file eval-file valid-file dev-file dev validation",
    "data.tokenizer": "tokenizer vocab-file tokenizer-name tokenizer-path vocabulary-file",
    "data.masked-fraction": "mlm-probability masked-lm-prob mask-prob mask-probability",
    "data.language-exponent": "language-sampling-alpha sampling-alpha language-alpha exponent temperature",
    "data.units": "segmenter word-segmenter segmentation",
    "data.sequences": "dialogues dialogue dlm",
    "data.gazetteer": "entities entity-file dictionary lexicon",
    "data.phases": "curriculum length-schedule seq-length-schedule phase2",
    "data.mask-token-fraction": "mask-replace-prob",
    "data.random-token-fraction": "random-replace-prob random-token-prob",
    "data.masking-copies": "dupe-factor",
    "data.masking": "whole-word-mask do-whole-word-mask whole-word-masking wwm mlm-masking",
    "data.max-predictions": "max-predictions-per-seq max-predictions predictions",
    "data.lowercase": "do-lower-case lower-case uncased",
    "model.vocab": "vocab-size vocab",
    "model.layers": "num-layers n-layers n-layer num-hidden-layers nlayers depth",
    "model.hidden": "hidden-size hidden-dim d-model n-embd embed-dim embedding-size dim",
    "model.heads": "num-heads n-heads n-head num-attention-heads attention-heads nhead",
    "model.ffn": "ffn-size intermediate-size ffn-dim d-ff n-inner mlp-dim",
    "model.dropout": "hidden-dropout-prob resid-pdrop dropout-rate",
    "model.attention-dropout": "attention-probs-dropout-prob attn-dropout attn-pdrop",
    "model.dtype": "bf16 fp16 fp32 precision mixed-precision dtype amp half",
    "model.quantization": "quantize quant load-in-8bit fp8 int8 use-fp8 fp8-recipe aqt",
    "model.remat": "gradient-checkpointing activation-checkpointing checkpoint-activations",
    "dir": "output-dir out-dir output out save-dir run-dir logdir log-dir checkpoint-dir model-dir",
    "to": "output-file out-file",
    "seed": "random-seed rng-seed",
    "save.every": "save-steps save-interval checkpoint-every save-every checkpoint-interval",
    "save.max-to-keep": "save-total-limit keep-last max-to-keep latest",
    "log.every": "logging-steps log-interval log-steps log-every",
    "log.to": "report-to",
    "evaluate.every": "eval-steps eval-every eval-interval val-interval",
    "evaluate.patience": "early-stopping early-stopping-patience",
    "evaluate.metric": "metric-for-best-model metric",
    "evaluate.batch": "batch-size eval-batch-size per-device-eval-batch-size",
    "batch": "batch-size bs",
    "mesh.data": "dp data-parallel",
    "mesh.context": "cp context-parallel context-parallel-size sequence-parallel",
    "mesh.tensor": "tp tensor-parallel tensor-model-parallel-size",
    "mesh.distributed": "multihost multi-host distributed",
    "init.random": "scratch from-scratch random-init",
    "data.word-splitter": "split",
    "word-splitter": "split",
    "top-p-exclusive": "exclusive",
    "init.run": "init-from resume-from pretrained checkpoint model-name-or-path init-checkpoint load",
    "task.train": "train-file train",
    "task.dev": "validation-file val-file eval-file valid-file dev-file dev validation",
    "task.test": "test-file test",
    "task.text": "text text-column",
    "task.second": "second text-pair text2",
    "task.label": "label label-column",
    "task.labels": "labels label-list",
    "vocab-size": "vocab",
    "tokens": "max-new-tokens max-tokens num-tokens",
}
_DERIVED = ("objective", "data.stream", "data.layout")
"""Options of earlier versions, which follow from other settings now."""
_HALF_PRECISION = ("bf16", "fp16", "amp", "half", "mixed-precision")


def has_other_name(asked: str, known: Iterable[str]) -> bool:
    """Returns whether other libraries call one of these options so."""
    return any(asked in _OTHER_NAMES.get(name, "").split() for name in known)


def suggest_option(
    word: str, known: Iterable[str], elsewhere: Mapping[str, str] | None = None, flags: Collection[str] = ()
) -> str:
    """Returns " (did you mean --optim.peak-lr?)" for `--learning-rate`, or "" where no option is near.

    An option that the command does not take is never proposed: " (--model.quantization is for a BERT or a GPT)".

    Args:
        known: the options that the command takes, by their dotted names.
        elsewhere: the options that it does not take → what they are for.
        flags: options that are switched off as --data.no-lowercase, which is proposed for `--no-data.lowercase`.
    """
    known, elsewhere = list(known), elsewhere or {}
    asked = word.lstrip("-").partition("=")[0].replace("_", "-").lower()
    if not asked or len(asked) > LONGEST_NAME:
        return ""
    if asked in _DERIVED:
        return " (it follows from the model and the kind of task: leave it out)"
    if asked.startswith("no-") and (hint := suggest_option(asked[3:], flags)):
        option = hint.partition("--")[2].removesuffix("?)")
        section, dot, last = option.rpartition(".")
        return f" (did you mean --{section}{dot}no-{last}?)"
    section, _, last = asked.rpartition(".")
    every = [*known, *(name for name in elsewhere if name not in known)]
    # From the surest to the vaguest: the name itself, another library's name, the same name in another section, a
    # misspelled one. Misspelled names are sought among all options: `--quantizaton` for an ELMo means the quantization
    # of other families, not an option of its own that happens to look alike.
    candidates = [name for name in elsewhere if name == asked]
    for names in (known, elsewhere):
        candidates = candidates or [name for name in names if asked in _OTHER_NAMES.get(name, "").split()]
        candidates = candidates or [name for name in names if last in _OTHER_NAMES.get(name, "").split()]
        candidates = candidates or [name for name in names if _ending(name) == last]
    candidates = candidates or difflib.get_close_matches(asked, every, n=1, cutoff=0.7)
    if not candidates:
        near = difflib.get_close_matches(last, list(dict.fromkeys(map(_ending, every))), n=1, cutoff=0.7)
        candidates = [name for name in every if _ending(name) in near]
    if not candidates:
        return ""
    # Among several candidates the section that was written decides.
    same_section = [name for name in candidates if name.rpartition(".")[0] == section]
    option = (same_section or candidates)[0]
    if option not in known:
        return f" (--{option} is for {elsewhere[option]})"
    value = " bfloat16" if option == "model.dtype" and last in _HALF_PRECISION else ""
    return f" (did you mean --{option}{value}?)"


def _ending(name: str) -> str:
    return name.rpartition(".")[2]
