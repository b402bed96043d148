"""What is fuzzed: a target, and the laws that every case of it must keep."""

import contextlib
import io
import os
import resource
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from contexture.train.run.exit_codes import exit_of
from tests.fuzz.mutate import Mutation

ROOT = Path(__file__).parents[2]
FOUND = ROOT / "tests" / "fuzz" / "found"
SECONDS = 10.0
"""A case that takes longer hangs."""
GROWTH = 1 << 30
"""Bytes by which the peak of memory may grow in one case."""


@dataclass(frozen=True)
class Target:
    """A parser or a command. A case is the bytes of one of its files, the others are as `make` leaves them."""

    name: str
    make: Callable[[Path], None]
    """Writes a folder of valid files. Raises Absent where they are not on this machine."""
    file: str
    """The file that is mutated."""
    mutate: Mutation
    read: Callable[[Path, Path], None]
    """read(folder, to): the work. Raises for what is wrong with the files; may make `to`, which is not there."""
    slow: bool = False
    """Whether a case takes more than about 50 ms, so that the quick suite tries few."""
    places: Callable[[bytes], list[str]] = lambda case: []
    """Paths, from the folder `work`, that a case names as the place of its results: new files may lie there."""
    keeps: bool = False
    """Whether a refusal may leave something in `to`, as a run that was started."""


class Absent(Exception):
    """Files of the folder of real data that are not on this machine."""


class Hang(BaseException):
    """The time is over. No Exception, so that no parser takes it for damage."""


@dataclass(frozen=True)
class Broken:
    """A law that a case breaks. `where` tells one fault from another."""

    law: str
    where: str
    message: str


class Refused(Exception):
    """What a command said on stderr, and its exit code."""

    def __init__(self, code: int, stderr: str) -> None:
        super().__init__(stderr)
        self.code, self.stderr = code, stderr


def command(words: list[str]) -> None:
    """One command in this process. Raises Refused where it does not succeed."""
    from contexture.cli import main as cli

    err = io.StringIO()
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
        code = cli.main([*words, "--debug"])
    if code:
        raise Refused(code, err.getvalue())


def _listing(base: Path) -> dict[str, tuple[int, int, int]]:
    """Each file, folder and link under `base`, but what is under `to`."""
    listing = {}
    for folder, folders, files in os.walk(base):
        if folder == str(base):
            folders[:] = [name for name in folders if name not in ("to", "caches")]
            files = [name for name in files if name != "to"]
        for name in [*folders, *files]:
            path = os.path.join(folder, name)
            status = os.lstat(path)
            is_folder = name in folders
            listing[os.path.relpath(path, base)] = (
                status.st_mode, 0 if is_folder else status.st_size, 0 if is_folder else status.st_mtime_ns,
            )  # fmt: skip
    return listing


def _under(name: str, place: str) -> bool:
    """Whether a path is a place, lies in it, or is a folder that it needs."""
    return name == place or name.startswith(place + "/") or place.startswith(name + "/")


def _place(error: BaseException) -> str:
    """The innermost line of ours that an error came through."""
    ours = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(str(ROOT))
            and "/tests/" not in frame.filename and "/.venv/" not in frame.filename]  # fmt: skip
    frame = ours[-1] if ours else traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {os.path.basename(frame.filename)}:{frame.name}:{frame.lineno}"


def _ours(stderr: str) -> str:
    """The same of a traceback in text."""
    lines = [line.strip() for line in stderr.splitlines()]
    ours = [line for line in lines if line.startswith(f'File "{ROOT}/') and "/.venv/" not in line]
    last = ours[-1].split("/")[-1] if ours else ""
    return f"{(lines or [''])[-1][:60]} at {last}"


def _judge(error: BaseException) -> Broken | None:
    """The law that a refusal breaks, or None."""
    if isinstance(error, Refused):
        last = error.stderr.strip().splitlines()[-1] if error.stderr.strip() else ""
        last_line = last
        if error.code not in (0, 1, 2):
            return Broken("exit code", f"{error.code}", error.stderr[-600:])
        if not last:
            return Broken("no line", f"exit {error.code}", error.stderr)
        if "unexpected error" in last_line:
            return Broken("unexpected error", _ours(error.stderr), error.stderr[-1500:])
        return None
    code, line = exit_of(error)
    if code not in (1, 2) or "unexpected error" in line:
        text = "".join(traceback.format_exception(error))
        return Broken("traceback", _place(error), text[-1500:])
    if isinstance(error, MemoryError):
        return Broken("memory", _place(error), line)
    if "\n" in str(error).strip():
        return Broken("one line", _place(error), str(error)[:600])
    return None


class Sandbox:
    """A folder for a target's cases: `theirs`, the valid files with one that is mutated; `to`, where results may go."""

    def __init__(self, target: Target, base: Path) -> None:
        self.target, self.base = target, base
        self.pristine, self.theirs, self.to = base / "pristine", base / "theirs", base / "to"
        for name in ("home", "tmp", "work", "caches"):
            (base / name).mkdir(parents=True)
        with self._around():
            target.make(self.pristine)
        self.seed = (self.pristine / target.file).read_bytes()
        self._renew()

    def _renew(self) -> None:
        for folder in (self.theirs, self.to, *(self.base / "work").iterdir()):  # no case finds what another has left
            shutil.rmtree(folder, ignore_errors=True)
        for place in (self.to, *(self.base / "work").iterdir()):
            if place.is_file() or place.is_symlink():
                place.unlink()
        shutil.copytree(self.pristine, self.theirs, symlinks=True)

    @contextlib.contextmanager
    def _around(self) -> Iterator[None]:
        names = {"HOME": "home", "TMPDIR": "tmp", "TFDS_DATA_DIR": "pristine", "XDG_CACHE_HOME": "caches"}
        before, here = dict(os.environ), os.getcwd()
        os.environ.update({name: str(self.base / folder) for name, folder in names.items()})
        os.environ["TFDS_DATA_DIR"] = os.environ["CONTEXTURE_DATA"] = str(self.theirs)
        os.chdir(self.base / "work")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            os.chdir(here)
            os.environ.clear()
            os.environ.update(before)

    def run(self, case: bytes, seconds: float = SECONDS) -> Broken | None:
        """The law that a case breaks, or None."""
        (self.theirs / self.target.file).write_bytes(case)
        _forget_peak()
        listed, peak, clock = _listing(self.base), _peak(), Clock()
        broken, refused = None, False
        with self._around(), _alarm(seconds):
            try:
                with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                    self.target.read(self.theirs, self.to)
            except Hang as error:
                broken = Broken("hang", _place(error), "".join(traceback.format_tb(error.__traceback__)[-4:]))
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                refused = True
                broken = _judge(error)
        if broken is None and clock.seconds() > seconds + 1:  # a finaliser has swallowed the alarm
            broken = Broken("hang", "unknown", f"{clock.seconds():.0f} s")
        if broken is None and _peak() - peak > GROWTH:
            broken = Broken("memory", "growth", f"{(_peak() - peak) >> 20} MiB more than before")
        now = _listing(self.base)
        changed = sorted(name for name in now.keys() | listed.keys() if now.get(name) != listed.get(name))
        named = [os.path.normpath(os.path.join("work", place)) for place in self.target.places(case)]
        changed = [name for name in changed if name in listed or not any(_under(name, place) for place in named)]
        if broken is None and changed:
            broken = Broken("files outside", changed[0].split("/")[0], f"changed: {', '.join(changed[:5])}")
        if broken is None and refused and not self.target.keeps and os.path.lexists(self.to):
            broken = Broken("left behind", "to", f"refused, and {self.to.name} is there")
        if now != listed or os.path.lexists(self.to):
            self._renew()
        return broken


def _forget_peak() -> None:
    """Sets the peak of memory back to what is in use, where the system can: else an earlier peak hides a growth."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


class Clock:
    """Seconds since it was made, without those in which a thread of this process could run and no core was free, so
    that other work on the machine makes no hang. Linux tells them; elsewhere all seconds count."""

    def __init__(self) -> None:
        self._start, self._waited = time.monotonic(), self._waits()

    def seconds(self) -> float:
        """The seconds until now."""
        waits = self._waits()
        longest = max((wait - self._waited.get(thread, 0.0) for thread, wait in waits.items()), default=0.0)
        return time.monotonic() - self._start - longest

    @staticmethod
    def _waits() -> dict[str, float]:
        """Thread → the seconds for which it has waited for a core."""
        options = {}
        for file in Path("/proc/self/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):  # a thread that has ended since
                options[file.parent.name] = int(file.read_text().split()[1]) / 1e9
        return options


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raises Hang where the work takes longer. A timer that was set before goes on afterwards."""
    clock = Clock()

    def ring(number: int, frame: FrameType | None) -> None:
        if (left := seconds - clock.seconds()) > 0.05:
            signal.setitimer(signal.ITIMER_REAL, left)
        else:
            raise Hang

    handler: Any = signal.signal(signal.SIGALRM, ring)
    left, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left:
            signal.setitimer(signal.ITIMER_REAL, left)
