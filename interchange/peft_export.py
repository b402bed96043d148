"""Export of a run's adapters to a folder that peft loads onto the base model, as transformers has it."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np

from contexture.data.tokenizers.base import Tokenizer
from contexture.interchange.huggingface_export import hf_files, name_in_class
from contexture.interchange.huggingface_import import FORMATS, TABLE_PREFIXES
from contexture.interchange.renaming import ParamMapping, param_mappings
from contexture.models.families import family_of
from contexture.models.shapes import Params, by_path
from contexture.train.errors import ConfigError
from contexture.train.families import FAMILIES
from contexture.train.optim.lora import ADAPTERS, merged
from contexture.train.settings.run import Run
from contexture.train.settings.run_file import RunRecord

_TASKS = {"classify": "SEQ_CLS", "regress": "SEQ_CLS", "tag": "TOKEN_CLS", "lm": "CAUSAL_LM"}
"""peft's types of tasks; it has none for the other objectives."""
_PARTS = "qkv"
"""Queries, keys and values in the order in which a fused kernel holds them."""


def check_has_adapters(folder: Path, run: Run) -> None:
    """Raises: ConfigError when peft cannot load the run's adapters onto a model of transformers."""
    if not run.optim.lora_rank:
        raise ConfigError(f"{folder} has no adapters (optim.lora-rank=0); export it as hf")
    if (other := FAMILIES[run.family].exports) != "hf":
        raise ConfigError(
            f"peft adapts models of transformers, which has no {run.text.plain_name}; export it as {other}, with "
            "merged kernels"
        )
    if run.text.task_tokens and run.task.kind != "off":
        raise ConfigError(
            "a GPT's task adds three tokens, which the base model lacks, and adapters alone do not; export it as hf, "
            "with merged kernels"
        )


def peft_files(
    record: RunRecord, params: Params, tokenizer: Tokenizer
) -> tuple[dict[str, bytes], dict[str, np.ndarray]]:
    """Returns (the files of the folder by name, the tensors of adapter_model.safetensors).

    adapter_config.json, adapters and trained heads, and config.json and tokenizer of the whole model. The base is the
    hf export of the run that this one was initialised from.

    GPT's queries, keys and values are one kernel there. Adapters of several parts become one whose rank is the sum of
    their ranks; its B has zeros where a part's outputs meet another part's ranks, so that the product is the same.

    Raises:
        ConfigError: as `hf_files`.
        DataError: as `hf_files`.
    """
    run, rank = record.run, record.run.optim.lora_rank
    # Class, names and heads come from the export of the merged model.
    files, tensors = hf_files(record, jax.device_get(merged(params, run.optim)), tokenizer)
    config = json.loads(files["config.json"])
    kind, class_name = config["model_type"], config["architectures"][0]
    heads = _heads(kind, class_name, tensors)
    modules = _modules(kind, run, {path: np.asarray(x) for path, x in by_path(params[ADAPTERS]).items()})
    modules = {name_in_class(kind, class_name, name): adapters for name, adapters in modules.items()}
    # A class without a pooler does not use its adapter either.
    modules = {name: adapters for name, adapters in modules.items() if f"{name}.weight" in tensors}
    stored = {f"base_model.model.{name}": x for name, x in heads.items()}
    patterns: dict[str, int] = {}  # of names, by how many of our adapters are one of theirs
    for module, adapters in modules.items():
        patterns[_pattern(module)] = len(adapters)
        down, up = _joined(adapters)
        stored[f"base_model.model.{module}.lora_A.weight"] = down
        stored[f"base_model.model.{module}.lora_B.weight"] = up
    fused = {pattern: parts for pattern, parts in patterns.items() if parts > 1}
    alpha = run.optim.lora_alpha
    adapter = {
        "peft_type": "LORA",
        "task_type": _TASKS.get(run.objective),
        "base_model_name_or_path": None,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": kind in ("gpt2", "openai-gpt"),  # kernels of [in, out]
        "target_modules": "|".join(patterns),
        "rank_pattern": {pattern: parts * rank for pattern, parts in fused.items()},
        # alpha grows with the rank, so that the scale alpha / rank stays the same.
        "alpha_pattern": {pattern: parts * alpha for pattern, parts in fused.items()},
        "modules_to_save": sorted({name.partition(".")[0] for name in heads}) or None,
        "inference_mode": True,
    }
    files["adapter_config.json"] = (json.dumps(adapter, indent=2) + "\n").encode()
    return files, stored


def write_peft_weights(folder: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes adapter_model.safetensors."""
    from safetensors.numpy import save_file

    file = folder / "adapter_model.safetensors"
    save_file({name: np.ascontiguousarray(x) for name, x in tensors.items()}, file, metadata={"format": "pt"})
    # The library lets nobody but the user read it; it gets the rights of the other files.
    file.chmod((folder / "config.json").stat().st_mode)


def _heads(kind: str, class_name: str, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the tensors of the heads, which peft wants whole, including tensors that are tied to others."""
    prefix = name_in_class(kind, class_name, "")
    heads = {name: x for name, x in tensors.items() if prefix and not name.startswith(prefix)}
    saved = {name.partition(".")[0] for name in heads}
    tied = [pair for pairs in FORMATS[kind].repeats.values() for pair in pairs]
    table = TABLE_PREFIXES[kind]
    for name, source in tied:
        if name.partition(".")[0] in saved and name not in heads:
            heads[name] = tensors[name_in_class(kind, class_name, source) if source.startswith(table) else source]
    return heads


def _modules(
    kind: str, run: Run, leaves: Mapping[str, np.ndarray]
) -> dict[str, list[tuple[int, int, np.ndarray, np.ndarray]]]:
    """Returns transformers' modules with adapters: name → [(part, parts, A [rank, in], B [out, rank]), …].

    A fused kernel has three parts, any other kernel one.
    """
    table = FORMATS[kind].table([part for part in ("pooler",) if part in FORMATS[kind].parts])
    modules: dict[str, list[tuple[int, int, np.ndarray, np.ndarray]]] = {}
    for mapping in param_mappings(table, family_of(run.model).sizes(run.model, 1)):
        path = mapping.ours.removeprefix("backbone/")
        if f"{path}/a" in leaves:
            a, b = leaves[f"{path}/a"], leaves[f"{path}/b"]
            for name, down, up in zip(mapping.names, *_by_layer(mapping, a, b), strict=True):
                part = next((_PARTS.index(letter) for letter in mapping.dims[0] if letter in _PARTS), None)
                placed = (part or 0, 1 if part is None else 3, down, up)
                modules.setdefault(name.removesuffix(".weight"), []).append(placed)
    return modules


def _by_layer(mapping: ParamMapping, a: np.ndarray, b: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Returns (A of each layer as [rank, in], B of each layer as [out, rank])."""
    layers = len(mapping.names)
    rank = a.shape[-1]
    return list(a.reshape(layers, -1, rank).swapaxes(1, 2)), list(b.reshape(layers, rank, -1).swapaxes(1, 2))


def _joined(adapters: list[tuple[int, int, np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Returns one adapter (A [ranks, in], B [outs, ranks]) that changes each part as the part's own adapter does."""
    _, parts, _, first = adapters[0]
    out, rank = first.shape
    up = np.zeros((parts * out, len(adapters) * rank), first.dtype)
    for number, (part, _, _, b) in enumerate(adapters):
        up[part * out : (part + 1) * out, number * rank : (number + 1) * rank] = b
    return np.concatenate([down for _, _, down, _ in adapters]), up


def _pattern(module: str) -> str:
    """Returns a regular expression of a module's name in every layer."""
    return re.sub(r"\\\.\d+\\\.", r"\\.\\d+\\.", re.escape(module))
