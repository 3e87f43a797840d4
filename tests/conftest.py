"""The harness: a server per test session, and user programs as processes of their own.

JAX chooses its backends once per process, so programs that use the proxy run in subprocesses of the Python that
runs pytest, as a user would run them.

  HELMWAY_BINARY        the helmway program (default: the one on PATH)
  HELMWAY_PJRT_PLUGIN   the accelerator plugin, if the program does not find one by itself
  HELMWAY_FAKE_GPU_PLUGIN  the plugin without hardware that the C++ tests build (default: that of the build which
                        helmway_binary is from)
  HELMWAY_TEST_PATIENCE a factor for all time-outs, for slow builds or machines (default: 1)
  HELMWAY_TEST_WORKERS  the server that all tests share has so many workers in processes of their own, instead
                        of one in its own process

A helmway that was built with a sanitizer must have nothing to report, whoever started it and however it ended.
"""

import os
import pathlib
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import gcs_front
import pytest

TESTS = pathlib.Path(__file__).resolve().parent
ROOT = TESTS.parent
DEVICES = 8

# Of the client; none of them must leak from the environment of pytest into a program under test.
CLIENT_VARIABLES = (
    "JAX_PLATFORMS",
    "JAX_BACKEND_TARGET",
    "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS",
    "XLA_FLAGS",
    # JAX sets it in a process that imports it, and the servers of that process would say less.
    "TF_CPP_MIN_LOG_LEVEL",
)


# Where the sanitizers of a build look for their settings.
SANITIZER_VARIABLES = ("ASAN_OPTIONS", "LSAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS")


def seconds(timeout_s):
    """A time-out as it is to be used."""
    return timeout_s * float(os.environ.get("HELMWAY_TEST_PATIENCE", "1"))


def clean_environment(**extra):
    """The environment of this process without what would direct JAX, plus `extra`."""
    environment = {name: value for name, value in os.environ.items() if name not in CLIENT_VARIABLES}
    environment.update(extra)
    return environment


def cpu_environment(devices=DEVICES):
    """JAX on its own CPU backend with as many devices as the server has."""
    return clean_environment(
        JAX_PLATFORMS="cpu", XLA_FLAGS=f"--xla_force_host_platform_device_count={devices}"
    )


class Server:
    """A `helmway up` process that serves. close() ends it and says how it ended."""

    def __init__(self, binary, *arguments, start_timeout_s=120, environment=None, **popen):
        self._log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [binary, "up", "--port", "0", *arguments],
            env=clean_environment(**(environment or {})),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            **popen,
        )
        self.variables = {}
        try:
            self._read_exports(time.monotonic() + seconds(start_timeout_s))
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    def _read_exports(self, deadline):
        pending = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while not set(CLIENT_VARIABLES[:3]) <= self.variables.keys():
                assert selector.select(max(0, deadline - time.monotonic())), f"not ready in time\n{self.log()}"
                chunk = os.read(self.process.stdout.fileno(), 4096)
                assert chunk, f"helmway up ended with {self.process.wait()}\n{self.log()}"
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    export, assignment = shlex.split(line.decode())
                    assert export == "export"
                    name, value = assignment.split("=", 1)
                    self.variables[name] = value

    @property
    def address(self):
        """host:port"""
        return self.variables["JAX_BACKEND_TARGET"].removeprefix("grpc://")

    def environment(self, **extra):
        """The environment of a program that uses this server."""
        return clean_environment(**self.variables, **extra)

    def log(self):
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def close(self, with_signal=signal.SIGTERM, timeout_s=60):
        """Ends the server and returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(with_signal)
        try:
            code = self.process.wait(seconds(timeout_s))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            pytest.fail(f"the server did not end within {seconds(timeout_s)} s\n{self.log()}")
        self.process.stdout.close()
        return code


def run_python(script, *arguments, env, timeout_s=300, check=True):
    """Runs a script (a path, or source text) with this Python; shows its output if it fails."""
    command = [sys.executable]
    command += [str(script)] if isinstance(script, pathlib.Path) else ["-c", script]
    done = subprocess.run(
        command + list(arguments),
        env=env,
        capture_output=True,
        text=True,
        timeout=seconds(timeout_s),
        check=False,
    )
    if check and done.returncode != 0:
        pytest.fail(f"exit code {done.returncode}\n--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}")
    return done


def start_python(script, *arguments, env, **popen):
    """Starts a script (source text) with this Python, for lines on its stdin and stdout."""
    return subprocess.Popen(
        [sys.executable, "-u", "-c", script, *arguments],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **popen,
    )


def tell(process, line):
    """A line for its stdin."""
    process.stdin.write(line + "\n")
    process.stdin.flush()


class SanitizerReports:
    """What the sanitizers of all helmway processes write from here on."""

    def __init__(self, folder):
        self._folder = folder
        self._seen = {}  # file -> its bytes that were taken
        for name in SANITIZER_VARIABLES:
            options = [os.environ[name]] if name in os.environ else []
            os.environ[name] = ":".join([*options, f"log_path={folder / 'report'}"])

    def take(self):
        """What was reported since the last call."""
        new = b""
        for path in sorted(self._folder.iterdir()):
            text = path.read_bytes()
            new += text[self._seen.get(path, 0) :]
            self._seen[path] = len(text)
        return new.decode(errors="replace")


def shape(workers):
    """The flags of a server with DEVICES devices on so many workers; 0: one, in the server's own process."""
    if workers == 0:
        return ("--devices", str(DEVICES))
    return ("--workers", str(workers), "--devices_per_worker", str(DEVICES // workers))


@pytest.fixture(scope="session")
def sanitizer_reports(tmp_path_factory):
    reports = SanitizerReports(tmp_path_factory.mktemp("sanitizers"))
    yield reports
    # Servers that served several tests have ended now.
    assert not (text := reports.take()), text


@pytest.fixture(autouse=True)
def no_sanitizer_reports(sanitizer_reports):
    yield
    assert not (text := sanitizer_reports.take()), text


@pytest.fixture(scope="session")
def helmway_binary(sanitizer_reports):
    binary = os.environ.get("HELMWAY_BINARY") or shutil.which("helmway")
    assert binary, "set HELMWAY_BINARY to the helmway program, or put it on PATH"
    assert os.access(binary, os.X_OK), f"HELMWAY_BINARY={binary} is not a program"
    return binary


@pytest.fixture(scope="session")
def fake_gpu_plugin(helmway_binary):
    """A plugin that takes options and meets its peers as those of GPUs do, and runs nothing."""
    built = pathlib.Path(helmway_binary).resolve().parents[1] / "pjrt/libpjrt_fake_gpu_plugin_for_test.so"
    plugin = os.environ.get("HELMWAY_FAKE_GPU_PLUGIN") or str(built)
    if not os.path.exists(plugin):
        pytest.skip(f"HELMWAY_FAKE_GPU_PLUGIN is not set, and there is no {built}")
    return plugin


@pytest.fixture
def front():
    """A Cloud Storage of the test's own, that can misbehave."""
    running = gcs_front.start_or_none()
    if running is None:
        pytest.skip("HELMWAY_FAKE_GCS_SERVER names no Cloud Storage emulator")
    yield running
    running.close()


@pytest.fixture(scope="session")
def python_server(helmway_binary):
    """Like `server`, with the Python of the tests' programs: functions travel only between equal versions."""
    running = Server(helmway_binary, "--devices", str(DEVICES), environment={"HELMWAY_PYTHON": sys.executable})
    yield running
    assert running.process.poll() is None, f"the server died during the tests\n{running.log()}"
    assert running.close() == 0, running.log()


@pytest.fixture(scope="session")
def server(helmway_binary):
    """One server with eight devices for all tests; it must survive them and end well."""
    running = Server(helmway_binary, *shape(int(os.environ.get("HELMWAY_TEST_WORKERS", "0"))))
    yield running
    assert running.process.poll() is None, f"the server died during the tests\n{running.log()}"
    assert running.close() == 0, running.log()
