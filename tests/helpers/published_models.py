"""Models of transformers of the sizes of ours, with weights that are large enough to matter."""

import re
from typing import Any

import pytest

from contexture.models.config import BertConfig, GptConfig

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

ACTIVATIONS = {"erf": "gelu", "tanh": "gelu_new"}


def bert_of(kind: str, config: BertConfig, **more: Any) -> Any:
    """Returns transformers' BERT of a class, `kind`, with the settings of a configuration of ours."""
    published = transformers.BertConfig(
        vocab_size=config.vocab,
        hidden_size=config.hidden,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        intermediate_size=config.ffn,
        hidden_act=ACTIVATIONS[config.gelu],
        max_position_embeddings=config.length,
        type_vocab_size=config.segments,
        layer_norm_eps=config.eps,
        pad_token_id=None,  # else torch gives the padding's row no gradient, which the original does
        attn_implementation="eager",
        **more,
    )
    return getattr(transformers, kind)(published).eval()


def gpt_of(config: GptConfig) -> Any:
    """Returns transformers' GPT-2, or its GPT-1 where the norm comes after."""
    common: dict[str, Any] = {"vocab_size": config.vocab, "n_positions": config.length, "n_embd": config.hidden,
                              "n_layer": config.layers, "n_head": config.heads, "layer_norm_epsilon": config.eps,
                              "bos_token_id": None, "eos_token_id": None, "attn_implementation": "eager"}  # fmt: skip
    if config.norm == "pre":
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_inner=config.ffn, **common)).eval()
    return transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig(**common)).eval()


def draw(model: Any, seed: int, deviation: float = 0.2) -> Any:
    """Returns the model, its parameters normal: scales of norms about one, all others about zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0.0, deviation, generator=generator)
            if re.search(r"(LayerNorm|ln_.)\.weight$", name):
                parameter.add_(1.0)
    return model
