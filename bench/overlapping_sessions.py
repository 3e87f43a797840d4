#!/usr/bin/env python3
"""Three programs of four threads at once on one cluster, over sets of devices that overlap. Long.

    HELMWAY_BENCH_PYTHON=PYTHON bench/overlapping_sessions.py [--minutes 5] [--seed N]

Their programs span workers, and two of three call Python functions of their client. Nothing but the order of their
launches keeps such programs from waiting for each other for ever. Fails at the first wrong result, or when a thread
has waited for a minute; the workers name what they wait for.
"""

import argparse
import random
import sys
import threading
import time

import processes

SESSIONS = 3
THREADS = 4
PATIENCE_SECONDS = 60


def session(seed, seconds):
  """Random batches of runs for so long."""
  import jax
  import jax.numpy as jnp
  import numpy as np
  from jax.sharding import Mesh, NamedSharding, PartitionSpec

  devices = jax.devices()
  expected = np.arange(16, dtype=np.float32) * 2 + 120

  def double(x, **options):
    return jax.pure_callback(lambda v: np.asarray(v) * 2, jax.ShapeDtypeStruct(x.shape, x.dtype), x, **options)

  def case(chosen):
    mesh = Mesh(np.array(chosen), ("x",))
    spec = PartitionSpec("x")
    x = jax.device_put(jnp.arange(16.0), NamedSharding(mesh, spec))
    per_shard = jax.shard_map(
        lambda x: double(x, vmap_method="sequential") + jax.lax.psum(x.sum(), "x"), mesh=mesh, in_specs=spec, out_specs=spec)
    return x, [jax.jit(f) for f in (lambda x: x * 2 + x.sum(), lambda x: double(x) + x.sum(), per_shard)]

  cases = [case(chosen) for chosen in (
      devices, devices[2:6], devices[:4], [devices[1], devices[7]], devices[4:6], devices[3:4])]
  deadline = time.monotonic() + seconds
  runs = [0] * THREADS
  moved = [time.monotonic()] * THREADS
  wrong = []

  def work(thread):
    rng = random.Random(f"{seed}-{thread}")
    while time.monotonic() < deadline and not wrong:
      batch = []
      for _ in range(rng.randint(1, 20)):
        x, programs = rng.choice(cases)
        y = rng.choice(programs)(x)
        if rng.random() < 0.3:
          rng.choice(programs)(y)  # nobody looks at it
        batch.append(y)
      for y in batch:
        found = np.asarray(y)
        runs[thread] += 1
        moved[thread] = time.monotonic()
        if not np.array_equal(found, expected):
          wrong.append(found)
    moved[thread] = float("inf")

  threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(THREADS)]
  for thread in threads:
    thread.start()
  while any(thread.is_alive() for thread in threads):
    time.sleep(1)
    if time.monotonic() - min(moved) > PATIENCE_SECONDS:
      sys.exit(f"seed {seed}: nothing has moved for {PATIENCE_SECONDS} seconds, after {runs} runs")
  if wrong:
    sys.exit(f"seed {seed}: {wrong[0]}\nnot\n{expected}")
  print(f"done {sum(runs)}", flush=True)


def main():
  if len(sys.argv) > 1 and sys.argv[1] == "session":
    return session(sys.argv[2], float(sys.argv[3]))
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--minutes", type=float, default=5)
  parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
  arguments = parser.parse_args()
  print(f"seed {arguments.seed}", flush=True)
  server = processes.helmway_cluster(4, 2, 1)
  try:
    runs = processes.run_sessions(__file__, server, SESSIONS, arguments.seed, 60 * arguments.minutes)
    print(f"{runs} runs, all right")
  finally:
    server.close()


if __name__ == "__main__":
  main()
