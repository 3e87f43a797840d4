"""`helmway up`: exit codes, signals and messages."""

import re
import shutil
import signal
import socket
import subprocess
import sys

import pytest
from conftest import Server, clean_environment, run_python, seconds


def up(binary, *arguments, env=None, timeout_s=120):
    return subprocess.run(
        [binary, "up", *arguments],
        env=env or clean_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds(timeout_s),
        check=False,
    )


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_exits_with_the_code_of_the_command(helmway_binary, code):
    assert up(helmway_binary, "--", sys.executable, "-c", f"raise SystemExit({code})").returncode == code


def test_tells_a_command_that_died_of_a_signal(helmway_binary):
    script = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert up(helmway_binary, "--", sys.executable, "-c", script).returncode == 128 + signal.SIGKILL


def test_gives_the_command_its_variables_and_output(helmway_binary):
    script = """if True:
        import os
        for name in ("JAX_PLATFORMS", "JAX_BACKEND_TARGET", "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS", "KEPT"):
            print(name, os.environ[name])
    """
    done = up(helmway_binary, "--", sys.executable, "-c", script, env=clean_environment(KEPT="as it was"))
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(
        r"JAX_PLATFORMS proxy\nJAX_BACKEND_TARGET grpc://127\.0\.0\.1:[1-9]\d*\n"
        r"IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS true\nKEPT as it was\n",
        done.stdout,
    )


def test_runs_a_jax_program_on_the_devices_asked_for(helmway_binary):
    script = "import jax; print(len(jax.devices()), int(jax.numpy.arange(5).sum()))"
    done = up(helmway_binary, "--devices", "3", "--", sys.executable, "-c", script)
    assert (done.returncode, done.stdout) == (0, "3 10\n"), done.stderr


def test_arguments_of_the_command_are_kept_word_for_word(helmway_binary):
    words = ["--devices", "9", "a b", "", "$(NAME)", "--"]
    done = up(helmway_binary, "--", sys.executable, "-c", "import sys; print(sys.argv[1:])", *words)
    assert done.stdout == f"{words}\n"


def test_unknown_command(helmway_binary):
    done = up(helmway_binary, "--", "no-such-program-here")
    assert done.returncode == 127
    assert "no-such-program-here" in done.stderr


@pytest.mark.parametrize("with_signal", [signal.SIGTERM, signal.SIGINT])
def test_serves_until_a_signal_and_exits_with_0(helmway_binary, with_signal):
    server = Server(helmway_binary)
    done = run_python("import jax; print(jax.devices()[0].platform)", env=server.environment())
    assert done.stdout == "cpu\n"
    assert server.close(with_signal) == 0, server.log()


def test_ends_while_a_program_is_connected(helmway_binary):
    server = Server(helmway_binary)
    script = "import jax; x = jax.numpy.ones(3) + 1; print('ready', flush=True); input()"
    client = subprocess.Popen(
        [sys.executable, "-c", script],
        env=server.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert client.stdout.readline() == b"ready\n", client.stderr.read()
        assert server.close() == 0, server.log()
    finally:
        client.kill()
        client.communicate()


def test_ends_while_thousands_of_launches_wait(helmway_binary):
    server = Server(helmway_binary, "--devices", "2")
    # More than the server takes from one client at a time, each too slow to be over soon.
    script = """if True:
        import jax
        @jax.jit
        def slow(x):
            return jax.lax.fori_loop(0, 20, lambda _, y: y @ x, x)
        x = slow(jax.numpy.eye(400))
        x.block_until_ready()
        results = [slow(x) for _ in range(3000)]
        print("sent", flush=True)
        results[-1].block_until_ready()
    """
    client = subprocess.Popen(
        [sys.executable, "-c", script],
        env=server.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert client.stdout.readline() == b"sent\n", client.stderr.read()
        assert server.close() == 0, server.log()
        _, errors = client.communicate(timeout=seconds(60))
        assert client.returncode != 0 and b"UNAVAILABLE" in errors
    finally:
        client.kill()
        client.communicate()


def test_port_in_use(helmway_binary):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = up(helmway_binary, "--port", str(port))
    assert done.returncode not in (0, -signal.SIGABRT, -signal.SIGSEGV)
    assert done.stdout == ""
    assert str(port) in done.stderr and "--port" in done.stderr


def test_missing_plugin(helmway_binary, tmp_path):
    missing = tmp_path / "no_plugin.so"
    done = up(helmway_binary, "--pjrt_plugin", str(missing))
    assert done.returncode > 0
    assert str(missing) in done.stderr


def test_no_plugin_anywhere_names_what_to_install(helmway_binary, tmp_path):
    environment = clean_environment(PATH=str(tmp_path), HOME=str(tmp_path))
    for name in ("HELMWAY_PJRT_PLUGIN", "VIRTUAL_ENV"):
        environment.pop(name, None)
    copy = tmp_path / "helmway"
    shutil.copy(helmway_binary, copy)
    done = up(str(copy), env=environment)
    assert done.returncode > 0
    assert "lammps-jax-pjrt-cpu" in done.stderr


def test_plugin_that_is_no_plugin(helmway_binary, tmp_path):
    broken = tmp_path / "broken.so"
    broken.write_text("this is no shared library")
    done = up(helmway_binary, "--pjrt_plugin", str(broken))
    assert done.returncode > 0
    assert str(broken) in done.stderr


@pytest.mark.parametrize(
    "arguments, named", [(["--devices", "0"], "devices"), (["--devices", "x"], "devices"), (["--prot=1"], "port")]
)
def test_misuse_names_the_flag(helmway_binary, arguments, named):
    done = up(helmway_binary, *arguments)
    assert done.returncode > 0 and done.stdout == ""
    assert named in done.stderr
