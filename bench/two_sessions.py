#!/usr/bin/env python3
"""Two programs at once on one cluster, each with random programs whose results NumPy knows. Long.

    HELMWAY_BENCH_PYTHON=PYTHON bench/two_sessions.py [--minutes 10] [--seed N] [--without-shared-memory]

Fails at the first wrong result, with the seed of its step; or if a session that goes leaves memory behind.
"""

import argparse
import random
import sys
import time

import processes

# Of the server and the workers together, from after the first programs to after the last: compiled programs that their
# caches keep.
MAX_GROWTH_BYTES = 512 << 20


def session(seed, seconds):
  """Random steps for so long."""
  import jax
  import numpy as np
  from jax.sharding import Mesh, NamedSharding, PartitionSpec

  devices = jax.devices()
  deadline = time.monotonic() + seconds
  pending = []
  steps = 0

  def random_mesh(rng):
    count = rng.choice([n for n in (1, 2, 4, 8) if n <= len(devices)])
    chosen = np.array(rng.sample(devices, count))
    return Mesh(chosen.reshape((2, -1)) if count >= 4 and rng.random() < 0.5 else chosen.reshape((-1, 1)), ("x", "y"))

  def random_sharding(rng, mesh):
    axes = rng.choice([(), ("x",), ("x", "y"), (None, "x"), ("y", "x"), (("x", "y"),)])
    return NamedSharding(mesh, PartitionSpec(*axes))

  # Whole numbers, so that every order of adding gives the same; of 32 bits where there are many, which wrap around.
  programs = [
      (lambda a: a + a.sum(), lambda a: a + a.sum()),
      (lambda a: a - a.max(axis=0), lambda a: a - a.max(axis=0)),
      (lambda a: a.T * 2, lambda a: a.T * 2),
      (lambda a: a[::-1] + a.cumsum(axis=1), lambda a: a[::-1] + a.cumsum(axis=1)),
      (lambda a: (a @ a.T) % 7, lambda a: (a @ a.T) % 7),  # last: slow with large arrays
  ]
  jitted = {}

  def check(seed_of_step, result, expected):
    found = np.asarray(result)
    if not np.array_equal(found, expected):
      sys.exit(f"wrong result in the step with the seed {seed_of_step}:\n{found}\nnot\n{expected}")

  while time.monotonic() < deadline:
    steps += 1
    seed_of_step = f"{seed}-{steps}"
    rng = random.Random(seed_of_step)
    large = rng.random() < 0.1
    unit = 256 if large else 8
    shape = (unit * rng.randint(1, 4), unit * rng.randint(1, 4))
    dtype = np.int32 if large else np.float32
    host = np.random.default_rng(rng.getrandbits(32)).integers(-9, 9, shape).astype(dtype)
    mesh = random_mesh(rng)
    array = jax.device_put(host, random_sharding(rng, mesh))
    for _ in range(rng.randint(1, 4)):
      which = rng.randrange(len(programs) - large)
      donate = rng.random() < 0.3
      key = (which, donate)
      if key not in jitted:
        jitted[key] = jax.jit(programs[which][0], donate_argnums=0 if donate else ())
      array, host = jitted[key](array), programs[which][1](host)
      if rng.random() < 0.3:
        mesh = random_mesh(rng)
        array = jax.device_put(array, random_sharding(rng, mesh))
      host = host.astype(dtype)
      if not large and np.abs(host).max() > 500:  # a product must stay below 2**24
        array, host = jax.jit(lambda a: a % 5)(array), host % 5
    pending.append((seed_of_step, array, host))
    # Some are looked at late, so that much is under way.
    while len(pending) > rng.randint(0, 8):
      check(*pending.pop(rng.randrange(len(pending))))
    if steps % 50 == 0:
      jax.clear_caches()
      jitted.clear()
  for late in pending:
    check(*late)
  print(f"done {steps}", flush=True)


def main():
  if len(sys.argv) > 1 and sys.argv[1] == "session":
    return session(sys.argv[2], float(sys.argv[3]))
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--minutes", type=float, default=10)
  parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
  parser.add_argument("--without-shared-memory", action="store_true")
  arguments = parser.parse_args()
  print(f"seed {arguments.seed}", flush=True)
  server = processes.helmway_cluster(4, 2, 2, shared_memory=not arguments.without_shared_memory)
  try:
    def run(seconds, name):
      return processes.run_sessions(__file__, server, 2, f"{arguments.seed}-{name}", seconds)

    run(min(30, 20 * arguments.minutes), "first")
    before = server.memory_bytes()
    steps = run(60 * arguments.minutes, "long")
    grown = server.memory_bytes() - before
    print(f"{steps[0]} and {steps[1]} steps, all right; the cluster has grown by {grown / 2**20:.0f} MiB")
    if grown > MAX_GROWTH_BYTES:
      sys.exit("the cluster has grown")
  finally:
    server.close()


if __name__ == "__main__":
  main()
