"""A training that goes on when a slice is lost, and tells when; or one process of a job that starts anew.

On Helmway: on all devices, then on those of the slice that is left. In a multi-controller job: until it is ended.

Lines on stdout: "step" after the first step, then "error", "good" (the first step on the slice that is left) and "back"
(all slices answer), each with the time (CLOCK_MONOTONIC, seconds).
"""

import time

import controller
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

WIDTH = 256
BATCH = 64


def tell(*words):
  print(*words, flush=True)


def make_step(devices):
  """A step of a small network, data-parallel; and its state and batch."""
  mesh = Mesh(np.array(devices), ("data",))
  replicated, by_example = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), ("data",)))

  def loss(weights, x):
    for w in weights:
      x = jax.nn.relu(x @ w)
    return (x**2).mean()

  @jax.jit
  def step(weights, x):
    value, gradients = jax.value_and_grad(loss)(weights, x)
    return [w - 0.01 * g for w, g in zip(weights, gradients, strict=True)], value

  rng = np.random.default_rng(0)

  def put(array, sharding):
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

  weights = [put(rng.standard_normal((WIDTH, WIDTH), np.float32) / WIDTH**0.5, replicated) for _ in range(4)]
  return step, weights, put(rng.standard_normal((BATCH, WIDTH), np.float32), by_example)


def train(devices):
  """Until it fails."""
  step, weights, x = make_step(devices)
  first = True
  while True:
    weights, loss = step(weights, x)
    float(loss)
    if first:
      tell("step")
    first = False


def main():
  if controller.join_others():
    train(jax.devices())

  import pathwaysutils
  from pathwaysutils.elastic import elastic

  pathwaysutils.initialize()
  slices = elastic.get_slice_to_devices(jax.devices())
  try:
    train(jax.devices())
  except jax.errors.JaxRuntimeError:
    tell("error", time.monotonic())
  left = next(iter(elastic.get_active_slice_indices(slices)))
  step, weights, x = make_step(slices[left])
  float(step(weights, x)[1])
  tell("good", time.monotonic())
  while len(elastic.get_active_slice_indices(slices)) < len(slices):
    time.sleep(0.02)
  tell("back", time.monotonic())


if __name__ == "__main__":
  main()
