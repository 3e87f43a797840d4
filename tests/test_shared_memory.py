"""Bytes between workers on one host go through memory that both map, and nothing of it stays behind."""

import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess

import local_cluster_processes
import pytest
from conftest import clean_environment, run_python, seconds
from local_cluster_processes import wait_until, workers_of
from role_processes import Cluster, starting
from test_cluster import start_program

pytestmark = pytest.mark.one_jax

NO_SHARED_MEMORY = r"go over the network's streams"
NOT_MAPPED = r"on this host come over the network's stream"

# All-reduces whose parts are large, and copies from each device to each; then it says so, and waits.
WORK = """
import sys
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

devices = jax.devices()
split = NamedSharding(Mesh(np.array(devices), ("x",)), P("x"))
host = np.arange(len(devices) << 19, dtype=np.float32).reshape(len(devices), -1) % 1009
x = jax.device_put(host, split)
spans = jax.jit(lambda a: a + a.sum(axis=0), out_shardings=split)
one = jax.device_put(host[1, :-3], devices[0])
for _ in range(int(sys.argv[1])):
    for _ in range(3):
        np.testing.assert_array_equal(spans(x), host + host.sum(axis=0))
    for device in devices[1:] + devices[:1]:
        one = jax.device_put(one, device)
    np.testing.assert_array_equal(one, host[1, :-3])
print("ready", flush=True)
sys.stdin.readline()
while "go on" in sys.argv:
    jax.block_until_ready(spans(x))
"""


def arenas(pid):
    """Inodes of the arenas that a process maps: its own (writable), and those of others that it has looked into."""
    own, others = set(), set()
    inode = writable = None
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if head := re.match(r"[0-9a-f]+-[0-9a-f]+ (\S+) \S+ \S+ (\d+)\s*(.*)", line):
            inode = head[2] if head[3].startswith("/memfd:helmway-arena") else None
            writable = "w" in head[1]
        elif inode and (used := re.match(r"Rss: +(\d+) kB", line)) and int(used[1]) > 0:
            (own if writable else others).add(inode)
    return own, others


@pytest.fixture
def start(helmway_binary):
    with local_cluster_processes.starting(helmway_binary) as begin:
        yield begin


def begin_work(server, *words, devices=None):
    script = WORK.replace("jax.devices()", f"jax.devices()[:{devices}]")
    program = start_program(script, server, "2", *words)
    assert program.stdout.readline() == "ready\n", program.communicate()
    return program


def end_work(program):
    _, err = program.communicate("\n", timeout=seconds(120))
    assert program.returncode == 0, err


def test_large_bytes_are_read_where_the_sender_wrote_them(start):
    server = start("--workers", "2", "--devices-per-worker", "2")
    program = begin_work(server)
    (own_0, others_0), (own_1, others_1) = (arenas(pid) for _, pid in sorted(workers_of(server.process).items()))
    assert len(own_0) == len(own_1) == 1 and others_0 == own_1 and others_1 == own_0
    end_work(program)
    assert not re.search(f"{NO_SHARED_MEMORY}|{NOT_MAPPED}", server.log()), server.log()


def test_a_killed_worker_leaves_no_memory_behind(start):
    named = set(os.listdir("/dev/shm"))
    server = start("--workers", "3", "--devices-per-worker", "1")
    program = begin_work(server)
    workers = workers_of(server.process)
    [lost], _ = arenas(workers[2])
    rest = (workers[0], workers[1])
    assert all(lost in arenas(pid)[1] for pid in rest)
    # In the middle of work, which fails.
    busy = begin_work(server, "go on")
    busy.stdin.write("\n")
    busy.stdin.flush()
    os.kill(workers[2], signal.SIGKILL)
    assert "DATA_LOSS" in busy.communicate(timeout=seconds(120))[1]
    wait_until(lambda: all(lost not in arenas(pid)[1] for pid in rest))
    end_work(program)
    # The others share on.
    program = begin_work(server, devices=2)
    assert arenas(rest[0])[1] & arenas(rest[1])[0] and arenas(rest[1])[1] & arenas(rest[0])[0]
    end_work(program)
    server.close(signal.SIGKILL)
    wait_until(lambda: not any(pathlib.Path(f"/proc/{pid}/maps").exists() for pid in workers.values()))
    assert set(os.listdir("/dev/shm")) == named


def test_without_shared_memory_the_stream_carries_all(start):
    def small_files_only():
        # The arena is larger than any file may be.
        resource.setrlimit(resource.RLIMIT_FSIZE, (128 << 20, 128 << 20))

    # Python ignores the signal that comes with it, and so does what it starts.
    server = start("--workers", "2", "--devices-per-worker", "2", preexec_fn=small_files_only, restore_signals=False)
    end_work(begin_work(server))
    assert len(re.findall(NO_SHARED_MEMORY, server.log())) == 2, server.log()
    assert "File too large" in server.log()


def test_workers_that_do_not_see_each_other_use_the_stream(helmway_binary):
    apart = ["--fork", "--mount-proc", "--kill-child"]
    unshare = shutil.which("unshare")
    can = [unshare, "--pid", *apart, "true"]
    if unshare is None or subprocess.run(can, capture_output=True, check=False).returncode:
        pytest.skip("this user may not make namespaces of processes")
    with starting(helmway_binary) as begin, starting(unshare) as begin_apart:

        class Apart(Cluster):
            def start_worker(self, index, port=0):
                return begin_apart(
                    *apart, helmway_binary, "server", f"--server_port={port}",
                    f"--resource_manager_address={self.address}",
                    command="--pid", MEGASCALE_SLICE_ID="0", JOB_COMPLETION_INDEX=str(index),
                )  # fmt: skip

        cluster = Apart(begin, 1, 2, 2)
        cluster.wait_ready(1)
        proxy = begin("--server_port=0", f"--resource_manager_address={cluster.address}", command="proxy_server")
        port = int(proxy.wait_for(r"serving the cluster at \S+ on port (\d+)").group(1))
        environment = clean_environment(
            JAX_PLATFORMS="proxy",
            JAX_BACKEND_TARGET=f"grpc://127.0.0.1:{port}",
            IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS="true",
        )
        run_python(WORK.replace("sys.stdin.readline()", ""), "2", env=environment)
        for worker in cluster.workers:
            assert len(re.findall(NOT_MAPPED, worker.log())) == 1, worker.log()
