"""A Ray cluster on this machine, in processes of its own: a head that makes nothing, nodes of one processor each."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from tests.conftest import ROOT

_PROGRAM = """
import os, sys
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
from ray.cluster_utils import Cluster
memory = {"object_store_memory": 80 << 20, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **memory})
nodes = [cluster.add_node(num_cpus=1, object_store_memory=80 << 20) for _ in range(int(sys.argv[1]))]
print("address", cluster.address, flush=True)
for line in sys.stdin:
    if line.strip() == "kill":  # SIGKILL to a node and all that runs there
        cluster.remove_node(nodes.pop(0), allow_graceful=False)
        print("killed", flush=True)
cluster.shutdown()
"""


@dataclass
class Nodes:
    """A cluster that runs."""

    process: subprocess.Popen[str]
    environment: dict[str, str]

    def kill_one(self) -> None:
        """Kills a node, without a word to the others."""
        assert self.process.stdin and self.process.stdout
        print("kill", file=self.process.stdin, flush=True)
        assert "killed" in self.process.stdout.readline()


@contextlib.contextmanager
def ray_nodes(count: int, **more: str) -> Iterator[Nodes]:
    """Starts a cluster of so many nodes; more: variables that its processes have around them."""
    # Half a second without a sign of life instead of half a minute.
    soon = {"RAY_health_check_period_ms": "200", "RAY_health_check_timeout_ms": "1000"}
    environment = {**os.environ, **soon, **more, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        text=True,
    )
    # Whatever hangs ends with the test.
    watch = threading.Timer(300, process.kill)
    watch.start()
    try:
        assert process.stdout
        line = next((line for line in process.stdout if line.startswith("address")), "")
        assert line, "the cluster did not start"
        yield Nodes(process, {**os.environ, **more, "RAY_ADDRESS": line.split()[1]})
    finally:
        watch.cancel()
        process.communicate(timeout=60)
