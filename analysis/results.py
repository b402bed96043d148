"""What queries of a trained model return. Importing this needs no jax."""

from typing import Literal, NotRequired, TypedDict


class TokenScore(TypedDict):
    """A predicted token and its probability in the softmax over the vocabulary."""

    token: str
    score: float


class GeneratedText(TypedDict):
    """A continuation of a prompt.

    Attributes:
        prompt: the prompt as it was given.
        text: the continuation, without the prompt.
        tokens: how many tokens it has.
        stopped: "end" at the end-of-document token, "stop" before a stop text, "length" after the tokens asked for.
        truncated: how many tokens the prompt lost at its beginning; only where long prompts are cut.
    """

    prompt: str
    text: str
    tokens: int
    stopped: Literal["end", "stop", "length"]
    truncated: NotRequired[int]


class TextCounts(TypedDict):
    """What was scored: words are separated by white space, bytes are UTF-8."""

    documents: int
    tokens: int
    words: int
    bytes: int


class TextScore(TextCounts):
    """How well a model predicts documents.

    A BERT has pseudo_perplexity and word_pseudo_perplexity instead of perplexities: each token is predicted from all
    others, which gives no probability of the text. A text without words has no perplexity by word.

    Attributes:
        loss: in nats per token; of an ELMo the mean of both directions.
        convention: how documents, windows and words were counted.
        perplexity: exp(loss).
        word_perplexity: exp(nats / words).
        bits_per_byte: bits per byte of the text's UTF-8.
        forward_perplexity: of an ELMo, and backward_perplexity: of each direction alone.
        unknown: how many tokens or words the vocabulary of a BERT or an ELMo lacks; scored as `[UNK]` or `<UNK>`.
        length: tokens of a window, and stride: new tokens in each.
    """

    loss: float
    convention: str
    perplexity: NotRequired[float]
    word_perplexity: NotRequired[float]
    bits_per_byte: NotRequired[float]
    pseudo_perplexity: NotRequired[float]
    word_pseudo_perplexity: NotRequired[float]
    forward_perplexity: NotRequired[float]
    backward_perplexity: NotRequired[float]
    unknown: NotRequired[int]
    length: NotRequired[int]
    stride: NotRequired[int]


class RunScore(TextScore):
    """A TextScore with the folder of its run."""

    run: str


class LayerMix(TypedDict):
    """A learned mix of layers.

    Attributes:
        run: the run's folder.
        task: the task's name.
        seed: the run's seed.
        place: whether it mixes the "input" or the "output" of the run's head.
        layers: the numbers of the layers; 0 is the context-free one.
        weights: their weights after the softmax, which sum to 1.
        gamma: the factor of the sum.
    """

    run: str
    task: str
    seed: int
    place: str
    layers: list[int]
    weights: list[float]
    gamma: float
