"""The lease of a run in a bucket: one holder, taken over when it is gone, and no writes of one that was away."""

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from contexture.data import bucket, mirror
from contexture.data.bucket import Address
from contexture.train.errors import CheckpointError, ConfigError
from contexture.train.run import lease
from contexture.train.run.folder import holder_of, lock_folder, token
from contexture.train.run.lease import Lease
from tests.helpers.buckets import BUCKET, Faults, Server


@pytest.fixture
def run(bucket_store: Server, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in the bucket, and a lease that expires within seconds."""
    for name, seconds in {"RENEW": 0.2, "EXPIRE": 2.0, "_LOOK": 0.1}.items():
        monkeypatch.setattr(lease, name, seconds)
    yield Path(mirror.local(f"{bucket_store.scheme}://{BUCKET}/{request.node.name}/run"))
    bucket_store.faults = Faults()


def taken(folder: Path) -> Lease | None:
    """The lease, unless another holds it."""
    address = mirror.address_of(folder)
    assert address is not None
    try:
        return Lease(folder, address)
    except ConfigError:
        return None


def stop(held: Lease) -> None:
    """The holder is gone, as after SIGKILL: it renews nothing, and gives nothing back."""
    held._done.set()
    for thread in held._threads:
        thread.join()


@pytest.mark.parametrize("faults", [Faults(), Faults(refused=0.1, lost=0.1)], ids=["sound", "faulty"])
def test_one_of_six_gets_it_and_one_follows_it(run: Path, bucket_store: Server, faults: Faults) -> None:
    bucket_store.faults = faults
    for _ in range(2):  # at first, and after the holder was killed
        held: list[Lease | None] = []
        racers = [threading.Thread(target=lambda held=held: held.append(taken(run))) for _ in range(6)]
        for each in racers:
            each.start()
        for each in racers:
            each.join()
        winners = [each for each in held if each]
        assert len(winners) == 1
        stop(winners[0])


def test_a_holder_is_named_and_keeps_the_run(run: Path) -> None:
    with lock_folder(run) as held:
        assert isinstance(held, Lease)
        name, mark = holder_of(run), token(run)
        assert re.fullmatch(r"process \d+ on .+", name) and len(mark) == 32
        with pytest.raises(ConfigError, match=f"run is in use by {name}; wait for it"):
            lock_folder(run)
        time.sleep(1)
        assert token(run) == mark  # the same while it is renewed
    assert holder_of(run) == ""
    start = time.monotonic()
    lock_folder(run).close()  # given back: nobody watches it for EXPIRE seconds
    assert time.monotonic() - start < lease.EXPIRE


def test_a_holder_that_was_away_writes_nothing(run: Path, bucket_store: Server) -> None:
    first = lock_folder(run)
    assert isinstance(first, Lease)
    run.mkdir(parents=True, exist_ok=True)
    stop(first)  # suspended
    second = taken(run)
    assert second is not None
    mirror.guard(run, first.check)  # the first wakes
    first._renewed -= lease.EXPIRE
    (run / "metrics.jsonl").write_text("of the first\n", "utf-8")
    with pytest.raises(CheckpointError, match=r"was taken over by process .* while this process was away"):
        mirror.sync(run)
    with pytest.raises(CheckpointError):
        mirror.push(run / "metrics.jsonl")
    first.close()
    assert [name.rpartition("/")[2] for name in bucket_store.names("test_a_holder_that_was_away")] == ["lock"]
    second.close()


def test_a_damaged_lease_can_be_taken(run: Path) -> None:
    address = mirror.address_of(run)
    assert isinstance(address, Address)
    for content in (b"", b"\n", b"\xff\xfe", b"somebody"):
        bucket.write(address / lease.NAME, content)
        lock_folder(run).close()


@pytest.mark.parametrize("bucket_store", ["gs"], indirect=True)
def test_a_missing_gcsfs_is_one_line(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contexture.train.run.folder.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"checkpoints in gs:// need gcsfs; pip install -e '\.\[gcs\]'"):
        lock_folder(run)


def test_a_log_of_another_process_is_there_before_it_ends(run: Path, bucket_store: Server) -> None:
    run.mkdir(parents=True, exist_ok=True)
    log = run / "log.1.txt"
    log.write_text("started\n", "utf-8")
    key = f"{run.parent.name}/run/log.1.txt"
    with lease.log_in_bucket(log):
        deadline = time.monotonic() + 10
        while key not in bucket_store.names(key) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert bucket_store.read(key) == b"started\n"
        log.write_text("started\nended\n", "utf-8")
    assert bucket_store.read(key) == b"started\nended\n"
