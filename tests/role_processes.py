"""The roles of a cluster as processes: `helmway server` and `helmway proxy_server`."""

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import tempfile
import time

import grpc
from conftest import clean_environment, run_python, seconds
from raw_client import Connection, message, version

# What would tell a worker its place, or a manager its name.
IDENTITY_VARIABLES = (
    "MEGASCALE_SLICE_ID",
    "JOB_COMPLETION_INDEX",
    "LWS_WORKER_INDEX",
    "SLURM_PROCID",
    "HOST_ADDRESS",
    "PATHWAYS_HEAD",
)
PLACED = r"Transition slice {}: unplaced -> placed on worker pods: \[(.*)\]"
SERVING = r"Pathways Server serving on \[::\]:(\d+)"
START_TIMEOUT_S = seconds(120)


def lasting_port():
    """A port that no connection gets by chance, so that a server can come back to it."""
    while True:
        port = random.randrange(20000, 30000)
        with socket.socket(socket.AF_INET6) as attempt, contextlib.suppress(OSError):
            attempt.bind(("::", port))
            return port


class Process:
    """A `helmway server` process, or that of another command, with its log. `within`: words before the command."""

    def __init__(self, binary, *arguments, command="server", within=(), **variables):
        environment = clean_environment()
        for name in IDENTITY_VARIABLES:
            environment.pop(name, None)
        environment.update(variables)
        self._log = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [*within, binary, command, *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def log(self):
        return os.pread(self._log.fileno(), 1 << 24, 0).decode(errors="replace")

    def wait_for(self, pattern, count=1):
        """Waits until the log has that often what matches; returns the last match."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            found = list(re.finditer(pattern, self.log()))
            if len(found) >= count:
                return found[-1]
            assert self._process.poll() is None, f"ended with {self._process.returncode}\n{self.log()}"
            assert time.monotonic() < deadline, f"no {pattern!r} in the log\n{self.log()}"
            time.sleep(0.02)

    def port(self):
        return int(self.wait_for(SERVING).group(1))

    def send(self, with_signal):
        self._process.send_signal(with_signal)

    def wait(self):
        return self._process.wait(START_TIMEOUT_S)

    def end(self, with_signal=signal.SIGTERM):
        if self._process.poll() is None:
            self.send(with_signal)
        return self.wait()


@contextlib.contextmanager
def starting(binary):
    """Gives start(arguments..., command=..., within=..., VARIABLE=...), whose processes do not outlive the context."""
    with contextlib.ExitStack() as stack:

        def begin(*arguments, **variables):
            process = Process(binary, *arguments, **variables)

            def kill():
                with contextlib.suppress(ProcessLookupError):
                    process.send(signal.SIGCONT)
                process.end(signal.SIGKILL)

            stack.callback(kill)
            return process

        yield begin


class Cluster:
    """A manager on a lasting port, and workers that are told their places, on `network_hosts` if these are given."""

    def __init__(self, start, slices, hosts, devices, *flags, worker_flags=(), network_hosts=None, platform="cpu"):
        self._start = start
        self._worker_flags = worker_flags
        self._port = lasting_port()
        self._hosts = hosts
        self._flags = [
            f"--server_port={self._port}",
            "--node_type=resource_manager",
            f"--instance_count={slices}",
            f"--instance_type={platform}:{hosts}x{devices}",
            *flags,
        ]
        self._network_hosts = network_hosts
        self.address = f"{network_hosts.own_address if network_hosts else 'localhost'}:{self._port}"
        self.slices = slices
        self.manager = None
        self.start_manager()
        self.workers = [self.start_worker(i) for i in range(slices * hosts)]

    def start_manager(self):
        self.manager = self._start(*self._flags)
        self.manager.wait_for(SERVING)

    def start_worker(self, index, port=0):
        return self._start(
            f"--server_port={port}",
            f"--resource_manager_address={self.address}",
            *self._worker_flags,
            within=self._network_hosts.words(index) if self._network_hosts else (),
            MEGASCALE_SLICE_ID=str(index // self._hosts),
            JOB_COMPLETION_INDEX=str(index % self._hosts),
        )

    def wait_ready(self, ready, count=1):
        self.manager.wait_for(rf"\*\*\* {ready}/{self.slices} Pathways Slices Now Ready \*\*\*", count)


# Prints where the devices are, after a program on all of them.
DEVICES = """
import jax, json
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

devices = jax.devices()
x = jax.device_put(np.arange(4 * len(devices), dtype=np.float32), NamedSharding(Mesh(np.array(devices), ("x",)), P("x")))
total = jax.jit(lambda a: (a * 2 + a.sum())[::3].sum())(x)
a = np.arange(4 * len(devices))
assert float(total) == (a * 2 + a.sum())[::3].sum()
print(json.dumps([[d.id, d.slice_index, d.virtual_task_index] for d in devices]))
"""


class Proxy:
    """A `helmway proxy_server` of a cluster."""

    def __init__(self, start, manager_address, *flags):
        self.process = start(
            "--server_port=0", f"--resource_manager_address={manager_address}", *flags, command="proxy_server"
        )
        self.process.wait_for("IFRT proxy server started with status OK")
        self.port = int(self.process.wait_for(r"serving the cluster at \S+ on port (\d+)").group(1))

    def environment(self):
        return clean_environment(
            JAX_PLATFORMS="proxy",
            JAX_BACKEND_TARGET=f"grpc://127.0.0.1:{self.port}",
            IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS="true",
        )

    def run(self, script=DEVICES):
        return json.loads(run_python(script, env=self.environment()).stdout)

    def refusal(self):
        """What a client is told; None: it is taken."""
        with Connection(f"127.0.0.1:{self.port}") as connection:
            try:
                connection.get_version(
                    message("GrpcGetVersionRequest")(min_version=version(16, 3), max_version=version(25, 6))
                )
            except grpc.RpcError as error:
                return error.code(), error.details()
        return None

    def wait_placed(self, position, count=1):
        return self.process.wait_for(PLACED.format(position), count)
