"""Trains a small convolutional network on handwritten digits, data-parallel over all devices that JAX has.

Nothing here depends on where the devices are. Exit code 1 if the test accuracy is below --target-accuracy.
"""

import argparse
import collections
import contextlib
import functools
import sys
import time

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


class Network(nn.Module):
    @nn.compact
    def __call__(self, images):
        x = nn.relu(nn.Conv(16, (3, 3))(images))
        x = nn.max_pool(x, (2, 2), (2, 2))
        x = nn.relu(nn.Conv(32, (3, 3))(x))
        x = x.reshape(x.shape[0], -1)
        x = nn.relu(nn.Dense(64)(x))
        return nn.Dense(10)(x)


class Stopwatch:
    """Adds up wall time by what it was spent on."""

    def __init__(self):
        self.seconds = collections.Counter()
        self.start = time.perf_counter()

    @contextlib.contextmanager
    def on(self, what):
        begin = time.perf_counter()
        yield
        self.seconds[what] += time.perf_counter() - begin

    def report(self):
        total = time.perf_counter() - self.start
        rest = total - sum(self.seconds.values())
        print("where the time went")
        for what, seconds in [*self.seconds.most_common(), ("everything else", rest)]:
            print(f"  {what:<28}{seconds:8.3f} s {100 * seconds / total:5.1f} %")
        print(f"  {'total':<28}{total:8.3f} s")


def print_devices():
    devices = jax.devices()
    print(f"{len(devices)} devices, jax {jax.__version__}, runtime {devices[0].client.runtime_type}")
    print(f"  {'id':>3}  {'platform':<10}{'kind':<16}{'process':>7}{'slice':>7}  memories")
    for device in devices:
        memories = ", ".join(memory.kind for memory in device.addressable_memories())
        slice_index = getattr(device, "slice_index", "-")
        print(
            f"  {device.id:>3}  {device.platform:<10}{device.device_kind:<16}{device.process_index:>7}"
            f"{slice_index:>7}  {memories}"
        )


def batches(images, labels, batch_size, rng):
    """Shuffled batches of exactly batch_size."""
    order = rng.permutation(len(images))
    for start in range(0, len(order) - batch_size + 1, batch_size):
        chosen = order[start : start + batch_size]
        yield images[chosen], labels[chosen]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=128, help="over all devices")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target-accuracy", type=float, default=0.95, help="of the test set; 0 turns the check off")
    args = parser.parse_args()

    watch = Stopwatch()
    with watch.on("finding the devices"):
        devices = jax.devices()
    print_devices()
    if args.batch_size % len(devices):
        parser.error(f"--batch-size must be a multiple of the {len(devices)} devices")

    mesh = Mesh(np.array(devices), ("data",))
    replicated = NamedSharding(mesh, PartitionSpec())
    by_example = NamedSharding(mesh, PartitionSpec("data"))

    with watch.on("host: loading the data"):
        digits = load_digits()
        images = (digits.images[..., None] / 16.0).astype(np.float32)
        train_x, test_x, train_y, test_y = train_test_split(
            images, digits.target.astype(np.int32), test_size=0.2, random_state=args.seed, stratify=digits.target
        )

    network = Network()
    optimizer = optax.adam(args.learning_rate)

    @functools.partial(jax.jit, out_shardings=replicated)
    def make_state(key):
        params = network.init(key, jnp.zeros((1, 8, 8, 1)))
        return params, optimizer.init(params)

    def loss_and_hits(params, x, y):
        logits = network.apply(params, x)
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()
        return loss, (logits.argmax(-1) == y).sum()

    @functools.partial(jax.jit, donate_argnums=0)
    def train_step(state, x, y):
        params, optimizer_state = state
        (loss, hits), gradients = jax.value_and_grad(loss_and_hits, has_aux=True)(params, x, y)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
        return (optax.apply_updates(params, updates), optimizer_state), loss, hits

    @jax.jit
    def count_hits(params, x, y, weight):
        return ((network.apply(params, x).argmax(-1) == y) * weight).sum()

    with watch.on("compiling and first run"):
        state = make_state(jax.random.key(args.seed))
        shape = (args.batch_size, *train_x.shape[1:])
        compiled_step = train_step.lower(
            state,
            jax.ShapeDtypeStruct(shape, jnp.float32, sharding=by_example),
            jax.ShapeDtypeStruct(shape[:1], jnp.int32, sharding=by_example),
        ).compile()

    rng = np.random.default_rng(args.seed)
    for epoch in range(1, args.epochs + 1):
        begin = time.perf_counter()
        losses, hits = [], []
        source = batches(train_x, train_y, args.batch_size, rng)
        while True:
            with watch.on("host: making batches"):
                batch = next(source, None)
            if batch is None:
                break
            with watch.on("enqueueing transfers"):
                x, y = jax.device_put(batch, by_example)
            with watch.on("enqueueing steps"):
                state, loss, hit = compiled_step(state, x, y)
            losses.append(loss)
            hits.append(hit)
        with watch.on("waiting for results"):
            loss = np.mean(jax.device_get(losses))
            accuracy = np.sum(jax.device_get(hits)) / (len(hits) * args.batch_size)
        seconds = time.perf_counter() - begin
        print(f"epoch {epoch:>3}/{args.epochs}  loss {loss:.5f}  accuracy {accuracy:.4f}  {seconds:.3f} s", flush=True)

    with watch.on("testing"):
        # The last batch is filled up with examples that do not count.
        padding = -len(test_x) % len(devices)
        weight = np.concatenate([np.ones(len(test_x), np.int32), np.zeros(padding, np.int32)])
        padded_x = np.concatenate([test_x, np.zeros((padding, *test_x.shape[1:]), np.float32)])
        padded_y = np.concatenate([test_y, np.zeros(padding, np.int32)])
        x, y, weight = jax.device_put((padded_x, padded_y, weight), by_example)
        test_accuracy = int(count_hits(state[0], x, y, weight)) / len(test_x)

    watch.report()
    print(f"test accuracy {100 * test_accuracy:.2f} % of {len(test_x)} examples")
    if test_accuracy < args.target_accuracy:
        sys.exit(f"the test accuracy is below {100 * args.target_accuracy:.2f} %")


if __name__ == "__main__":
    main()
