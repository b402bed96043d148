"""Attention maps against transformers' BertModel, GPT2Model and OpenAIGPTModel with output_attentions, in float64."""

from typing import Any

import numpy as np
import pytest

from contexture.analysis.attention.maps import TokenSequence, layer_maps
from contexture.interchange.name_tables import BERT_HF, GPT1_HF, GPT2_HF
from contexture.interchange.renaming import to_ours
from contexture.models import bert, gpt
from contexture.models.config import BertConfig, GptConfig
from tests.helpers.parity_rule import close
from tests.helpers.published_models import bert_of, draw, gpt_of, torch

pytestmark = pytest.mark.parity

COUNT = 37
BERT = BertConfig(vocab=131, length=41, segments=2, layers=3, hidden=48, heads=3, ffn=77, gelu="erf")
GPT2 = GptConfig(vocab=131, length=41, layers=3, hidden=48, heads=3, ffn=77)
GPT1 = GptConfig(vocab=131, length=41, layers=3, hidden=48, heads=3, ffn=192, norm="post")


@pytest.mark.parametrize("config", [BERT, GPT2, GPT1], ids=["bert", "gpt2", "gpt1"])
def test_every_map_is_that_of_transformers(config: BertConfig | GptConfig):
    model = draw(bert_of("BertForPreTraining", config) if isinstance(config, BertConfig) else gpt_of(config), 5)
    tensors = {n: x.detach().numpy().copy() for n, x in model.state_dict().items() if not n.endswith(".attn.bias")}
    params: Any
    if isinstance(config, BertConfig):
        params = to_ours(BERT_HF, tensors, bert.sizes(config))
    else:
        params = to_ours(GPT2_HF if config.norm == "pre" else GPT1_HF, tensors, gpt.sizes(config))
    ids = np.random.default_rng(3).integers(0, config.vocab, COUNT)
    segments = (np.arange(COUNT) > 20).astype(int) if isinstance(config, BertConfig) else np.zeros(COUNT, int)

    backbone = model.double().bert if isinstance(config, BertConfig) else model.double().transformer
    given = {"input_ids": torch.from_numpy(ids)[None]}
    if isinstance(config, BertConfig):
        given["token_type_ids"] = torch.from_numpy(segments)[None]
    expected = backbone(**given, output_attentions=True).attentions
    sequence = TokenSequence(ids.tolist(), [False] * COUNT, segments.tolist())
    got = list(layer_maps(config, params, 0, sequence, range(1, 4), range(1, 4)))
    assert len(expected) == len(got) == config.layers
    for layer, (one, theirs) in enumerate(zip(got, expected, strict=True)):
        close(one.weights, theirs[0].detach().numpy(), f"layer {layer}")
