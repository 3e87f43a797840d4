"""A local cluster for this process: a `helmway up` child, and JAX configured to use it."""

import atexit
import contextlib
import os
import selectors
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterator

from helmway import _jax_plugin, _launcher, _versions

_TARGET = "JAX_BACKEND_TARGET"
_VARIABLES = ("JAX_PLATFORMS", _TARGET, "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS")
_START_TIMEOUT_S = 120
_STOP_TIMEOUT_S = 30


class LocalCluster:
    """A running local cluster, made by start(). Use from one thread."""

    def __init__(self, process: subprocess.Popen, log, environment: dict[str, str]):
        self._process = process
        self._log = log
        self._environment = environment
        self._saved_environment: dict[str, str | None] = {}
        self._saved_config: dict[str, object] = {}

    @property
    def environment(self) -> dict[str, str]:
        """The variables that make a process use this cluster."""
        return dict(self._environment)

    @property
    def target(self) -> str:
        """Address of the server, grpc://host:port."""
        return self._environment[_TARGET]

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        """What the server has logged so far."""
        with open(self._log.name, encoding="utf-8", errors="replace") as file:
            return file.read()

    def stop(self) -> None:
        """Ends the cluster and gives JAX back the platforms it had; idempotent.

        All arrays that live on the cluster are lost. RuntimeError if the server had already ended by itself, or
        did not end well.
        """
        if self._process is None:
            return
        process, self._process = self._process, None
        atexit.unregister(self.stop)
        self._release_jax()
        died = process.poll()
        code = _end(process)
        if died is not None or code != 0:
            how = "had ended by itself" if died is not None else "did not end well"
            raise RuntimeError(f"the helmway server {how} (exit code {code}). {_tail(self._log)}")

    def _configure_jax(self) -> None:
        import jax

        for name, value in self._environment.items():
            self._saved_environment[name] = os.environ.get(name)
            os.environ[name] = value
        self._saved_config = {
            "jax_platforms": jax.config.jax_platforms,
            "jax_backend_target": jax.config.read("jax_backend_target"),
        }
        jax.config.update("jax_platforms", self._environment["JAX_PLATFORMS"])
        jax.config.update("jax_backend_target", self.target)
        # JAX looks for plugins once per process, perhaps before it was configured.
        _jax_plugin.register()
        _jax_plugin.add_cpu()

    def _release_jax(self) -> None:
        import jax
        from jax.extend import backend

        if _backends_are_initialized():
            backend.clear_backends()
        for option, value in self._saved_config.items():
            jax.config.update(option, value)
        for name, value in self._saved_environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def start(devices: int = 8, *, pjrt_plugin: str | None = None) -> LocalCluster:
    """Starts a local cluster and makes JAX in this process use it, until stop() or the end of the process.

    Args:
      devices: how many devices the cluster has (virtual ones on a CPU).
      pjrt_plugin: path of the plugin to load; None searches as `helmway up` does.

    RuntimeError if JAX has already been used in this process (its devices cannot be changed then), if jax is not
    of a version that works, or if the server does not start.
    """
    import jax
    import jaxlib

    for package, version in (("jaxlib", jaxlib.__version__), ("jax", jax.__version__)):
        if problem := _versions.problem_with(package, version):
            raise RuntimeError(problem)
    if _backends_are_initialized():
        raise RuntimeError(
            f"JAX already runs on '{jax.default_backend()}' in this process, and its devices are chosen at first "
            "use. Call helmway.start() or helmway.local() before anything that uses devices (in a notebook: "
            "restart the kernel and run that cell first), or call jax.extend.backend.clear_backends(), which "
            "loses all arrays."
        )
    command = [_launcher.binary(), "up", "--port", "0", "--devices", str(devices)]
    if pjrt_plugin is not None:
        command += ["--pjrt_plugin", os.fspath(pjrt_plugin)]
    log = tempfile.NamedTemporaryFile(prefix="helmway-", suffix=".log")
    # A session of its own, so that an interrupt of the notebook does not end the server.
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True
    )
    try:
        cluster = LocalCluster(process, log, _read_exports(process, log))
        cluster._configure_jax()  # pylint: disable=protected-access
    except BaseException:
        _end(process)
        raise
    atexit.register(cluster.stop)
    return cluster


@contextlib.contextmanager
def local(devices: int = 8, *, pjrt_plugin: str | None = None) -> Iterator[LocalCluster]:
    """A local cluster for the length of a `with` block; arguments and errors as in start()."""
    cluster = start(devices, pjrt_plugin=pjrt_plugin)
    try:
        yield cluster
    except BaseException as error:
        try:
            cluster.stop()
        except RuntimeError as stop_error:
            error.add_note(str(stop_error))
        raise
    cluster.stop()


def _backends_are_initialized() -> bool:
    # JAX has no public way to ask without making the backends.
    from jax._src import xla_bridge

    return xla_bridge.backends_are_initialized()


def _read_exports(process: subprocess.Popen, log) -> dict[str, str]:
    """Waits for the `export NAME=VALUE` lines that `helmway up` prints when it serves."""
    found: dict[str, str] = {}
    pending = b""
    deadline = time.monotonic() + _START_TIMEOUT_S
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not all(name in found for name in _VARIABLES):
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                raise RuntimeError(f"the helmway server was not ready in {_START_TIMEOUT_S} s. {_tail(log)}")
            chunk = os.read(process.stdout.fileno(), 4096)
            if not chunk:
                code = process.wait()
                raise RuntimeError(f"the helmway server did not start (exit code {code}). {_tail(log)}")
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                words = shlex.split(line.decode())
                if len(words) == 2 and words[0] == "export" and "=" in words[1]:
                    name, value = words[1].split("=", 1)
                    found[name] = value
    return found


def _end(process: subprocess.Popen) -> int:
    """Ends the child, by force if it does not react, and returns its exit code."""
    if process.poll() is None:
        process.terminate()
    try:
        code = process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        code = process.wait()
    process.stdout.close()
    return code


def _tail(log, lines: int = 20) -> str:
    with open(log.name, encoding="utf-8", errors="replace") as file:
        last = file.read().splitlines()[-lines:]
    return "Its last messages:\n" + "\n".join(last) if last else "It logged nothing."
