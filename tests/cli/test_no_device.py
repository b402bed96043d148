"""Where jax starts no device, every command that wants one says so in one line."""

import logging
import os

import jax
import pytest

from contexture.train.errors import ConfigError
from contexture.train.mesh import find_devices
from contexture.train.run import plugin_errors
from tests.helpers.logs import logged
from tests.helpers.long import long
from tests.models.layers.test_attention_compiled import COMPILERS, installed
from tests.train.run.test_formats import GOLDEN


@pytest.mark.parametrize(
    "error", [AssertionError(), RuntimeError("Unable to initialize backend 'cuda'\nmore"), OSError(2)]
)
def test_whatever_jax_raises_is_one_line(monkeypatch, error):
    def fail():
        raise error

    monkeypatch.setattr(jax, "devices", fail)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    with pytest.raises(ConfigError) as caught:
        find_devices()
    line = str(caught.value)
    assert line.startswith("jax finds no device for JAX_PLATFORMS=cuda: ") and len(line.splitlines()) == 1
    assert "install the extra [cuda], or unset JAX_PLATFORMS" in line
    assert "Error" not in line.removeprefix("jax finds no device for JAX_PLATFORMS=cuda: ")


@pytest.mark.parametrize(
    ("platform", "mend"),
    [
        ("cuda,cpu", "; install the extra [cuda], or unset JAX_PLATFORMS"),
        ("gpu", "; install the extra [cuda], or unset JAX_PLATFORMS"),
        ("tpu", "; install the extra [tpu], or unset JAX_PLATFORMS"),
        ("bogus", "jax finds no device for JAX_PLATFORMS=bogus: no such thing; set JAX_PLATFORMS=cpu"),
        ("rocm", "; set JAX_PLATFORMS=cpu"),
        ("", "jax finds no device: no such thing; set JAX_PLATFORMS=cpu"),
    ],
)
def test_what_to_install_is_advised_for_platforms_that_have_it(monkeypatch, platform, mend):
    def fail():
        raise RuntimeError("no such thing")

    monkeypatch.setattr(jax, "devices", fail)
    monkeypatch.setenv("JAX_PLATFORMS", platform)
    with pytest.raises(ConfigError) as caught:
        find_devices()
    assert str(caught.value).endswith(mend)


@pytest.mark.parametrize("has_gpu", [False, True])
def test_a_plug_in_that_fails_is_one_line_where_there_is_a_gpu(monkeypatch, caplog, has_gpu):
    log = logging.getLogger("jax._src.xla_bridge")

    def devices():
        log.warning("something else")
        try:
            raise RuntimeError("Unable to load cuFFT. Is it installed?\nmore")
        except RuntimeError:
            log.exception("Exception when calling %s.initialize()", "jax_plugins.xla_cuda13")
            log.exception("Exception when calling %s.initialize()", "jax_plugins.another")
        return ["cpu"]

    monkeypatch.setattr(jax, "devices", devices)
    monkeypatch.setattr(plugin_errors, "has_gpu", lambda: has_gpu)
    filters = list(log.filters)
    with logged() as messages:
        assert find_devices() == ["cpu"]
    line = ("warning: jax cannot use this machine's GPU: Unable to load cuFFT. Is it installed?; "
            "install the extra [cuda], or set JAX_PLATFORMS=cpu to do without it")  # fmt: skip
    assert messages == [line] * has_gpu and log.filters == filters
    assert [record.getMessage() for record in caplog.records if record.name == log.name] == [
        "something else",
        "Exception when calling jax_plugins.another.initialize()",
    ]


@pytest.mark.parametrize(
    ("devices", "environment", "silent"),
    [
        ({}, {}, True),
        ({"disk": ("0x1ae0", "0x010802"), "network": ("0x1ae0", "0x020000"), "gpu": ("0x10de", "0x030200")}, {}, True),
        ({"network": ("0x1ae0", "0x020000"), "tpu": ("0x1ae0", "0x120000")}, {}, False),
        ({}, {"JAX_PLATFORMS": "tpu,cpu"}, False),
        ({}, {"JAX_FORCE_TPU_INIT": "1"}, False),
    ],
)
def test_libtpu_is_silent_where_there_is_no_tpu_alone(monkeypatch, tmp_path, devices, environment, silent):
    for name, (vendor, kind) in devices.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(vendor + "\n")
        (tmp_path / name / "class").write_text(kind + "\n")
    monkeypatch.setattr(plugin_errors, "_PCI_DEVICES", f"{tmp_path}/*")
    for name in ("JAX_PLATFORMS", "JAX_FORCE_TPU_INIT", "TPU_HOST_BOUNDS", "TPU_WORKER_HOSTNAMES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "the user's")
    before = dict(os.environ)
    with plugin_errors.plugin_errors_in_one_line():
        assert dict(os.environ) == before | ({"TPU_HOST_BOUNDS": "1,1,1"} if silent else {})
    assert dict(os.environ) == before


@pytest.mark.skipif(not installed(COMPILERS["tpu"]), reason="needs libtpu: pip install '.[plan-tpu]'")
def test_libtpu_writes_nothing_without_a_tpu(door):
    """Unless the user chooses a platform, jax starts it with every command."""
    if plugin_errors.may_have_tpu():
        pytest.skip("needs a machine without a TPU")
    done = door("show", "bert.tiny", env={"JAX_PLATFORMS": ""})
    assert done.returncode == 0 and done.stderr == "", done.stderr


@pytest.mark.skipif(not installed(COMPILERS["gpu"]), reason="needs jax's plug-in for GPUs: pip install '.[plan-gpu]'")
def test_the_compilers_for_gpus_are_no_traceback_without_a_gpu(door):
    """Unless the user chooses a platform, jax starts them with every command."""
    if plugin_errors.has_gpu():
        pytest.skip("needs a machine without a GPU")
    done = door("show", "bert.tiny", env={"JAX_PLATFORMS": ""})
    assert done.returncode == 0 and "Traceback" not in done.stderr and "xla_cuda" not in done.stderr, done.stderr


COMMANDS = {
    "pretrain": "pretrain bert.tiny --dir {to}/run --data.path {to}/t.txt",
    "evaluate": "evaluate {run}",
    "fill": "fill {run} --text [MASK]",
    "embed": "embed {run} --input {to}/t.txt --to {to}/e.npz",
    "export": "export {run} hf --to {to}/hf",
    "show": "show bert.tiny",
}


@pytest.mark.parametrize("name", ["show", *long("pretrain")])
def test_a_platform_without_a_device_is_one_line(door, tmp_path, name):
    _refuses(door, tmp_path, name)


@pytest.mark.long
@pytest.mark.parametrize("name", ["evaluate", "fill", "embed", "export"])
def test_a_platform_without_a_device_is_one_line_for_every_command(door, tmp_path, name):
    _refuses(door, tmp_path, name)


def _refuses(door, tmp_path, name: str) -> None:
    (tmp_path / "t.txt").write_text("the cat.\n")
    words = COMMANDS[name].format(run=GOLDEN / "bert_3_steps", to=tmp_path).split()
    done = door(*words, env={"JAX_PLATFORMS": "cuda"})
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 2 and last.startswith("ConfigError: jax finds no device for JAX_PLATFORMS=cuda"), done
    assert "Traceback" not in done.stderr
