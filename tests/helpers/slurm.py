"""SLURM of the system's packages on this machine alone, as root: a controller, one node, and munge, its authentication.

On Debian: apt-get install --no-install-recommends slurmctld slurmd slurm-client munge
"""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.helpers.jobs import free_port

_CONFIG = """
ClusterName=local
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmctldPort={controller}
SlurmdPort={node}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobRequeue=1
KillWait=30
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Why SLURM cannot run here; "" where it can."""
    names = [name for name in ("slurmctld", "slurmd", "srun", "munged") if not _program(name)]
    if names:
        return f"needs SLURM: {', '.join(names)} not installed (apt-get install slurmctld slurmd slurm-client munge)"
    return "" if os.geteuid() == 0 else "SLURM's daemons are started as root here"


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")


@contextlib.contextmanager
def running(folder: Path) -> Iterator[dict[str, str]]:
    """SLURM runs while this lasts; gives the environment in which its commands find it."""
    host = socket.gethostname().partition(".")[0]
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    config = _CONFIG.format(host=host, folder=folder, controller=free_port(), node=free_port(), cpus=os.cpu_count())
    (folder / "slurm.conf").write_text(config)
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    try:
        files = {"key-file": key, **{f"{kind}-file": folder / f"munged.{kind}" for kind in ("pid", "log", "seed")}}
        options = [f"--{name}={path}" for name, path in files.items()]
        _start(["munged", "--force", f"--socket={folder}/munge.socket", *options], environment)
        _start(["slurmctld", "-c"], environment)
        _start(["slurmd"], environment)
        deadline = time.monotonic() + 30
        while "idle" not in command(environment, "sinfo", "-h", "-o", "%t"):
            assert time.monotonic() < deadline, (folder / "slurmctld.log").read_text()[-2000:]
            time.sleep(0.2)
        yield environment
    finally:
        _end_steps(folder)
        for name in ("slurmd", "slurmctld", "munged"):
            with contextlib.suppress(OSError, ValueError):
                os.kill(int((folder / f"{name}.pid").read_text()), signal.SIGTERM)


def _end_steps(folder: Path) -> None:
    """Waits for the processes that lead this cluster's jobs, for ten seconds, and ends those that are left."""
    config, mine = str(folder / "slurm.conf"), list[psutil.Process]()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.name().startswith("slurmstepd") and process.environ().get("SLURM_CONF") == config:
                mine.append(process)
    for process in psutil.wait_procs(mine, timeout=10)[1]:
        process.kill()


def _start(words: list[str], environment: dict[str, str]) -> None:
    """Starts a daemon, which goes into the background."""
    program = _program(words[0])
    assert program
    subprocess.run([program, *words[1:]], env=environment, check=True, timeout=30, capture_output=True)


def command(environment: dict[str, str], *words: object) -> str:
    """What a command of SLURM prints."""
    done = subprocess.run([*map(str, words)], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


def log_of(environment: dict[str, str]) -> str:
    """The last lines of the node's log."""
    return (Path(environment["SLURM_CONF"]).parent / "slurmd.log").read_text()[-2000:]


def state_of(environment: dict[str, str], job: str) -> dict[str, str]:
    """What the controller says of a job: {"JobState": "RUNNING", "Restarts": "0", …}."""
    text = command(environment, "scontrol", "--oneliner", "show", "job", job)
    return dict(word.split("=", 1) for word in text.split() if "=" in word)
