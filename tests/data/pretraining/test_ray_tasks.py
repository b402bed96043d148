"""Parts that a Ray cluster makes are those of one process: by a Ray that is made here, and by Ray itself, with nodes
that are killed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from contexture.cli import preparation_commands
from contexture.data.config import DataConfig
from contexture.data.errors import DataError
from contexture.data.pretraining import ray_tasks, text_parts
from contexture.data.pretraining.ray_tasks import ray_cluster
from contexture.data.pretraining.tokenize_corpus import prepare
from tests.conftest import ROOT
from tests.data.pretraining.test_parts import PIECES, content
from tests.helpers import buckets
from tests.helpers.commands import done, run_command
from tests.helpers.ray_nodes import Nodes, ray_nodes

real = pytest.mark.skipif(find_spec("ray") is None, reason="needs ray: pip install -e '.[ray]'")


class RayError(Exception):
    """As `ray.exceptions.RayError`."""


class RayTaskError(RayError):
    """As `ray.exceptions.RayTaskError`."""


class Ray:
    """What is called of Ray: tasks run one at a time, when they are waited for, the newest first."""

    def __init__(self) -> None:
        self.tasks: list[Any] = []
        self.results: dict[int, Any] = {}
        self.most = 0
        self.calls: list[str] = []
        self.options: dict[str, Any] = {}
        self.killed: set[int] = set()

    def is_initialized(self) -> bool:
        return False

    def init(self, address: str, **_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as Ray does
        self.calls[:] = [f"init {address}"]

    def shutdown(self) -> None:
        self.calls.append("shutdown")

    def remote(self, **options: Any) -> Any:
        self.options = options

        def submitted(function: Any) -> Any:
            def submit(*args: Any) -> int:
                self.tasks.append((function, args))
                self.most = max(self.most, len(self.tasks) - len(self.results))
                return len(self.tasks) - 1

            return SimpleNamespace(remote=submit)

        return submitted

    def wait(self, tasks: list[int], **_: object) -> tuple[list[int], list[int]]:
        if any("cancel" in call for call in self.calls):
            return tasks, []
        last = tasks[-1]
        function, args = self.tasks[last]
        self.results[last] = RayError("The node died. More of it\nin lines") if last in self.killed else function(*args)
        return [last], tasks[:-1]

    def get(self, task: int) -> Any:
        if isinstance(self.results[task], RayError):
            raise self.results[task]
        return self.results[task]

    def cancel(self, task: int, force: bool = False) -> None:
        self.calls.append(f"cancel {task}")


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ray]:
    fake = Ray()
    monkeypatch.setitem(sys.modules, "ray", fake)
    errors = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)
    monkeypatch.setitem(sys.modules, "ray.exceptions", errors)
    monkeypatch.setattr(text_parts, "PIECE", 50)
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_DEDUP_LOGS_SKIP_REGEX", "RAYON_NUM_THREADS"):
        monkeypatch.setenv(name, "")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ray_tasks._opened.cache_clear()
    yield fake


@pytest.mark.parametrize(("at_once", "most"), [(0, 20), (1, 1), (3, 3)])
def test_tasks_make_the_shards_that_one_process_makes(tmp_path, ray, at_once, most):
    (tmp_path / "a.txt").write_text("w5 w6.\nw7 w8 w9.\n\n" * 55)
    config, reported = DataConfig(path=(str(tmp_path / "a.txt"),)), list[tuple[int, int]]()
    prepare(config, PIECES, tmp_path / "one")
    handler = signal.getsignal(signal.SIGTERM)
    with ray_cluster(at_once) as cluster:
        assert signal.getsignal(signal.SIGTERM) is handler and os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
        prepare(config, PIECES, tmp_path / "s", lambda *at: reported.append(at), workers=cluster)
    assert content(tmp_path / "s") == content(tmp_path / "one")
    assert ray.most == most and ray.calls == ["init auto", "shutdown"]
    # A killed node's parts are made again by others.
    assert ray.options["max_retries"] > 1 and ray.options["num_cpus"] == 1
    size = (tmp_path / "a.txt").stat().st_size
    assert reported[-1] == (size, size) and sorted(reported) == reported
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.txt", "one", "s"]


def test_a_part_that_fails_again_and_again_is_one_line(tmp_path, ray):
    (tmp_path / "a.txt").write_text("w5 w6.\nw7 w8 w9.\n\n" * 10)
    config = DataConfig(path=(str(tmp_path / "a.txt"),))
    ray.killed = {1}
    line = (
        r"^part-00001-of-00004 failed on the cluster \(RayError: The node died. More of it\); the same command resumes"
    )
    with ray_cluster() as cluster, pytest.raises(OSError, match=line):
        prepare(config, PIECES, tmp_path / "s", workers=cluster)
    # The others are cancelled, and what was done is not made again.
    assert [call for call in ray.calls if "cancel" in call] == ["cancel 0"]
    (parts,) = tmp_path.glob("s.parts-*")
    assert sorted(each.name for each in parts.glob("part-*")) == ["part-00002-of-00004", "part-00003-of-00004"]
    ray.killed = set()
    with ray_cluster() as cluster:
        prepare(config, PIECES, tmp_path / "s", workers=cluster)
    assert not list(tmp_path.glob("s.parts-*"))


def test_a_fault_that_a_task_meets_is_the_line_of_one_process(tmp_path, ray):
    (tmp_path / "a.txt").write_bytes(b"w5 w6.\nw7.\n\n" * 30 + b"\xff\n\n")
    with ray_cluster() as cluster, pytest.raises(DataError, match=r"a.txt:91: not UTF-8 \(byte 0xff at column 1\)"):
        prepare(DataConfig(path=(str(tmp_path / "a.txt"),)), PIECES, tmp_path / "s", workers=cluster)
    assert [each.name for each in tmp_path.iterdir()] == ["a.txt"]


def test_a_node_that_sees_another_text_is_named(tmp_path, ray, monkeypatch):
    file = tmp_path / "a.txt"
    file.write_text("w5 w6.\nw7 w8 w9.\n\n" * 10)
    remote = ray.remote

    def changed(**options: Any) -> Any:
        file.write_text("w5 w6.\nw7 w8 w9.\n\n" * 11)
        return remote(**options)

    monkeypatch.setattr(ray, "remote", changed)
    line = (
        r"a.txt: the text is another here, or has changed; .* \(on .*\); all nodes must see one text: on a shared disk"
    )
    with ray_cluster() as cluster, pytest.raises(DataError, match=line):
        prepare(DataConfig(path=(str(file),)), PIECES, tmp_path / "s", workers=cluster)


def test_a_signal_cancels_the_tasks_and_leaves_the_parts(tmp_path, ray):
    class Stop(BaseException):
        pass

    def stop(read: int, total: int) -> None:
        if read:
            raise Stop

    (tmp_path / "a.txt").write_text("w5 w6.\nw7 w8 w9.\n\n" * 10)
    with ray_cluster() as cluster, pytest.raises(Stop):
        prepare(DataConfig(path=(str(tmp_path / "a.txt"),)), PIECES, tmp_path / "s", stop, workers=cluster)
    assert ray.calls[1:-1] == ["cancel 0", "cancel 1", "cancel 2"] and ray.calls[-1] == "shutdown"
    assert len(list(tmp_path.glob("s.parts-*/part-*"))) == 1


def test_a_cluster_that_does_not_answer_is_one_line(ray, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    line = (
        r"^runner=ray: no cluster to be had \(127.0.0.1:1: Connection refused\); start one \(ray start --head\), or g"
    )
    with pytest.raises(DataError, match=line), ray_cluster():
        pass
    assert not ray.calls


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--runner", "ray"], "ConfigError: runner=ray: ray is not installed; install it in the clone: pip install -e"),
        (["--runner", "rya"], "--runner is 'rya', not one of local, ray (did you mean ray?)"),
        (["--runner", "ray", "--join"], "is for making parts; leave --join out"),
        (["--runner", "ray", "--part", "0/3", "--tokenizer", "v"], "runner= is for a whole preparation, not one part"),
        (["--runner", "ray", "--workers", "4", "--per-worker"], "per-worker= is for several workers of this machine"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit_are_one_line(tmp_path, text_folder, capsys, monkeypatch, words, line):
    monkeypatch.setattr(preparation_commands, "find_spec", lambda _: None)
    code, said = run_command(capsys, "prepare", "bert.tiny", "--input", text_folder, "--to", tmp_path / "s", *words)
    assert code == 2 and line in said and len(said.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """Twelve files of two seconds each, a vocabulary, and the shards that one process makes of them."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "text").mkdir()
    for file in range(12):
        lines = (f"w{n * 7919 % 997} w{n * 31 % 89} w{n % 13}.\n" + "\n" * (n % 5 == 0) for n in range(60_000))
        (folder / "text" / f"{file:02}.txt").write_text("".join(lines))
    done("tokenizer", "wordpiece", "--input", folder / "text", "--vocab-size", 300, "--to", folder / "v")
    done(*_words(folder), "--to", folder / "one")
    return folder


def _words(folder: Path, text: object = None) -> list[object]:
    return ["prepare", "bert.tiny", "--input", text or folder / "text", "--tokenizer", folder / "v"]


@pytest.fixture(scope="module")
def server() -> Iterator[buckets.Server]:
    with buckets.bucket_server("gs") as server:
        yield server


@pytest.fixture(scope="module")
def nodes(server) -> Iterator[Nodes]:
    with ray_nodes(3, **server.environment) as nodes:
        yield nodes


@contextlib.contextmanager
def _started(nodes: Nodes, *words: object) -> Iterator[subprocess.Popen[str]]:
    """A command on the cluster."""
    command = [sys.executable, "-m", "contexture", *map(str, words), "--runner", "ray", "--json"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=nodes.environment, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _wait_for(folder: Path, count: int) -> list[str]:
    deadline = time.monotonic() + 120
    while len(parts := sorted(each.name for each in folder.parent.glob(f"{folder.name}.parts-*/part-*"))) < count:
        assert time.monotonic() < deadline, parts
        time.sleep(0.05)
    return parts


@real
@pytest.mark.long
def test_ray_makes_the_shards_though_a_node_is_killed(nodes, corpus, tmp_path):
    with _started(nodes, *_words(corpus), "--to", tmp_path / "s") as process:
        _wait_for(tmp_path / "s", 3)
        nodes.kill_one()
        out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    # Nothing of Ray's own is printed.
    assert json.loads(out)["shards"] == str(tmp_path / "s") and "ray" not in err.lower()
    assert content(tmp_path / "s") == content(corpus / "one")
    assert [each.name for each in tmp_path.iterdir()] == ["s"]


@real
@pytest.mark.long
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_signal_leaves_the_parts_that_ray_has_made(nodes, corpus, tmp_path, number, code):
    with _started(nodes, *_words(corpus), "--to", tmp_path / "s") as process:
        _wait_for(tmp_path / "s", 2)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert err.splitlines()[-1].endswith("stopped; the same command resumes from the parts that are done")
    before = {each: each.stat().st_ino for each in tmp_path.glob("s.parts-*/part-*/part.json")}
    assert before and not list(tmp_path.glob("s.parts-*/.*"))
    with _started(nodes, *_words(corpus), "--to", tmp_path / "s") as process:
        _wait_for(tmp_path / "s", len(before) + 1)
        assert all(each.stat().st_ino == inode for each, inode in before.items())
        assert process.wait(240) == 0
    assert content(tmp_path / "s") == content(corpus / "one")


@real
@pytest.mark.long
def test_a_fault_of_the_text_is_one_line_with_ray(nodes, corpus, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"w5 w6.\nw7.\n\n" * 30 + b"\xff\n\n")
    with _started(nodes, *_words(corpus, "a.txt"), "--to", tmp_path / "s") as process:
        _, err = process.communicate(timeout=120)
    assert process.returncode == 2 and len(err.splitlines()) == 1 and "no such file or folder" in err
    with _started(nodes, *_words(corpus, tmp_path / "a.txt"), "--to", tmp_path / "s") as process:
        _, err = process.communicate(timeout=120)
    assert process.returncode == 2 and len(err.splitlines()) == 1, err
    assert err.startswith(f"DataError: {tmp_path / 'a.txt'}:91: not UTF-8 (byte 0xff at column 1)")
    assert [each.name for each in tmp_path.iterdir()] == ["a.txt"]


@real
@pytest.mark.long
def test_text_and_shards_may_lie_in_a_bucket_with_ray(nodes, server, corpus, tmp_path):
    bucket = f"gs://{buckets.BUCKET}"
    for file in sorted((corpus / "text").iterdir())[:4]:
        path = f"/upload/storage/v1/b/{buckets.BUCKET}/o?uploadType=media&name=text/{file.name}"
        server.ask("POST", path, file.read_bytes())
    with _started(nodes, *_words(corpus, f"{bucket}/text"), "--to", f"{bucket}/s") as process:
        out, err = process.communicate(timeout=240)
    assert process.returncode == 0 and json.loads(out)["shards"] == f"{bucket}/s", err
    (tmp_path / "text").mkdir()
    for file in sorted((corpus / "text").iterdir())[:4]:
        (tmp_path / "text" / file.name).symlink_to(file)
    done(*_words(corpus, tmp_path / "text"), "--to", tmp_path / "one")
    # The manifest has the command, which names the bucket there.
    one = content(tmp_path / "one")
    assert one.pop("manifest.json") and b"gs://" in server.read("s/manifest.json")
    assert {name: server.read(f"s/{name}") for name in one} == one
    # Parts are gone from the bucket too.
    assert {name.partition("/")[0] for name in server.names()} == {"text", "s"}
