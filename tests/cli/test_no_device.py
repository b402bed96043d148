"""Where jax starts no device, every command that wants one says so in one line."""

import jax
import pytest

from contexture.train.errors import ConfigError
from contexture.train.mesh import find_devices
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


COMMANDS = {
    "pretrain": "pretrain bert.tiny --dir {to}/run --data.path {to}/t.txt",
    "evaluate": "evaluate {run}",
    "fill": "fill {run} --text [MASK]",
    "embed": "embed {run} --input {to}/t.txt --to {to}/e.npz",
    "export": "export {run} hf --to {to}/hf",
    "show": "show bert.tiny",
}


@pytest.mark.parametrize("name", ["pretrain", "show"])
def test_a_platform_without_a_device_is_one_line(door, tmp_path, name):
    _refuses(door, tmp_path, name)


@pytest.mark.long
@pytest.mark.parametrize("name", ["evaluate", "fill", "embed", "export"])
def test_a_platform_without_a_device_is_one_line_for_every_command(door, tmp_path, name):
    _refuses(door, tmp_path, name)


def _refuses(door, tmp_path, name: str) -> None:
    (tmp_path / "t.txt").write_text("the cat.\n")
    words = COMMANDS[name].format(run=GOLDEN / "run_format_1", to=tmp_path).split()
    done = door(*words, env={"JAX_PLATFORMS": "cuda"})
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 2 and last.startswith("ConfigError: jax finds no device for JAX_PLATFORMS=cuda"), done
    assert "Traceback" not in done.stderr
