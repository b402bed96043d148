"""How often a run asks its bucket: a step never, a save a bounded number of times."""

import random
from collections import Counter

import pytest

from contexture.train.run import lease
from tests.helpers.buckets import BUCKET, Server
from tests.helpers.commands import done
from tests.helpers.long import long

SAVE = {
    "gs": {"POST": 55, "GET": 100, "GET list": 58, "GET range": 33, "DELETE": 45},
    "s3": {"PUT": 40, "GET": 70, "GET list": 40, "GET range": 28, "DELETE": 34},
}
"""What a save of a small BERT in one process may ask for, the deletion of the checkpoint before it included."""


@pytest.fixture
def asked(bucket_store: Server, tiny_words, monkeypatch):
    """What a training of so many steps, with a save after every so many, asks for."""
    monkeypatch.setattr(lease, "RENEW", 1000.0)  # what is asked by the clock is another matter

    def count(steps: int, every: int) -> Counter[str]:
        run = f"{bucket_store.scheme}://{BUCKET}/asked-{random.randrange(1 << 30)}/run"
        bucket_store.counts.clear()
        words = [*tiny_words, "--save.every", every, "--save.max-to-keep", 1, "--steps", steps]
        done(*words, "--dir", run)
        return +Counter({kind: n for kind, n in bucket_store.counts.items() if kind != "bytes down"})

    return count


@pytest.mark.parametrize("saves", [2, *long(6)])
def test_a_save_asks_a_bounded_number_of_times(asked, bucket_store, saves):
    one, more = asked(2, 2), asked(2 * saves, 2)
    each = {kind: (more[kind] - one[kind]) / (saves - 1) for kind in SAVE[bucket_store.scheme]}
    assert all(count <= SAVE[bucket_store.scheme][kind] for kind, count in each.items()), each
    # A start, one save and an end.
    assert sum(one.values()) <= 260, one


@pytest.mark.long
def test_a_step_asks_for_nothing(asked):
    few, many = asked(4, 40), asked(40, 40)
    # Log and metrics are longer: no more objects than before, but for a part.
    assert sum(many.values()) - sum(few.values()) <= 12, (few, many)
