"""BERT's pretraining pairs the slow way: lists of tokens, one sentence and one token at a time.

Written from the rules of create_pretraining_data.py alone, and sharing no code with `data.pretraining.sentence_pairs`,
`data.layouts` and `data.pretraining.masking`, which are compared with it.
"""

from collections.abc import Callable
from random import Random
from typing import NamedTuple

Sentence = list[int]
Document = list[Sentence]


class Instance(NamedTuple):
    a: list[int]
    b: list[int]
    is_random: bool


def instances_of(
    documents: list[Document], index: int, length: int, short_fraction: float, generator: Random
) -> list[Instance]:
    """Every instance of one document, not yet cut to length."""
    document = documents[index]
    limit = length - 3
    target = limit
    if generator.random() < short_fraction:
        target = generator.randint(2, limit)
    instances: list[Instance] = []
    chunk: list[Sentence] = []
    i = 0
    while i < len(document):
        chunk.append(document[i])
        held = sum(len(sentence) for sentence in chunk)
        if i == len(document) - 1 or held >= target:
            of_a = 1
            if len(chunk) >= 2:
                of_a = generator.randint(1, len(chunk) - 1)
            a = [token for sentence in chunk[:of_a] for token in sentence]
            b: list[int] = []
            is_random = len(chunk) == 1 or generator.random() < 0.5
            if is_random:
                other = index
                for _ in range(10):
                    other = generator.randint(0, len(documents) - 1)
                    if other != index:
                        break
                start = generator.randint(0, len(documents[other]) - 1)
                for sentence in documents[other][start:]:
                    b.extend(sentence)
                    if len(b) >= target - len(a):
                        break
                i -= len(chunk) - of_a
            else:
                b = [token for sentence in chunk[of_a:] for token in sentence]
            instances.append(Instance(a, b, is_random))
            chunk = []
        i += 1
    return instances


def truncate(a: list[int], b: list[int], length: int, front: Callable[[str, int], bool]) -> tuple[list[int], list[int]]:
    """Takes tokens from the longer side until both fit; `front(side, n)` is the coin for its n-th token."""
    a, b = list(a), list(b)
    taken = {"a": 0, "b": 0}
    while len(a) + len(b) > length - 3:
        side, tokens = ("a", a) if len(a) > len(b) else ("b", b)
        if front(side, taken[side]):
            del tokens[0]
        else:
            tokens.pop()
        taken[side] += 1
    return a, b


def guesses(length: int, predictions: int, masked_fraction: float) -> int:
    """How many slots of a line of `length` tokens, special ones counted, are to be guessed."""
    return min(predictions, max(1, int(round(length * masked_fraction))))


def random_documents(
    seed: int, count: int, most_sentences: int = 20, most_tokens: int = 12, words: int = 90
) -> list[Document]:
    """Documents of random ids, which begin at 5 (behind the special ones)."""
    generator = Random(seed)
    return [
        [
            [5 + generator.randrange(words) for _ in range(generator.randint(1, most_tokens))]
            for _ in range(generator.randint(1, most_sentences))
        ]
        for _ in range(count)
    ]


def vocabulary(words: int = 90) -> list[str]:
    """The special pieces and then words, of which each is one piece."""
    return ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(words))]


def as_text(documents: list[Document]) -> str:
    """The documents as a text file that `vocabulary` gives back as the same ids."""
    return "\n\n".join("\n".join(" ".join(f"w{token - 5}" for token in line) for line in lines) for lines in documents)
