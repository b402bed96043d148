"""The rules of C4 and Gopher as their papers say them, in the plainest loops."""

import re
from collections import Counter
from collections.abc import Sequence


def c4_left(text: str, bad_words: Sequence[str] = ()) -> str | None:
    """Raffel et al. 2020, section 2.2: the lines of a page that stay, joined by \\n; None where the page goes."""
    lower = text.lower()
    if "lorem ipsum" in lower or "{" in text:
        return None
    padded = " " + re.sub(r"\W", " ", lower) + " "
    if any(f" {word} " in padded for word in bad_words):
        return None
    kept = []
    for line in re.split("\r\n|\r|\n", text):
        for marker in re.findall(r"\[[^\]\[]*\]", line):
            if marker in ("[edit]", "[citation needed]") or re.fullmatch(r"\[[0-9]+\]", marker):
                line = line.replace(marker, "")
        line = line.strip()
        if not line or line[-1] not in '.!?"”' or len(line.split()) < 5 or "javascript" in line.lower():
            continue
        policies = "terms of use,privacy policy,cookie policy,uses cookies,use of cookies,use cookies"
        if not any(policy in line.lower() for policy in policies.split(",")):
            kept.append(line)
    return "\n".join(kept)


def gopher_refuses(text: str) -> str:
    """Rae et al. 2021, appendix A1.1 and table A1: the first rule that refuses a document, or ""."""
    words = text.split()
    lines = [line.strip() for line in re.split("\r\n|\r|\n", text) if line.strip()]
    if len(words) < 50 or len(words) > 100_000:
        return "gopher-words"
    mean = sum(len(word) for word in words) / len(words)
    if mean < 3 or mean > 10:
        return "gopher-word-length"
    if text.count("#") > 0.1 * len(words):
        return "gopher-hashes"
    if text.count("...") + text.count("…") > 0.1 * len(words):
        return "gopher-ellipses"
    if len([line for line in lines if line[0] in "•‣◦●▪*-"]) > 0.9 * len(lines):
        return "gopher-bullets"
    if len([line for line in lines if line[-1] == "…" or line[-3:] == "..."]) > 0.3 * len(lines):
        return "gopher-ellipsis-lines"
    if len([word for word in words if any(sign.isalpha() for sign in word)]) < 0.8 * len(words):
        return "gopher-letters"
    plain = {re.sub(r"^[^\w]+|[^\w]+$", "", word).lower() for word in words}
    if len(plain & {"the", "be", "to", "of", "and", "that", "have", "with"}) < 2:
        return "gopher-stop-words"
    return _repeats(words, lines, text)


def _repeats(words: list[str], lines: list[str], text: str) -> str:
    blocks = re.split(r"\n(?:[^\S\n]*\n)+", re.sub("\r\n|\r", "\n", text))
    paragraphs = ["\n".join(line.strip() for line in block.split("\n") if line.strip()) for block in blocks]
    units = {"line": lines, "paragraph": [paragraph for paragraph in paragraphs if paragraph]}
    again = {name: [x for at, x in enumerate(each) if x in each[:at]] for name, each in units.items()}
    for name, each in units.items():
        if len(again[name]) > 0.3 * len(each):
            return f"gopher-duplicate-{name}s"
    for name, each in units.items():
        if sum(map(len, again[name])) > 0.2 * sum(map(len, each)):
            return f"gopher-duplicate-{name}-characters"
    characters = sum(map(len, words))
    bounds = {2: 0.20, 3: 0.18, 4: 0.16, 5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}
    for n, bound in bounds.items():
        grams = [tuple(words[at : at + n]) for at in range(len(words) - n + 1)]
        counts = Counter(grams)
        top = counts.most_common(1)[0] if counts else ((), 0)
        inside = set()
        for at, gram in enumerate(grams):
            if counts[gram] > 1 and (n > 4 or gram == top[0]):
                inside |= set(range(at, at + n))
        if sum(len(words[at]) for at in inside) > bound * characters:
            return f"gopher-{'top' if n < 5 else 'duplicate'}-{n}-gram"
    return ""
