"""Question answering by an independent, slow road: windows, labels, max context and n-best, one token at a time.

It follows the description of run_squad.py (windows by stride, the window with most context, the n best of starts and
ends), and shares no code with the product. Tokens and their characters are given.
"""

from collections.abc import Sequence

Places = Sequence[tuple[int, int]]


def windows(tokens: int, room: int, stride: int) -> list[list[int]]:
    """The numbers of the tokens in each window."""
    result, first = [], 0
    while first < tokens:
        inside = [t for t in range(tokens) if first <= t < first + room]
        result.append(inside)
        if inside[-1] == tokens - 1:
            break
        first += min(len(inside), stride)
    return result


def most_context(token: int, inside: Sequence[Sequence[int]]) -> int:
    """The window that shows most of the context around a token."""
    best, best_score = None, None
    for number, window in enumerate(inside):
        if token not in (window[0], window[-1]) and not window[0] < token < window[-1]:
            continue
        left, right = token - window[0], window[-1] - token
        score = min(left, right) + 0.01 * len(window)
        if best_score is None or score > best_score:
            best, best_score = number, score
    assert best is not None
    return best


def label(answer: tuple[str, int] | None, places: Places, window: Sequence[int]) -> tuple[int, int] | None:
    """The first and last token of an answer, if the window holds both."""
    if answer is None:
        return None
    text, start = answer
    touched = []
    for token, (begin, end) in enumerate(places):
        if any(begin <= character < end for character in range(start, start + len(text))):
            touched.append(token)
    if not touched or touched[0] not in window or touched[-1] not in window:
        return None
    return touched[0], touched[-1]


def n_best(
    context: str,
    places: Places,
    inside: Sequence[Sequence[int]],
    scores: Sequence[tuple[dict[int, float], dict[int, float]]],
    null: Sequence[float],
    *,
    count: int,
    longest: int,
    unanswerable: bool,
) -> list[tuple[str, float]]:
    """The best answers and their scores. scores: for each window those of its places as start and as end, in their
    order, by token; what is no part of the context (special tokens, the question) has a negative number."""
    prelim = []
    for number, window in enumerate(inside):
        tops = []
        for own in scores[number]:
            order = sorted(own, key=lambda token, own=own: -own[token])  # of equals the first place
            tops.append(order[:count])
        # By place, so that of spans with equal scores the first one wins.
        for start in sorted(tops[0]):
            for end in sorted(tops[1]):
                if start not in window or end not in window:
                    continue
                if most_context(start, inside) != number or end < start or end - start + 1 > longest:
                    continue
                prelim.append((places[start][0], places[end][1], scores[number][0][start] + scores[number][1][end]))
    if unanswerable:
        prelim.append((0, 0, min(null)))
    answers: list[tuple[str, float]] = []
    for begin, end, score in sorted(prelim, key=lambda each: -each[2]):
        text = context[begin:end].strip()
        is_null = (begin, end) == (0, 0) and unanswerable and score == min(null)
        if (text or is_null) and text not in [seen for seen, _ in answers]:
            answers.append((text, score))
    spans = [each for each in answers if each[0]][:count]
    return [each for each in answers if each in spans or not each[0]]
