"""The exceptions of training; `DataError` is in data/errors.py."""


class ConfigError(ValueError):
    """The user's options do not fit together; the message gives the value, the expected one, and how to mend it."""


def install_hint(extra: str) -> str:
    """Returns how to install an extra of pyproject.toml; README.md says where the command is run."""
    return f"install it in the clone: pip install -e '.[{extra}]'"


class CheckpointError(Exception):
    """A checkpoint, or the folder of a run, is damaged, missing or does not fit."""


class Diverged(Exception):
    """Losses or gradients have not been finite for too many steps in a row."""


class ProcessLost(Exception):
    """Another process of the job is gone, or never joined."""
