"""Every metric says which way it is better, and the best checkpoint is chosen by that."""

import dataclasses
import re
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from contexture import configs
from contexture.data.config import TaskConfig
from contexture.models.config import ElmoConfig, HeadConfig
from contexture.models.families import example
from contexture.train import metric_directions as metrics
from contexture.train.checkpoints.transfer import model_of
from contexture.train.errors import ConfigError
from contexture.train.evaluation import task_metrics
from contexture.train.evaluation.best import note_better, unigram_baseline, value_to_minimise
from contexture.train.evaluation.held_out import measured
from contexture.train.evaluation.predictions import metric_names
from contexture.train.metric_directions import Best
from contexture.train.objectives import OBJECTIVES, batch_fields, batch_sizes, objective_of
from contexture.train.plan.chips import CHIPS
from contexture.train.run import throughput
from contexture.train.run.throughput import PEAK_FLOPS, ThroughputMeter, peak_flops, unknown_peak
from contexture.train.settings.run import Run
from tests.helpers.long import long

SMALL = {"layers": 2, "hidden": 8, "heads": 2, "ffn": 8, "vocab": 20, "length": 16}
ELMO = ElmoConfig(vocab=9, char_width=3, filters=((1, 4),), highway=1, cells=6, projection=4, layers=1)
LABELS = {"classify": ("no", "yes"), "tag": ("O", "B-x", "I-x"), "choice": ("a", "b"), "regress": (), "span": ()}


def small(name: str) -> Run:
    """A recipe with a model small enough to build."""
    run = configs.recipe(name)
    sizes = SMALL if name[:4] != "elmo" else dataclasses.asdict(ELMO) | {"filters": ELMO.filters}
    data = dataclasses.replace(run.data, length=8, max_predictions=2, batch=2, negatives=3)
    return dataclasses.replace(run, model=dataclasses.replace(run.model, **sizes), data=data)


def tuned(name: str, kind: Any, lm_weight: float = 0.0, **more: Any) -> Run:
    run = small(name)
    data = dataclasses.replace(configs.task(kind).data, length=8)
    task = TaskConfig(kind=kind, lm_weight=lm_weight)
    return dataclasses.replace(configs.task(kind), model=run.model, data=data, task=task, **more)


def every_run() -> list[Run]:
    mix = HeadConfig(mix="all", mix_l2=0.1, cells=4)
    runs = [with_boundary(), small("bert.tiny"), small("gpt.tiny"), small("elmo.tiny")]
    for kind in LABELS:
        runs.append(tuned("bert.tiny", kind))
        runs.append(tuned("gpt.tiny", kind, lm_weight=0.5))
        if kind != "choice":
            runs += [tuned("bert.tiny", kind, head=mix), tuned("elmo.tiny", kind, head=mix)]
    runs.append(tuned("elmo.tiny", "tag", head=dataclasses.replace(mix, crf=True)))
    return runs


def with_boundary() -> Run:
    run = small("bert.tiny")
    return dataclasses.replace(run, data=dataclasses.replace(run.data, masking="spans", span_boundary=True))


def runs_of_every_metric() -> list[Run]:
    """The least of them that measure all there is."""
    mix = HeadConfig(mix="all", mix_l2=0.1, cells=4)
    runs = [
        with_boundary(),
        small("bert.tiny"),
        small("gpt.tiny"),
        small("elmo.tiny"),
        tuned("gpt.tiny", "choice", lm_weight=0.5),
    ]
    runs += [tuned("bert.tiny", kind) for kind in ("classify", "regress", "span")]
    return [*runs, tuned("elmo.tiny", "tag", head=dataclasses.replace(mix, crf=True))]


def measured_by(run: Run) -> set[str]:
    """The names of all that a run's training and its evaluation measure."""
    labels = LABELS.get(run.objective, ())
    model, objective = model_of(run, labels), objective_of(run)
    batch = example(batch_fields(run), batch_sizes(run, 2))
    params = jax.eval_shape(lambda: model.init(jax.random.key(0), batch))["params"]
    trained = jax.eval_shape(
        lambda params: objective.sums(model.apply({"params": params}, batch, mutable=["carry"])[0], batch), params
    )
    no_store: Any = None  # read by the objective of held-out text alone
    of_task = metric_names(run.objective, labels, (1, 1)) if labels or run.objective in ("regress", "span") else []
    return {*trained, *measured(model, objective, run, params, no_store), *of_task}


@pytest.mark.parametrize("runs_of", [runs_of_every_metric, *long(every_run)])
def test_every_metric_that_is_measured_has_a_direction(runs_of):
    runs = runs_of()
    assert {run.objective for run in runs} == OBJECTIVES.keys() - {"static"}  # static vectors alone measure nothing
    measured = set().union(*map(measured_by, runs))
    baselines = {
        *unigram_baseline(np.ones(3), np.ones(3)),
        *task_metrics.majority([1, 2], np.array([0])),
        *task_metrics.mean_guess(0.0, np.array([1.0])),
    }
    baselines |= {"majority_exact_match"}
    # A threshold is no score.
    measured = {name for name in measured if not name.endswith("_threshold")}
    assert measured | baselines == metrics.BETTER.keys()
    assert {"full_perplexity", "sampled_perplexity", "mix_penalty", "entity_f1", "mae", "spearman"} <= measured


@pytest.mark.parametrize("metric", metrics.BETTER)
def test_the_best_is_the_lowest_or_the_highest_as_its_metric_wants(metric: str):
    lower = any(word in metric for word in ("loss", "perplexity", "penalty", "mse", "mae"))
    best = Best(metric)
    for step, value in enumerate([2.0, 3.0, 1.0], 1):
        best.update(step, value_to_minimise(metric, {"loss": 0.0, metric: value}))
    assert best.step == (3 if lower else 2)


DATA_SHEETS = {
    "B200": 2250e12, "H[12]00 NVL": 835e12, "H200|H100 80GB HBM3": 989e12, "H100 PCIe": 756e12, "A100.*": 312e12,
    "L40S": 362e12, "L40": 181e12, "L4": 121e12, "V100-SXM2-..GB": 125e12, "V100-PCIE-..GB": 112e12,
    "v?7x": 2307e12 / 2, "v6( lite|e)": 918e12, "v5p?": 459e12, "v5( lite|e)": 197e12, "v4": 275e12,
    "v3": 123e12 / 2, "v2": 45e12 / 2,
}  # fmt: skip


@pytest.mark.parametrize("kind", PEAK_FLOPS)
def test_a_devices_peak_is_that_of_its_data_sheet(kind: str):
    """Of a jax device: half of a TPU v3's chip."""
    peaks = [peak for name, peak in DATA_SHEETS.items() if re.fullmatch(f"(NVIDIA |Tesla |TPU ?)({name})", kind)]
    assert [peak_flops(kind)] == peaks and len(PEAK_FLOPS) == 29


@pytest.mark.parametrize("name", sorted(CHIPS.keys() - {"t4", "rtx4090"}))
def test_a_plan_and_a_run_know_the_same_peak(name: str):
    device = re.search(r'device_description_str: "(.*)"', CHIPS[name].target)
    assert peak_flops(device[1] if device else f"TPU {name}") == CHIPS[name].bf16


def test_a_device_of_another_name_has_no_peak():
    """Longer, shorter or otherwise written: it is another chip."""
    kinds = [other for kind in PEAK_FLOPS for other in (kind + " X", kind[:-1], kind.upper() + " ", "The " + kind)]
    unknown = [kind for kind in kinds if kind not in PEAK_FLOPS]
    assert len(unknown) > 100 and {peak_flops(kind) for kind in [*unknown, "cpu", "", "NVIDIA L4000"]} == {None}


def test_a_chip_without_a_known_peak_has_no_utilisation():
    for kind, known in (("NVIDIA L40S", True), ("NVIDIA L400", False), ("cpu", False)):
        meter = ThroughputMeter(small("gpt.tiny"), 1, kind, 0)
        meter.records([1], [{}])
        assert ("mfu" in meter.records([2], [{}])[0]) == known


def test_the_time_left_counts_the_evaluations_and_saves_to_come(monkeypatch):
    """Steps of 0.1 s, evaluations of 12 s every 10 steps and saves of 3 s every 30; 95 steps, the last with both."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(throughput.time, "perf_counter", lambda: clock.now)
    run = small("gpt.tiny")
    run = dataclasses.replace(run, steps=95, evaluate=dataclasses.replace(run.evaluate, every=10))
    run = dataclasses.replace(run, save=dataclasses.replace(run.save, every=30))
    meter, left = ThroughputMeter(run, 1, "cpu", 0), {}
    for step in range(1, 96):
        clock.now += 0.1
        if step % 5 == 0:
            (record,) = meter.records([step], [{}])
            left[step] = record.get("seconds_left")
        if step % 10 == 0:
            with meter.pausing("evaluation"):
                clock.now += 12
        if step % 30 == 0:
            with meter.pausing("save"):
                clock.now += 3
    assert left[10] == pytest.approx(8.5)  # none is known yet
    assert left[25] == pytest.approx(7.0 + 8 * 12)
    assert left[60] == pytest.approx(3.5 + 4 * 12 + 2 * 3)
    assert left[90] == pytest.approx(0.5 + 12 + 3)


def test_an_accelerator_without_a_known_peak_is_named_in_one_line():
    def line(platform: str, kind: str) -> str:
        device: Any = SimpleNamespace(platform=platform, device_kind=kind)
        return unknown_peak(device)

    assert line("gpu", "NVIDIA L400").startswith("the peak FLOP/s of 'NVIDIA L400' is not known: ")
    assert line("gpu", "NVIDIA L40S") == line("cpu", "cpu") == ""


def test_a_metric_without_a_direction_is_refused():
    with pytest.raises(ConfigError, match="evaluate.metric=bleu has no direction.*choose one of loss"):
        value_to_minimise("bleu", {"loss": 1.0, "bleu": 0.5})


def evaluations(metric: str, *values: float | None) -> list[dict[str, Any]]:
    """Records of the steps 0, 10, 20, …, with those of training between."""
    held = [{"step": 10 * n, "split": "dev", metric: value} for n, value in enumerate(values)]
    return [line for record in held for line in ({"step": record["step"], "split": "train", metric: 0.0}, record)]


@pytest.mark.parametrize(("metric", "values"), [("loss", (0.1, 0.9, 0.3, 0.5)), ("f1", (0.99, 0.1, 0.9, 0.5))])
def test_a_better_step_without_a_checkpoint_is_named(metric: str, values: Any):
    records = evaluations(metric, *values)
    note = note_better(records, metric, 30, [10, 30]) or ""
    assert note.startswith(f"step 20 was better than step 30 ({metric} {values[2]} against 0.5), but there is no")
    assert "--evaluate.patience saves" in note and "--save.every" in note and "\n" not in note


@pytest.mark.parametrize(
    ("values", "best", "saved"),
    [
        ((None, 0.9, 0.3, 0.5), 20, [20, 30]),  # the best has one
        ((None, 0.3, 0.3), 20, [20]),  # as good is not better
        ((0.1, 0.3), 10, [10]),  # step 0 is another run's
        ((None, None, 0.3), 20, [20]),  # a loss that was not finite
        ((None, 0.1), 20, [20]),  # the figures of the best are lost
        ((), 20, [20]),
    ],
)
def test_no_better_step_is_named_where_there_is_none(values: Any, best: int, saved: list[int]):
    assert note_better(evaluations("loss", *values), "loss", best, saved) is None
