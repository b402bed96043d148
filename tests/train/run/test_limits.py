"""What the system has left for a process."""

from pathlib import Path

import pytest

from contexture.train.run.limits import available_memory

GROUP = {"max": "3000000", "current": "1000000", "stat": "anon 5\ninactive_file 400000\nactive_file 7"}


def system(root: Path, kib: int | None, group: dict[str, str]) -> Path:
    """Writes the files in which Linux tells how much memory there is."""
    if kib is not None:
        (root / "proc").mkdir()
        (root / "proc/meminfo").write_text(f"MemTotal: 99 kB\nMemFree: 8 kB\nMemAvailable:   {kib} kB\nBuffers: 1 kB\n")
    (root / "sys/fs/cgroup").mkdir(parents=True)
    for name, text in group.items():
        (root / "sys/fs/cgroup" / f"memory.{name}").write_text(text + "\n")
    return root


@pytest.mark.parametrize(
    ("kib", "group", "bytes_left"),
    [
        (None, {}, None),
        (2000, {}, 2_048_000),
        (None, GROUP, 2_400_000),
        (2000, GROUP, 2_048_000),
        (2500, GROUP, 2_400_000),
        (2000, GROUP | {"max": "max"}, 2_048_000),
        (2000, GROUP | {"current": "3900000"}, 0),
    ],
)
def test_memory_is_the_least_of_the_machines_and_the_containers(tmp_path, kib, group, bytes_left):
    assert available_memory(system(tmp_path, kib, group)) == bytes_left


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="memory is read from /proc")
def test_memory_of_this_machine_is_told():
    left = available_memory()
    assert left is not None and 2**20 < left < 2**50
