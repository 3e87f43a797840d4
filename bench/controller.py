"""Makes a process one of several that run the same JAX program: those of processes.controller_environments."""

import os

import jax


def join_others():
  """To be called before JAX is used. False, and nothing is done, if the environment names no others."""
  coordinator = os.environ.get("HELMWAY_BENCH_COORDINATOR")
  if coordinator is None:
    return False
  jax.distributed.initialize(coordinator, int(os.environ["HELMWAY_BENCH_PROCESSES"]),
                             int(os.environ["HELMWAY_BENCH_PROCESS"]))
  return True
