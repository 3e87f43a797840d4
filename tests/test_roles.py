"""A cluster of all roles as processes of their own, and unmodified JAX programs on it."""

import json
import re
import signal
import time

import grpc
import pytest
from conftest import clean_environment, run_python, seconds, start_python, tell
from role_processes import PLACED, Cluster, Proxy, starting


@pytest.fixture
def start(helmway_binary):
    with starting(helmway_binary) as begin:
        yield begin


def places(slices, hosts, devices):
    return [
        [2048 * (slice * hosts + host) + device, slice, host]
        for slice in slices
        for host in range(hosts)
        for device in range(devices)
    ]


def test_programs_run_on_the_devices_of_all_workers(start):
    cluster = Cluster(start, 2, 2, 2)
    proxy = Proxy(start, cluster.address)
    # The program may come before the workers are there.
    assert proxy.run() == places([0, 1], 2, 2)
    pods = [proxy.wait_placed(position).group(1).split(", ") for position in range(2)]
    assert all(len(names) == 2 and all(names) for names in pods)
    proxy.process.wait_for("component reconfiguration after placement changes")
    assert proxy.run() == places([0, 1], 2, 2)
    assert proxy.process.end() == 0
    cluster.manager.wait_for("lease")
    for process in [*cluster.workers, cluster.manager]:
        assert process.end() == 143


def test_clients_are_told_what_is_missing(start):
    cluster = Cluster(start, 1, 2, 1)
    cluster.wait_ready(1)
    cluster.workers[1].end(signal.SIGKILL)
    cluster.wait_ready(0)

    def wait_refused(by, text):
        """Until a proxy knows why; it refuses from its start."""
        deadline = time.monotonic() + seconds(60)
        while text not in (refusal := by.refusal())[1]:
            assert time.monotonic() < deadline, refusal
            assert refusal[0] == grpc.StatusCode.UNAVAILABLE

    wait_refused(Proxy(start, "localhost:1"), "the resource manager at localhost:1 is not reached")
    proxy = Proxy(start, cluster.address)
    wait_refused(proxy, "worker 1 of slice 0 is")
    cluster.start_worker(1)
    proxy.wait_placed(0)
    assert proxy.refusal() is None


SURVIVOR = """
import sys
import time
import jax
import numpy as np

devices = jax.devices()
first = jax.device_put(np.arange(3.0), devices[0])
last = jax.device_put(np.arange(3.0), devices[-1])
double = jax.jit(lambda a: a * 2)
print(np.asarray(double(first) + 0).sum() + np.asarray(double(last)).sum(), flush=True)
sys.stdin.readline()
print(np.asarray(double(first)).sum(), flush=True)
try:
    np.asarray(double(last))
except Exception as error:
    print("lost:", str(error).replace("\\n", " "), flush=True)
sys.stdin.readline()
deadline = time.monotonic() + 120
while True:
    try:
        print("again:", np.asarray(double(jax.device_put(np.arange(3.0), devices[-1]))).sum())
        break
    except Exception:
        assert time.monotonic() < deadline
        time.sleep(0.1)
try:
    np.asarray(double(last))
except Exception as error:
    print("still lost:", "DATA_LOSS" in str(error))
"""


def test_a_lost_worker_costs_its_sessions_what_it_had_and_comes_back(start):
    cluster = Cluster(start, 2, 1, 2)
    proxy = Proxy(start, cluster.address)
    proxy.wait_placed(1)
    with start_python(SURVIVOR, env=proxy.environment()) as program:
        assert program.stdout.readline() == "12.0\n"
        cluster.workers[1].end(signal.SIGKILL)
        proxy.process.wait_for("Transition slice 1: placed -> unplaced")
        tell(program, "it is lost")
        assert program.stdout.readline() == "6.0\n"
        assert re.match(r"lost: .*DATA_LOSS.*worker 0 of slice 1 at \S+ is lost", program.stdout.readline())
        cluster.start_worker(1)
        proxy.wait_placed(1, count=2)
        assert proxy.run() == places([0, 1], 1, 2)
        out, _ = program.communicate("it is back\n", timeout=seconds(120))
    assert out == "again: 6.0\nstill lost: True\n", out
    assert len(re.findall(PLACED.format(0), proxy.process.log())) == 1


def test_a_stopped_worker_is_lost_and_rejoins_when_it_goes_on(start):
    watch = ["--health_check_period=200ms", "--health_check_timeout=2s", "--health_check_failure_threshold=2"]
    cluster = Cluster(start, 2, 1, 2, *watch)
    proxy = Proxy(start, cluster.address)
    proxy.wait_placed(1)
    with start_python(SURVIVOR, env=proxy.environment()) as program:
        assert program.stdout.readline() == "12.0\n"
        cluster.workers[1].send(signal.SIGSTOP)
        tell(program, "it stands still")
        assert program.stdout.readline() == "6.0\n"
        assert "DATA_LOSS" in program.stdout.readline()
        proxy.process.wait_for("Transition slice 1: placed -> unplaced")
        cluster.workers[1].send(signal.SIGCONT)
        out, _ = program.communicate("it goes on\n", timeout=seconds(120))
    assert out == "again: 6.0\nstill lost: True\n", out


WAY = """
import sys, time
import jax, numpy as np

here, there = jax.devices()[0], jax.devices()[-1]
f = jax.jit(lambda a: a * 2)
x, y = (jax.device_put(np.arange(4.0), d) for d in (here, there))
jax.block_until_ready([f(jax.device_put(x, there)), f(jax.device_put(y, here))])  # both ways are open
print("ready", flush=True)
sys.stdin.readline()
sent = [jax.device_put(x, there) for _ in range(3)] + [jax.device_put(f(y), here) for _ in range(3)]
print("sent", flush=True)
sys.stdin.readline()
for array in sent:
    try:
        np.asarray(array)
    except jax.errors.JaxRuntimeError as error:
        assert "DATA_LOSS" in str(error) and "between two workers" in str(error), error
for a, d in ((x, there), (y, here)):
    np.testing.assert_array_equal(f(jax.device_put(a, d)), np.arange(4.0) * 2)
print("done")
"""


def test_what_is_lost_on_the_way_between_workers_that_live_fails(start):
    """The workers lose sight of each other, the proxy of neither."""
    cluster = Cluster(start, 2, 1, 2, worker_flags=["--worker_timeout=1"])
    proxy = Proxy(start, cluster.address, "--worker_timeout=600")
    proxy.wait_placed(1)
    with start_python(WAY, env=proxy.environment()) as program:
        assert program.stdout.readline() == "ready\n"
        cluster.workers[1].send(signal.SIGSTOP)
        tell(program, "send")
        assert program.stdout.readline() == "sent\n"
        cluster.workers[0].wait_for("the way to the worker at .* is closed")
        cluster.workers[1].send(signal.SIGCONT)
        out, _ = program.communicate("look\n", timeout=seconds(120))
    assert out == "done\n"


@pytest.mark.parametrize("with_signal", [signal.SIGTERM, signal.SIGKILL])
def test_programs_go_on_without_the_manager(start, with_signal):
    cluster = Cluster(start, 1, 2, 1)
    proxy = Proxy(start, cluster.address)
    proxy.wait_placed(0)
    cluster.manager.end(with_signal)
    assert proxy.run() == places([0], 2, 1)
    cluster.start_manager()
    cluster.wait_ready(1)
    assert proxy.run() == places([0], 2, 1)
    assert "placed -> unplaced" not in proxy.process.log()


def test_virtual_slices_are_leased_one_by_one(start):
    cluster = Cluster(start, 2, 1, 2)
    cluster.wait_ready(2)
    proxies = [Proxy(start, cluster.address, "--virtual_slices=cpu:1x2") for _ in range(2)]
    for proxy in proxies:
        proxy.wait_placed(0)
    seen = [proxy.run() for proxy in proxies]
    assert sorted(seen) == [places([slice], 1, 2) for slice in range(2)]
    third = Proxy(start, cluster.address, "--virtual_slices=cpu:1x2")
    third.process.wait_for("waits for a lease of slices: .")
    # A proxy that ends gives its slice back.
    assert proxies[0].process.end() == 0
    third.wait_placed(0)
    assert third.run() == seen[0]


LATE = """
import sys, time
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

devices = jax.devices()
print([[d.id, d.slice_index, d.virtual_task_index] for d in devices], flush=True)
split = lambda d: NamedSharding(Mesh(np.array(d), ("x",)), P("x"))
first, last = ([d for d in devices if d.slice_index == s] for s in (0, 1))
step = jax.jit(lambda a: a + a.sum())
put = lambda d: jax.device_put(np.arange(8.0), split(d))
np.testing.assert_array_equal(step(put(first)), np.arange(8.0) + 28)
early = step(put(last))
everywhere = step(put(devices))
for absent in (early, everywhere):
    try:
        jax.block_until_ready(absent)
        raise AssertionError("no error")
    except jax.errors.JaxRuntimeError as error:
        assert "DATA_LOSS" in str(error) and "worker 0 of slice 1" in str(error), error
print("lost", flush=True)
deadline = time.monotonic() + 120
while True:
    try:
        for d in (last, devices):
            np.testing.assert_array_equal(step(put(d)), np.arange(8.0) + 28)
        break
    except jax.errors.JaxRuntimeError as error:
        assert "DATA_LOSS" in str(error), error
        assert time.monotonic() < deadline
        time.sleep(0.1)
try:
    jax.block_until_ready(early)
    raise AssertionError("no error")
except jax.errors.JaxRuntimeError as error:
    assert "DATA_LOSS" in str(error), error
print("there")
"""


@pytest.mark.parametrize("flags", [[], ["--virtual_slices=cpu:2x2,cpu:2x2"]])
def test_slices_that_may_be_missing_are_listed_and_come_late(start, flags):
    cluster = Cluster(start, 2, 2, 2)
    for worker in cluster.workers[2:]:
        worker.end(signal.SIGKILL)
    proxy = Proxy(start, cluster.address, "--num_elastic_slices=1", *flags)
    proxy.wait_placed(0)
    with start_python(LATE, env=proxy.environment()) as program:
        assert json.loads(program.stdout.readline()) == places([0, 1], 2, 2)
        assert program.stdout.readline() == "lost\n"
        for index in (2, 3):
            cluster.start_worker(index)
        proxy.wait_placed(1)
        out, _ = program.communicate(timeout=seconds(120))
    assert out == "there\n"
