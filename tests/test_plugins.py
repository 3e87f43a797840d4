"""Plugins that are not the CPU's: their options, their place in a slice, and their peers.

The plugin is a fake one that has the face of a GPU plugin, one program and no hardware, so nothing here shows that
real programs run.
"""

import json
import signal
import subprocess

import pytest
from conftest import Server, clean_environment, run_python, seconds, start_python
from manager_client import Watcher
from role_processes import Cluster, Proxy, starting

CUDA = "--pjrt_option=platform_name=cuda"  # as the plugin for those GPUs calls itself


@pytest.fixture
def start(helmway_binary):
    with starting(helmway_binary) as begin:
        yield begin


@pytest.fixture
def gpu_cluster(start, fake_gpu_plugin):
    """Makes a cluster of slices of GPUs. Each host has two."""

    def make(slices, hosts, *worker_flags):
        flags = (f"--pjrt_plugin={fake_gpu_plugin}", CUDA, *worker_flags)
        return Cluster(start, slices, hosts, 2, platform="gpu", worker_flags=flags)

    return make


@pytest.fixture
def watch():
    watchers = []

    def begin(address):
        watchers.append(Watcher(address))
        return watchers[-1]

    yield begin
    for watcher in watchers:
        watcher.close()


def test_workers_of_a_slice_make_one_client(gpu_cluster, watch):
    cluster = gpu_cluster(2, 2, "--pjrt_option=memory_fraction=0.5;visible_devices=4,6")
    cluster.wait_ready(2)
    watcher = watch(cluster.address)
    for index in range(4):
        watcher.wait_state(index, "UP")
        info = watcher.infos[index]
        assert info.platform_name == "cuda"
        # Only its own devices, with the cluster's ids: the plugin's count on from host to host of a slice.
        assert watcher.device_ids(index) == [2048 * index, 2048 * index + 1]
        assert [device.to_string for device in info.devices] == [
            f"FakeGpuDevice(id={2 * (index % 2) + i})" for i in range(2)
        ]
        assert [device.local_hardware_id for device in info.devices] == [4, 6]
        for device in info.devices:
            attributes = device.attributes
            assert attributes["option node_id"].number == index % 2
            assert attributes["option num_nodes"].number == 2
            assert attributes["option memory_fraction"].real == 0.5
            assert list(attributes["option visible_devices"].numbers.values) == [4, 6]
            assert attributes["slice_index"].number == index // 2
            assert attributes["virtual_task_index"].number == index % 2
    for process in [*cluster.workers, cluster.manager]:
        assert process.end() == 143


def test_a_slice_of_one_host_has_no_peers(gpu_cluster, watch):
    cluster = gpu_cluster(1, 1)
    cluster.wait_ready(1)
    watcher = watch(cluster.address)
    watcher.wait_state(0, "UP")
    assert "option num_nodes" not in watcher.infos[0].devices[0].attributes


def test_a_worker_that_waits_for_its_peers_ends_when_it_is_told_to(gpu_cluster):
    cluster = gpu_cluster(1, 2)
    cluster.wait_ready(1)
    cluster.workers[1].end(signal.SIGKILL)
    alone = cluster.workers[0]
    alone.end()
    cluster.wait_ready(0)
    alone = cluster.start_worker(0)
    alone.wait_for("placed in slice 0, host 0")
    assert alone.end() == 143


def test_a_worker_that_starts_again_restarts_its_slice_only(gpu_cluster, watch):
    cluster = gpu_cluster(2, 2)
    cluster.wait_ready(2)
    watcher = watch(cluster.address)
    elsewhere = [watcher.wait_state(index, "UP").incarnation for index in (2, 3)]
    cluster.workers[1].end(signal.SIGKILL)
    cluster.wait_ready(1, 2)
    second = cluster.start_worker(1)
    # Kubernetes, or whoever watches it, starts a worker that ends with 1 again.
    assert cluster.workers[0].wait() == 1
    assert "host 1 of slice 0 has started again" in cluster.workers[0].log()
    cluster.start_worker(0)
    cluster.wait_ready(2, 2)
    second.wait_for("registered with the resource manager")
    assert [watcher.wait_state(index, "UP").incarnation for index in (2, 3)] == elsewhere


def test_a_manager_that_starts_again_while_workers_meet(gpu_cluster):
    cluster = gpu_cluster(1, 2)
    cluster.wait_ready(1)
    for worker in cluster.workers:
        worker.end(signal.SIGKILL)
    cluster.wait_ready(0)
    alone = cluster.start_worker(0)
    alone.wait_for("placed in slice 0, host 0")
    cluster.manager.end(signal.SIGKILL)
    cluster.start_manager()
    # It may have been asked for its keys just before, or not yet.
    assert alone.wait() == 1
    assert "the resource manager has started again" in alone.log()
    cluster.start_worker(0)
    cluster.start_worker(1)
    cluster.wait_ready(1)


def test_a_manager_that_starts_again_when_workers_have_met(gpu_cluster, watch):
    cluster = gpu_cluster(1, 2)
    cluster.wait_ready(1)
    cluster.manager.end(signal.SIGKILL)
    cluster.start_manager()
    cluster.wait_ready(1)
    # They are still of one client: one that is replaced takes the other with it.
    cluster.workers[0].end(signal.SIGKILL)
    cluster.wait_ready(0)
    cluster.start_worker(0)
    assert cluster.workers[1].wait() == 1


def test_options_that_the_plugin_does_not_know(gpu_cluster):
    cluster = gpu_cluster(1, 1, "--pjrt_option=no_such_option=1")
    assert cluster.workers[0].wait() == 1
    assert "Unexpected option name passed to PJRT_Client_Create: no_such_option" in cluster.workers[0].log()


@pytest.mark.parametrize(
    "flags, complaint",
    [
        (["--pjrt_option=node_id=1"], "--pjrt_option=node_id=1: node_id follows from"),
        (["--pjrt_option=memory_fraction=all"], "'memory_fraction=all': must be a number"),
        (["--pjrt_plugin_kind=cuda"], "--pjrt_plugin_kind=cuda: must be cpu, gpu, tpu or other"),
        (["--pjrt_plugin_kind=other", "--devices=2"], "has the devices that it finds"),
        (["--workers=2", "--pjrt_option=visible_devices=0"], "the same devices"),
        (["--workers=2", "--pjrt_plugin_kind=tpu"], "can't divide its devices"),
    ],
)
def test_flags_that_are_refused(helmway_binary, fake_gpu_plugin, flags, complaint):
    done = subprocess.run(
        [helmway_binary, "up", f"--pjrt_plugin={fake_gpu_plugin}", *flags],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert complaint in done.stderr


def test_a_tpu_worker_whose_environment_says_another_place(start, fake_gpu_plugin):
    manager = start("--node_type=resource_manager", "--instance_type=gpu:2x2", "--server_port=0")
    worker = start(
        f"--resource_manager_address=localhost:{manager.port()}",
        "--server_port=0",
        "--host_id=1",
        "--slice_id=0",
        f"--pjrt_plugin={fake_gpu_plugin}",
        "--pjrt_plugin_kind=tpu",
        TPU_WORKER_ID="0",
    )
    assert worker.wait() == 1
    assert "TPU_WORKER_ID=0 in the environment, but the resource manager has made this worker host 1" in worker.log()


# What a client sees, and what becomes of programs on the devices of these numbers. Whatever the fake plugin compiles, it
# gives every device the sum of the plugin's ids plus one.
CLIENT = """
import jax, json, sys
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

devices = jax.devices()

def run(numbers):
    mine = np.array([devices[i] for i in numbers])
    try:
        sharding = NamedSharding(Mesh(mine, ("x",)), P("x"))
        compiled = jax.jit(lambda: jnp.zeros(len(mine)), out_shardings=sharding).lower().compile()
        runs = [compiled() for _ in range(20)]
        return [np.asarray(x).tolist() for x in runs]
    except Exception as e:
        return str(e)

print(json.dumps({
    "ids": [d.id for d in devices],
    "kinds": sorted({d.device_kind for d in devices}),
    "platform": devices[0].platform,
    "visible": [list(getattr(d, "option visible_devices", ())) for d in devices],
    "runs": [run(numbers) for numbers in json.loads(sys.argv[1])],
}))
"""


def run_client(environment, *programs):
    return json.loads(run_python(CLIENT, json.dumps(programs), env=environment).stdout)


def twenty_times(*values):
    return [list(values)] * 20


def test_programs_on_the_devices_of_this_host(helmway_binary, fake_gpu_plugin):
    server = Server(helmway_binary, f"--pjrt_plugin={fake_gpu_plugin}", "--devices=3")
    seen = run_client(server.environment(), [0], [2, 1])
    assert seen["ids"] == [0, 1, 2]
    assert seen["kinds"] == ["Fake GPU"]
    assert seen["platform"] == "fake_gpu"
    assert seen["runs"] == [twenty_times(1), twenty_times(5, 5)]
    assert server.close() == 0


def test_workers_of_this_host_share_its_devices(helmway_binary, fake_gpu_plugin):
    server = Server(helmway_binary, f"--pjrt_plugin={fake_gpu_plugin}", "--workers=2", "--devices_per_worker=2")
    seen = run_client(server.environment(), [2, 3], [1, 2])
    assert seen["ids"] == [0, 1, 2048, 2049]
    assert seen["visible"] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    # Each worker has a client of its own, whose devices count from 0; there are no collectives between them.
    assert seen["runs"][0] == twenty_times(3, 3)
    assert "UNIMPLEMENTED" in seen["runs"][1] and "clients are not one" in seen["runs"][1]
    assert server.close() == 0


def test_programs_on_the_devices_of_a_slice(start, gpu_cluster):
    cluster = gpu_cluster(2, 2)
    proxy = Proxy(start, cluster.address)
    seen = run_client(proxy.environment(), [1], [3, 2], [0, 3], [3, 1, 2, 0], [4, 5, 6, 7], [6], [3, 4])
    assert seen["ids"] == [2048 * worker + device for worker in range(4) for device in range(2)]
    assert seen["platform"] == "gpu"
    assert seen["runs"][:6] == [
        twenty_times(2),
        twenty_times(7, 7),
        twenty_times(5, 5),
        twenty_times(10, 10, 10, 10),
        twenty_times(10, 10, 10, 10),
        twenty_times(3),
    ]
    assert "UNIMPLEMENTED" in seen["runs"][6] and "clients are not one" in seen["runs"][6]
    # Nothing of it outlives the session.
    again = run_client(proxy.environment(), [0, 1, 2, 3])
    assert again["runs"] == [twenty_times(10, 10, 10, 10)]


# Runs a program on all devices, and again when it is told that they are lost and back.
SURVIVOR = """
import sys, time
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

devices = np.array(jax.devices())
program = jax.jit(lambda: jnp.zeros(len(devices)), out_shardings=NamedSharding(Mesh(devices, ("x",)), P("x")))
before = program()
print(np.asarray(before).tolist(), flush=True)
sys.stdin.readline()
deadline = time.monotonic() + 120
while True:
    try:
        print(np.asarray(program()).tolist(), flush=True)
        break
    except Exception as error:
        assert "DATA_LOSS" in str(error), error
        assert time.monotonic() < deadline, error
        time.sleep(0.1)
"""


def test_a_session_outlives_a_slice_that_starts_again(start, gpu_cluster):
    cluster = gpu_cluster(1, 2)
    proxy = Proxy(start, cluster.address)
    with start_python(SURVIVOR, env=proxy.environment()) as program:
        assert program.stdout.readline() == "[10.0, 10.0, 10.0, 10.0]\n"
        cluster.workers[1].end(signal.SIGKILL)
        cluster.wait_ready(0)
        cluster.start_worker(1)
        assert cluster.workers[0].wait() == 1
        cluster.start_worker(0)
        cluster.wait_ready(1, 2)
        out, _ = program.communicate("it is back\n", timeout=seconds(120))
        assert out == "[10.0, 10.0, 10.0, 10.0]\n", out
    # And one that begins now.
    assert run_client(proxy.environment(), [0, 1, 2, 3])["runs"] == [twenty_times(10, 10, 10, 10)]
