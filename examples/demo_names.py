"""Text that every Python carries: the names of Unicode's characters. And a task on them: which word lacks a letter?

`latin small letter a with grave`: 27,000 names of a few words each, in a language small enough that a model of half a
million parameters learns it in a minute of two cores.
"""

import json
import random
import re
import sys
import unicodedata
from itertools import groupby
from pathlib import Path

LONGEST = 40
"""Names in a document: neighbours of one script, in Unicode's order."""
SIZES = {"train": 100, "dev": 300, "test": 1000}
"""Names of the task in each part. None of them is in the text."""
OK, TYPO = "ok", "typo"
SIGN = {"vowel": r"vowel sign", "cuneiform": r"^cuneiform sign", "symbol": r"^(\S+ ){1,2}sign$"}
"""What `sign` means in a name: a vowel beside a letter, a character of cuneiform writing, a symbol (`yen sign`)."""


def documents() -> list[list[str]]:
    """Returns the names in lower case by documents, without those that are numbers in disguise (`cjk … 4e00`)."""
    names = (unicodedata.name(chr(code), "").lower() for code in range(sys.maxunicode + 1))
    kept = (name for name in names if name and not re.search(r"\d|^cjk|^hangul syllable", name))
    split: list[list[str]] = []
    for _, group in groupby(kept, key=lambda name: name.split()[0]):
        script = list(group)
        split += [script[at : at + LONGEST] for at in range(0, len(script), LONGEST)]
    return split


def write(text: Path, task: Path, seed: int = 7) -> dict[str, int]:
    """Writes names.txt into `text` and train, dev and test.jsonl into `task`; returns how many names each has."""
    rng = random.Random(seed)
    known = documents()
    usable = sorted({name for document in known for name in document if len(name.split()) >= 4 and _long_words(name)})
    chosen = rng.sample(usable, sum(SIZES.values()))
    held_out = set(chosen)
    rest = [[name for name in document if name not in held_out] for document in known]
    rng.shuffle(rest)
    for folder in (text, task):
        folder.mkdir(parents=True, exist_ok=True)
    (text / "names.txt").write_text("\n\n".join("\n".join(names) for names in rest if names) + "\n", "utf-8")
    counts = {"text": sum(map(len, rest))}
    for part, size in SIZES.items():
        rows = [_misspelt(chosen.pop(), rng) for _ in range(size)]
        (task / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        counts[part] = size
    return counts


def write_senses(file: Path, of_each: int = 40, seed: int = 7) -> None:
    """Writes a table of names that have the word `sign` once, with its sense by SIGN."""
    rng = random.Random(seed)
    names = sorted(name for document in documents() for name in document if name.split().count("sign") == 1)
    rows = ["text\tsense"]
    for sense, pattern in SIGN.items():
        rows += [f"{name}\t{sense}" for name in rng.sample([n for n in names if re.search(pattern, n)], of_each)]
    file.write_text("\n".join(rows) + "\n", "utf-8")


def _long_words(name: str) -> list[int]:
    return [place for place, word in enumerate(name.split()) if len(word) >= 4 and word.isalpha()]


def _misspelt(name: str, rng: random.Random) -> dict[str, list[str]]:
    """Returns the words of a name, one of them without one of its letters (not the first), and their tags."""
    words = name.split()
    place = rng.choice(_long_words(name))
    at = rng.randrange(1, len(words[place]))
    tags = [TYPO if each == place else OK for each in range(len(words))]
    words[place] = words[place][:at] + words[place][at + 1 :]
    return {"words": words, "tags": tags}
