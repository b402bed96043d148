"""`contexture plan`: the step that a run trains with, compiled for devices that need not be here."""

import contextlib
import dataclasses
import io
import json
import signal
import subprocess
import sys
from typing import Any, cast

import jax
import pytest
from jax.core import Tracer

from contexture import configs
from contexture.cli import main as cli
from contexture.overrides import with_options
from contexture.train import mesh as meshes
from contexture.train.errors import ConfigError, install_hint
from contexture.train.plan import topology as topologies
from contexture.train.plan.chips import CHIPS, grown, named_devices
from contexture.train.plan.describe import describe, describe_all
from contexture.train.plan.plan import TimedPlan, abstract_step, plan
from contexture.train.plan.suggest import _activations, suggest
from contexture.train.plan.topology import topology
from contexture.train.programs import step_settings
from contexture.train.settings.run import Run
from tests.conftest import ROOT
from tests.helpers.commands import run_command
from tests.helpers.long import long
from tests.models.layers.test_attention_compiled import installed

TINY = ["--model.layers", 2, "--model.hidden", 16, "--model.heads", 2, "--model.ffn", 32, "--model.vocab", 64,
        "--data.length", 16, "--data.batch", 8]  # fmt: skip


def tiny(name: str = "bert.tiny", **mesh: int) -> Run:
    run = configs.recipe(name)
    model = dataclasses.replace(run.model, layers=2, hidden=16, heads=2, ffn=32, vocab=64, unroll=1)
    return dataclasses.replace(
        run, model=model, data=dataclasses.replace(run.data, batch=8, length=16),
        mesh=dataclasses.replace(run.mesh, **mesh),
    )  # fmt: skip


@pytest.fixture(autouse=True)
def eight_devices() -> None:
    """A process that has not started jax yet would be given as many CPU devices as a topology has."""
    assert len(jax.devices()) == 8


@pytest.mark.parametrize("name", long("bert.tiny", "gpt.gpt2_124m"))
def test_a_plans_memory_is_that_of_the_runs_own_step(name):
    run = tiny(name, fsdp=2, tensor=2)
    made = plan(run, topology("cpu:8"), name)
    mesh = meshes.build(run.mesh, jax.devices()[:8])
    with jax.set_mesh(mesh):
        step, state, batch = abstract_step(run, mesh)
        analysis = step.lower(state, batch, step_settings(run)).compile().memory_analysis()
    memory = made["bytes_per_device"]
    saved = memory["saved_activations"] or 0
    own = ("parameters", "optimizer", "carry", "batch")
    # The rest of the arguments are the state's counts; a field of the batch that the step does not read is left out.
    assert abs(analysis.argument_size_in_bytes - sum(memory[kind] for kind in own)) <= 2 * memory["batch"]
    assert saved + memory["temporaries"] == analysis.temp_size_in_bytes
    assert memory["total"] == (analysis.argument_size_in_bytes + analysis.temp_size_in_bytes
                               + analysis.output_size_in_bytes - analysis.alias_size_in_bytes)  # fmt: skip
    assert saved > 0 and made["fits"] and made["warnings"] == []
    assert made["mesh"] == {"data": 2, "fsdp": 2, "tensor": 2} and "flops" in made and "step_ms" not in made
    assert "all-reduce" in made["collectives"] and made["flops"] > 0.8 * made["model_flops"]
    text = describe(made)
    assert "8 of cpu:8 as data 2 × fsdp 2 × tensor 2" in text and "fits" in text and "MFU" not in text


def test_a_states_shapes_are_computed_without_a_device(monkeypatch):
    """Those of a plan are not there: nothing can run on them, not even what makes the key of the parameters."""
    make_key = jax.random.key

    def traced(seed: int) -> jax.Array:
        key = make_key(seed)
        assert isinstance(key, Tracer)
        return key

    monkeypatch.setattr(jax.random, "key", traced)
    run = tiny()
    step, state, batch = abstract_step(run, meshes.build(run.mesh, jax.devices()[:8]))
    assert state.step.shape == () and batch and step


@pytest.mark.long
def test_where_no_loop_goes_over_the_layers_what_is_kept_is_unknown():
    run = tiny()
    made = plan(dataclasses.replace(run, model=dataclasses.replace(run.model, unroll=0)), topology("cpu:8"))
    memory = made["bytes_per_device"]
    assert memory["saved_activations"] is None and memory["temporaries"] > 0
    assert ", saved activations –, temporaries " in describe(made)


def test_the_command_prints_one_json_object(capsys):
    words = ["plan", "bert.tiny", "--topology", "cpu:8", *TINY, "--model.dropout", 0, "--model.attention-dropout", 0]
    assert cli.main([str(word) for word in (*words, "--json")]) == 0
    made = json.loads(capsys.readouterr().out)
    memory, available = made["bytes_per_device"], made["bytes_per_device"].pop("available", None)
    assert made["fits"] == (available is None or memory["total"] <= available) and made["warnings"] == []
    counted = memory["optimizer"] - 2 * memory["parameters"]  # beside the moments, how many steps they have seen
    assert memory["parameters"] == 4 * made["parameters"] and counted in (0, 4) and memory["batch"] > 0
    assert made["flops"] > 0.8 * made["model_flops"] and "all-reduce" in made["collectives"]
    memory["available"] = available
    assert "8 of cpu:8 as data 8" in describe(made)
    assert made["recipe"] == "bert.tiny" and made["batch"] == 8 and made["devices"] == 8
    assert made["largest_arrays"][0].keys() == {"bytes", "array", "opcode", "source"}


def test_plans_are_a_table_with_dashes_for_what_does_not_compile():
    plan: Any = {
        "mesh": {"data": 2, "fsdp": 4, "tensor": 1}, "batch": 8, "accumulate": 1, "remat": "", "fits": False,
        "attention": "reference: as asked", "bytes_per_device": {"total": 3 << 29},
    }  # fmt: skip
    head, row, last = describe_all([plan]).splitlines()
    assert head.split("  ")[0].strip() == "mesh" and last == "nothing fits; give more devices"
    assert row.split() == ["2×4×1", "8", "1", "–", "reference", "1.5", "NO", "–", "–", "–", "–"]


@pytest.mark.long
def test_suggestions_are_ranked_and_named_as_options(monkeypatch):
    monkeypatch.setattr("contexture.train.plan.suggest.MAX_PROGRAMS", 2)
    plans = suggest(tiny(), topology("cpu:8"), "bert.tiny")
    assert 1 <= len(plans) <= 2 and plans[0]["fits"]
    text = describe_all(plans)
    assert "options: --mesh.data" in text and "--optim.accumulate" in text


@pytest.mark.parametrize(
    ("name", "fsdp", "tensor", "sequences", "remat", "compiled"),
    [
        ("gpt.gpt3_6_7b", 16, 4, 30, "dots", 63.2),
        ("gpt.gpt3_13b", 16, 4, 15, "none", 117.9),
        ("gpt.gpt3_13b", 8, 8, 30, "none", 188.9),
        ("gpt.gpt3_13b", 8, 8, 15, "none", 96.5),
    ],
)
def test_the_estimate_of_a_microbatch_is_what_a_compiled_step_needs(name, fsdp, tensor, sequences, remat, compiled):
    """compiled: GiB of a device without the state, of the step on v5p:4x4x4."""
    run = configs.recipe(name)
    run = dataclasses.replace(run, mesh=dataclasses.replace(run.mesh, fsdp=fsdp, tensor=tensor))
    assert 0.94 * compiled < _activations(run, sequences, remat) / 2**30 < compiled


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "plan needs the devices: --topology v5e:4x4"),
        (["--topology", "v9:2x2"], "there is no chip 'v9'; give v4, v5e, v5p, v6e, h200, h100, a100, a100-40g, "),
        (["--topology", "v5e"], "topology='v5e' is not CHIP:SIZE"),
        (["--topology", "v5e:44"], "topology='v5e:44' is not CHIP:SIZE; give v4, v5e, v5p, v6e, "),
        (["--topology", "v5litepod-12"], "there is no slice 'v5litepod-12': the number of its chips is a power"),
        (["--topology", "v5p-7"], "there is no slice 'v5p-7'"),
        (["--topology", "a100-60g:8"], "there is no chip 'a100-60g'"),
        (["--topology", "cpu:8", "--task.kind", "classify", "--optim.frozen", "backbone"],
         "with optim.frozen=backbone a step trains the heads alone, on stored features of the backbone, and needs"),
        (["--topology", "cpu:8", "--task.kind", "classify", "--config", "no.yaml"], "--config no.yaml: no such file"),
        (["--topology", "cpu:8", "--task.kind", "classify", "--optim.lora-alpha", "16"],
         "optim.lora-alpha has no meaning without adapters"),
        (["--topology", "t4:"], "topology='t4:' is not CHIP:SIZE"),
        (["--topology", "cpu:8", "--task.kind", "classify", "--data.path", "a"], "--data.path is for pretraining on"),
        (["--topology", "cpu:8", "--task.kind", "classifies"], "there is no task 'classifies' (did you mean"),
        (["--topology", "v5p:2x2x2x2"], "topology='v5p:2x2x2x2' is not CHIP:SIZE"),
        (["--topology", "v5e:0x2"], "topology='v5e:0x2' is not CHIP:SIZE"),
        (["--topology", "h100:1x2x3"], "topology='h100:1x2x3' is not CHIP:SIZE"),
        (["--topology", "cpu:2x2"], "topology='cpu:2x2' is not CHIP:SIZE"),
        (["--topology", "cpu:99999"], "topology='cpu:99999' is not CHIP:SIZE"),
        (["--topology", "cpu:64"], "topology='cpu:64': jax has started with 8 CPU devices"),
        (["--topology", "cpu:8", "--mesh.fsdp", "3"], "mesh data × fsdp × tensor = 2 × 3 × 1 = 6 does not fit"),
        (["--topology", "cpu:8", "--data.batch", "9"], "data.batch=9 is not a multiple of"),
        (["--topology", "cpu:8", "--mesh.compiler-options", "xla_no_such=1"],
         "mesh.compiler-options=xla_no_such=1: XLA refuses it for these devices"),
        (["--topology", "cpu:8", "--mesh.compiler-options", "nothing"],
         "mesh.compiler-options='nothing' is not name=value"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(capsys, words, line):
    code, stderr = run_command(capsys, "plan", "bert.tiny", *TINY, *words)
    assert code == 2 and line in stderr.splitlines()[-1], stderr


@pytest.mark.parametrize(
    ("text", "chip", "sizes"),
    [
        ("v5litepod-4", "v5e", (2, 2)),
        ("v5litepod-8", "v5e", (2, 4)),
        ("v5litepod-16", "v5e", (4, 4)),
        ("v5e-256", "v5e", (16, 16)),
        ("v6e-64", "v6e", (8, 8)),
        ("v4-8", "v4", (2, 2, 1)),  # of two cores each: four chips
        ("v4-32", "v4", (2, 2, 4)),
        ("v5p-128", "v5p", (4, 4, 4)),
        ("V5E:4x4", "v5e", (4, 4)),
        ("a100-80g:8", "a100", (8,)),
        ("a100_80GB:8", "a100", (8,)),
        ("A100-40GB:2x8", "a100-40g", (2, 8)),
        ("rtx4090:1", "rtx4090", (1,)),
        ("RTX-4090", "rtx4090", (1,)),
        ("t4", "t4", (1,)),
        ("nvidia-l4:4", "l4", (4,)),
        ("h100", "h100", (1,)),
        ("cpu:8", "cpu", (8,)),
        ("cpu", "cpu", ()),
        ("v5e", "v5e", ()),
        ("v5litepod-1", "v5e", (1, 1)),
        ("v6e-1", "v6e", (1, 1)),
        ("v4-2", "v4", ()),
        ("v4-9", "v4", ()),
        ("v5e:", "v5e", ()),
    ],
)
def test_devices_are_named_as_people_name_them(text, chip, sizes):
    assert named_devices(text) == (chip, sizes)


def test_devices_are_doubled():
    for text, sizes in {
        "v5e:2x2": (2, 4), "v5e:4x4": (4, 8), "v5p:2x2x1": (2, 2, 2), "v5p:4x4x4": (4, 4, 8), "t4:1": (1, 2),
        "h100:1x4": (1, 8), "h100:1x8": (2, 8), "h100:8": (2, 8), "h100:2x8": (4, 8),
    }.items():  # fmt: skip
        assert grown(*named_devices(text)) == sizes


@pytest.mark.parametrize(("name", "extra"), [("v5e:2x2", "plan-tpu"), ("h100:1x8", "plan-gpu")])
def test_a_compiler_that_is_missing_is_said_with_its_extra(capsys, monkeypatch, name, extra):
    monkeypatch.setattr(topologies.importlib.util, "find_spec", lambda name: None)
    code, stderr = run_command(capsys, "plan", "bert.tiny", "--topology", name)
    assert code == 2 and stderr.endswith(f"which is not installed; {install_hint(extra)}")


def test_options_of_xla_reach_the_step_and_the_users_win(monkeypatch):
    assert [*meshes._COMPILER_OPTIONS["gpu"].values()] == 3 * [True]  # all kinds of messages overlap with products
    run = tiny()
    mesh = meshes.build(run.mesh, jax.devices()[:8])
    monkeypatch.setitem(meshes._COMPILER_OPTIONS, "cpu", {"xla_cpu_enable_fast_math": True, "xla_dump_to": ""})
    config = dataclasses.replace(run.mesh, compiler_options=("xla_cpu_enable_fast_math=false", "xla_a=3", "xla_b=x=y"))
    assert meshes.compiler_options(config, mesh) == {
        "xla_cpu_enable_fast_math": False, "xla_dump_to": "", "xla_a": 3, "xla_b": "x=y",
    }  # fmt: skip


@pytest.mark.usefixtures("own_programs")
def test_the_step_is_compiled_with_these_options(monkeypatch):
    monkeypatch.setitem(meshes._COMPILER_OPTIONS, "cpu", {"xla_no_such": 1})
    with pytest.raises(ConfigError, match="the step does not compile for these devices: .*xla_no_such"):
        plan(tiny(), topology("cpu:8"), "bert.tiny")


def test_what_is_no_network_between_slices_is_refused():
    for gbps in (0.0, -1.0, float("nan")):
        with pytest.raises(ConfigError, match="slice-gbps=.* is not above 0 gigabits a second"):
            topology("2*v5e:2x2", gbps)
    for text in ("2*h100:1x8", "2*cpu:8", "0*v5e:2x2", "2*"):
        with pytest.raises(ConfigError):
            topology(text)


def test_a_float32_product_on_a_tpu_takes_six_passes():
    chip = CHIPS["v5e"]
    assert chip.seconds({"bf16": 197e12}) == pytest.approx(1)
    assert chip.seconds({"f32:highest": 197e12}) == pytest.approx(6)
    assert chip.seconds({"f32": 197e12}) == pytest.approx(1)  # one pass, as by default


@pytest.mark.long
@pytest.mark.parametrize("name", ["v5e:2x2", "v6e:2x2", "v5p:2x2x1", "h200:1x4", "h100:1x4", "a100:1x4"])
def test_a_step_is_planned_for_devices_that_are_not_here(name):
    platform = CHIPS[name.partition(":")[0]].platform
    if not installed({"tpu": "libtpu", "gpu": "jax_plugins.xla_cuda13"}[platform]):
        pytest.skip(f"needs the compiler for {name}: pip install '.[plan-{platform}]'")
    words = [sys.executable, "-m", "contexture", "plan", "bert.tiny", "--topology", name, "--json"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    made = json.loads(done.stdout)
    assert made["fits"] and made["attention"].startswith("pallas") and made["warnings"] == []
    assert 0 < made["mfu"] < 1 and made["bound_by"] in made["milliseconds"]
    assert 0.9 < made["flops"] / made["model_flops"] < 1.6
    # Each compiler knows the options that are set for its devices, and gets no other's.
    options = made["compiler_options"]
    assert options and all(option.startswith("xla_gpu") == (platform == "gpu") for option in options)


@pytest.mark.long
@pytest.mark.parametrize("recipe", ["bert.large", "gpt.gpt2_355m"])
def test_gradients_are_all_that_two_slices_send_each_other(recipe):
    """Each device sends its shard of the gradient, in at most the dtype of the parameters, and no activation. A table
    that embeddings and softmax share is sent once. The width fills the tiles of a TPU."""
    if not installed("libtpu"):
        pytest.skip("needs the compiler for v5e: pip install '.[plan-tpu]'")
    made = planned(recipe, "2*v5e:2x2", "--mesh.fsdp", "4", "--model.layers", "2", "--data.batch", "32")
    assert (made["mesh"], made["devices"]) == ({"data": 2, "fsdp": 4, "tensor": 1}, 8)
    shards = made["bytes_per_device"]["parameters"]
    assert shards / 2 < made["between_slices"]["bytes"] < shards * 1.03
    # Twice as slow a network, twice the time.
    slower = planned(recipe, "2*v5e:2x2", "--mesh.fsdp", "4", "--model.layers", "2", "--data.batch", "32",
                     "--slice-gbps", "12.5")  # fmt: skip
    assert slower["milliseconds"]["slices"] == pytest.approx(2 * made["milliseconds"]["slices"])


def planned(recipe: str, topology: str, *options: str) -> dict[str, Any]:
    words = [sys.executable, "-m", "contexture", "plan", recipe, "--topology", topology, *options, "--json"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_what_too_large_a_step_needs_is_read_of_the_compilers_refusal():
    from contexture.train.plan import plan as planning

    class Refusing:
        def __init__(self, text: str) -> None:
            self.text = text

        def lower(self):
            return self

        def compile(self):
            raise jax.errors.JaxRuntimeError(self.text)

    gib = 2**30
    for text, temporaries, total in (
        ("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 22.60G of 15.75G hbm. Exceeded", 20.6, 22.6),
        (
            "Ran out of memory on HBM, the total memory required for HLO temporaries (99.5G) exceeds available",
            99.5,
            101.5,
        ),
    ):
        compiled, used = planning._compile(Refusing(text), 2 * gib)
        assert compiled is None and used == pytest.approx((temporaries * gib, total * gib))
    with pytest.raises(ConfigError, match="does not compile for these devices: INTERNAL: why"):
        planning._compile(Refusing("INTERNAL: why\nmore"), 0)


def timed(run: Run) -> TimedPlan:
    """A plan with the times of a v5e, of the program for this machine."""
    cpus = topology("cpu:8")
    return cast(TimedPlan, plan(run, dataclasses.replace(cpus, chip=CHIPS["v5e"]), "bert.tiny"))


@pytest.mark.long
def test_epochs_and_a_ramp_of_batches_are_billed_as_such(capsys):
    run = dataclasses.replace(tiny(), steps=100)
    whole = timed(run)
    assert whole["days"] == pytest.approx(100 * whole["step_ms"] / 8.64e7)
    assert whole["chip_hours"] == pytest.approx(24 * 8 * (whole["days"] or 0))
    ramp = dataclasses.replace(run.data, ramp_from=4, ramp_steps=50)
    small = dataclasses.replace(run, data=ramp)
    assert timed(small)["days"] == pytest.approx(0.75 * (whole["days"] or 0))
    epochs = timed(dataclasses.replace(run, steps=0, epochs=2.0))
    assert epochs["steps"] is epochs["days"] is epochs["chip_hours"] is None
    assert "the run counts in epochs; give --steps" in describe(epochs) and "–" in describe_all([epochs])
    code, stderr = run_command(capsys, "plan", "bert.tiny", "--topology", "cpu:8", "--suggest", *TINY,
                               "--data.ramp-from", 4, "--data.ramp-steps", 50)  # fmt: skip
    assert code == 2 and stderr.endswith("--suggest plans one size of batch; leave --data.ramp-from out")


@pytest.mark.long
def test_the_options_of_a_suggestion_are_those_of_its_plan():
    made = timed(tiny())
    best: TimedPlan = {**made, "attention": "reference: as asked", "remat": "dots", "accumulate": 4}
    line = describe_all([best, made]).splitlines()[-1]
    assert line == ("options: --mesh.data 8 --mesh.fsdp 1 --mesh.tensor 1 --data.batch 8 --optim.accumulate 4 "
                    "--model.remat dots --model.unroll 1 --model.attention reference")  # fmt: skip


def test_help_names_the_options_of_a_plan():
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert cli.main(["plan", "--help"]) == 0
    assert "--topology" in out.getvalue() and "--suggest" in out.getvalue()


def test_an_interrupt_ends_a_plan_while_it_compiles(door):
    process = door("plan", "bert.large", "--topology", "cpu:8", "--model.unroll", "24", wait=False)
    line = process.stderr.readline()
    assert line.startswith("compiling bert.large for cpu:8"), line + process.stderr.read()
    process.send_signal(signal.SIGINT)
    # At once, and not when the compiler returns.
    assert process.communicate(timeout=20) == ("", "Ctrl-C: stopped; the same command starts again\n")
    assert process.returncode == 130


@pytest.mark.long
def test_each_phase_of_a_run_is_planned(capsys: pytest.CaptureFixture[str]):
    words = ["plan", "bert.tiny", "--topology", "cpu:8", *TINY[:-4], "--data.phases", "16x8:4 32x16:4"]
    assert cli.main([*map(str, words), "--json"]) == 0
    plans = json.loads(capsys.readouterr().out)["phases"]
    assert [(each["length"], each["batch"], each["fits"]) for each in plans] == [(16, 8, True), (32, 16, True)]
    assert plans[0]["flops"] < plans[1]["flops"]


def test_suggestions_are_for_one_length():
    run = with_options(configs.recipe("bert.tiny"), {"data.phases": "16x8:4 32x16:4"})
    with pytest.raises(ConfigError, match="--suggest plans one size of batch; leave --data.phases out"):
        suggest(run, topology("cpu:8"))


def test_a_phase_that_devices_cannot_share_is_refused_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """Before the phases in front of it are compiled, which takes minutes."""
    monkeypatch.setattr("contexture.train.plan.plan.plan", lambda *_: pytest.fail("compiled"))
    words = ["plan", "bert.tiny", "--topology", "cpu:8", *TINY[:-4], "--data.phases", "16x8:4 32x4:4"]
    assert cli.main([*map(str, words)]) == 2
    assert "data.batch=4 is not a multiple of optim.accumulate × mesh.data" in capsys.readouterr().err
