"""The exceptions of training; `DataError` is in data/errors.py."""


class ConfigError(ValueError):
    """The user's options do not fit together; the message gives the value, the expected one, and how to mend it."""


class CheckpointError(Exception):
    """A checkpoint, or the folder of a run, is not what it should be."""


class Diverged(Exception):
    """Losses or gradients have not been finite for too many steps in a row."""


class ProcessLost(Exception):
    """Another process of the job is gone, or never came."""
