"""Custom calls that no server can run say so; what LAPACK computes is among the operations of ops_script.py."""

from conftest import Server, run_python

FOREIGN = """
import jax, jax.numpy as jnp
call = lambda x: jax.ffi.ffi_call("no_such_target", jax.ShapeDtypeStruct((2,), jnp.float32))(x)
try:
    print(jax.jit(call)(jnp.ones(2)))
except Exception as e:
    print(e)
print(jnp.ones(2) + 1)
"""

# With JAX's own lowering rule, as where the package is not installed.
PARTITIONED = """
import sys
sys.modules["helmway._custom_partitioning"] = type(sys)("none")
sys.modules["helmway._custom_partitioning"].register_rules = lambda: None
import jax, jax.numpy as jnp
from jax.experimental.custom_partitioning import custom_partitioning
f = custom_partitioning(lambda x: x * 2)
f.def_partition(partition=None, sharding_rule="i -> i", infer_sharding_from_operands=lambda *a: None)
mesh = jax.make_mesh((2,), ("x",), devices=jax.devices()[:2], axis_types=(jax.sharding.AxisType.Auto,))
x = jax.device_put(jnp.arange(4.), jax.NamedSharding(mesh, jax.P("x")))
try:
    print(jax.jit(f)(x))
except Exception as e:
    print(e)
print(jnp.ones(2) + 1)
"""
CHOLESKY = """
import jax.numpy as jnp
try:
    print(jnp.linalg.cholesky(2 * jnp.eye(2)))
except Exception as e:
    print(e)
print(jnp.ones(2) + 1)
"""


def test_a_target_of_the_clients_own_process(server):
    out = run_python(FOREIGN, env=server.environment()).stdout
    assert "NOT_FOUND: No FFI handler registered for no_such_target" in out
    assert "exists only there" in out
    assert "[2. 2.]" in out


def test_custom_partitioning_without_the_package(server):
    out = run_python(PARTITIONED, env=server.environment()).stdout
    assert "untyped custom call to CustomSPMDPartitioning" in out
    assert "With the Python package `helmway` there" in out
    assert "[2. 2.]" in out


def test_a_server_without_python_says_what_it_needs(helmway_binary):
    running = Server(helmway_binary, "--python", "none")
    try:
        out = run_python(CHOLESKY, env=running.environment()).stdout
    finally:
        assert running.close() == 0
    assert "lapack_spotrf_ffi" in out
    assert "--python=PATH" in out
    assert "[2. 2.]" in out
