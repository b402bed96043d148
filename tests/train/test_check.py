"""`contexture check` names all that a host lacks, in one table, and leaves nothing behind."""

import os
import resource
import socket
import time
from email.message import Message
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from contexture.cli import main as cli
from contexture.train import check
from contexture.train.check import check_host
from contexture.train.errors import ConfigError
from tests.helpers.buckets import BUCKET, Faults, Server
from tests.helpers.commands import json_of
from tests.helpers.jobs import free_port

pytestmark = pytest.mark.usefixtures("one_device")
CPU = {"JAX_PLATFORMS": "cpu"}


def _rows(folder: str = "", environ: dict[str, str] | None = None) -> dict[str, tuple[str, str]]:
    """Each row of a table: name → (state, detail)."""
    return {
        row["check"]: (row["state"], row["detail"]) for row in check_host(folder, {**CPU, **(environ or {})})["checks"]
    }


def _metadata(python: str, *requirements: str) -> Message:
    """What an installed package says of itself."""
    own = Message()
    own["Requires-Python"] = python
    for line in requirements:
        own["Requires-Dist"] = line
    return own


def test_a_host_that_has_all_is_fine(tmp_path):
    result = json_of("check", "--dir", tmp_path / "runs" / "mine")
    assert result["ok"] and result["host"]
    rows = {row["check"]: row for row in result["checks"]}
    assert {"devices", "python", "jax", "orbax-checkpoint", "dir", "clock", "port", "open files"} <= rows.keys()
    assert {row["state"] for row in rows.values()} == {"ok", "not tested"}
    assert rows["port"]["state"] == "not tested" and rows["jax"]["detail"] == jax.__version__
    assert f"its parent {tmp_path} can be written" in rows["dir"]["detail"] and not list(tmp_path.iterdir())


def test_the_table_is_for_people_and_the_exit_code_for_scripts(tmp_path, capsys):
    assert cli.main(["check", "--dir", str(tmp_path)]) == 0
    (tmp_path / "file").touch()
    assert cli.main(["check", "--dir", str(tmp_path / "file" / "run")]) == 1
    out, err = capsys.readouterr()
    assert "check" in out and "missing" in out and not err


def test_no_device_is_a_row_and_the_others_follow(monkeypatch):
    def fails() -> None:
        raise ConfigError("jax finds no device: none; set JAX_PLATFORMS=cpu")

    monkeypatch.setattr(check, "find_devices", fails)
    rows = _rows()
    assert rows["devices"] == ("missing", "jax finds no device: none; set JAX_PLATFORMS=cpu") and "clock" in rows


@pytest.mark.parametrize(("gpu", "extra"), [(True, "cuda"), (False, "tpu")])
def test_an_accelerator_that_jax_does_not_use_is_missing(monkeypatch, gpu, extra):
    monkeypatch.setattr(check, "has_gpu", lambda: gpu)
    monkeypatch.setattr(check, "may_have_tpu", lambda: not gpu)
    state, detail = _rows(environ={"JAX_PLATFORMS": ""})["devices"]
    assert state == "missing" and f"install the extra [{extra}]" in detail
    assert _rows()["devices"][0] == "ok", "the user chose the CPU"


def test_gpus_that_no_process_uses_are_missing(monkeypatch):
    monkeypatch.setattr(check.launchers, "visible_gpus", lambda environ: 8)
    monkeypatch.setattr(check.launchers, "idle_gpus", lambda environ, gpus: f"{gpus - 1} GPUs stay idle")
    assert _rows()["GPUs of processes"] == ("missing", "7 GPUs stay idle")


@pytest.mark.parametrize(
    ("line", "name", "detail"),
    [
        ("jax<0.2,>=0.1", "jax", f"{jax.__version__}; pip install 'jax<0.2,>=0.1'"),
        ("none-such>=1", "none-such", "not installed; pip install 'none-such>=1'"),
        ("wandb<0.1; extra == 'wandb'", "wandb", ""),
    ],
)
def test_a_package_that_does_not_fit_is_named_with_the_mend(monkeypatch, line, name, detail):
    own = _metadata(">=3.11", line)
    monkeypatch.setattr(metadata, "metadata", lambda name: own)
    assert _rows().get(name, ("missing", "")) == ("missing", detail)


def test_another_python_is_missing(monkeypatch):
    own = _metadata(">=4")
    monkeypatch.setattr(metadata, "metadata", lambda name: own)
    assert _rows()["python"][1].endswith("; make an environment with Python >=4")


@pytest.mark.parametrize("step", ["fsync", "rename"])
def test_a_folder_without_rights_is_missing_and_left_as_it_was(monkeypatch, tmp_path, step):
    def fails(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(check.os, step, fails)
    state, detail = _rows(str(tmp_path))["dir"]
    assert state == "missing" and detail.startswith(f"{tmp_path}: Permission denied; give --dir a folder")
    assert not list(tmp_path.iterdir())


def test_a_disk_that_refuses_locks_is_missing(monkeypatch, tmp_path):
    def fails(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(check.fcntl, "flock", fails)
    assert "No locks available" in _rows(str(tmp_path))["dir"][1] and not list(tmp_path.iterdir())


def test_a_path_that_a_run_would_refuse_is_missing(tmp_path):
    assert _rows(str(tmp_path / "a*"))["dir"][0] == "missing"


def test_a_bucket_is_written_to_and_its_conditions_are_tried(bucket_store: Server, monkeypatch):
    address = f"{bucket_store.scheme}://{BUCKET}/checked/run"
    state, detail = _rows(address)["dir"]
    assert state == "ok" and "refused to a second writer" in detail and not bucket_store.names("checked")
    monkeypatch.setattr(bucket_store, "honours_preconditions", False)
    state, detail = _rows(address)["dir"]
    assert state == "missing" and "ignores conditions on writes" in detail
    monkeypatch.setenv("CONTEXTURE_BUCKET_SECONDS", "1")
    bucket_store.faults = Faults(silent=True)
    assert _rows(address)["dir"][0] == "missing"
    bucket_store.faults = Faults()


def test_an_orbax_that_cannot_write_to_s3_is_missing(s3_store: Server, monkeypatch):
    def changed() -> None:
        raise AttributeError("no attribute '_use_gcs_driver'")

    assert "orbax" not in _rows(f"s3://{BUCKET}/checked/run")
    monkeypatch.setattr(check.orbax_s3, "_teach", changed)
    state, detail = _rows(f"s3://{BUCKET}/checked/run")["orbax"]
    assert state == "missing" and "keeps no checkpoints in s3://" in detail


def test_a_clock_before_the_installation_is_missing(monkeypatch):
    monkeypatch.setattr(check.time, "time", lambda: 1e9)
    state, detail = _rows()["clock"]
    assert state == "missing" and detail.startswith("2001-09-09 01:46:40 UTC is before the installation of")


def test_a_clock_that_jumps_is_missing(monkeypatch):
    readings = iter((2e9, 2e9 + 3600))
    monkeypatch.setattr(check, "time", SimpleNamespace(**vars(time) | {"time": lambda: next(readings)}))
    assert "it jumped by +3600.0 s" in check._clock().detail


@pytest.mark.parametrize(("seconds", "word"), [(100, "behind"), (-100, "ahead of")])
def test_a_clock_unlike_the_file_servers_is_missing(monkeypatch, tmp_path, seconds, word):
    rename = os.rename

    def later(part: Path, whole: Path) -> None:
        rename(part, whole)
        os.utime(whole, (time.time() + seconds,) * 2)

    monkeypatch.setattr(check.os, "rename", later)
    state, detail = _rows(str(tmp_path))["clock of dir"]
    assert state == "missing" and f" s {word} the file server of {tmp_path}; start a time service" in detail


def _job(address: str, number: int = 0) -> dict[str, str]:
    return {"JAX_COORDINATOR_ADDRESS": address, "JAX_PROCESS_ID": str(number)}


def test_the_port_of_process_0_is_free_or_missing():
    with socket.create_server(("127.0.0.1", 0)) as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
        state, detail = _rows(environ=_job(address))["port"]
        assert state == "missing" and detail.startswith(f"{address}: Address already in use; end what holds it")
        assert _rows(environ=_job(address, 1))["port"] == ("ok", f"process 1 reaches the host of {address}")
    assert _rows(environ=_job(address))["port"] == ("ok", f"process 0 can listen at {address}")


def test_a_host_where_nobody_listens_yet_is_reached():
    assert _rows(environ=_job(f"localhost:{free_port()}", 2))["port"][0] == "ok"


@pytest.mark.parametrize(
    ("address", "line"),
    [
        ("host", "host is not host:port; set JAX_COORDINATOR_ADDRESS=host:port"),
        ("host:99999", "host:99999 is not host:port"),
        ("no host:1", "no host:1: "),
    ],
)
def test_an_address_that_is_none_is_missing(address, line):
    state, detail = _rows(environ=_job(address, 1))["port"]
    assert state == "missing" and detail.startswith(line)


def test_a_host_that_does_not_answer_is_missing(monkeypatch):
    def fails(*_: object) -> None:
        raise TimeoutError("timed out")

    monkeypatch.setattr(check.socket.socket, "connect", fails)
    state, detail = _rows(environ=_job("127.0.0.1:8476", 1))["port"]
    assert state == "missing" and "timed out; let port 8476 of process 0's host through the firewall" in detail


def test_limits_that_are_too_low_are_missing(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (32, 32))
    rows = _rows()
    assert rows["open files"] == ("missing", "32 (ulimit -n); allow 64 at least")
    assert rows["memory"] == ("missing", "0.00 GiB of address space (ulimit -v); allow 3 GiB at least")
