"""The peaks, memories and limits of every chip are those that are written down in tests/golden/chips.json.

Each plan depends on them. To change one, by its maker's data sheet, write the file again with
`python -m tests.train.plan.test_chip_facts`, and check the diff.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

from contexture.models.sharding import DEVICE_MEMORY
from contexture.train.plan.chips import _OTHER_NAMES, CHIPS

FILE = Path(__file__).parents[2] / "golden" / "chips.json"


def facts() -> dict[str, dict[str, Any]]:
    return {name: dataclasses.asdict(chip) for name, chip in CHIPS.items()}


def test_every_chip_is_as_it_is_written_down():
    message = "write them again by `python -m tests.train.plan.test_chip_facts`"
    assert facts() == json.loads(FILE.read_text("utf-8")), message


def test_every_name_of_clouds_and_drivers_is_of_a_chip():
    assert {*_OTHER_NAMES.values()} <= CHIPS.keys() and not _OTHER_NAMES.keys() & CHIPS.keys()


KINDS = {
    **{"TPU v4": "v4", "TPU v5 lite": "v5e", "TPU v5": "v5p", "TPU v5p": "v5p", "TPU v6 lite": "v6e"},
    **{"NVIDIA A100-SXM4-40GB": "a100-40g", "NVIDIA A100-SXM4-80GB": "a100", "NVIDIA H100 80GB HBM3": "h100"},
    "NVIDIA H200": "h200",
}


def test_a_device_at_hand_has_the_memory_of_its_plan():
    """By what jax calls it; a little less, since a runtime keeps some."""
    assert DEVICE_MEMORY.keys() == KINDS.keys()
    for kind, name in KINDS.items():
        planned = CHIPS[name].memory / 2**30
        assert 0.97 * planned <= DEVICE_MEMORY[kind] <= planned + 0.01, kind


if __name__ == "__main__":
    FILE.write_text(json.dumps(facts(), indent=1) + "\n", "utf-8")
