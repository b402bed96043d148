"""What queries of a trained model return. Importing this needs no jax."""

from typing import Literal, NotRequired, TypedDict


class TokenScore(TypedDict):
    """A token that may stand in a gap, and its probability in the softmax over the vocabulary."""

    token: str
    score: float


class GeneratedText(TypedDict):
    """A continuation: its text without the prompt, the number of its tokens, and why it stopped.

    stopped is "end" at the token that ends documents, "stop" before a stop text, "length" after the tokens asked for.
    truncated: where long prompts are cut, how many tokens this one lost at its beginning.
    """

    prompt: str
    text: str
    tokens: int
    stopped: Literal["end", "stop", "length"]
    truncated: NotRequired[int]


class TextCounts(TypedDict):
    """What was scored: words stand between white space, bytes are UTF-8."""

    documents: int
    tokens: int
    words: int
    bytes: int


class TextScore(TextCounts):
    """How well a model predicts documents.

    loss is in nats a token, perplexity is exp(loss), word_perplexity exp(nats / words), bits_per_byte in bits over the
    text's UTF-8. convention says how documents, windows and words were counted.

    Of a BERT there are pseudo_perplexity and word_pseudo_perplexity instead: each token is predicted from all others,
    which gives no probability of the text. Of an ELMo, loss is the mean of both directions, whose own perplexities
    stand beside. unknown counts what the vocabulary of a BERT or an ELMo lacks, which is scored as `[UNK]` or `<UNK>`.
    A text without words has no perplexity by word.
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
    """A learned mix of layers: where it stands, "input" or "output" of the run's head, the numbers of its layers, 0 for
    the words' own, their weights after the softmax, and the factor gamma.
    """

    run: str
    task: str
    seed: int
    place: str
    layers: list[int]
    weights: list[float]
    gamma: float
