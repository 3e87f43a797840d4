"""The Python package: the JAX plugin, the local cluster for notebooks, the launcher."""

import importlib.metadata
import os
import pathlib
import subprocess
import sys
import sysconfig

import pytest
from conftest import clean_environment, run_python, seconds
from helmway import _launcher, _versions

# An address at which nothing listens.
NOWHERE = "grpc://127.0.0.1:1"


@pytest.mark.parametrize("version", ["0.10.2", "0.11.0", "0.11.2", "0.12.0", "0.12.0.1", "0.12.0.1rc1", "0.12"])
def test_versions_that_work(version):
    assert _versions.problem_with("jax", version) is None


@pytest.mark.parametrize("version", ["0.10.1", "0.4.38", "0.12.0.2", "0.12.1", "0.13.0.dev1", "1.0", "unknown"])
def test_versions_that_do_not(version):
    text = _versions.problem_with("jaxlib", version)
    assert "0.10.2" in text and "0.12.0.1" in text and version in text


def test_plugin_is_advertised():
    values = [point.value for point in importlib.metadata.entry_points(group="jax_plugins")]
    assert values.count("helmway._jax_plugin") == 1


# How long connecting is tried; only where nothing answers.
ONE_SECOND = {"PATHWAYS_PROXY_CONNECTION_TIMEOUT_SECS": "1"}

# Newer versions of JAX have a "proxy" of their own, so what counts is whose it is.
IS_REGISTERED = """
import jax
print(jax.devices()[0].platform, jax.devices()[0].client.runtime_type.startswith("proxy/"))
from jax._src import xla_bridge
registration = xla_bridge._backend_factories.get("proxy")
print(registration is not None and registration.factory.__module__ == "helmway._jax_plugin")
"""


@pytest.mark.parametrize("platforms", ["cpu", "", None])
def test_plugin_does_nothing_unless_proxy_is_asked_for(platforms):
    environment = clean_environment()
    if platforms is not None:
        environment["JAX_PLATFORMS"] = platforms
    assert run_python(IS_REGISTERED, env=environment).stdout == "cpu False\nFalse\n"


def test_plugin_makes_proxy_a_platform(server):
    assert run_python(IS_REGISTERED, env=server.environment()).stdout == "cpu True\nTrue\n"


def test_proxy_beside_cpu(server):
    script = """if True:
        import jax
        print(len(jax.devices()), jax.devices()[0].client.runtime_type)
        local = jax.local_devices(backend="cpu")
        print(len(local), local[0].client.runtime_type.startswith("proxy/"))
        print(int(jax.device_put(1, local[0]) + 1))
    """
    environment = server.environment() | {"JAX_PLATFORMS": "proxy,cpu"}
    assert run_python(script, env=environment).stdout == "8 proxy/pathways\n1 False\n2\n"


def failure(script="import jax; jax.devices()", **environment):
    """What a program that cannot work prints."""
    done = run_python(script, env=clean_environment(**environment), check=False)
    assert done.returncode == 1, done
    assert "RuntimeError: Unable to initialize backend 'proxy'" in done.stderr
    return done.stderr


def test_no_target():
    assert "JAX_BACKEND_TARGET is not set" in failure(JAX_PLATFORMS="proxy")


def test_no_server():
    text = failure(
        JAX_PLATFORMS="proxy",
        JAX_BACKEND_TARGET=NOWHERE,
        IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS="true",
        **ONE_SECOND,
    )
    assert NOWHERE in text and "is not set" not in text


def test_no_credentials_setting(server):
    text = failure(JAX_PLATFORMS="proxy", JAX_BACKEND_TARGET=server.variables["JAX_BACKEND_TARGET"], **ONE_SECOND)
    assert "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS=true is not set" in text


def test_bad_timeout():
    text = failure(JAX_PLATFORMS="proxy", JAX_BACKEND_TARGET=NOWHERE, PATHWAYS_PROXY_CONNECTION_TIMEOUT_SECS="soon")
    assert "PATHWAYS_PROXY_CONNECTION_TIMEOUT_SECS" in text and "soon" in text


@pytest.mark.parametrize("module", ["jax", "jaxlib"])
def test_unsupported_version_is_told_before_connecting(module):
    script = f"import jax, {module}; {module}.__version__ = '0.9.2'; jax.devices()"
    text = failure(script, JAX_PLATFORMS="proxy", JAX_BACKEND_TARGET=NOWHERE)
    assert f"{module} 0.9.2" in text and "0.10.2 to 0.12.0.1" in text


def test_unsupported_version_does_not_matter_without_proxy():
    script = "import jax; jax.__version__ = '0.9.2'; print(jax.devices()[0].platform)"
    assert run_python(script, env=clean_environment(JAX_PLATFORMS="cpu")).stdout == "cpu\n"


# The local cluster


@pytest.fixture
def notebook_environment(helmway_binary):
    return clean_environment(HELMWAY_BINARY=helmway_binary)


def test_local(notebook_environment):
    script = """if True:
        import os
        import helmway
        with helmway.local(devices=3) as cluster:
            import jax
            print(len(jax.devices()), jax.devices()[0].client.runtime_type, cluster.running)
            print(int(jax.numpy.arange(10).sum()))
            assert cluster.target == os.environ["JAX_BACKEND_TARGET"]
        print(cluster.running, os.environ.get("JAX_PLATFORMS"), os.environ.get("JAX_BACKEND_TARGET"))
        print(len(jax.devices()), jax.devices()[0].client.runtime_type.startswith("proxy/"))
    """
    done = run_python(script, env=notebook_environment)
    assert done.stdout == "3 proxy/pathways True\n45\nFalse None None\n1 False\n"


def test_start_and_stop_several_times(notebook_environment):
    script = """if True:
        import jax
        import helmway
        f = jax.jit(lambda x: x * 2)
        for devices in (2, 5):
            cluster = helmway.start(devices)
            print(len(jax.devices()), float(f(1.5)))
            cluster.stop()
            cluster.stop()
    """
    assert run_python(script, env=notebook_environment).stdout == "2 3.0\n5 3.0\n"


def test_start_after_jax_was_used(notebook_environment):
    script = """if True:
        import jax
        import helmway
        jax.numpy.ones(2)
        try:
            helmway.start()
        except RuntimeError as error:
            print(error)
        print(jax.devices()[0].platform)
    """
    output = run_python(script, env=notebook_environment).stdout
    assert "JAX already runs on 'cpu'" in output and "restart the kernel" in output and output.endswith("cpu\n")


def test_exception_in_the_block_is_the_one_seen(notebook_environment):
    script = """if True:
        import helmway
        with helmway.local(1) as cluster:
            raise KeyError("the user's own")
    """
    done = run_python(script, env=notebook_environment, check=False)
    assert done.returncode == 1 and done.stderr.endswith("KeyError: \"the user's own\"\n")


def test_server_that_died_is_reported_on_stop(notebook_environment):
    script = """if True:
        import helmway
        cluster = helmway.start(1)
        cluster._process.kill()
        cluster._process.wait()
        assert not cluster.running
        try:
            cluster.stop()
        except RuntimeError as error:
            print(error)
    """
    assert "had ended by itself (exit code -9)" in run_python(script, env=notebook_environment).stdout


def test_server_ends_with_the_process(notebook_environment):
    script = "import helmway; print(helmway.start(1)._process.pid)"
    pid = int(run_python(script, env=notebook_environment).stdout)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_server_that_does_not_start(notebook_environment, tmp_path):
    script = f"""if True:
        import helmway
        try:
            helmway.start(1, pjrt_plugin={str(tmp_path / "none.so")!r})
        except RuntimeError as error:
            print(error)
        import jax
        print(jax.devices()[0].platform)
    """
    output = run_python(script, env=notebook_environment).stdout
    assert "did not start" in output and "none.so" in output and output.endswith("cpu\n")


# The launcher


def console_command():
    return pathlib.Path(sysconfig.get_path("scripts")) / "helmway"


def test_console_command_becomes_the_packaged_program():
    environment = clean_environment()
    environment.pop("HELMWAY_BINARY", None)
    done = subprocess.run(
        [console_command(), "up", "--", sys.executable, "-c", "raise SystemExit(5)"],
        env=environment, capture_output=True, text=True, timeout=seconds(120), check=False,
    )
    assert done.returncode == 5, done.stderr
    assert _launcher.PACKAGED_BINARY.stat().st_mode & 0o111


def test_console_command_without_a_program(tmp_path):
    done = subprocess.run(
        [console_command(), "up"],
        env=clean_environment(HELMWAY_BINARY=str(tmp_path / "gone")),
        capture_output=True, text=True, timeout=seconds(120), check=False,
    )
    assert done.returncode == 1
    assert "HELMWAY_BINARY" in done.stderr and "gone" in done.stderr
