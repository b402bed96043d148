"""The files that make a folder of transformers one of sentence-transformers: one vector for each text."""

import json
from typing import Any

from contexture.models.config import TransformerConfig

POOLINGS = ("mean", "cls", "max", "lasttoken")
"""How the vectors of a text's tokens, special ones too, become one."""
_MODES = {"mean": "mean_tokens", "cls": "cls_token", "max": "max_tokens", "lasttoken": "lasttoken"}


def sentence_files(model: TransformerConfig, pooling: str) -> dict[str, bytes]:
    """Returns the files by name. They are of the form that all versions read: an option for each way of pooling."""
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    pooled = {f"pooling_mode_{mode}": name == pooling for name, mode in _MODES.items()}
    return {
        "modules.json": _json(modules),
        "1_Pooling/config.json": _json({"word_embedding_dimension": model.hidden, **pooled}),
        "sentence_bert_config.json": _json({"max_seq_length": model.length, "do_lower_case": False}),
        "config_sentence_transformers.json": _json(
            {
                "model_type": "SentenceTransformer",
                "prompts": {},
                "default_prompt_name": None,
                "similarity_fn_name": "cosine",
            }
        ),
    }


def with_padding(settings: bytes) -> bytes:
    """Returns a tokenizer_config.json with a padding token, which batches need and a GPT lacks.

    The attention mask leaves padding out, so any token will do.
    """
    tree = json.loads(settings)
    known = (name for name in ("pad_token", "eos_token", "unk_token") if tree.get(name))
    return _json({**tree, "pad_token": tree[name]}) if (name := next(known, "")) else settings


def _json(tree: Any) -> bytes:
    return (json.dumps(tree, indent=2, ensure_ascii=False) + "\n").encode()
