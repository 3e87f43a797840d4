"""Launches a program with an all-reduce over all devices many times and awaits nothing before the end.

Two ways: launches that depend on nothing but one input, so that all may run at once, and a chain.
"""

import sys

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

LAUNCHES = int(sys.argv[1])
MODULUS = 1_000_003

devices = jax.devices()
mesh = Mesh(np.array(devices), ("x",))
host = np.arange(4 * len(devices), dtype=np.int32)
x = jax.device_put(host, NamedSharding(mesh, P("x")))
steps = [jax.device_put(np.int32(i), NamedSharding(mesh, P())) for i in range(10)]


@jax.jit
@lambda f: jax.shard_map(f, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"))
def program(values, step):
    return (values + lax.psum(values, "x") + step) % MODULUS


def reference(values, step):
    per_device = values.astype(np.int64).reshape(len(devices), -1)
    return ((per_device + per_device.sum(0) + step) % MODULUS).reshape(-1).astype(np.int32)


independent = [program(x, steps[i % len(steps)]) for i in range(LAUNCHES)]
chain = x
for i in range(LAUNCHES):
    chain = program(chain, steps[i % len(steps)])

wanted = host
for i in range(LAUNCHES):
    wanted = reference(wanted, i % len(steps))
np.testing.assert_array_equal(np.asarray(chain), wanted)
for i, result in enumerate(independent):
    if i < len(steps) or i >= LAUNCHES - len(steps):
        np.testing.assert_array_equal(np.asarray(result), reference(host, i % len(steps)))
jax.block_until_ready(independent)
print(f"{2 * LAUNCHES} launches on {len(devices)} devices")
