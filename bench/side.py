"""One side of a comparison: a JAX process that runs workloads on command.

Reads one JSON command a line from stdin, {"do": NAME, ...}, and answers with one JSON line. The environment
decides which runtime is measured (JAX_PLATFORMS, JAX_BACKEND_TARGET). Durations are in seconds.
"""

import json
import os
import sys
import time

import jax

if "proxy" in os.environ.get("JAX_PLATFORMS", ""):
  import pathwaysutils

  pathwaysutils.initialize()

import controller

controller.join_others()

import jax.numpy as jnp
import numpy as np

clock = time.perf_counter


def own_memory_bytes():
  with open("/proc/self/statm") as f:
    return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def seconds_of_chain(f, x, count):
  """`count` runs of a program, each on the result of the one before, until the last is done."""
  jax.block_until_ready(f(f(x)))
  start = clock()
  for _ in range(count):
    x = f(x)
  x.block_until_ready()
  return clock() - start


class Workloads:
  """Every method is a command. Programs and inputs are kept between calls, so only first calls compile."""

  def __init__(self):
    self.kept = {}

  def keep(self, key, make):
    if key not in self.kept:
      self.kept[key] = make()
    return self.kept[key]

  def hello(self):
    return {"jax": jax.__version__, "devices": len(jax.devices()), "runtime": jax.devices()[0].client.runtime_type}

  def get(self, count):
    """Blocking reads of 256 bytes; each array is read once, since JAX caches what it has read."""
    x = self.keep("get.x", lambda: jax.device_put(np.zeros(64, np.float32)))
    f = self.keep("get.f", lambda: jax.jit(lambda a: a + 1))
    arrays = [f(x) for _ in range(count)]
    jax.block_until_ready(arrays)
    durations = []
    for array in arrays:
      start = clock()
      jax.device_get(array)
      durations.append(clock() - start)
    return durations

  def tiny(self, count, chained):
    """Runs of x + 1: time to enqueue all, and until all are done."""
    x = self.keep("tiny.x", lambda: jax.device_put(np.zeros(8, np.float32)))
    f = self.keep("tiny.f", lambda: jax.jit(lambda a: a + 1))
    jax.block_until_ready(f(x))
    y = x
    start = clock()
    if chained:
      for _ in range(count):
        y = f(y)
    else:
      for _ in range(count):
        y = f(x)
    enqueued = clock() - start
    y.block_until_ready()
    return {"enqueued": enqueued, "drained": clock() - start}

  def callback(self, count):
    """Blocking runs of a program that gives 8 floats to Python and takes them back."""
    x = self.keep("callback.x", lambda: jax.device_put(np.zeros(8, np.float32)))

    def make():
      return jax.jit(lambda a: jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct(a.shape, a.dtype), a))

    f = self.keep("callback.f", make)
    f(x).block_until_ready()
    durations = []
    for _ in range(count):
      start = clock()
      f(x).block_until_ready()
      durations.append(clock() - start)
    return durations

  def work(self, loops, count):
    """A chain of runs of a program with `loops` small matrix products; seconds for the chain."""
    x = self.keep("work.x", lambda: jax.device_put(np.full((32, 32), 0.01, np.float32)))

    def make():
      return jax.jit(lambda a: jax.lax.fori_loop(0, loops, lambda _, b: jnp.tanh(b @ a), a))

    f = self.keep(("work.f", loops), make)
    return seconds_of_chain(f, x, count)

  def put(self, size):
    """Host to device: until the array is ready."""
    data = self.keep(("put", size), lambda: np.ones(size // 4, np.float32))
    start = clock()
    array = jax.device_put(data)
    array.block_until_ready()
    duration = clock() - start
    array.delete()
    return duration

  def read(self, size):
    """Device to host: until the data lies in a numpy array of this process."""
    x = self.keep(("read", size), lambda: jax.block_until_ready(jax.device_put(np.ones(size // 4, np.float32))))
    f = self.keep("read.f", lambda: jax.jit(lambda a: -a))
    y = jax.block_until_ready(f(x))
    start = clock()
    data = np.asarray(y)
    duration = clock() - start
    if data.nbytes != size:
      raise RuntimeError(f"read {data.nbytes} bytes instead of {size}")
    y.delete()
    return duration

  def reshard(self, size, way):
    """An array split by rows over all devices becomes one split by columns; until it is ready."""
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    side = round((size / 4) ** 0.5)
    if side * side * 4 != size:
      raise RuntimeError(f"{size} bytes are no square of float32")
    mesh = self.keep("reshard.mesh", lambda: Mesh(np.array(jax.devices()), ("x",)))
    rows, columns = NamedSharding(mesh, PartitionSpec("x")), NamedSharding(mesh, PartitionSpec(None, "x"))
    x = self.keep(("reshard", size), lambda: jax.block_until_ready(
        jax.device_put(np.arange(size // 4, dtype=np.float32).reshape(side, side), rows)))
    from pathwaysutils.jax import transfer_to_shardings

    move = self.keep(("reshard", way), lambda: {
        "transfer": lambda a: transfer_to_shardings([a], [columns], False)[0],
        "put": lambda a: jax.device_put(a, columns),
        "jit": jax.jit(lambda a: a, out_shardings=columns),
    }[way])
    start = clock()
    y = move(x)
    y.block_until_ready()
    duration = clock() - start
    if y.sharding != columns:
      raise RuntimeError(f"the result has the sharding {y.sharding}")
    y.delete()
    return duration

  def spread(self, loops, count):
    """A chain of runs over all devices: `loops` small matrix products on each, and the sum of one number of each;
    seconds for the chain."""
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = self.keep("mesh", lambda: Mesh(np.array(jax.devices()), ("x",)))
    split = NamedSharding(mesh, PartitionSpec("x"))

    def make():
      def local(a):
        b = jax.lax.fori_loop(0, loops, lambda _, c: jnp.tanh(c @ a[0]), a[0])
        return (b + jax.lax.psum(b[0, 0], "x") / mesh.size)[None]

      return jax.jit(jax.shard_map(local, mesh=mesh, in_specs=PartitionSpec("x"), out_specs=PartitionSpec("x")))

    x = self.keep("spread.x", lambda: jax.jit(
        lambda: jnp.full((mesh.size, 32, 32), 0.01, np.float32), out_shardings=split)())
    f = self.keep(("spread.f", loops), make)
    return seconds_of_chain(f, x, count)

  def move(self, size, count=1):
    """From the first device to the last, `count` times: until all copies are ready, seconds for each."""
    first = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    x = self.keep(("move", size), lambda: jax.block_until_ready(
        jax.jit(lambda: jnp.arange(size // 4, dtype=np.float32), out_shardings=first)()))
    start = clock()
    copies = [jax.device_put(x, jax.devices()[-1]) for _ in range(count)]
    jax.block_until_ready(copies)
    duration = clock() - start
    for y in copies:
      y.delete()
    return duration / count

  def allreduce(self, size, count):
    """One program with a chain of `count` all-reduces, of so many bytes of float32 on each device; seconds for each."""
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = self.keep("mesh", lambda: Mesh(np.array(jax.devices()), ("x",)))
    split = NamedSharding(mesh, PartitionSpec("x"))

    def make():
      def local(a):
        return jax.lax.fori_loop(0, count, lambda _, b: jax.lax.psum(b, "x") * (1 / mesh.size), a)

      return jax.jit(jax.shard_map(local, mesh=mesh, in_specs=PartitionSpec("x"), out_specs=PartitionSpec("x"),
                                   check_vma=False))

    x = self.keep(("allreduce", size), lambda: jax.block_until_ready(jax.jit(
        lambda: jnp.ones((mesh.size, size // 4), np.float32), out_shardings=split)()))
    f = self.keep(("allreduce.f", size, count), make)
    start = clock()
    y = f(x)
    y.block_until_ready()
    duration = clock() - start
    y.delete()
    return duration / count

  def forget(self):
    self.kept.clear()
    return None

  def train(self, steps, devices, model_parallel=1):
    """Training steps of a small transformer; seconds for all of them, until the loss is known."""
    key = ("train", devices, model_parallel)
    step, state, batch = self.keep(key, lambda: make_training(devices, model_parallel))
    start = clock()
    for _ in range(steps):
      state, loss = step(state, batch)
    loss.block_until_ready()
    duration = clock() - start
    self.kept[key] = (step, state, batch)
    return {"seconds": duration, "loss": float(loss)}

  def compile(self, program, devices=1):
    """One compile of "tiny" or "transformer" (the step of train), without tracing and lowering, and one run of it.

    Seconds until the compile returns, and until the first result is there.
    """
    if program == "tiny":
      lowered = jax.jit(lambda a: a + 1).lower(jax.ShapeDtypeStruct((8,), np.float32))
      arguments = (np.zeros(8, np.float32),)
    else:
      init, step, key, tokens, shardings, split = define_training(devices)

      def zeros(x, sharding):
        return jax.device_put(np.zeros(x.shape, x.dtype), sharding)

      arguments = (jax.tree.map(zeros, jax.eval_shape(init, key), shardings), jax.device_put(tokens, split))
      lowered = step.lower(*arguments)
    jax.block_until_ready(arguments)
    start = clock()
    compiled = lowered.compile()
    returned = clock()
    jax.block_until_ready(compiled(*arguments))
    return returned - start, clock() - start

  def live(self, count):
    """Holds `count` small arrays."""
    x = jax.device_put(np.zeros(8, np.float32))
    f = jax.jit(lambda a: a + 1)
    jax.block_until_ready(f(x))
    before = own_memory_bytes()
    arrays = [f(x) for _ in range(count)]
    jax.block_until_ready(arrays)
    self.kept["live"] = arrays
    return {"client_bytes": own_memory_bytes() - before}


def define_training(devices, model_parallel=1):
  """init, step (jitted), a key, tokens, and the shardings of the state and of the tokens.

  The batch is split over the devices; with model_parallel, over groups of so many, and within each the matrices are
  split by columns.
  """
  import flax.linen as nn
  import optax
  from jax.sharding import Mesh, NamedSharding, PartitionSpec

  width, heads, layers, vocabulary, length, batch_size = 128, 4, 4, 1024, 64, 16

  class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
      mask = nn.make_causal_mask(jnp.ones(x.shape[:2]))
      x = x + nn.SelfAttention(num_heads=heads)(nn.LayerNorm()(x), mask=mask)
      h = nn.Dense(4 * width)(nn.LayerNorm()(x))
      return x + nn.Dense(width)(nn.gelu(h))

  class Model(nn.Module):
    @nn.compact
    def __call__(self, tokens):
      x = nn.Embed(vocabulary, width)(tokens)
      x = x + self.param("positions", nn.initializers.normal(0.02), (length, width))
      for _ in range(layers):
        x = Block()(x)
      return nn.Dense(vocabulary)(nn.LayerNorm()(x))

  mesh = Mesh(np.array(jax.devices()[:devices]).reshape(-1, model_parallel), ("data", "model"))
  split = NamedSharding(mesh, PartitionSpec("data"))
  model, optimizer = Model(), optax.adamw(1e-3)

  def init(key):
    parameters = model.init(key, jnp.zeros((1, length), jnp.int32))
    return parameters, optimizer.init(parameters)

  def step(state, tokens):
    def loss_of(parameters):
      logits = model.apply(parameters, tokens)[:, :-1]
      return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    parameters, optimizer_state = state
    loss, gradients = jax.value_and_grad(loss_of)(parameters)
    updates, optimizer_state = optimizer.update(gradients, optimizer_state, parameters)
    return (optax.apply_updates(parameters, updates), optimizer_state), loss

  tokens = np.random.default_rng(0).integers(0, vocabulary, (batch_size, length), dtype=np.int32)
  key = np.asarray([0, 1], np.uint32)

  def sharding_of(x):
    columns = x.ndim == 2 and x.shape[-1] % model_parallel == 0 and model_parallel > 1
    return NamedSharding(mesh, PartitionSpec(None, "model") if columns else PartitionSpec())

  state = jax.tree.map(sharding_of, jax.eval_shape(init, key))
  step = jax.jit(step, donate_argnums=0, out_shardings=(state, NamedSharding(mesh, PartitionSpec())))
  return init, step, key, tokens, state, split


def make_training(devices, model_parallel=1):
  init, step, key, tokens, state_shardings, split = define_training(devices, model_parallel)
  state = jax.jit(init, out_shardings=state_shardings)(key)
  batch = jax.device_put(tokens, split)
  state, loss = step(state, batch)
  loss.block_until_ready()
  return step, state, batch


def main():
  workloads = Workloads()
  out = os.fdopen(os.dup(1), "w")
  os.dup2(2, 1)  # What libraries print must not mix with the answers.
  for line in sys.stdin:
    if not line.strip():
      break
    command = json.loads(line)
    name = command.pop("do")
    try:
      answer = {"ok": getattr(workloads, name)(**command)}
    except Exception as e:  # The driver decides what a failed workload means.
      answer = {"error": f"{type(e).__name__}: {e}"[:2000]}
    print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
  main()
