"""Writes the optimized programs beside this file. Needs jax; run it with

XLA_FLAGS=--xla_force_host_platform_device_count=4 JAX_PLATFORMS=cpu python make_programs.py
"""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

jax.config.update("jax_traceback_in_locations_limit", 0)  # No file names of this machine.
HERE = pathlib.Path(__file__).parent
MESH = Mesh(np.array(jax.devices()).reshape(2, 2), ("x", "y"))


def split(*spec):
  return NamedSharding(MESH, P(*spec))


@functools.partial(
    jax.jit,
    donate_argnums=(0,),
    in_shardings=(split("x", "y"), split("y", None), split()),
    out_shardings=(split("x", "y"), split("x"), split()),
)
def sharded_step(w, x, s):
  y = w @ x
  return w - s * 0.1, jnp.sum(y, axis=1), jnp.sum(y)


@jax.jit
def factor(a):
  return jnp.linalg.cholesky(a)


def write(name, function, *args):
  module = function.lower(*args).compile().runtime_executable().hlo_modules()[0]
  (HERE / name).write_bytes(module.as_serialized_hlo_module_proto())


write("sharded_step.hlo.pb", sharded_step, jnp.ones((8, 4)), jnp.ones((4, 6)), jnp.float32(1))
write("factor.hlo.pb", factor, jnp.ones((3, 3)))
