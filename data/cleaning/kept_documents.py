"""The documents of all parts of a cleaning by their number, in the order of the text."""

import json
import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class KeptDocuments:
    """Documents that no rule has refused within a part. A context: its files are open while it is."""

    def __init__(self, parts: Sequence[tuple[Path, Mapping[str, Any]]]) -> None:
        self.folders = [place for place, _ in parts]
        # 8 bytes a document: where its line ends, so that any one is read by its number.
        self._ends = [np.fromfile(place / "ends.bin", "<i8") for place in self.folders]
        self.of_part = list(map(len, self._ends))
        self._starts = [0, *accumulate(self.of_part)]
        self._names = [source["name"] for source in parts[0][1]["job"]["sources"]]
        # Of each part, for each span: behind which of its documents it ends, its source, the source's documents before.
        self._spans: list[list[tuple[int, int, int]]] = []
        self.read = [0] * len(self._names)
        """The documents of each source, refused ones too."""
        for _, index in parts:
            # Parts are in the order of the text: those in front have read what is in front.
            last, spans = 0, []
            for span in index["spans"]:
                last += span["kept"]
                spans.append((last, span["source"], self.read[span["source"]]))
                self.read[span["source"]] += span["documents"]
            self._spans.append(spans)
        self._stack = ExitStack()

    def __enter__(self) -> "KeptDocuments":
        self._files = [self._stack.enter_context((place / "text.jsonl").open("rb")) for place in self.folders]
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __len__(self) -> int:
        return self._starts[-1]

    def numbers(self, name: str, dtype: str, columns: int = 0) -> NDArray[Any]:
        """Returns a file of all parts, one after the other."""
        # Small files: a few bytes for each document.
        joined = np.concatenate([np.fromfile(place / name, dtype) for place in self.folders])
        return joined.reshape(-1, columns) if columns else joined

    def row(self, document: int) -> dict[str, Any]:
        """Returns a document: {"text", "source", "number", …}."""
        # Both by bisection, which takes the part, or the span, behind the last border.
        part = bisect_right(self._starts, document) - 1
        place = document - self._starts[part]
        # A line begins where the one in front of it ends.
        start = int(self._ends[part][place - 1]) if place else 0
        raw = os.pread(self._files[part].fileno(), int(self._ends[part][place]) - start, start)
        return self._placed(part, place, json.loads(raw))

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yields all documents."""
        for part, place in enumerate(self.folders):
            with (place / "text.jsonl").open("rb") as lines:
                # In one pass, without the places of lines.
                for number, line in enumerate(lines):
                    yield self._placed(part, number, json.loads(line))

    def _placed(self, part: int, place: int, row: dict[str, Any]) -> dict[str, Any]:
        spans = self._spans[part]
        _, source, before = spans[bisect_right(spans, place, key=lambda span: span[0])]
        # The text first, as in any other *.jsonl.
        place_in_text = {"source": self._names[source], "number": before + row["number"]}
        said = {name: row[name] for name in ("id", "language", "subset") if name in row}
        return {"text": row["text"], **place_in_text, **said}
