"""Features in which one layer alone holds the label: what a probe must find there is known."""

import numpy as np

from contexture.analysis.probing.probe_examples import ProbeExamples


def synthetic_task(
    count: int,
    *,
    layers: int = 4,
    width: int = 12,
    labels: int = 3,
    carrier: int | None = 2,
    spans: int = 1,
    seed: int = 0,
    shares: tuple[float, ...] = (),
) -> tuple[ProbeExamples, np.ndarray]:
    """Targets of one unit a span, and their features, f32 UND: noise in all layers, and in layer `carrier` the label,
    one-hot. shares: how frequent each label is."""
    rng = np.random.default_rng(seed)
    units_UND = rng.normal(size=(count * spans, layers, width)).astype(np.float32)
    drawn = rng.choice(labels, count, p=shares or None)
    if carrier is not None:
        for span in range(spans):
            units_UND[np.arange(count) * spans + span, carrier, :labels] = 4 * np.eye(labels)[drawn]
    begins = np.arange(count * spans).reshape(count, spans)
    words = [tuple((f"w{n}",) for n in own) for own in begins]
    spans_TS2 = np.stack([begins, begins + 1], -1)
    return ProbeExamples(spans_TS2, np.eye(labels, dtype=bool)[drawn], np.zeros(count, int), words, 0, {}), units_UND


def joined(
    train: tuple[ProbeExamples, np.ndarray], dev: tuple[ProbeExamples, np.ndarray]
) -> tuple[ProbeExamples, ProbeExamples, np.ndarray]:
    """Two tasks over one array of features."""
    from dataclasses import replace

    first, second = train[1], dev[1]
    shifted = replace(dev[0], spans_TS2=dev[0].spans_TS2 + len(first))
    return train[0], shifted, np.concatenate([first, second])
