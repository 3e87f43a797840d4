"""Writes the pairs hlo_text_<name>.pb (a serialized xla.HloModuleProtoWithConfig) and hlo_text_<name>.txt (the
text that jaxlib makes of the same module) beside this file. Needs jax 0.11.2; run it with

XLA_FLAGS=--xla_force_host_platform_device_count=8 JAX_PLATFORMS=cpu python make_hlo_text_testdata.py
"""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jaxlib import _hlo

jax.config.update("jax_traceback_in_locations_limit", 0)  # No file names of this machine.
HERE = pathlib.Path(__file__).parent
MESH = Mesh(np.array(jax.devices()).reshape(2, 4), ("x", "y"))


def varint(value):
  out = b""
  while value > 127:
    out += bytes([value & 127 | 128])
    value >>= 7
  return out + bytes([value])


def field(number, value):
  """A field of a message: a varint or a string of bytes."""
  if isinstance(value, int):
    return varint(number << 3) + varint(value)
  return varint(number << 3 | 2) + varint(len(value)) + value


def write(name, module, replicas=1, partitions=1, parameters=(), outputs=()):
  """The last four: what the module was compiled with, which its proto does not say."""
  config = field(4, replicas) + field(5, partitions) + field(33, bytes(parameters)) + field(27, bytes(outputs))
  program = field(1, module.as_serialized_hlo_module_proto()) + field(2, config)
  (HERE / f"hlo_text_{name}.pb").write_bytes(program)
  (HERE / f"hlo_text_{name}.txt").write_text(module.to_string())


def compiled(function, *args, **options):
  return jax.jit(function, **options).lower(*args).compile().runtime_executable().hlo_modules()[0]


def split(*spec):
  return NamedSharding(MESH, P(*spec))


def mapped(function, in_specs, out_specs):
  return jax.shard_map(function, mesh=MESH, in_specs=in_specs, out_specs=out_specs)


def step(weights, inputs):
  hidden = jax.nn.relu(inputs @ weights["a"] + weights["b"])
  return jnp.mean((hidden @ weights["c"]) ** 2)


WEIGHTS = {"a": jnp.ones((8, 16)), "b": jnp.ones(16), "c": jnp.ones((16, 8))}
EIGHT = jnp.ones((8, 8))

write("add", compiled(lambda x: x + 1, jnp.ones(3)), parameters=[1], outputs=[1])
write("dot_reduce", compiled(lambda x, y: jnp.sum(jnp.sin(x @ y), axis=1), jnp.ones((8, 4)), jnp.ones((4, 6))),
      parameters=[1, 1], outputs=[1])
write("scan", compiled(lambda x: lax.scan(lambda c, v: (c * v + 1, c), x, jnp.arange(5.)), jnp.float32(1)),
      parameters=[1], outputs=[1, 1])
write("while", compiled(lambda x: lax.while_loop(lambda c: c[0] < 10, lambda c: (c[0] + 1, c[1] * 2), (0, x)),
                        jnp.ones(3)), parameters=[1], outputs=[1, 1])
write("branches", compiled(lambda x, i: lax.switch(i, [jnp.sin, jnp.cos, jnp.tanh], x), jnp.ones(8), 1),
      parameters=[1, 1], outputs=[1])
write("convolution", compiled(
    lambda x, y: lax.conv_general_dilated(x, y, (2, 2), "SAME", rhs_dilation=(2, 1),
                                          dimension_numbers=("NHWC", "HWIO", "NHWC")),
    jnp.ones((1, 8, 8, 3)), jnp.ones((3, 3, 3, 4))), parameters=[1, 1], outputs=[1])
write("gather", compiled(lambda x, i: x[i], jnp.ones((8, 4)), jnp.array([1, 2])), parameters=[1, 1], outputs=[1])
write("scatter", compiled(lambda x, i: x.at[i].add(1.), jnp.ones((8, 4)), jnp.array([1, 2])), parameters=[1, 1],
      outputs=[1])
write("sort", compiled(lambda x: (jnp.sort(x), jnp.argsort(x), lax.top_k(x, 2)), jnp.ones(8)), parameters=[1],
      outputs=[1] * 4)
write("donation", compiled(lambda x, y: (x * 2 + y, y), jnp.ones((4, 4)), jnp.ones((4, 4)), donate_argnums=(0,)),
      parameters=[1, 1], outputs=[1, 1])
write("solve", compiled(lambda a: (jnp.linalg.cholesky(a), jnp.fft.rfft(a)), jnp.eye(3)), parameters=[1],
      outputs=[1, 1])

write("all_reduce", compiled(lambda a, b: a @ b, jax.device_put(EIGHT, split("x", "y")),
                             jax.device_put(EIGHT, split("y", None))), partitions=8, parameters=[0, 0], outputs=[1])
write("all_gather", compiled(mapped(lambda a: lax.all_gather(a, "y"), P("x", "y"), P(None, "x", "y")), EIGHT),
      partitions=8, parameters=[1], outputs=[1])
write("reduce_scatter", compiled(mapped(lambda a: lax.psum_scatter(a, "y", tiled=True), P("x", None),
                                        P(("x", "y"), None)), EIGHT), partitions=8, parameters=[1], outputs=[1])
write("collective_permute", compiled(
    mapped(lambda a: lax.ppermute(a, "y", [(i, (i + 1) % 4) for i in range(4)]), P("x", "y"), P("x", "y")), EIGHT),
      partitions=8, parameters=[1], outputs=[1])
write("all_to_all", compiled(mapped(lambda a: lax.all_to_all(a, "y", 1, 0, tiled=True), P("x", "y"), P("x", "y")),
                             jnp.ones((8, 16))), partitions=8, parameters=[1], outputs=[1])
write("sharded_step", compiled(
    jax.value_and_grad(step),
    jax.device_put(WEIGHTS, {"a": split(None, "y"), "b": split("y"), "c": split("y", None)}),
    jax.device_put(jnp.ones((32, 8)), split("x"))), partitions=8, parameters=[0] * 4, outputs=[1] * 4)

# With tables of source locations.
jax.config.update("jax_traceback_in_locations_limit", 1)
SOURCE = "def inner(x):\n  return jnp.sin(x)\n\ndef outer(x):\n  return inner(x) + inner(x * 2)\n"
scope = {"jnp": jnp}
exec(compile(SOURCE, "program.py", "exec"), scope)  # pylint: disable=exec-used
write("source_locations", compiled(scope["outer"], jnp.ones(3)), parameters=[1], outputs=[1])

# What jax rarely makes, from texts.
for path in sorted(HERE.glob("hlo_text_*.hlo")):
  write(path.stem.removeprefix("hlo_text_"), _hlo.hlo_module_from_text(path.read_text()))
