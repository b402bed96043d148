"""What the processes of a job must agree on before they train: one run, one folder, one text, the same checkpoints."""

import hashlib
import time
from pathlib import Path
from typing import Any

import jax

from contexture.data.pretraining.shards import Shards
from contexture.data.tasks.example_store import ExampleStore
from contexture.data.tokenizers.base import Tokenizer
from contexture.train.config import Run, fields
from contexture.train.distributed import processes
from contexture.train.run.folder import steps, token, versions

_PLACES = ("dir", "data.path", "data.dev", "data.tokenizer", "init.run", "task.train", "task.dev", "task.test")
"""Where files lie, which machines may name in different ways: what they hold is compared."""
_MINUTES = 5.0
"""How long the processes wait for each other to look at the folder."""


def agree_on_folder(directory: Path, seconds: float = 10.0) -> None:
    """Raises ConfigError in every process of a job where one of them does not see the folder of process 0. seconds: how
    long a network's file system may take to show a new file."""
    if jax.process_index() == 0:
        processes.publish("token", token(directory))
    else:
        wanted, deadline = processes.wait_for("token"), time.monotonic() + seconds
        while token(directory) != wanted and time.monotonic() < deadline:
            time.sleep(0.2)
    seen = {"the token in --dir": token(directory) or "none"}
    processes.agree(seen, f"{directory} must be one folder that all processes see", _MINUTES)


def agree_on_content(directory: Path, run: Run, tokenizer: Tokenizer, data: Shards | ExampleStore | None) -> None:
    """Raises ConfigError in every process of a job where one of them would read another run, text or checkpoint."""
    facts: dict[str, Any] = {}
    for name, folder in (("", directory), ("init.run's ", Path(run.init.run) if run.init.run else None)):
        if folder is not None:
            file = folder / "run.json"
            facts[f"{name}run.json"] = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "none"
            facts[f"{name}checkpoints"] = steps(folder / "checkpoints")
    facts |= {"the tokenizer": tokenizer.fingerprint, "the data": data.fingerprint if data is not None else "none"}
    processes.agree(facts, "every process must see the same files")


def agree_on_run(run: Run) -> None:
    """Raises ConfigError in every process of a job where one was started in another way, or with other libraries."""
    facts: dict[str, Any] = {name: value for name, value in fields(run).items() if name not in _PLACES}
    facts["devices"] = sorted({device.device_kind for device in jax.local_devices()})
    facts |= {f"the version of {name}": number for name, number in versions().items()}
    mend = "start all processes by one command, in one environment, on one kind of device"
    processes.agree(facts, mend, run.mesh.startup_minutes)
