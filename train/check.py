"""What a host needs before a run begins: devices, versions, a folder to write to, clock, port, limits.

Each check is a function of its own that returns rows of the table. None of them raises for what a host lacks: that is a
row, so that one call names everything that is missing.
"""

import contextlib
import fcntl
import os
import platform
import resource
import secrets
import shutil
import socket
import time
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple, TypedDict

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from contexture.data import bucket, mirror
from contexture.data.bucket import Address, BucketError, parse_address
from contexture.data.errors import DataError
from contexture.data.storage import check_run_path, partial_beside
from contexture.train.checkpoints import orbax_s3
from contexture.train.distributed import launchers
from contexture.train.errors import CheckpointError, ConfigError
from contexture.train.mesh import find_devices
from contexture.train.run.limits import LEAST_ADDRESS_SPACE, LEAST_OPEN_FILES, available_memory
from contexture.train.run.plugin_errors import has_gpu, may_have_tpu

PACKAGES = ("jax", "flax", "optax", "orbax-checkpoint", "grain")
"""Those whose versions change numbers or file formats. The package's others have a row where they do not fit."""
MOST_SKEW = 30.0
"""Seconds between this clock and the file server's. Tokens of clouds are refused after minutes."""
PORT_SECONDS = 5.0
"""How long the address of process 0 may take to answer."""


class Row(NamedTuple):
    """A row of the table."""

    check: str
    state: Literal["ok", "missing", "not tested"]
    """Missing: a run would fail, or leave devices unused."""
    detail: str
    """What is there; where something is missing also how to mend it."""


class Checked(TypedDict):
    """The result for one host."""

    host: str
    ok: bool
    """Whether nothing is missing. What was not tested does not count."""
    checks: list[dict[str, str]]


def check_host(folder: str, environ: Mapping[str, str]) -> Checked:
    """Returns what this host has and lacks.

    Args:
        folder: the folder of the runs to come, or an address of a bucket; "" tests none.
        environ: the environment of the process, which may describe a job.
    """
    rows = [*_devices(environ), *_versions()]
    # An address of the command line is a path by now.
    address = parse_address(folder) or (mirror.address_of(folder) if folder else None)
    rows += (_bucket(address) if address else _folder(Path(folder))) if folder else []
    rows += [_clock(), _port(environ), *_limits()]
    missing = any(row.state == "missing" for row in rows)
    return {"host": platform.node(), "ok": not missing, "checks": [dict(row._asdict()) for row in rows]}


def _devices(environ: Mapping[str, str]) -> list[Row]:
    try:
        devices = find_devices()
    except ConfigError as error:
        return [Row("devices", "missing", str(error))]
    kinds = [device.device_kind for device in devices]
    detail = ", ".join(f"{kinds.count(kind)} × {kind}" for kind in dict.fromkeys(kinds))
    rows = [Row("devices", "ok", detail)]
    # jax falls back to the CPU without an error. Nobody rents a machine with an accelerator for that.
    if devices[0].platform == "cpu" and not environ.get("JAX_PLATFORMS"):
        if extra := "cuda" if has_gpu() else "tpu" if may_have_tpu() else "":
            mend = f"jax does not use this machine's {'GPU' if has_gpu() else 'TPU'}; install the extra [{extra}]"
            rows = [Row("devices", "missing", f"{detail}; {mend}, or set JAX_PLATFORMS=cpu")]
    if line := launchers.idle_gpus(environ, launchers.visible_gpus(environ)):
        rows.append(Row("GPUs of processes", "missing", line))
    return rows


def _versions() -> list[Row]:
    """Compares Python and the packages with what the installed package asks for."""
    try:
        own = metadata.metadata("contexture")
    except metadata.PackageNotFoundError:
        return [Row("versions", "missing", "contexture is not installed; pip install -e . in its folder")]
    python, bounds = platform.python_version(), own["Requires-Python"] if "Requires-Python" in own else ""
    fits = SpecifierSet(bounds).contains(python, prereleases=True)
    mend = "" if fits else f"; make an environment with Python {bounds}"
    rows = [Row("python", "ok" if fits else "missing", python + mend)]
    for line in own.get_all("Requires-Dist") or []:
        wanted = Requirement(line)
        # Extras (trackers, other devices) are no need of a run.
        if wanted.marker and not wanted.marker.evaluate({"extra": ""}):
            continue
        try:
            version = metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            version = ""
        if not version or not wanted.specifier.contains(version, prereleases=True):
            mend = f"pip install '{wanted.name}{wanted.specifier}'"
            rows.append(Row(wanted.name, "missing", f"{version or 'not installed'}; {mend}"))
        elif wanted.name in PACKAGES:
            rows.append(Row(wanted.name, "ok", version))
    return rows


def _bucket(place: Address) -> list[Row]:
    """Writes, reads and deletes a small object where the run will be; its second writer must be refused."""
    probe = place / f".probe-{secrets.token_hex(8)}"
    try:
        before = bucket.read(probe)
        written = bucket.swap(probe, b"first", before.generation)
        refused = bucket.swap(probe, b"second", before.generation) is None
        bucket.delete([probe])
    except BucketError as error:
        return [Row("dir", "missing", str(error))]
    if not written or not refused:
        mend = "a run's one writer needs them; use a bucket of a server that has them"
        return [Row("dir", "missing", f"{place}: the server ignores conditions on writes (preconditions); {mend}")]
    rows = [Row("dir", "ok", f"{place}: an object is written, refused to a second writer, and deleted")]
    if place.scheme == "gs" and not find_spec("gcsfs"):
        rows.append(Row("gcsfs", "missing", "Orbax writes checkpoints to gs:// by it; pip install -e '.[gcs]'"))
    if place.scheme == "s3":
        try:
            orbax_s3.place(str(place))
        except CheckpointError as error:
            rows.append(Row("orbax", "missing", str(error)))
    return rows


def _folder(folder: Path) -> list[Row]:
    """Writes, renames, locks and deletes a small file where the run will be."""
    try:
        check_run_path(folder.absolute())
    except DataError as error:
        return [Row("dir", "missing", str(error))]
    # A run makes its folder. Tested is the one that it is made in, since hosts that make and remove it collide.
    place = folder.absolute()
    while not os.path.lexists(place):
        place = place.parent
    where = str(place) if place == folder.absolute() else f"{folder} is not there yet, and its parent {place}"
    part = partial_beside(place / "contexture-check")
    whole = part.with_suffix(".whole")
    try:
        with part.open("xb") as file:
            file.write(b"contexture")
            file.flush()
            os.fsync(file.fileno())
            # What keeps two runs out of one folder; some network disks refuse it.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(part, whole)
        if whole.read_bytes() != b"contexture":
            return [Row("dir", "missing", f"{where} gives back other bytes than were written; use another disk")]
        skew = whole.stat().st_mtime - time.time()
    except OSError as error:
        mend = "give --dir a folder that this user may write to on every host"
        return [Row("dir", "missing", f"{where}: {error.strerror or error}; {mend}")]
    finally:
        for left in (part, whole):
            with contextlib.suppress(OSError):
                left.unlink()
    free = shutil.disk_usage(place).free / 2**30
    rows = [Row("dir", "ok", f"{where} can be written; {free:,.1f} GiB are free")]
    if abs(skew) > MOST_SKEW:
        detail = f"{abs(skew):,.0f} s {'behind' if skew > 0 else 'ahead of'} the file server of {place}"
        rows.append(Row("clock of dir", "missing", f"{detail}; start a time service (chrony)"))
    return rows


def _clock() -> Row:
    """Compares the clock with the age of this file, and two readings with each other."""
    before, steady = time.time(), time.monotonic()
    time.sleep(0.02)
    passed, elapsed = time.time() - before, time.monotonic() - steady
    # This file was written when the package was installed: no clock that goes right is before that.
    installed = Path(__file__).stat().st_mtime
    detail = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(before))
    if before < installed:
        day = time.strftime("%Y-%m-%d", time.gmtime(installed))
        return Row("clock", "missing", f"{detail} is before the installation of {day}; start a time service (chrony)")
    if elapsed <= 0 or abs(passed - elapsed) > 1:
        return Row(
            "clock", "missing", f"{detail}, and it jumped by {passed - elapsed:+.1f} s; look at the time service"
        )
    return Row("clock", "ok", detail)


def _port(environ: Mapping[str, str]) -> Row:
    """Binds the port of process 0, or asks process 0's host from the others."""
    try:
        job = launchers.coordinator(environ)
        if job is None:
            return Row("port", "not tested", "the environment names no coordinator: one process, or jax asks the cloud")
        (address, number), mend = job, "set JAX_COORDINATOR_ADDRESS=host:port"
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            return Row("port", "missing", f"{address} is not host:port; {mend}")
        host = host.strip("[]")
    except (ValueError, RuntimeError) as error:
        return Row("port", "missing", f"{error}; set JAX_COORDINATOR_ADDRESS=host:port and JAX_PROCESS_ID=N")
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.settimeout(PORT_SECONDS)
            if number == 0:
                mend = "end what holds it, choose another port, or set JAX_COORDINATOR_BIND_ADDRESS"
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(place)
                return Row("port", "ok", f"process 0 can listen at {address}")
            mend = f"let port {port} of process 0's host through the firewall, or choose another address"
            # Refused means that the host is there, and no run listens yet.
            with contextlib.suppress(ConnectionRefusedError):
                probe.connect(place)
        return Row("port", "ok", f"process {number} reaches the host of {address}")
    except OSError as error:
        return Row("port", "missing", f"{address}: {error.strerror or error}; {mend}")


def _limits() -> list[Row]:
    # The hard limit, since a run raises its soft one (train.run.limits). -1 is none.
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    rows = [Row("open files", "ok", "no limit" if files < 0 else f"{files:,}")]
    if 0 <= files < LEAST_OPEN_FILES:
        rows = [Row("open files", "missing", f"{files} (ulimit -n); allow {LEAST_OPEN_FILES} at least")]
    memory = available_memory()
    if 0 <= space < LEAST_ADDRESS_SPACE:
        mend = f"allow {LEAST_ADDRESS_SPACE >> 30} GiB at least"
        rows.append(Row("memory", "missing", f"{space / 2**30:.2f} GiB of address space (ulimit -v); {mend}"))
    elif memory is not None:
        rows.append(Row("memory", "ok", f"{memory / 2**30:,.1f} GiB are free"))
    return rows
