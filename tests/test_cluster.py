"""A cluster on one host: workers in processes of their own, programs that span them, workers that die."""

import json
import os
import pathlib
import re
import signal
import subprocess
import time

import pytest
from conftest import clean_environment, run_python, start_python, tell
from local_cluster_processes import is_alive, starting, wait_until, workers_of


@pytest.fixture
def start(helmway_binary):
    with starting(helmway_binary) as begin:
        yield begin


DEMO = pathlib.Path(__file__).resolve().parent.parent / "examples" / "train_digits.py"


def test_devices_and_slices(start):
    server = start("--workers", "4", "--devices-per-worker", "2", "--slices", "2")
    script = """
        import jax, json
        print(json.dumps([[d.id, d.slice_index, d.virtual_task_index, d.process_index] for d in jax.devices()]))
    """
    seen = json.loads(run_python("\n".join(map(str.strip, script.splitlines())), env=server.environment()).stdout)
    assert seen == [
        [2048 * worker + device, worker // 2, worker % 2, 0] for worker in range(4) for device in range(2)
    ]


@pytest.mark.parametrize("workers", [1, 4])
def test_demo_trains_as_on_one_worker(server, start, workers):
    cluster = start("--workers", str(workers), "--devices_per_worker", str(8 // workers))

    def history(environment):
        # So short that it has not learned enough, which it says with its exit code.
        done = run_python(DEMO, "--epochs", "2", env=environment, check=False)
        found = re.findall(r"^epoch .*loss (\S+) +accuracy (\S+)", done.stdout, re.M)
        assert len(found) == 2, done.stdout + done.stderr
        return found

    assert history(cluster.environment()) == history(server.environment())


KILL = """
import os, signal, sys, time
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

devices = jax.devices()
split = NamedSharding(Mesh(np.array(devices), ("x",)), P("x"))
x = jax.device_put(np.arange(16, dtype=np.float32), split)
lives = jax.device_put(np.arange(3.0), devices[0])
spans = jax.jit(lambda a: a + a.sum())
local = jax.jit(lambda a: a + 1)
np.testing.assert_array_equal(spans(x), np.arange(16) + 120)
np.testing.assert_array_equal(local(lives), np.arange(3) + 1)
waiting = x
for _ in range(100):
    waiting = spans(waiting) * 0
print("ready", flush=True)
sys.stdin.readline()


def error(function):
    begin = time.monotonic()
    try:
        jax.block_until_ready(function())
    except RuntimeError as raised:
        assert time.monotonic() - begin < 30
        return str(raised)
    raise AssertionError("no error")


for failing in (
    lambda: np.asarray(spans(x)),
    lambda: np.asarray(x),
    lambda: jax.device_put(np.arange(3.0), devices[4]),
    lambda: jax.device_put(x, devices[0]),
    lambda: jax.jit(lambda a: a.sum())(x),
):
    message = error(failing)
    assert "DATA_LOSS" in message and ("worker 2" in message or "4096" in message), message
# What does not need the lost one goes on.
np.testing.assert_array_equal(local(lives), np.arange(3) + 1)
rest = NamedSharding(Mesh(np.array(devices[:4]), ("x",)), P("x"))
y = jax.device_put(np.arange(8, dtype=np.float32), rest)
np.testing.assert_array_equal(spans(y), np.arange(8) + 28)
print("done")
"""


def start_program(source, server, *arguments):
    return start_python(source, *arguments, env=server.environment(), stderr=subprocess.PIPE)


def test_lost_worker_fails_what_needs_it_and_nothing_else(start):
    # One that comes back would take new arrays again.
    server = start("--workers", "4", "--devices-per-worker", "2", "--max_worker_restarts", "0")
    program = start_program(KILL, server)
    assert program.stdout.readline() == "ready\n", program.communicate()
    os.kill(workers_of(server.process)[2], signal.SIGKILL)
    out, err = program.communicate("\n", timeout=120)
    assert program.returncode == 0 and out == "done\n", err
    # A program that comes later sees the same.
    program = start_program(KILL.replace("x = jax.device_put(np.arange(16, dtype=np.float32), split)", "raise SystemExit(7)"), server)
    program.communicate(timeout=120)
    assert program.returncode == 7
    wait_until(lambda: "worker 2, process" in server.log())
    assert "by signal 9" in server.log()
    assert server.close() == 0


STOP = '''
import sys, time
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

split = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), P("x"))
x = jax.device_put(np.arange(16, dtype=np.float32), split)
lives = jax.device_put(np.arange(3.0), jax.devices()[0])
spans = jax.jit(lambda a: a + a.sum())
local = jax.jit(lambda a: a + 1)
jax.block_until_ready((spans(x), local(lives)))
print("ready", flush=True)
sys.stdin.readline()
def error_of(array):
    try:
        np.asarray(array)
        raise AssertionError("no error")
    except RuntimeError as error:
        return str(error)
begin = time.monotonic()
result = spans(x)
# Of whichever shard is the first to fail.
message = error_of(result)
assert time.monotonic() - begin < 60
assert "DATA_LOSS" in message and "4096, 4097" in message, message
# Those who have waited for the worker know for what.
message = error_of(result.addressable_shards[0].data)
assert "DATA_LOSS" in message and "4096, 4097" in message, message
assert "launch" in message and "all-reduce" in message, message
np.testing.assert_array_equal(local(lives), np.arange(3) + 1)
print("done")
'''


def test_a_stopped_worker_is_lost_in_bounded_time(start):
    server = start("--workers", "3", "--devices-per-worker", "2", "--worker_timeout", "3")
    program = start_program(STOP.replace("np.arange(16,", "np.arange(12,"), server)
    assert program.stdout.readline() == "ready\n", program.communicate()
    stopped = workers_of(server.process)[2]
    os.kill(stopped, signal.SIGSTOP)
    out, err = program.communicate("\n", timeout=120)
    assert program.returncode == 0 and out == "done\n", err
    # What is lost is ended, stopped as it is, and another one started.
    wait_until(lambda: not is_alive(stopped))
    assert server.close() == 0


TWO = '''
import sys
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

split = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), P("x"))
x = jax.device_put(np.arange(16, dtype=np.float32), split)
spans = jax.jit(lambda a: a - a.mean() + 1)
local = jax.jit(lambda a: a + 1)
one = jax.device_put(np.arange(3.0), jax.devices()[int(sys.argv[1])])
jax.block_until_ready((spans(x), local(one)))
print("ready", flush=True)
sys.stdin.readline()
for _ in range(5):
    for _ in range(30):
        x = spans(x)
        one = local(one)
    np.testing.assert_allclose(np.asarray(x).mean(), 1, rtol=1e-5)
    # By way of another worker into a program of all.
    x = jax.device_put(local(jax.device_put(x, jax.devices()[-1 - int(sys.argv[1])])) - 1, split)
np.testing.assert_array_equal(one, np.arange(3.0) + 150)
print("done")
'''


def test_programs_of_several_clients_do_not_wait_for_each_other(start):
    server = start("--workers", "4", "--devices-per-worker", "2")
    programs = [start_program(TWO, server, str(device)) for device in (0, 3, 6)]
    for program in programs:
        assert program.stdout.readline() == "ready\n", program.communicate()
    for program in programs:
        tell(program, "")
    # One that ends in the middle leaves no gap.
    victim = start_program(TWO.replace("range(5)", "range(10**6)"), server, "1")
    assert victim.stdout.readline() == "ready\n", victim.communicate()
    tell(victim, "")
    time.sleep(0.3)
    victim.kill()
    victim.communicate()
    for program in programs:
        out, err = program.communicate(timeout=200)
        assert program.returncode == 0 and out == "done\n", err


def test_workers_end_with_the_server(start, helmway_binary):
    server = start("--workers", "2")
    workers = workers_of(server.process).values()
    assert len(workers) == 2 and all(map(is_alive, workers))
    assert server.close() == 0
    assert not any(map(is_alive, workers))

    server = start("--workers", "2")
    workers = workers_of(server.process).values()
    assert server.close(with_signal=signal.SIGKILL) == -signal.SIGKILL
    wait_until(lambda: not any(map(is_alive, workers)))


def test_a_worker_told_to_end_says_so(start):
    server = start("--workers", "2")
    os.kill(workers_of(server.process)[1], signal.SIGTERM)
    wait_until(lambda: "worker 1, process" in server.log())
    assert "with exit code 143" in server.log()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers=3", "--slices=2"], "--slices=2: 3 workers do not make up so many slices of one size"),
        (["--workers=2", "--devices=8"], "with --workers say --devices_per_worker"),
        (["--slices=2"], "--slices needs --workers"),
        (["--devices_per_worker=2"], "--devices_per_worker needs --workers"),
        (["--workers=0"], "workers"),
        (["--worker_timeout=5"], "--worker_timeout needs --workers"),
        (["--max_worker_restarts=5"], "--max_worker_restarts needs --workers"),
        (["--chaos=5"], "--chaos needs --workers"),
        (["--chaos_interval=5"], "--chaos_interval needs --workers"),
        (["--workers=2", "--chaos_interval=5"], "--chaos_interval needs --chaos"),
    ],
)
def test_impossible_shapes_are_refused(helmway_binary, arguments, message):
    done = subprocess.run(
        [helmway_binary, "up", *arguments], env=clean_environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2 and message in done.stderr, done.stderr


def test_a_worker_that_cannot_start_ends_the_command(helmway_binary, tmp_path):
    plugin = tmp_path / "cpu_plugin.so"
    plugin.write_bytes(b"no library")
    done = subprocess.run(
        [helmway_binary, "up", "--workers=2", f"--pjrt_plugin={plugin}", "--", "true"],
        env=clean_environment(), capture_output=True, text=True, timeout=60, check=False,
    )
    assert done.returncode == 1 and "worker 0" in done.stderr and str(plugin) in done.stderr, done.stderr


# Callbacks hold up what depends on them for as long as the client likes; what is commanded meanwhile has its place
# in the queues of the devices before that.
LATE = '''
import threading
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P, SingleDeviceSharding

a0, a1, b0, b1 = jax.devices()  # two workers
may_go_on = threading.Event()


def wait(x):
    assert may_go_on.wait(60)
    return x


@jax.jit
def late(x):
    return jax.pure_callback(wait, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


double = jax.jit(lambda x: x * 2)
consume = jax.jit(lambda x: x + 1, donate_argnums=0)
add = jax.jit(jnp.add)
of_b = NamedSharding(Mesh(np.array([b0, b1]), ("x",)), P("x"))
of_both = NamedSharding(Mesh(np.array([a0, b0]), ("x",)), P("x"))
total = jax.jit(lambda x: x.sum())  # with an all-reduce
four = np.arange(4.0, dtype=np.float32)
on = jax.device_put
may_go_on.set()
jax.block_until_ready([late(on(four, b0)), [double(on(four, d)) for d in (a0, b0)], consume(on(four, b0)),
                       add(on(four, b0), on(four, b0)), total(on(four, of_b)), total(on(four, of_both))])
may_go_on.clear()

# There and back again, to the queue that the first part is not in yet.
first = double(late(on(four, b0)))
last = double(on(double(on(first, a0)), b0))
# Gone before what was commanded earlier has run.
given = on(four, b0)
sum_ = add(first, given)
after = consume(given)
# A part on the other worker waits for the first, and this worker's part for that; the next wants the devices alone.
parts = [on(first, a0)[:2], on(four, b0)[:2]]
both = total(jax.make_array_from_single_device_arrays((4,), of_both, parts))
alone = total(on(four, of_b))
may_go_on.set()
np.testing.assert_array_equal(last, four * 8)
np.testing.assert_array_equal(sum_, four * 3)
np.testing.assert_array_equal(after, four + 1)
assert float(both) == 3.0 and float(alone) == 6.0, (both, alone)
print("done")
'''


def test_what_is_commanded_later_waits_for_nothing_behind_it(start):
    server = start("--workers", "2", "--devices-per-worker", "2")
    assert run_python(LATE, env=server.environment()).stdout == "done\n"
    assert server.close() == 0
