"""What goes wrong in training, as an exception for each kind; `DataError` is beside the data."""


class ConfigError(ValueError):
    """The user's words do not fit together: what is wrong with the value got, what was wanted, how to mend it."""


class CheckpointError(Exception):
    """A checkpoint, or the folder of a run, is not what it should be."""


class Diverged(Exception):
    """Losses or gradients have not been finite for too many steps in a row."""


class ProcessLost(Exception):
    """Another process of the job is gone, or never came."""
