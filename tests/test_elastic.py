"""Slices are lost and come back: pathwaysutils' elastic training, unmodified, and what it is built on."""

import importlib.util
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

import pytest
from conftest import seconds, start_python, tell
from local_cluster_processes import is_alive, starting, wait_until, workers_of

EXAMPLE = pathlib.Path(__file__).resolve().parent.parent / "examples" / "elastic_train.py"


@pytest.fixture
def start(helmway_binary):
    with starting(helmway_binary) as begin:
        yield begin


def two_slices(start, *flags):
    return start("--workers", "4", "--devices-per-worker", "2", "--slices", "2", *flags)


class Program:
    """A client that does what it is told by lines, and prints lines."""

    def __init__(self, server, script):
        self.process = start_python(script, env=server.environment())

    def expect(self, line):
        assert self.process.stdout.readline() == line + "\n"

    def tell(self, line):
        tell(self.process, line)

    def end(self):
        out, _ = self.process.communicate(timeout=seconds(180))
        assert self.process.returncode == 0, out
        return out


# What a program is to see of a lost slice, as pathwaysutils' mock_fault_injection models it.
MODEL = '''
import sys, time
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import pathwaysutils
from pathwaysutils.elastic import elastic

pathwaysutils.initialize()
slices = elastic.get_slice_to_devices(jax.devices())
assert {s: len(d) for s, d in slices.items()} == {0: 4, 1: 4}
spread = lambda devices: NamedSharding(Mesh(np.array(devices), ("x",)), P("x"))
everywhere, here, there = (spread(d) for d in (jax.devices(), slices[0], slices[1]))
step = jax.jit(lambda a: a + a.sum())
old = {name: jax.device_put(np.arange(8.0), where) for name, where in
       dict(everywhere=everywhere, here=here, there=there).items()}
old |= {"of " + name: step(a) for name, a in old.items()}
jax.block_until_ready(old)

def lost(thing, why=("DATA_LOSS", "worker 3 (slice 1)")):
    for look in (jax.block_until_ready, np.asarray):
        begin = time.monotonic()
        try:
            look(thing)
        except jax.errors.JaxRuntimeError as error:
            assert all(word in str(error) for word in why), error
            assert time.monotonic() - begin < 60
        else:
            raise AssertionError("no error")

print("ready")
input()  # the loss
while True:
    try:
        jax.block_until_ready(step(old["there"]))
    except jax.errors.JaxRuntimeError:
        break
    time.sleep(0.02)
print("noticed")
input()
for name in ("everywhere", "there"):
    lost(old[name])
    lost(step(old[name]))                             # contagious
lost(jax.device_put(old["there"], here))              # also elsewhere
np.testing.assert_array_equal(old["here"], np.arange(8.0))
np.testing.assert_array_equal(step(old["here"]), np.arange(8.0) + 28)
late = jax.device_put(np.arange(8.0), there)          # making never raises
fresh = jax.jit(lambda a: a * 2)(late)                # nor does compiling for it
lost(late)
lost(fresh)
assert elastic.get_active_slice_indices(slices) == {0}
print("checked")
input()  # the return
assert elastic.wait_for_slices(slice_to_devices=slices, poll_interval=0.1, timeout=120) == {0, 1}
for name in ("everywhere", "there"):
    lost(old[name])                                   # sticky
    lost(step(old[name]))
lost(fresh)
np.testing.assert_array_equal(old["here"], np.arange(8.0))
for where in (everywhere, here, there):
    new = jax.device_put(np.arange(8.0), where)       # fresh data is good, with programs from before
    np.testing.assert_array_equal(step(new), np.arange(8.0) + 28)
moved = jax.device_put(old["here"], there)
np.testing.assert_array_equal(moved, np.arange(8.0))
print("done")
'''


def test_a_lost_slice_is_as_the_model_says_and_comes_back(start):
    server = two_slices(start, "--max_worker_restarts", "0")
    program = Program(server, MODEL)
    program.expect("ready")
    os.kill(workers_of(server.process)[3], signal.SIGKILL)
    program.tell("")
    program.expect("noticed")
    program.tell("")
    program.expect("checked")
    # A worker that is not started again does not come back.
    assert sorted(workers_of(server.process)) == [0, 1, 2]
    program.process.kill()
    program.process.wait()
    server.close()

    server = two_slices(start)
    program = Program(server, MODEL.replace('print("noticed")\ninput()', 'print("noticed")').replace(
        # It may be back already.
        "lost(late)\nlost(fresh)\nassert elastic.get_active_slice_indices(slices) == {0}\n", "").replace("lost(fresh)\nnp.testing", "np.testing"))
    program.expect("ready")
    os.kill(workers_of(server.process)[3], signal.SIGKILL)
    program.tell("")
    program.expect("noticed")
    program.expect("checked")
    program.tell("")
    program.expect("done")
    program.end()
    assert sorted(workers_of(server.process)) == [0, 1, 2, 3]
    assert server.close() == 0


LOOKS = '''
import time
import jax, pathwaysutils
from pathwaysutils.elastic import elastic

pathwaysutils.initialize()
slices = elastic.get_slice_to_devices(jax.devices())
while True:
    begin = time.monotonic()
    active = sorted(elastic.get_active_slice_indices(slices))
    assert time.monotonic() - begin < 60
    print(active)
    if not input():
        break
'''


def test_a_stopped_worker_is_lost_ended_and_replaced(start):
    server = two_slices(start)
    program = Program(server, LOOKS)
    program.expect("[0, 1]")
    stopped = workers_of(server.process)[1]
    os.kill(stopped, signal.SIGSTOP)
    program.tell("again")
    program.expect("[1]")  # in bounded time, though nothing has ended
    # It can do nothing any more, even if it were to go on.
    wait_until(lambda: not is_alive(stopped))
    while True:
        program.tell("again")
        if program.process.stdout.readline() == "[0, 1]\n":
            break
        time.sleep(0.1)
    program.tell("")
    program.end()
    assert workers_of(server.process)[1] != stopped
    assert server.close() == 0


def test_the_tests_of_pathwaysutils_that_use_devices(start, tmp_path):
    """Its model of lost devices, and resharding, on two slices."""
    # Not imported here: JAX would change the environment of this process.
    folder = pathlib.Path(importlib.util.find_spec("pathwaysutils").submodule_search_locations[0]) / "test"
    files = [folder / "mock_fault_injection_test.py", folder / "reshard_test.py", folder / "experimental/reshard_test.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, *files],
        env=two_slices(start).environment(),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
        timeout=seconds(300),
        check=False,
    )
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-4000:]


def final_loss(out):
    return float(re.search(r"final loss (\S+) after", out).group(1))


def test_training_goes_on_through_losses(start, tmp_path):
    server = two_slices(start)
    command = [sys.executable, "-u", EXAMPLE, "--steps=240", "--snapshot-every=10", "--poll-interval=0.3"]
    undisturbed = subprocess.run(
        command, env=server.environment(), stdout=subprocess.PIPE, text=True, timeout=seconds(300), check=True
    ).stdout
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with subprocess.Popen(
        [*command, "--seconds-per-step=0.05", f"--checkpoint-directory={tmp_path}"],
        env=server.environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        lines = []

        def wait_for(pattern):
            while True:
                lines.append(program.stdout.readline())
                assert lines[-1], "".join(lines)
                if re.search(pattern, lines[-1]):
                    return

        for _ in range(3):
            wait_for(r"^step \d+: .* on slices \[0, 1\]")
            time.sleep(rng.uniform(0, 0.5))
            victims = workers_of(server.process)
            victim = rng.choice(sorted(victims))
            os.kill(victims[victim], signal.SIGKILL)
            wait_for(r"^attempt ")
            wait_until(lambda: len(workers_of(server.process)) == 4)
        rest, _ = program.communicate(timeout=seconds(300))
    out = "".join(lines) + rest
    assert program.returncode == 0, out
    assert final_loss(out) == pytest.approx(final_loss(undisturbed), rel=1e-2), out
    assert int(re.search(r"after (\d+) attempts", out).group(1)) >= 4, out
    # A program that begins later finds the last checkpoint.
    again = subprocess.run(
        [*command, f"--checkpoint-directory={tmp_path}"],
        env=server.environment(),
        stdout=subprocess.PIPE,
        text=True,
        timeout=seconds(300),
        check=True,
    ).stdout
    assert "attempt 1: from step 240" in again and final_loss(again) == pytest.approx(final_loss(out), rel=1e-5)
    assert server.close() == 0


def test_chaos_kills_workers_by_its_seed(start):
    def victims(seed):
        server = two_slices(start, "--chaos", seed, "--chaos_interval", "1")
        wait_until(lambda: server.log().count("chaos kills") >= 3)
        assert server.close() == 0
        return re.findall(r"chaos kills worker (\d)", server.log())[:3]

    assert victims("11") == victims("11")


def test_a_worker_that_has_used_up_its_restarts_is_left(start):
    server = start("--workers", "2", "--max_worker_restarts", "2")
    for _ in range(2):
        worker = workers_of(server.process)[1]
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda w=worker: workers_of(server.process).get(1, w) != w)
    os.kill(workers_of(server.process)[1], signal.SIGKILL)
    wait_until(lambda: "worker 1 has been started again 2 times and is left as it is" in server.log())
    assert sorted(workers_of(server.process)) == [0]
    assert server.close() == 0

