"""Several processes of one job: they join, agree on what they run, and notice when one of them is gone.

The processes talk through the key-value store of jax's coordination service, which process 0 runs:

    contexture/alive/N     heartbeat of process N, with its host
    contexture/end/N       exit code and line with which all end, set by the process N that failed
    contexture/heard/N     process N has read such a line
    contexture/done/N      process N has finished, and is not missed
    contexture/suspicious  a process has met an error that another's death may have caused
    contexture/exchange/…  values to compare (`exchange`)

When a process dies, jax itself leaves the others hanging in a collective, or C++ code aborts them with a stack trace.
So each process has a thread that writes a heartbeat, reads the others', and ends the process with one line: who is
gone, and from which checkpoint the job resumes.
"""

import contextlib
import itertools
import json
import math
import os
import platform
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import jax

from contexture.data import mirror
from contexture.data.errors import DataError
from contexture.data.visible import visible
from contexture.train.distributed import launchers, native_aborts
from contexture.train.errors import ConfigError, Diverged, ProcessLost
from contexture.train.run.exit_codes import exit_of
from contexture.train.run.signals import Interrupted
from contexture.train.settings.sections import MeshConfig

T = TypeVar("T")
_LOG_SECONDS = 5.0
"""Seconds that the last line may take to be written to a log, before the process ends without."""
_QUIET_START = 10.0
"""Seconds of waiting for the others before a line is printed."""


class _InAll(Exception):
    """Mixin of errors that are raised in every process of the job alike."""


class _Disagreement(ConfigError, _InAll):
    """A process differs from process 0."""


class _Job:
    """The state of this process's job."""

    config = MeshConfig()
    saved_steps: Callable[[], list[int]] = staticmethod(list)
    suspicious = False
    """Whether the main thread has met an error that another process may have caused."""
    finished = False
    log: Path | None = None
    """The file that gets the line with which the process ends; None: none."""
    exit_code = 0
    rounds = itertools.count()
    contact = 0.0
    """Time of process 0's last answer, by time.monotonic."""


_job = _Job()


def _client() -> Any:
    from jax._src import distributed  # its key-value store has no public name

    return distributed.global_state.client


def _me() -> int:
    from jax._src import distributed

    return distributed.global_state.process_id


def _count() -> int:
    """Returns how many processes the job has, without initialising devices as jax.process_count() does."""
    from jax._src import distributed

    return distributed.global_state.num_processes


def _name(number: int) -> str:
    return f"process {number} of {_count()}"


def initialize(config: MeshConfig) -> None:
    """Joins the other processes of this job, once, before any device is used. Does nothing for a single process.

    Raises:
        ConfigError: when the job is not described.
        ProcessLost: when the others do not join within mesh.startup-minutes.
    """
    # A program may train several times in one process: the job is joined once.
    if jax.distributed.is_initialized():
        return
    if not config.distributed:
        # Several processes without mesh.distributed would each train alone, on the same batches.
        if (count := os.environ.get("JAX_NUM_PROCESSES") or "1") != "1":
            raise ConfigError(
                f"JAX_NUM_PROCESSES={visible(count)} describes a job of several processes, and this one would work "
                "alone; give --mesh.distributed, or unset it"
            )
        return
    _job.config = config
    # Under SLURM, MPI and on TPU pods these are not set: jax finds the job by itself.
    count, number = os.environ.get("JAX_NUM_PROCESSES"), os.environ.get("JAX_PROCESS_ID")
    address = os.environ.get("JAX_COORDINATOR_ADDRESS", "")
    # Signals are answered here until training begins; jax's handler takes over then (train.run.signals).
    jax.config.update("jax_enable_preemption_service", False)
    waiting = threading.Timer(_QUIET_START, _say_waiting, (number, count, address, config))
    waiting.daemon = True
    waiting.start()
    native_aborts.divert_native_errors()
    native_aborts.answer_aborts(lambda: _aborted(native_aborts.nobody_came(count, address, config.startup_minutes)))
    seconds = max(int(config.startup_minutes * 60), 2)
    try:
        with native_aborts.register_within(seconds):
            jax.distributed.initialize(
                num_processes=int(count) if count else None,
                process_id=int(number) if number else None,
                initialization_timeout=seconds + 3,
                # jax aborts at a dead process: in four times the limit, so that the watching thread finds it first
                heartbeat_timeout_seconds=int(config.peer_minutes * 60) * 4 + 60,
                shutdown_timeout_seconds=max(int(config.peer_minutes * 60), 10),
                # jax alone would listen on every interface
                coordinator_bind_address=os.environ.get("JAX_COORDINATOR_BIND_ADDRESS") or address or None,
                **launchers.detection(os.environ),
            )
    except (ValueError, RuntimeError) as error:
        if "DEADLINE" in str(error):
            raise ProcessLost(native_aborts.nobody_came(count, address, config.startup_minutes)) from None
        raise ConfigError(
            f"mesh.distributed: {str(error).splitlines()[0]} Start every process with "
            "JAX_COORDINATOR_ADDRESS=host:port, JAX_NUM_PROCESSES and JAX_PROCESS_ID, or leave mesh.distributed out"
        ) from None
    finally:
        waiting.cancel()
    gone = (
        f"process 0 of {_count()} ({_address()}) is gone" if _me() else "the other processes have left this one behind"
    )
    # All have joined: from now on an abort means that a process is gone.
    native_aborts.answer_aborts(lambda: _aborted(f"{gone}; {_resume()}"))
    _job.contact = time.monotonic()
    for work in (_watch, _watch_contact):
        threading.Thread(target=work, name="contexture-watch", daemon=True).start()


# Printed after ten seconds of silence, so that nobody takes a waiting process for a hung one.
def _say_waiting(number: str | None, count: str | None, address: str, config: MeshConfig) -> None:
    # The number is unknown where jax finds the job by itself.
    who = f"process {number or '?'} of {count or '?'}"
    where = visible(address) or "the coordinator"
    print(f"{who} waits for the others at {where} (mesh.startup-minutes={config.startup_minutes:g})", file=sys.stderr)


def _aborted(reason: str) -> None:
    # jax may abort a process that waits for the others at its end: its work is done.
    if _job.finished:
        os._exit(_job.exit_code)
    _end(1, f"ProcessLost: {reason}")


def _address() -> str:
    from jax._src import distributed

    return str(distributed.global_state.coordinator_address)


def _resume() -> str:
    # Read from the disk when the line is written, since checkpoints come while the job runs.
    good = _job.saved_steps()
    if not good:
        return "there is no checkpoint yet; start the same command again"
    return f"the last checkpoint is of step {good[-1]}; the same command resumes from it"


def _end(code: int, line: str) -> NoReturn:
    """Ends this process now. The interpreter's usual exit would wait for processes that are gone."""
    # Main thread and watching thread may both want to end the process: the first one prints its line.
    if _ending.acquire(blocking=False):
        text = " ".join(visible(line).split())
        with contextlib.suppress(Exception):
            print(text, file=sys.stderr, flush=True)
        with contextlib.suppress(Exception):
            _keep(text, code)
        os._exit(code)
    time.sleep(60)  # the other thread is ending the process
    os._exit(code)


def _keep(text: str, code: int) -> None:
    """Adds the last line to the log of this process."""
    if _job.log is None:
        return
    # The folder's disk may be what hangs: the process ends all the same.
    limit = threading.Timer(_LOG_SECONDS, os._exit, (code,))
    limit.daemon = True
    limit.start()
    with _job.log.open("a", encoding="utf-8") as file:
        file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
    # In a bucket, as far as it answers within the limit.
    mirror.push(_job.log)
    limit.cancel()


def keep_last_line(file: Path) -> None:
    """Has the line with which this process ends added to its log, also where a thread or native code ends it."""
    _job.log = file


def describe_process() -> str:
    """Returns the number of this process, its machine and its devices: "process 1 of 2: node7, pid 4711, cpu 4 5"."""
    devices = " ".join(str(device.id) for device in jax.local_devices())
    kind = jax.local_devices()[0].device_kind
    return f"process {_me()} of {_count()}: {platform.node()}, pid {os.getpid()}, {kind} {devices}"


_ending = threading.Lock()


def _interval() -> float:
    """Seconds between two heartbeats."""
    # At least six heartbeats within the time after which a silent process counts as gone.
    return min(5.0, _job.config.peer_minutes * 60 / 6)


def _end_all(code: int, line: str, elsewhere: str) -> NoReturn:
    """Ends this process with `line`, and all others with `elsewhere`.

    Process 0 runs the service from which the others read this, so it waits until all have read it.
    """
    with contextlib.suppress(Exception):
        _set(f"end/{_me()}", json.dumps([code, elsewhere]))
        _set(f"heard/{_me()}", "")
        deadline = time.monotonic() + 2 * _interval() + 1
        while _me() == 0 and time.monotonic() < deadline and len(_all("heard")) < _count():
            time.sleep(0.1)
    _end(code, line)


def _set(name: str, text: str) -> None:
    _client().key_value_set(f"contexture/{name}", text, allow_overwrite=True)


def _all(folder: str) -> dict[int, str]:
    """Returns what the processes have published in a folder of the store: process → text."""
    # Names end in the number of the process: alive/3.
    entries = _client().key_value_dir_get(f"contexture/{folder}/")
    return {int(name.rpartition("/")[2]): text for name, text in entries}


def _watch() -> None:
    """Writes this process's heartbeat, and ends it if another has ended or gives no sign of life.

    Process 0 watches all others, and these watch only process 0: the work grows with the number of processes, not with
    its square.
    """
    limit, interval = _job.config.peer_minutes * 60, _interval()
    me, count = _me(), _count()
    host = f"{platform.node()}, pid {os.getpid()}"
    # The last heartbeat of each watched process, and when it came by this clock: clocks of machines may differ.
    seen = {number: ("", time.monotonic()) for number in (range(1, count) if me == 0 else (0,))}
    for beat in itertools.count():
        if _job.finished:
            return
        # One beat: say that we live, look for a verdict, look at the others.
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # the service is gone: see native_aborts
            _set(f"alive/{me}", f"{beat} {host}")
            # Somebody has failed and said why: end with that line, after telling that it was read.
            for number, text in _all("end").items():
                if number != me:
                    _set(f"heard/{me}", "")
                    _end(*json.loads(text))
            _job.contact = time.monotonic()
            # A heartbeat is new if its text differs from the last one seen.
            alive, done = (_all("alive"), _all("done")) if me == 0 else ({0: _get("alive/0")}, {})
            for number, (before, _) in seen.items():
                if alive.get(number, "") != before:
                    seen[number] = (alive[number], time.monotonic())
            # After a collective has failed somewhere, a few missed heartbeats are enough to know who is gone.
            patience = min(limit, 3 * interval + 1) if _job.suspicious or _get("suspicious") else limit
            for number, (text, since) in seen.items():
                if time.monotonic() - since > patience and number not in done:
                    who = f"{_name(number)} ({text.partition(' ')[2] or 'it never joined'})"
                    line = f"ProcessLost: {who} gave no sign of life for {time.monotonic() - since:.0f} s; {_resume()}"
                    _end_all(1, line, line)
        time.sleep(interval)


def _watch_contact() -> None:
    """Ends this process if process 0 has not answered `_watch` for too long.

    A call to a process that is stopped or cut off does not fail, but blocks, and `_watch` with it: hence this thread.
    """
    # `_watch` notes each answer of process 0; here only the clock is read.
    limit = _job.config.peer_minutes * 60
    while _me() and not _job.finished:
        silent = time.monotonic() - _job.contact
        if silent > limit:
            _end(1, f"ProcessLost: {_name(0)} ({_address()}) gave no sign of life for {silent:.0f} s; {_resume()}")
        time.sleep(_interval())


def _get(name: str) -> str:
    """Returns the text published under a name, or ''."""
    try:
        return _client().key_value_try_get(f"contexture/{name}")
    except jax.errors.JaxRuntimeError as error:
        if "NOT_FOUND" in str(error):
            return ""
        raise


@contextlib.contextmanager
def joined(config: MeshConfig, saved_steps: Callable[[], list[int]] = list) -> Iterator[None]:
    """Wraps the work of a job: the processes join; if one of them fails, all end with its line and its exit code.

    saved_steps: returns the steps of the checkpoints; the job resumes from the newest. After an error in one of several
    processes this does not return: the interpreter's usual exit would wait for all of them.
    """
    initialize(config)
    _job.saved_steps = saved_steps
    try:
        yield
        finished(0)
    except BaseException as error:
        # Alone, an error takes its usual way: the command line prints it.
        if _count() == 1 or _job.finished:
            raise
        # The line that all end with has no traceback; this process is the one that knows it.
        if "--debug" in sys.argv:
            traceback.print_exception(error)
        if not isinstance(error, ConfigError | DataError | Diverged | Interrupted | KeyboardInterrupt):
            # The cause may be the death of another process: the watching thread gets time to find out, and to name it.
            _job.suspicious = True
            with contextlib.suppress(Exception):
                _set("suspicious", "1")
            time.sleep(4 * _interval() + 2)
        # All end with the same exit code, so that a scheduler sees one outcome whichever process it asks.
        code, line = exit_of(error)
        _job.log = None  # it has this line already, from the block that the error left (run.console.logged_to)
        _end_all(code, line, line if isinstance(error, _InAll) else f"{_name(_me())}: {line}")


def finished(code: int) -> None:
    """Tells the others that this process has finished, or has stopped where all agreed to, so that none misses it."""
    if jax.distributed.is_initialized() and _count() > 1:
        _set(f"done/{_me()}", "")
        _job.finished, _job.exit_code = True, code


def publish(name: str, text: str) -> None:
    """Gives a text of process 0 to the others, which may be waiting for hours. Does nothing for a single process."""
    if _count() > 1:
        _set(name, text)


def wait_for(name: str) -> str:
    """Returns the text that process 0 publishes under this name; waits as long as that process lives."""
    return _wait(name, math.inf, 0)


def exchange(text: str, minutes: float = math.inf) -> list[str]:
    """Returns the texts of all processes, in their order. All must call this equally often, in the same order.

    Raises ProcessLost if one has not called it within `minutes`. Without a limit it may take as long as that process
    lives: reading large files takes one process longer than another.
    """
    count = _count()
    if count == 1:
        return [text]
    # Rounds are counted in every process, so the n-th call of one meets the n-th of all others.
    place, deadline = f"exchange/{next(_job.rounds)}", time.monotonic() + minutes * 60
    _set(f"{place}/{_me()}", text)
    return [_wait(f"{place}/{number}", deadline, number) for number in range(count)]


def _wait(name: str, deadline: float, number: int) -> str:
    """Returns the text that a process publishes under a name. The watching thread ends the wait if it fails."""
    # In short waits, so that the deadline is kept and the thread is not blocked in native code.
    while True:
        try:
            return _client().blocking_key_value_get(f"contexture/{name}", 5_000)
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
        if time.monotonic() > deadline:
            raise ProcessLost(f"{_name(number)} did not come as far as the others in time; see what it printed")


def agree(facts: Mapping[str, object], mend: str, minutes: float = math.inf) -> None:
    """Raises ConfigError in every process if a value in one differs from process 0's; it names process and fact.

    Args:
        facts: name → a JSON value.
        mend: the advice to the user.
        minutes: as in `exchange`.
    """
    # Everybody compares everybody with process 0, so all find the same first difference and raise the same error.
    mine = json.loads(json.dumps(facts, default=list))
    everyone = [json.loads(text) for text in exchange(json.dumps(mine), minutes)]
    for number, theirs in enumerate(everyone[1:], 1):
        for name in everyone[0] | theirs:
            if theirs.get(name) != everyone[0].get(name):
                raise _Disagreement(
                    f"{_name(number)} has {name} {_short(theirs.get(name))}, and process 0 has "
                    f"{_short(everyone[0].get(name))}; {mend}"
                )


def _short(value: object) -> str:
    # A list of labels or paths may be long; the name of the fact says where to look.
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "…"


def together(work: Callable[[], T], failure: type[Exception]) -> T:
    """Returns `work()`, done in all processes; if it raises `failure` in one of them, it is raised in all.

    Otherwise the others would wait in the next collective for the one that failed. The work itself must not wait for
    other processes.
    """
    result, message = None, ""
    try:
        result = work()
    except failure as error:
        message = str(error) or type(error).__name__
    # Every process sees the same messages in the same order, and raises for the same first one.
    for number, text in enumerate(exchange(message)):
        if text:
            raise failure(text if _count() == 1 else f"{_name(number)}: {text}")
    return result  # pyright: ignore[reportReturnType]
