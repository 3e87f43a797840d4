"""The entry point (group `jax_plugins`) that teaches JAX the platform "proxy".

JAX calls initialize() of every installed plugin when it makes its backends. jax 0.10 and 0.11 have no "proxy"
platform although jaxlib has the client for it, so without this (or pathwaysutils) JAX_PLATFORMS=proxy is an
unknown platform. jax 0.12.0.1 has one; ours adds the check of versions, the timeout and clearer errors.

Importing this module is cheap and changes nothing.
"""

import functools
import logging
import os
import sys

_logger = logging.getLogger(__name__)

_PLATFORM = "proxy"
_INSECURE = "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS"
_TIMEOUT = "PATHWAYS_PROXY_CONNECTION_TIMEOUT_SECS"


def proxy_requested() -> bool:
    """True if "proxy" is one of JAX's configured platforms."""
    import jax

    return _PLATFORM in (jax.config.jax_platforms or "").split(",")


def initialize() -> None:
    """Registers the "proxy" backend, if JAX is configured to use it. Never raises, connects to nothing.

    A registration of the same platform made earlier, by JAX or pathwaysutils.initialize(), is replaced by one that
    does the same and also checks versions; a later one replaces ours. All work.
    """
    if proxy_requested():
        register()
        add_cpu()


def add_cpu() -> None:
    """Puts JAX's own CPU devices behind those of "proxy", if the user has not: JAX gives the arguments of Python
    callbacks to its functions on a CPU device of the process."""
    import jax

    if "cpu" not in jax.config.jax_platforms.split(","):
        jax.config.update("jax_platforms", jax.config.jax_platforms + ",cpu")


def register() -> None:
    """Registers the "proxy" backend. RuntimeError if JAX already runs on one."""
    from jax.extend import backend

    _add_lowering_rules()
    # The priority counts only if the user names no platforms, and then the factory refuses.
    backend.register_backend_factory(_PLATFORM, _make_client, priority=-1)


@functools.cache
def _add_lowering_rules() -> None:
    """Once. Never raises: what is missing then is refused when a program needs it."""
    from helmway import _callbacks, _custom_partitioning

    for module, what in ((_callbacks, "Python callbacks"), (_custom_partitioning, "custom partitioning")):
        try:
            module.register_rules()
        except Exception:  # pylint: disable=broad-except
            _logger.warning("this version of JAX is not known: %s will be refused", what, exc_info=True)


def _make_client():
    """Connects to the server. RuntimeError with what the user can do, else; JAX shows it."""
    import jax
    import jaxlib
    from helmway import _callbacks, _versions

    if not proxy_requested():
        # Left over from a local cluster that has ended.
        raise RuntimeError("proxy is not among the configured platforms (JAX_PLATFORMS)")
    for package, version in (("jaxlib", jaxlib.__version__), ("jax", jax.__version__)):
        if problem := _versions.problem_with(package, version):
            raise RuntimeError(problem)
    target = jax.config.read("jax_backend_target")
    if not target:
        raise RuntimeError(
            "JAX_BACKEND_TARGET is not set: it names the server, grpc://host:port. "
            "`helmway up -- COMMAND` starts a server and sets it for COMMAND."
        )

    from jax.extend.backend import ifrt_proxy

    options = ifrt_proxy.ClientConnectionOptions()
    # So that the server can say that functions of this Python do not run on its own.
    options.initialization_data = {
        "helmway_python_version": b"%d.%d" % sys.version_info[:2],
        "helmway_jax_version": jax.__version__.encode(),
    }
    if timeout := os.environ.get(_TIMEOUT):
        if not timeout.isdecimal():
            raise RuntimeError(f"{_TIMEOUT} must be a whole number of seconds, got {timeout!r}")
        options.connection_timeout_in_seconds = int(timeout)
    try:
        client = ifrt_proxy.get_client(target, options)
    except Exception as error:
        hint = ""
        if os.environ.get(_INSECURE) != "true":
            hint = f" ({_INSECURE}=true is not set, so the client insists on credentials that only exist on Google Cloud)"
        raise RuntimeError(f"cannot use the server at {target}{hint}: {error}") from error
    _callbacks.remember(client, target)
    # Executables stay on the server: JAX's cache would fail to serialize each one.
    jax.config.update("jax_enable_compilation_cache", False)
    return client
