"""Checks that the processes of a job agree before they train: one run, one folder, one text, the same checkpoints."""

import hashlib
import time
from pathlib import Path

import jax

from contexture.data.stores import Store
from contexture.data.tokenizers.base import Tokenizer
from contexture.train.distributed import processes
from contexture.train.run.folder import steps, token, versions
from contexture.train.settings.run import Run, fields

_PLACES = ("dir", "data.path", "data.dev", "data.tokenizer", "init.run", "task.train", "task.dev", "task.test")
"""Fields with paths, which may differ between machines: the content of the files is compared instead."""
_MINUTES = 5.0
"""Minutes that the processes wait for each other until all have looked at the folder."""


def agree_on_folder(directory: Path, seconds: float = 10.0) -> None:
    """Raises ConfigError in every process of a job if one of them does not see the folder of process 0.

    seconds: how long a network file system may take to show a new file.
    """
    # Process 0 wrote a random token into the folder's lock; a folder of the same name elsewhere has another one.
    if jax.process_index() == 0:
        processes.publish("token", token(directory))
    else:
        expected, deadline = processes.wait_for("token"), time.monotonic() + seconds
        while token(directory) != expected and time.monotonic() < deadline:
            time.sleep(0.2)
    seen = {"the token in --dir": token(directory) or "none"}
    processes.agree(seen, f"{directory} must be one folder that all processes see", _MINUTES)


def agree_on_content(directory: Path, run: Run, tokenizer: Tokenizer, data: Store | None) -> None:
    """Raises ConfigError in every process of a job if one of them would read another run, text or checkpoint."""
    facts: dict[str, object] = {}
    # run.json holds all settings, and the steps of checkpoints say where each process would resume.
    for name, folder in (("", directory), ("init.run's ", Path(run.init.run) if run.init.run else None)):
        if folder is not None:
            file = folder / "run.json"
            facts[f"{name}run.json"] = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "none"
            facts[f"{name}checkpoints"] = steps(folder / "checkpoints")
    # Fingerprints cover the content of the files, wherever they are.
    facts |= {"the tokenizer": tokenizer.fingerprint, "the data": data.fingerprint if data is not None else "none"}
    processes.agree(facts, "every process must see the same files")


def agree_on_run(run: Run) -> None:
    """Raises ConfigError in every process of a job if one was started with other options, or has other libraries."""
    # Every option but paths, under the names that the user knows from the command line.
    facts: dict[str, object] = {name: value for name, value in fields(run).items() if name not in _PLACES}
    # One kind of device, one version of each library: a step is one program, which all processes must compile alike.
    facts["devices"] = sorted({device.device_kind for device in jax.local_devices()})
    facts |= {f"the version of {name}": number for name, number in versions().items()}
    mend = "start all processes by one command, in one environment, on one kind of device"
    processes.agree(facts, mend, run.mesh.startup_minutes)
