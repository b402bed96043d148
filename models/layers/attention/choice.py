"""Which implementation of attention a device gets."""

from typing import NamedTuple

from contexture.models.config import TransformerConfig


class Choice(NamedTuple):
    name: str
    """reference, pallas or cudnn."""
    why: str


def choose(config: TransformerConfig, platform: str, packed: bool = False) -> Choice:
    """Returns what computes a model's attention on a platform, and why.

    Args:
        config: the model's configuration.
        platform: `sharding.platform`.
        packed: whether sequences hold several documents.

    Raises:
        ValueError: when what the configuration asks for does not go there.
    """
    # cuDNN is the fastest where it goes, but goes in few cases; what it lacks is the reason given for the next best.
    without = _why_not_cudnn(config, platform, packed)
    if config.attention == "cudnn" and without:
        raise ValueError(f"model.attention=cudnn does not go {without}; give --model.attention auto")
    if config.attention == "pallas" and platform not in ("cpu", "tpu", "gpu"):
        raise ValueError(f"model.attention=pallas does not go on {platform}; give --model.attention auto")
    # Pallas' interpreter: for tests of the kernel on a machine without a TPU.
    if config.attention == "pallas" and platform == "cpu":
        return Choice("pallas", "as asked for; a CPU interprets the kernel, which is slow")
    if config.attention != "auto":
        return Choice(config.attention, "as asked for")
    if platform == "tpu":
        return Choice("pallas", "a kernel that never stores the weights, for TPUs")
    # A CPU, and TPUs whose generation the kernel was not made for (`sharding.platform`).
    if platform != "gpu":
        return Choice("reference", f"no kernel for {platform}")
    if without:
        return Choice("pallas", f"a kernel that never stores the weights, for GPUs; cuDNN's does not go {without}")
    return Choice("cudnn", "the fastest kernel on NVIDIA GPUs")


def _why_not_cudnn(config: TransformerConfig, platform: str, packed: bool) -> str:
    # What `cudnn.attend` does not pass on to the kernel, and what the kernel does not take.
    if platform != "gpu":
        return f"on {platform}"
    if not config.is_causal:
        return "with padding, which it takes on the right alone"
    if packed:
        return "with packed text"
    if config.attention_dropout:
        return f"with model.attention-dropout={config.attention_dropout}"
    if config.local_window:
        return f"with model.local-window={config.local_window}"
    if config.dtype != "bfloat16":
        return f"with model.dtype={config.dtype}"
    width = config.hidden // config.heads
    return f"with heads of {width}" if width % 8 or width > 128 else ""
