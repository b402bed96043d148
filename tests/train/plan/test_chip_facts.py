"""The peaks, memories and limits of every chip are those that are written down in tests/golden/chips.json.

Each plan depends on them. To change one, by its maker's data sheet, write the file again with
`python -m tests.train.plan.test_chip_facts`, and check the diff.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

from contexture.train.plan.chips import CHIPS

FILE = Path(__file__).parents[2] / "golden" / "chips.json"


def facts() -> dict[str, dict[str, Any]]:
    return {name: dataclasses.asdict(chip) for name, chip in CHIPS.items()}


def test_every_chip_is_as_it_is_written_down():
    message = "write them again by `python -m tests.train.plan.test_chip_facts`"
    assert facts() == json.loads(FILE.read_text("utf-8")), message


if __name__ == "__main__":
    FILE.write_text(json.dumps(facts(), indent=1) + "\n", "utf-8")
