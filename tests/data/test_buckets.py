"""Buckets: objects, conditional writes, and folders that follow a bucket, against real servers, also faulty ones."""

import contextlib
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contexture.data import bucket, mirror
from contexture.data.bucket import Address, BucketError, parse_address
from contexture.data.storage import atomic_file, atomic_folder, move_aside
from contexture.data.visible import visible, visible_json
from tests.helpers.buckets import BUCKET, Faults, Server

SOME_FAULTS = Faults(refused=0.05, lost=0.02, cut=0.02, slow=0.05)


@pytest.fixture
def at(bucket_store: Server, request: pytest.FixtureRequest) -> Iterator[Address]:
    """A folder of its own in the bucket."""
    yield Address(bucket_store.scheme, BUCKET, f"{request.node.originalname}-{random.randrange(1 << 30)}")
    bucket_store.faults = Faults()
    bucket_store.honours_preconditions = True
    for noted in (bucket._silent, bucket._left):
        noted.clear()


def as_another_process() -> None:
    """From here on nothing of the bucket is known, as in a new process."""
    for root in mirror._roots:
        shutil.rmtree(root)
    for known in (
        mirror._roots,
        mirror._known,
        mirror._wholes,
        mirror._looked,
        mirror._guards,
        mirror._places,
        mirror._left,
    ):
        known.clear()


def test_addresses_are_read_with_one_slash_or_two() -> None:
    assert parse_address("gs://b/a/c/") == parse_address(Path("gs://b/a/c")) == ("gs", "b", "a/c")
    assert str(Address("s3", "b", "x") / "y") == "s3://b/x/y"
    assert parse_address("hdfs://b/a") is parse_address("b/gs:") is None


@pytest.mark.parametrize("size", [0, 1, 5, 8, 9, 16, 20])
def test_objects_are_fetched_whole_whatever_their_size(
    at: Address, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "PIECE", 8)
    value = bytes(range(size))
    generation = bucket.write(at / "x", value)
    assert bucket.download(at / "x", tmp_path / "x") == generation == bucket.read(at / "x").generation
    assert (tmp_path / "x").read_bytes() == value
    assert bucket.download(at / "nothing", tmp_path / "y") is None


def test_a_range_is_what_lies_there_or_nothing(at: Address) -> None:
    bucket.write(at / "x", b"abcdef")
    assert bucket.read_range(at / "x", 1, 4).value == b"bcd"
    assert bucket.read_range(at / "x", 4, 8).value is None
    old = bucket.read(at / "x").generation
    bucket.write(at / "x", b"another")
    with pytest.raises(BucketError, match="was written to while it was read"):
        bucket.read_range(at / "x", 0, 2, old)


def winners(at: Address, writers: int) -> int:
    """How many of so many threads create the same object, each by a value of its own."""
    now, won = bucket.read(at), []
    ready = threading.Barrier(writers)

    def create(number: int) -> None:
        ready.wait()
        if bucket.swap(at, f"writer {number}".encode(), now.generation):
            won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(won)


# Of eight tries of one request all fail once in 300,000.
@pytest.mark.parametrize("faults", [Faults(), Faults(refused=0.1, lost=0.1, cut=0.02)], ids=["sound", "faulty"])
def test_one_of_six_writers_wins(at: Address, bucket_store: Server, faults: Faults) -> None:
    bucket_store.faults = faults
    for number in range(3):
        assert winners(at / f"lock{number}", 6) == 1


def test_a_store_without_preconditions_is_seen(at: Address, bucket_store: Server) -> None:
    # Else the law above would pass on any store, by the luck of its races.
    seen = bucket.read(at / "lock")
    bucket_store.honours_preconditions = False
    assert bucket.swap(at / "lock", b"first", seen.generation) and bucket.swap(at / "lock", b"second", seen.generation)
    bucket_store.honours_preconditions = True
    assert bucket.swap(at / "other", b"first", seen.generation)
    assert bucket.swap(at / "other", b"second", seen.generation) is None


def test_a_silent_store_is_an_error_within_the_limit(
    at: Address, bucket_store: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONTEXTURE_BUCKET_SECONDS", "1")
    bucket_store.faults = Faults(silent=True)
    with pytest.raises(BucketError, match="does not answer within 1 s; check the network"):
        bucket.read(at / "x")
    # A command that ends then has more calls: each has a part of the limit, until one is answered.
    start = time.monotonic()
    with pytest.raises(BucketError, match="does not answer within 1 s"):
        bucket.read_range(at / "x", 0, 1)
    assert time.monotonic() - start < 0.5 and bucket._silent.is_set()
    bucket_store.faults = Faults()
    monkeypatch.setenv("CONTEXTURE_BUCKET_SECONDS", "30")
    assert bucket.read(at / "x").value is None and not bucket._silent.is_set()


@pytest.fixture
def few_retries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(bucket, "_RETRIES", {"max_retries": 1, "initial_delay": "1ms", "max_delay": "1ms"})
    bucket._store.cache_clear()
    yield
    bucket._store.cache_clear()


@pytest.mark.usefixtures("few_retries")
@pytest.mark.parametrize(
    ("faults", "line"),
    [(Faults(silent=True), "does not answer within 1 s; check the network"), (Faults(refused=1), "503|retry|retries")],
    ids=["silent", "failing"],
)
def test_work_that_waits_for_a_store_that_is_gone_is_left(
    at: Address, bucket_store: Server, monkeypatch: pytest.MonkeyPatch, faults: Faults, line: str
) -> None:
    monkeypatch.setenv("CONTEXTURE_BUCKET_SECONDS", "1")
    bucket_store.faults = faults
    end, start = threading.Event(), time.monotonic()
    with pytest.raises(BucketError, match=line):
        bucket.answering(at / "x", lambda: end.wait(30))
    assert time.monotonic() - start < 10 and bucket.left_waiting()
    end.set()


def test_work_lasts_where_the_probed_object_is_forbidden(at: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by rights on a bucket that allow no listing: what is not there is then forbidden."""

    def forbidden(address: Address) -> None:
        raise BucketError(address, "http_response_code='403'", forbidden=True)

    monkeypatch.setattr(bucket, "_PROBE", 0.05)
    monkeypatch.setattr(bucket, "read", forbidden)
    assert bucket.answering(at / "x", lambda: time.sleep(0.5) or "done") == "done"


@pytest.mark.parametrize("error", [None, TimeoutError("of its own"), BucketError(Address("gs", "b", "x"), "refused")])
def test_work_ends_as_it_ends_while_the_store_answers(
    at: Address, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    """However long it takes; with what it returns, and with what it raises."""
    monkeypatch.setattr(bucket, "_PROBE", 0.05)

    def work() -> str:
        time.sleep(0.5)
        if error:
            raise error
        return "done"

    with pytest.raises(type(error), match="own|refused") if error else contextlib.nullcontext():
        assert bucket.answering(at / "x", work) == "done"
    assert not bucket.left_waiting()


def test_large_files_are_uploaded_one_at_a_time(
    at: Address, bucket_store: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is in memory while it is sent. Small ones are sent together."""
    monkeypatch.setattr(bucket, "_LARGE", 9)
    bucket_store.faults = Faults(slow=1, seconds=0.2)
    result, now, most = bucket._result, Counter[bool](), Counter[bool]()

    def counted(address: Address, ask: Callable[[], Any], size: int) -> Any:
        is_large = size > 9
        now[is_large] += 1
        most[is_large] = max(most[is_large], now[is_large])
        answer = result(address, ask, size)
        now[is_large] -= 1
        return answer

    monkeypatch.setattr(bucket, "_result", counted)
    files = [tmp_path / f"{number}" for number in range(8)]
    for number, file in enumerate(files):
        file.write_bytes(b"0123456789"[: 10 if number % 2 else 9])
    bucket.upload_all([(file, file.stat().st_size, at / file.name) for file in files])
    assert most[True] == 1 and most[False] > 1
    assert [bucket_store.read(f"{at.key}/{file.name}") for file in files] == [file.read_bytes() for file in files]


@pytest.mark.parametrize("faults", [Faults(), SOME_FAULTS], ids=["sound", "faulty"])
def test_a_folder_is_the_same_in_the_next_process(at: Address, bucket_store: Server, faults: Faults) -> None:
    bucket_store.faults = faults
    rng = random.Random(3)
    expected: dict[str, bytes] = {}
    for _ in range(3):
        folder = Path(mirror.local(str(at)))
        assert {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()} == expected
        for _ in range(12):
            name = rng.choice(["a", "b/c", "b/d/e", "metrics.jsonl", "log.txt"])
            file, content = folder / name, rng.randbytes(rng.randrange(40))
            file.parent.mkdir(parents=True, exist_ok=True)
            match rng.choice(["write", "write", "add", "add", "aside", "sync"]):
                case "write":
                    with atomic_file(file) as part:
                        part.write_bytes(content)
                case "add":
                    with open(file, "ab") as opened:
                        opened.write(content)
                case "aside":
                    move_aside(folder, [name], "earlier")
                case _:
                    mirror.sync(folder)
        mirror.sync(folder)
        expected = {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}
        as_another_process()


def test_what_is_added_to_metrics_is_written_as_a_part(at: Address, bucket_store: Server) -> None:
    folder = Path(mirror.local(str(at / "run")))
    folder.mkdir(parents=True)
    for line in (b"1\n", b"2\n", b"3\n"):
        with open(folder / "metrics.jsonl", "ab") as opened:
            opened.write(line)
        mirror.sync(folder)
    names = bucket_store.names(f"{at.key}/run/")
    assert [bucket_store.read(name) for name in names] == [b"1\n", b"2\n", b"3\n"]
    # Rewritten as a whole, and its old parts are void, though a kill may have left them.
    with atomic_file(folder / "metrics.jsonl") as part:
        part.write_bytes(b"9\n")
    left = Address(at.scheme, at.bucket, names[1])
    bucket.write(left, b"2\n")
    as_another_process()
    assert Path(mirror.local(str(at / "run")), "metrics.jsonl").read_bytes() == b"9\n"


def test_a_kill_while_old_parts_are_deleted_mixes_nothing(at: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the new whole is the old one again, as after two stops at the same checkpoint."""
    delete = bucket.delete
    for done in range(4):
        place = at / f"run{done}"
        folder = Path(mirror.local(str(place)))
        folder.mkdir(parents=True)
        for line in (b"1\n", b"2\n", b"3\n", b"4\n"):
            with open(folder / "metrics.jsonl", "ab") as opened:
                opened.write(line)
            mirror.sync(folder)
        left = [done]

        def killed(addresses: Iterable[Address], left: list[int] = left) -> None:
            for address in addresses:
                left[0] -= 1
                if left[0] < 0:
                    raise KeyboardInterrupt
                delete([address])

        monkeypatch.setattr(bucket, "delete", killed)
        with contextlib.suppress(KeyboardInterrupt), atomic_file(folder / "metrics.jsonl") as part:
            part.write_bytes(b"1\n")
        monkeypatch.setattr(bucket, "delete", delete)
        as_another_process()
        folder = Path(mirror.local(str(place)))
        content = (folder / "metrics.jsonl").read_bytes()
        assert b"1\n2\n3\n4\n".startswith(content)
        with open(folder / "metrics.jsonl", "ab") as opened:
            opened.write(b"5\n")
        mirror.sync(folder)
        as_another_process()
        assert Path(mirror.local(str(place)), "metrics.jsonl").read_bytes() == content + b"5\n"


def test_a_folder_appears_when_its_last_file_is_there(at: Address, bucket_store: Server) -> None:
    folder = Path(mirror.local(str(at / "shards")))
    with atomic_folder(folder) as part:
        for name in ("tokens.bin", "index.json", "words.txt"):
            (part / name).write_text(name, "utf-8")
        assert not bucket_store.names(at.key)  # nothing while it is being written
    assert len(bucket_store.names(at.key)) == 3


def test_a_checkpoint_counts_once_it_is_committed(at: Address) -> None:
    for step, names in {"10": ("meta/metadata", "state/x", "commit_success.txt"), "20": ("meta/metadata",)}.items():
        for name in names:
            bucket.write(at / f"run/checkpoints/{step}/{name}", b"x")
    bucket.write(at / "run/run.json", b"{}")
    folder = Path(mirror.local(str(at / "run"))) / "checkpoints"
    assert [each.name for each in folder.iterdir()] == ["10"]
    # The arrays stay in the bucket, where Orbax reads them.
    state = at / "run/checkpoints/10/state"
    assert not (folder / "10/state").exists() and mirror.arrays_at(folder / "10/state") == str(state)
    mirror.remove_uncommitted(folder)
    assert not [name for name in bucket.keys(at / "run/checkpoints") if name.startswith("20/")]
    bucket.delete([at / "run/checkpoints/10/commit_success.txt"])
    mirror.look_again(folder)
    mirror.refresh_steps(folder)
    assert not list(folder.iterdir())


def test_a_checkpoint_has_the_time_of_its_commit(at: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that was written here, as an import writes it."""
    folder = Path(mirror.local(str(at / "run")))
    for name in ("run.json", "checkpoints/0/state/x", "checkpoints/0/meta/metadata"):
        _made(folder / name).write_text("{}", "utf-8")
    with monkeypatch.context() as earlier:
        earlier.setattr(mirror.time, "time_ns", lambda: 1_700_000_000_000_000_000)
        mirror.push(folder)
    note = b'{"commit_timestamp_nsecs": 1600000000000000000}'
    for name, content in {"_CHECKPOINT_METADATA": note, "meta/metadata": b"{}", "commit_success.txt": b"done"}.items():
        bucket.write(at / "run/checkpoints/5" / name, content)
    as_another_process()
    folder = Path(mirror.local(str(at / "run"))) / "checkpoints"
    assert {each.name: each.stat().st_mtime for each in folder.iterdir()} == {"0": 1.7e9, "5": 1.6e9}


def test_texts_that_go_out_name_the_address(at: Address) -> None:
    path = mirror.local(str(at / "x"))
    assert not path.startswith(f"{at.scheme}:") and visible(f"see {path}/y") == f"see {at}/x/y"
    assert visible_json(f'{{"dir": "{path}"}}') == f'{{"dir": "{at}/x"}}'
    assert mirror.placed(f"{at}/x") == path and mirror.placed("a/b") == "a/b"


def test_what_others_clean_up_here_stays_in_the_bucket(at: Address, bucket_store: Server) -> None:
    folder = Path(mirror.local(str(at)))
    for name in ("run.json", "data/a"):
        with atomic_file(_made(folder / name)) as part:
            part.write_text("{}", "utf-8")
    shutil.rmtree(folder)
    mirror.sync(folder)
    assert len(bucket_store.names(at.key)) == 2


@pytest.mark.parametrize("bucket_store", ["gs"], indirect=True)  # the other server keeps objects as files, and refuses
@pytest.mark.parametrize("name", ["/etc/x", "a/../../b", "a//b", "n" * 250])
def test_a_name_that_leads_elsewhere_is_one_line(at: Address, bucket_store: Server, name: str) -> None:
    bucket.write(at._replace(key=f"{at.key}/{name}"), b"x")
    with pytest.raises(BucketError, match="whose name cannot be a file's on a disk; rename it"):
        mirror.local(str(at))


def test_an_object_that_is_a_folder_too_is_one_line(at: Address) -> None:
    bucket.write(at / "a", b"x")
    bucket.write(at / "a/b", b"x")
    with pytest.raises(BucketError, match="cannot be a file's"):
        mirror.local(str(at))


def test_the_next_look_of_a_long_process_sees_what_is_new(at: Address) -> None:
    bucket.write(at / "run/a", b"old")
    bucket.write(at / "run/b", b"old")
    folder = Path(mirror.local(str(at / "run")))
    bucket.write(at / "run/a", b"new")
    bucket.delete([at / "run/b"])
    mirror.local(str(at / "run"))
    assert [(each.name, each.read_bytes()) for each in folder.iterdir()] == [("a", b"new")]


def test_a_run_below_a_folder_called_checkpoints_is_read(at: Address) -> None:
    bucket.write(at / "checkpoints/2024/run/run.json", b"{}")
    assert Path(mirror.local(str(at / "checkpoints/2024/run")), "run.json").is_file()
    bucket.write(at / "text/checkpoints/3/a.txt", b"x")
    assert Path(mirror.local(str(at / "text")), "checkpoints/3/a.txt").is_file()


def _made(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    return file
