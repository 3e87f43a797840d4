"""Trains a small network on handwritten digits while slices of the cluster come and go.

Written against JAX, Flax, Optax, Orbax and pathwaysutils alone. When a slice is lost the training goes on from the last
snapshot with the slices that are left; when it is back, with all of them. Which batch belongs to which step does not
depend on the slices, so the losses are those of an undisturbed run, up to rounding.
"""

import argparse
import logging
import time

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pathwaysutils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from pathwaysutils.elastic import manager as elastic
from sklearn.datasets import load_digits


class Network(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(128)(x))
        x = nn.relu(nn.Dense(64)(x))
        return nn.Dense(10)(x)


class Snapshots:
    """The newest state of the training on the host, and on disk if there is a directory."""

    def __init__(self, directory):
        self._newest = None
        self._manager = None
        if directory:
            options = ocp.CheckpointManagerOptions(max_to_keep=2, create=True)
            self._manager = ocp.CheckpointManager(directory, options=options)

    def take(self, step, state):
        """Waits for the state, and raises what went wrong with it."""
        host_state = jax.device_get(state)
        self._newest = (step, host_state)
        if self._manager is not None:
            self._manager.save(step, args=ocp.args.StandardSave(host_state))

    def newest(self, like):
        """(step, state on the host); (0, like) if there is none yet."""
        if self._newest is None and self._manager is not None and self._manager.latest_step() is not None:
            step = self._manager.latest_step()
            self._newest = (step, self._manager.restore(step, args=ocp.args.StandardRestore(like)))
        return self._newest or (0, like)

    def close(self):
        if self._manager is not None:
            self._manager.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch-size", type=int, default=96, help="over all devices, however many there are")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--snapshot-every", type=int, default=20, help="steps")
    parser.add_argument("--checkpoint-directory", help="of Orbax checkpoints; default: snapshots in memory only")
    parser.add_argument("--poll-interval", type=float, default=1.0, help="seconds between looks at lost slices")
    parser.add_argument("--seconds-per-step", type=float, default=0.0, help="wait in each step, to see slices come and go")
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)

    pathwaysutils.initialize()
    manager = elastic.Manager()
    print(f"{len(jax.devices())} devices in {manager.total_slice_count} slices", flush=True)

    digits = load_digits()
    images = (digits.data / 16.0).astype(np.float32)
    labels = digits.target.astype(np.int32)

    def batch_of(step):
        rng = np.random.default_rng((args.seed, step))
        chosen = rng.choice(len(images), args.batch_size, replace=False)
        return images[chosen], labels[chosen]

    network = Network()
    optimizer = optax.adam(args.learning_rate)

    def loss_of(params, x, y):
        return optax.softmax_cross_entropy_with_integer_labels(network.apply(params, x), y).mean()

    @jax.jit
    def train_step(state, x, y):
        params, optimizer_state = state
        loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
        return (optax.apply_updates(params, updates), optimizer_state), loss

    snapshots = Snapshots(args.checkpoint_directory)
    attempts = 0

    @manager.elastic_retry(minimum_slice_count=1, poll_interval=args.poll_interval)
    def train():
        nonlocal attempts
        attempts += 1
        slices = sorted(manager.active_slice_indices)
        mesh = Mesh(np.array([d for s in slices for d in manager.slice_to_devices[s]]), ("data",))
        replicated = NamedSharding(mesh, PartitionSpec())
        by_example = NamedSharding(mesh, PartitionSpec("data"))

        params = jax.jit(network.init)(jax.random.key(args.seed), jnp.zeros((1, images.shape[1])))
        first, host_state = snapshots.newest(jax.device_get((params, optimizer.init(params))))
        print(f"attempt {attempts}: from step {first} on slices {slices}", flush=True)
        state = jax.device_put(host_state, replicated)
        loss = jnp.nan
        for step in range(first, args.steps):
            x, y = (jax.device_put(part, by_example) for part in batch_of(step))
            state, loss = train_step(state, x, y)
            done = step + 1
            if done % args.snapshot_every == 0 or done == args.steps:
                snapshots.take(done, state)
                print(f"step {done}: loss {float(loss):.6f} on slices {slices}", flush=True)
                if done < args.steps and manager.available_inactive_slices:
                    raise elastic.ScaleUpSignalError()
            time.sleep(args.seconds_per_step)
        return float(loss_of(jax.device_get(state[0]), images, labels))

    loss = train()
    snapshots.close()
    manager.close()
    print(f"final loss {loss:.6f} after {attempts} attempts", flush=True)


if __name__ == "__main__":
    main()
