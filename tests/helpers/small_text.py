"""The small corpus of the tests, and labelled files in its words."""

import csv
import json
import random
from pathlib import Path

SUFFIX = {"classify": "tsv", "pairs": "csv", "regress": "jsonl", "tag": "conllu"}
"""Of the files of each kind of task."""


def write_text(folder: Path) -> None:
    """60 documents in two files; a blank line ends each."""
    rng = random.Random(1)
    folder.mkdir()
    subjects = ["the cat", "a small dog", "one old man", "the queen", "my brother", "that bird"]
    verbs = ["sees", "likes", "follows", "finds", "remembers", "paints"]
    objects = ["the river", "a red house", "two apples", "the long road", "his letter", "many stars", "the sea"]
    places = ["in spring", "at night", "near the town", "with care", "again and again", "without a word"]
    for number in range(2):
        documents = []
        for _ in range(30):
            subject = rng.choice(subjects)
            lines = [
                " ".join(
                    f"{subject} {rng.choice(verbs)} {rng.choice(objects)} {rng.choice(places)}."
                    for _ in range(rng.randint(1, 4))
                )
                for _ in range(rng.randint(2, 8))
            ]
            documents.append("\n".join(line.capitalize() for line in lines))
        (folder / f"text{number}.txt").write_text("\n\n".join(documents) + "\n", "utf-8")


def write_tasks(folder: Path) -> None:
    """Train and dev of each kind of task, of sentences in the same words."""
    rng = random.Random(2)
    folder.mkdir()
    subjects = {"the cat": "animal", "a small dog": "animal", "that bird": "animal", "one old man": "person",
                "the queen": "person", "my brother": "person", "the river": "thing", "his letter": "thing"}  # fmt: skip
    verbs = ["sees", "likes", "follows", "finds", "remembers", "paints"]
    objects = ["a red house", "two apples", "the long road", "many stars", "the sea"]
    tags = {"the": "DET", "a": "DET", "that": "DET", "one": "NUM", "two": "NUM", "my": "PRON", "his": "PRON"}
    tags |= dict.fromkeys(verbs, "VERB") | dict.fromkeys(["small", "old", "red", "long", "many"], "ADJ")

    def sentence() -> tuple[str, str]:
        subject = rng.choice(list(subjects))
        return f"{subject} {rng.choice(verbs)} {rng.choice(objects)}", subjects[subject]

    for split, count in (("train", 160), ("dev", 97)):
        sentences = [sentence() for _ in range(count)]
        with open(folder / f"classify.{split}.tsv", "w", encoding="utf-8") as file:
            file.write("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in sentences))
        with open(folder / f"pairs.{split}.csv", "w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["sentence1", "sentence2", "label"])
            for (a, kind), (b, other) in zip(sentences, sentences[1:] + sentences[:1], strict=True):
                rows.writerow([a, b, "same" if kind == other else "other"])
        with open(folder / f"regress.{split}.jsonl", "w", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": t, "score": len(t.split()) / 4}) + "\n" for t, _ in sentences)
        with open(folder / f"tag.{split}.conllu", "w", encoding="utf-8") as file:
            for text, _ in sentences:
                for n, word in enumerate(text.split(), 1):
                    file.write(f"{n}\t{word}\t_\t{tags.get(word, 'NOUN')}" + "\t_" * 6 + "\n")
                file.write("\n")
