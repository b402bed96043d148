"""Which keys a query sees, as a rule that a kernel applies tile by tile; and what computes attention on a device."""

from typing import NamedTuple

import flax.struct
import jax

from contexture.models.config import TransformerConfig
from contexture.models.sharding import is_unsharded

PADDED = -10000.0
"""Added to the logit of a padded key, as in BERT's code. Its weight is 0 in float32 unless all keys are padded: then
the softmax is the same as without it."""
HIDDEN = -1e10
"""Takes the place of the logit of a key that a causal model must not see: its weight is exactly 0."""


@flax.struct.dataclass
class AttentionMask:
    """Which of M keys each of L queries sees: all, but for these rules.

    Args:
        tokens_BM: i32, 1 for tokens, 0 for padding, which PADDED is added to.
        packs_BL: i32, the document of each token; queries see keys of their own document only.
        window: i32 without dims: with `causal`, how many keys up to its own a query sees; None: all. An array, so that
            one program serves the dense and the banded layers of a scan.
        causal: queries see no later key.
        implementation: pallas or cudnn (`choose`).
    """

    tokens_BM: jax.Array | None = None
    packs_BL: jax.Array | None = None
    window: jax.Array | None = None
    causal: bool = flax.struct.field(pytree_node=False, default=False)
    implementation: str = flax.struct.field(pytree_node=False, default="pallas")


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
    # What `attend` does not pass on to the kernel, and what the kernel does not take.
    if platform != "gpu":
        return f"on {platform}"
    if not config.is_causal:
        return "with padding, which it takes on the right alone"
    if packed:
        return "with packed text"
    if not is_unsharded("L"):
        return "with mesh.context, where a device has the queries of a part of a sequence"
    if config.attention_dropout:
        return f"with model.attention-dropout={config.attention_dropout}"
    if config.local_window:
        return f"with model.local-window={config.local_window}"
    if config.dtype != "bfloat16":
        return f"with model.dtype={config.dtype}"
    width = config.hidden // config.heads
    return f"with heads of {width}" if width % 8 or width > 128 else ""
