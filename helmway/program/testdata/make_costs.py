"""Writes costs_<name>.pb (serialized xla.HloModuleProto) and costs.txt beside this file: for each of these programs, and
for those of make_hlo_text_testdata.py, what jaxlib says that it costs. Needs jax 0.11.2; run it with

JAX_PLATFORMS=cpu python make_costs.py
"""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.backend import get_backend
from jaxlib import _hlo, _jax

jax.config.update("jax_traceback_in_locations_limit", 0)  # No file names of this machine.
HERE = pathlib.Path(__file__).parent
# Made by hand for the printer; XLA does not take it.
NO_MODULE = {"hlo_text_instructions.pb"}

image = np.ones((2, 4, 17, 9), np.float32)
kernel = np.ones((6, 2, 3, 4), np.float32)
matrix = np.ones((24, 24), np.float32)
vector = np.ones(1000, np.float32)


def convolve(a, b):
  return lax.conv_general_dilated(a, b, (2, 1), ((1, 2), (0, 3)), lhs_dilation=(1, 3), rhs_dilation=(2, 1),
                                  feature_group_count=2)


def special(a):
  return lax.erf(a) + lax.tan(a) + lax.cbrt(a) + lax.logistic(a) + lax.expm1(a) + lax.atan2(a, a)


def pool(a):
  pooled = lax.reduce_window(a, -np.inf, lax.max, (1, 1, 3, 3), (1, 1, 2, 2), "SAME")
  return (pooled * pooled).sum()


def pieces(a, i):
  part = lax.dynamic_slice(a, (i,), (100,))
  a = lax.dynamic_update_slice(a, part * 2, (i + 1,))
  return a[::2], a.at[jnp.array([1, 5, 9])].add(1.0), a[jnp.array([3, 4])]


def branches(a, n):
  return lax.cond(n > 0, lambda x: jnp.sin(x) @ x, lambda x: x + 1, a)


def loop(a):
  return lax.fori_loop(0, 7, lambda i, x: jnp.tanh(x @ x) + a, a)


PROGRAMS = {
    "convolution": (convolve, image, kernel),
    "special": (special, vector),
    "pool": (jax.grad(pool), image),
    "pieces": (pieces, vector, 3),
    "branches": (branches, matrix, 1),
    "loop": (loop, matrix),
    "fft": (lambda a: jnp.fft.fft2(a).real, matrix),
    "sums": (lambda a: (jnp.cumsum(a, 0), a.sum(1), jnp.argmax(a), a.T @ a), matrix),
    "sort": (lambda a: (jnp.sort(a), lax.top_k(a, 5)), vector),
    "random": (lambda k: jax.random.normal(k, (300,)), np.zeros(2, np.uint32)),
    "types": (lambda a: (a.astype(jnp.int4), a.astype(bool), (a + 1j).astype(np.complex64), a.astype(jnp.bfloat16)), vector),
    "softmax": (lambda a: jax.nn.softmax(a @ a), matrix),
}


def module_of(data):
  """Field 1 of a xla.HloModuleProtoWithConfig."""
  assert data[0] == 0x0A
  size, shift, at = 0, 0, 1
  while True:
    byte, at = data[at], at + 1
    size |= (byte & 127) << shift
    shift += 7
    if byte < 128:
      return data[at : at + size]


def main():
  modules = {}
  for path in sorted(HERE.glob("hlo_text_*.pb")):
    if path.name not in NO_MODULE:
      modules[path.name] = module_of(path.read_bytes())
  for name, (function, *args) in PROGRAMS.items():
    lowered = jax.jit(function).lower(*args)
    before = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    after = lowered.compile().runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
    for kind, module in (("before", before), ("after", after)):
      modules[f"costs_{name}_{kind}.pb"] = module
      (HERE / f"costs_{name}_{kind}.pb").write_bytes(module)
  lines = []
  for name, module in modules.items():
    costs = _jax.hlo_module_cost_analysis(get_backend("cpu"), _hlo.HloModule.from_serialized_hlo_module_proto(module))
    lines.append(" ".join([name, *(repr(costs.get(key, 0.0)) for key in ("flops", "transcendentals", "bytes accessed"))]))
  (HERE / "costs.txt").write_text("\n".join(lines) + "\n")


main()
