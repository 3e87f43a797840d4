"""XLA's flags on the server and in its environment."""

import subprocess
import sys

import pytest
from conftest import clean_environment

pytestmark = pytest.mark.one_jax

PROGRAM = """if True:
    import sys, jax, jax.numpy as jnp
    def fused(**options):
        jitted = jax.jit(lambda x: jnp.sin(x) * 2 + jnp.cos(x), compiler_options=options or None)
        return " fusion(" in jitted.lower(jnp.ones(100)).compile().as_text()
    print(fused(), fused(xla_disable_all_hlo_passes=False), fused(xla_disable_all_hlo_passes=True))
    try:
        fused(xla_nonsense="1")
    except Exception as e:
        print("xla_nonsense" in str(e))
"""


def run(binary, *flags, variable=None):
    environment = clean_environment() if variable is None else clean_environment(XLA_FLAGS=variable)
    done = subprocess.run(
        [binary, "up", *flags, "--", "env", "-u", "XLA_FLAGS", sys.executable, "-c", PROGRAM],
        env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_a_users_options_win_over_the_flag_and_the_flag_over_nothing(helmway_binary):
    assert run(helmway_binary).stdout == "True True False\nTrue\n"
    assert run(helmway_binary, "--xla_disable_all_hlo_passes=true").stdout == "False True False\nTrue\n"


def test_the_variable_is_applied_and_the_command_line_wins_over_it(helmway_binary):
    variable = "--xla_disable_all_hlo_passes=true --xla_cpu_enable_fast_math=false"
    assert run(helmway_binary, variable=variable).stdout == "False True False\nTrue\n"
    done = run(helmway_binary, "--xla_disable_all_hlo_passes=false", variable=variable)
    assert done.stdout == "True True False\nTrue\n"


def test_flags_that_the_plugin_does_not_know_are_named_at_the_start_and_end_nothing(helmway_binary):
    done = run(
        helmway_binary,
        "--xla_backend_optimization_level=two",
        "--xla_disable_all_hlo_passes=true",
        variable="--xla_nonsense=3 --also_nonsense --xla_force_host_platform_device_count=4",
    )
    assert done.stdout == "False True False\nTrue\n"
    for text in (
        "--xla_nonsense=3: not applied: ",
        "--also_nonsense: not applied: ",
        "--xla_backend_optimization_level=two: not applied: ",
        "'two' is not a valid int32 value",
        "--xla_force_host_platform_device_count=4: no effect: ",
    ):
        assert text in done.stderr, done.stderr
