"""Shards in a bucket: the same rows as on a disk, of whose blocks only those are fetched that rows lie in."""

import errno
import os
import random
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contexture.data import block_cache, bucket, mirror
from contexture.data.block_cache import BlockCache, Piece, block_digests
from contexture.data.bucket import Address, BucketError
from contexture.data.config import DataConfig, Stream
from contexture.data.errors import DataError
from contexture.data.pretraining.bilm_lanes import LaneBatches
from contexture.data.pretraining.lm_windows import WindowBatches
from contexture.data.pretraining.sentence_pairs import PairBatches
from contexture.data.pretraining.shards import Shards
from contexture.data.pretraining.tokenize_corpus import prepare
from contexture.data.tokenizers.word_level import Words
from contexture.data.tokenizers.wordpiece import WordPiece
from tests.data.test_buckets import SOME_FAULTS, as_another_process
from tests.helpers.buckets import BUCKET, Faults, Server
from tests.helpers.slow_pairs import as_text, random_documents, vocabulary

SMALL = 16
"""Bytes of a block here."""


@pytest.fixture
def at(bucket_store: Server, request: pytest.FixtureRequest) -> Iterator[Address]:
    """A folder of its own in the bucket."""
    yield Address(bucket_store.scheme, BUCKET, f"{request.node.originalname}-{random.randrange(1 << 30)}")
    bucket_store.faults = Faults()


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: Address) -> dict[str, bytes]:
    """Three files, one of them empty, that are in the bucket and in `tmp_path`; blocks are small."""
    monkeypatch.setattr(block_cache, "BLOCK", SMALL)
    values = {"a": random.Random(1).randbytes(100), "b": b"", "c": random.Random(2).randbytes(16 * 40)}
    for name, value in values.items():
        (tmp_path / name).write_bytes(value)
        bucket.write(at / name, value)
    return values


def opened(at: Address, files: dict[str, bytes], folder: Path, limit: float) -> BlockCache:
    sizes = {name: len(value) for name, value in files.items()}
    return BlockCache(at, sizes, block_digests(folder / name for name in files), limit)


PIECES = st.lists(
    st.one_of(
        st.tuples(st.just("a"), st.integers(0, 100), st.integers(0, 100)),
        st.tuples(st.just("b"), st.just(0), st.just(0)),
        st.tuples(st.just("c"), st.integers(0, 640), st.integers(0, 640)),
    ),
    max_size=12,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rounds=st.lists(PIECES, min_size=1, max_size=4), blocks=st.integers(0, 50))
def test_pieces_are_the_bytes_at_their_places(at, files, tmp_path, rounds, blocks):
    cache = opened(at, files, tmp_path, blocks * SMALL)
    for pieces in rounds:
        cut = [Piece(name, max(min(size, len(files[name]) - place), 0), place) for name, size, place in pieces]
        assert cache.read(cut) == [files[name][place : place + size] for name, size, place in cut]
        # What is on the disk never grows beyond the limit.
        assert os.fstat(cache._number).st_size <= blocks * SMALL


@pytest.mark.parametrize("blocks", [0, 3, 40])
def test_threads_read_the_same_and_share_what_is_fetched(at, files, tmp_path, blocks):
    cache = opened(at, files, tmp_path, blocks * SMALL)
    wrong: list[Piece] = []

    def read(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(20):
            pieces = [Piece("c", 20, chance.randrange(620)) for _ in range(4)]
            values = cache.read(pieces)
            wrong.extend(p for p, v in zip(pieces, values, strict=True) if v != files["c"][p.at : p.at + 20])

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    # Where all blocks have room, none is fetched twice.
    assert blocks < 40 or cache.blocks_fetched <= 40


def test_a_block_is_fetched_once_while_there_is_room(at, files, tmp_path, bucket_store):
    cache = opened(at, files, tmp_path, 4 * SMALL)
    asked = bucket_store.counts["GET range"]
    everywhere = [Piece("c", 1, block * SMALL) for block in (0, 1, 5, 9)]
    for _ in range(3):
        cache.read(everywhere)
    # Blocks 0 and 1 are neighbours, and one request.
    assert bucket_store.counts["GET range"] - asked == cache.requests == 3
    assert (cache.blocks_read, cache.blocks_fetched, cache.bytes_fetched) == (12, 4, 4 * SMALL)
    # The block that was not read for the longest time makes room: 5, since 0 and 1 were read again.
    cache.read(everywhere[:2])
    cache.read([Piece("c", 1, 20 * SMALL)])
    before = cache.requests
    cache.read([*everywhere[:2], everywhere[3]])
    assert cache.requests == before
    cache.read([everywhere[2]])
    assert cache.requests == before + 1


def test_a_block_that_is_not_as_it_was_written_is_one_line(at, files, tmp_path):
    cache = opened(at, files, tmp_path, 1000)
    changed = bytearray(files["c"])
    changed[35] ^= 1
    bucket.write(at / "c", bytes(changed))
    assert cache.read([Piece("c", 32, 0)]) == [files["c"][:32]]
    with pytest.raises(DataError, match=r"/c: damaged, bytes 32… are not those that were written"):
        cache.read([Piece("c", 1, 40)])


def test_an_object_that_is_gone_is_one_line(at, files, tmp_path):
    cache = opened(at, files, tmp_path, 1000)
    bucket.delete([at / "c"])
    with pytest.raises(BucketError, match="/c: is missing, or shorter than it was; put it back"):
        cache.read([Piece("c", 1, 0)])


@pytest.mark.parametrize("taken", [0, 1, SMALL - 1, "error"])
def test_a_full_disk_makes_a_smaller_cache(at, files, tmp_path, monkeypatch, caplog, taken):
    """Also one that takes the beginning of a block, and says nothing but how much it took."""
    cache = opened(at, files, tmp_path, 1000)
    cache.read([Piece("c", 2 * SMALL, 0)])

    write = os.pwrite

    def full(number: int, value: bytes, at: int) -> int:
        if taken == "error":
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(number, value[: int(taken)], at)

    monkeypatch.setattr(block_cache.os, "pwrite", full)
    for _ in range(2):
        assert cache.read([Piece("c", 640, 0)]) == [files["c"]]
    assert len([line for line in caplog.messages if "is full: only" in line]) <= 2


READERS = {"sentence_pairs": PairBatches, "windows": WindowBatches, "lanes": LaneBatches}


@pytest.mark.parametrize(
    ("stream", "faults"),
    [*((stream, Faults()) for stream in READERS), ("windows", SOME_FAULTS)],
    ids=[*READERS, "windows-faulty"],
)
def test_rows_are_those_on_a_disk(at: Address, bucket_store: Server, tmp_path: Path, stream: Stream, faults: Faults):
    (tmp_path / "text.txt").write_text(as_text(random_documents(3, 400)), "utf-8")
    options = {"split_sentences": False, "dev_fraction": 0.1, "batch": 2, "length": 32, "negatives": 0}
    config = DataConfig(path=(str(tmp_path / "text.txt"),), **options)
    pieces = vocabulary()
    tokenizer = Words(["<S>", "</S>", "<UNK>", *pieces[5:]]) if stream == "lanes" else WordPiece(pieces, lowercase=True)
    # Many files, each with a block of its own.
    here = prepare(config, tokenizer, tmp_path / "here", stream=stream, per_file=1000)
    there = Path(mirror.local(str(at)))
    shutil.copytree(tmp_path / "here", there)
    mirror.push(there)
    as_another_process()
    bucket_store.faults = faults
    remote = Shards.open(Path(mirror.local(str(at))), cache_gb=0.1)
    expected, batches = (READERS[stream](shards, config, seed=5) for shards in (here, remote))
    remote.verify()
    for step in (0, 7, 0):
        for name, array in expected.read(step).items():
            assert np.array_equal(batches.read(step)[name], array), name
    (line,) = batches.notes()
    assert "were fetched in" in line and "of reads were answered by this machine's disk" in line
    # No whole file of tokens is here, and many were not fetched at all.
    assert not list(remote.folder.glob("tokens-*.bin"))
    tokens = sum(file.stat().st_size for file in (tmp_path / "here").glob("tokens-*.bin"))
    assert remote._cache and remote._cache.bytes_fetched < 0.6 * tokens
