"""The scorer of each family."""

from contexture.analysis.scoring.bert import BertScorer
from contexture.analysis.scoring.elmo import ElmoScorer
from contexture.analysis.scoring.gpt import GptScorer
from contexture.analysis.scoring.scorer import TokenScorer
from contexture.data.errors import DataError
from contexture.data.tokenizers.base import Tokenizer
from contexture.models.config import BertConfig, ElmoConfig, GptConfig, ModelConfig
from contexture.models.model import Model
from contexture.models.shapes import Params

SCORERS: dict[type, type[TokenScorer]] = {BertConfig: BertScorer, GptConfig: GptScorer, ElmoConfig: ElmoScorer}


def convention_of(config: ModelConfig) -> str:
    """Returns how models of this family measure the probability of a continuation, in words."""
    return SCORERS[type(config)].convention


def token_scorer(
    model: Model,
    params: Params,
    tokenizer: Tokenizer,
    *,
    length: int = 0,
    stride: int = 0,
    split_sentences: bool = True,
) -> TokenScorer:
    """Returns the scorer of a model.

    Args:
        length: tokens of a window, including a BERT's [CLS] and [SEP]; 0: the model's length.
        stride: tokens from one window to the next; 0: windows do not overlap.
        split_sentences: of an ELMo, which has no windows: whether lines are split into sentences.

    Raises:
        DataError: when the run lacks the head that predicts words, or the length or stride does not fit.
    """
    scorer = SCORERS.get(type(model.config))
    if scorer is None:
        raise DataError(
            f"a model of the family {model.config.family} predicts no word, so no text has a score; give a run of an "
            "ELMo, a GPT or a BERT"
        )
    return scorer(model, params, tokenizer, length, stride, split_sentences)
