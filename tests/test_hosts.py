"""Workers on hosts of their own: other addresses, no memory in common, and a network that can break."""

import json
import re
import subprocess

import network_hosts
import pytest
from conftest import run_python, seconds, start_python, tell
from role_processes import Cluster, Proxy, starting
from test_shared_memory import NO_SHARED_MEMORY, NOT_MAPPED

NO_HOSTS = network_hosts.why_not()
pytestmark = [
    pytest.mark.one_jax,
    pytest.mark.skipif(NO_HOSTS is not None, reason=f"no hosts of their own here: {NO_HOSTS}"),
]


@pytest.fixture
def hosts():
    made = network_hosts.Hosts(4)
    yield made
    made.close()


@pytest.fixture
def cluster(helmway_binary, hosts):
    """2 slices x 2 hosts x 2 devices. Its processes end before the hosts do."""
    with starting(helmway_binary) as start:
        made = Cluster(start, 2, 2, 2, network_hosts=hosts)
        made.proxy = Proxy(start, made.address)
        made.proxy.wait_placed(0)
        made.proxy.wait_placed(1)
        yield made


WORK = """
import jax, json
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

devices = np.array(jax.devices())
split = NamedSharding(Mesh(devices.reshape(2, 4), ("x", "y")), P("x", "y"))
turned = NamedSharding(Mesh(devices[::-1].reshape(4, 2), ("x", "y")), P("x", "y"))
numbers = np.arange(512 * 1024, dtype=np.float32).reshape(512, 1024)  # large enough for memory that is shared
x = jax.device_put(numbers, split)
product = jax.jit(lambda a: a @ a.T, out_shardings=split)
for _ in range(3):
    np.testing.assert_array_equal(np.asarray(product(x // 4096)), (numbers // 4096) @ (numbers // 4096).T)
    # From worker to worker.
    np.testing.assert_array_equal(np.asarray(jax.device_put(x, turned)), numbers)
print(json.dumps([d.id for d in jax.devices()]))
"""


def test_programs_and_arrays_span_hosts(cluster, hosts):
    before = [hosts.bytes_from(host) for host in range(4)]
    seen = json.loads(run_python(WORK, env=cluster.proxy.environment()).stdout)
    assert seen == [2048 * host + device for host in range(4) for device in range(2)]
    # Three times at least each has given away its part of 2 MiB, over the network.
    sent = [hosts.bytes_from(host) - before[host] for host in range(4)]
    assert all(3 * 2**19 <= count < 2**25 for count in sent), sent
    for worker in cluster.workers:
        assert not re.search(f"{NO_SHARED_MEMORY}|{NOT_MAPPED}", worker.log()), worker.log()


HOLDS = """
import sys
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

x = jax.device_put(np.arange(8.0), NamedSharding(Mesh(np.array(jax.devices()), ("x",)), P("x")))
jax.block_until_ready(jax.jit(lambda a: a + a.sum())(x))
print("ready", flush=True)
sys.stdin.readline()
"""


def test_messages_come_to_the_port_that_a_firewall_may_have_open(helmway_binary, hosts):
    with starting(helmway_binary) as start:
        cluster = Cluster(start, 1, 2, 1, network_hosts=hosts, worker_flags=("--message_port=29010",))
        cluster.proxy = Proxy(start, cluster.address)
        program = start_python(HOLDS, env=cluster.proxy.environment())
        assert program.stdout.readline() == "ready\n"
        for host in range(2):
            table = subprocess.run([*hosts.words(host), "cat", "/proc/net/tcp6"], capture_output=True, check=True).stdout
            connected = [row.split()[1:4] for row in table.decode().splitlines() if f":{29010:04X} " in row]
            # Commands and bytes of the proxy's session, and what the other worker has to say.
            assert sum(own.endswith(f":{29010:04X}") and state == "01" for own, _, state in connected) >= 3, connected
        program.communicate("\n", timeout=seconds(60))
        assert program.returncode == 0
        for worker in cluster.workers:
            assert "go through gRPC" not in worker.log(), worker.log()


UNPLUGGED = """
import sys
import time
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

devices = np.array(jax.devices())
split = NamedSharding(Mesh(devices, ("x",)), P("x"))
x = jax.device_put(np.arange(8.0), split)
near = jax.device_put(np.arange(4.0), NamedSharding(Mesh(devices[:4], ("x",)), P("x")))
spans = jax.jit(lambda a: a + a.sum())
jax.block_until_ready((spans(x), spans(near)))
print("ready", flush=True)
sys.stdin.readline()
begin = time.monotonic()
try:
    np.asarray(spans(x))
except Exception as error:
    assert time.monotonic() - begin < 60
    print("lost:", str(error).replace("\\n", " "), flush=True)
np.testing.assert_array_equal(np.asarray(spans(near)), np.arange(4) + 6)
print("near", flush=True)
sys.stdin.readline()
deadline = time.monotonic() + 120
while True:
    try:
        y = jax.device_put(np.arange(8.0), split)
        np.testing.assert_array_equal(np.asarray(spans(y)), np.arange(8) + 28)
        break
    except RuntimeError:
        assert time.monotonic() < deadline
        time.sleep(0.1)
print("again", flush=True)
"""


def test_a_host_that_is_cut_off_is_lost_and_comes_back(cluster, hosts):
    with start_python(UNPLUGGED, env=cluster.proxy.environment()) as program:
        assert program.stdout.readline() == "ready\n"
        hosts.unplug(3)
        tell(program, "its cable is out")
        lost = program.stdout.readline()
        assert re.match(r"lost: .*DATA_LOSS", lost) and hosts.addresses[3] in lost, lost
        assert program.stdout.readline() == "near\n"
        hosts.plug(3)
        out, _ = program.communicate("it is in again\n", timeout=seconds(180))
    assert out == "again\n", out
