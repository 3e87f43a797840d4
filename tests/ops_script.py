"""Operations of ordinary JAX programs, each with a result that does not depend on where it ran.

As a program: runs them all on the devices that JAX is configured for and prints {name: result} as JSON. A result
is what encode() makes of it, or {"raised": type and text}.
"""

import json
import sys
import threading

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import export, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P, SingleDeviceSharding

OPERATIONS = {}


def operation(function):
    OPERATIONS[function.__name__] = function
    return function


def encode(value):
    """JSON with dtype, shape and every element; floats in a form that loses nothing."""
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    if isinstance(value, (jax.Array, np.ndarray, np.generic)):
        array = np.asarray(value)
        flat = array.reshape(-1)
        if array.dtype == np.bool_:
            elements = flat.tolist()
        elif np.issubdtype(array.dtype, np.complexfloating):
            elements = [[float(x.real), float(x.imag)] for x in flat]
        elif np.issubdtype(array.dtype, np.integer):
            elements = [int(x) for x in flat]
        else:
            elements = [float(x) for x in flat.astype(np.float64)]
            if array.dtype.kind == "V" and "int" in array.dtype.name:
                elements = [int(x) for x in elements]
        return {"dtype": array.dtype.name, "shape": list(array.shape), "elements": elements}
    return value


def mesh(*shape, names=("x", "y")):
    devices = np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape)
    return Mesh(devices, names[: len(shape)])


def number(device):
    """Devices of several workers have ids with gaps."""
    return jax.devices().index(device)


def shards(array):
    """Where each shard is and what it holds."""
    return [[number(shard.device), str(shard.index), shard.data] for shard in array.addressable_shards]


@operation
def devices():
    return [[number(device), device.platform, device.process_index] for device in jax.devices()]


@operation
def process():
    return [jax.process_count(), jax.process_index(), jax.local_device_count(), jax.default_backend()]


@operation
def memory_kinds():
    device = jax.devices()[0]
    return [device.default_memory().kind, sorted(memory.kind for memory in device.addressable_memories())]


@operation
def arange():
    return jnp.arange(8)


@operation
def ones():
    return jnp.ones((4, 4))


@operation
def jit_twice():
    f = jax.jit(lambda a: a + 1)
    x = jnp.ones((4, 4))
    return [f(x), f(f(x))]


@operation
def block_until_ready():
    return jax.block_until_ready([jnp.ones(3) * factor for factor in range(5)])


@operation
def dtypes_round_trip():
    names = [
        "bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "float32", "complex64",
    ]
    small = [
        ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3b11fnuz,
        ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz, ml_dtypes.int4, ml_dtypes.uint4,
    ]
    values = np.array([[0, 1, 2], [3, 5, 7]])
    return [jax.device_put(values.astype(dtype)) for dtype in [*map(np.dtype, names), *small]]


@operation
def wide_types():
    with jax.enable_x64(True):
        return [
            jnp.asarray(np.array([1, -(2**62)], np.int64)) + 1,
            jnp.asarray(np.array([2**63], np.uint64)) + 1,
            jnp.asarray(np.array([1e300, -0.1], np.float64)) * 2,
            jnp.asarray(np.array([1 + 2j], np.complex128)) * 1j,
        ]


@operation
def special_floats():
    x = np.array([np.inf, -np.inf, np.nan, -0.0, 1e-45], np.float32)
    return [str(value) for value in np.asarray(jax.device_put(x)).tolist()]


@operation
def empty_and_scalar():
    return [
        jax.device_put(np.zeros((0,), np.float32)),
        jax.device_put(np.zeros((3, 0, 2), np.int32)),
        jnp.zeros((0, 4)) @ jnp.ones((4, 2)),
        jax.device_put(np.float32(2.5)) * 2,
    ]


@operation
def strided_host_arrays():
    base = np.arange(48, dtype=np.float32).reshape(6, 8)
    return [
        jax.device_put(view)
        for view in (base.T, base[::2], base[:, 1:7:3], base[2:5, 3:4], base[:1].reshape(8, 1))
    ]


@operation
def large_array():
    x = np.arange(3 * 2**20, dtype=np.uint32).reshape(3, -1)
    y = jax.device_put(x)
    return [int(jnp.sum(y % 1009)), bool((np.asarray(y) == x).all())]


@operation
def sharded_put():
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    y = jax.device_put(x, NamedSharding(mesh(2, 2), P("x", "y")))
    return [y, shards(y)]


@operation
def sharded_put_of_strided():
    x = np.arange(128, dtype=np.int32).reshape(8, 16)[:, ::2].T
    y = jax.device_put(x, NamedSharding(mesh(4, 2), P("y", "x")))
    return [y, shards(y)]


@operation
def partly_replicated_put():
    x = np.arange(16, dtype=np.int16).reshape(4, 4)
    y = jax.device_put(x, NamedSharding(mesh(2, 4), P("x")))
    return [y, shards(y)]


@operation
def sharded_matmul():
    x = jax.device_put(np.arange(64, dtype=np.float32).reshape(8, 8), NamedSharding(mesh(2, 2), P("x", "y")))
    return jax.jit(lambda a: a @ a.T)(x)


@operation
def matmul_out_shardings():
    m = mesh(2, 4)
    x = jax.device_put(np.arange(64, dtype=np.float32).reshape(8, 8), NamedSharding(m, P("x", "y")))
    y = jax.jit(lambda a: a @ a, out_shardings=NamedSharding(m, P("y", "x")))(x)
    return [y, shards(y)]


@operation
def replicated_put():
    y = jax.device_put(np.arange(6, dtype=np.float32), NamedSharding(mesh(8), P()))
    return [y, shards(y)]


@operation
def put_on_device():
    y = jax.device_put(jnp.arange(5.0), jax.devices()[1])
    return [y, y + 1, sorted(number(device) for device in (y + 1).devices())]


@operation
def put_host_array_on_device():
    y = jax.device_put(np.arange(5.0, dtype=np.float32), jax.devices()[7])
    return [y * 2, sorted(number(device) for device in y.devices())]


@operation
def move_between_devices():
    x = jnp.arange(4.0)
    for device in (3, 5, 0, 6):
        x = jax.device_put(x, jax.devices()[device]) * 2
    return [x, sorted(number(device) for device in x.devices())]


@operation
def reshard_transposed():
    m = mesh(2, 2)
    x = jax.device_put(np.arange(64, dtype=np.float32).reshape(8, 8), NamedSharding(m, P("x", "y")))
    y = jax.device_put(x, NamedSharding(m, P("y", "x")))
    return [y, shards(y)]


@operation
def reshard_to_replicated_and_back():
    m = mesh(8)
    x = jax.device_put(np.arange(16.0, dtype=np.float32), NamedSharding(m, P("x")))
    y = jax.device_put(x, NamedSharding(m, P()))
    z = jax.device_put(y, NamedSharding(m, P("x")))
    return [y, z, shards(z)]


@operation
def reshard_to_other_devices():
    x = jax.device_put(np.arange(8.0, dtype=np.float32), NamedSharding(mesh(4), P("x")))
    other = Mesh(np.array(jax.devices()[4:8]), ("x",))
    y = jax.device_put(x, NamedSharding(other, P("x")))
    return [y, shards(y)]


@operation
def pinned_host():
    x = jax.device_put(jnp.arange(6.0), SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host"))
    back = jax.device_put(x, SingleDeviceSharding(jax.devices()[0], memory_kind="device"))
    return [x, x.sharding.memory_kind, back + 1, back.sharding.memory_kind]


@operation
def array_from_callback():
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    y = jax.make_array_from_callback(x.shape, NamedSharding(mesh(4), P("x")), lambda index: x[index])
    return [y, shards(y)]


@operation
def array_from_single_device_arrays():
    parts = [jax.device_put(np.full((2,), i, np.float32), jax.devices()[i]) for i in range(4)]
    y = jax.make_array_from_single_device_arrays((8,), NamedSharding(mesh(4), P("x")), parts)
    return [y, y * 2]


@operation
def pmap():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    y = jax.pmap(lambda a: a * 2 + lax.psum(a, "i"), axis_name="i", devices=jax.devices()[:2])(x)
    return np.asarray(y)


@operation
def donation():
    f = jax.jit(lambda a, b: (a + b, a * b), donate_argnums=0)
    a, b = jnp.arange(4.0) + 0, jnp.ones(4)
    first = f(a, b)
    second = f(first[0], b)
    try:
        np.asarray(a)
        read = "read"
    except RuntimeError as error:
        read = "deleted" in str(error)
    return [second, first[1], b, a.is_deleted(), first[0].is_deleted(), read]


@operation
def donation_sharded():
    sharding = NamedSharding(mesh(8), P("x"))
    state = jax.device_put(np.zeros(16, np.float32), sharding)
    step = jax.jit(lambda s: s + 1, donate_argnums=0)
    for _ in range(10):
        state = step(state)
    return state


@operation
def delete():
    a = jnp.arange(4.0) + 0
    b = a + 1
    a.delete()
    try:
        np.asarray(a)
        read = "read"
    except RuntimeError as error:
        read = "deleted" in str(error)
    return [a.is_deleted(), read, b]


@operation
def text_of_the_compiled_program():
    compiled = jax.jit(lambda a: a @ a).lower(jax.ShapeDtypeStruct((16, 16), jnp.float32)).compile()
    text = compiled.as_text()
    return [text.startswith("HloModule jit"), "f32[16,16]" in text, "dot" in text]


@operation
def costs_of_the_compiled_program():
    compiled = jax.jit(lambda a: a @ a).lower(jax.ShapeDtypeStruct((16, 16), jnp.float32)).compile()
    costs = compiled.cost_analysis()
    return [costs["flops"], costs["bytes accessed"], compiled(jnp.eye(16)).sum()]


@operation
def ahead_of_time():
    compiled = jax.jit(lambda a, b: {"sum": a + b, "max": jnp.maximum(a, b)}).lower(
        jnp.zeros(3), jax.ShapeDtypeStruct((3,), jnp.float32)
    ).compile()
    return compiled(jnp.arange(3.0), jnp.ones(3))


@operation
def many_outputs_and_trees():
    f = jax.jit(lambda tree: {"a": tree["x"] + 1, "b": [tree["y"] * 2]})
    return [f({"x": jnp.arange(2), "y": jnp.ones((2, 2))}), jax.jit(lambda x: tuple(x + i for i in range(20)))(1.0)]


@operation
def unused_and_passed_through():
    f = jax.jit(lambda a, b: (a, 3, jnp.zeros(2)), keep_unused=True)
    g = jax.jit(lambda a, b: a)
    return [f(jnp.ones(2), jnp.zeros(5)), g(jnp.arange(3), jnp.zeros(5))]


@operation
def no_inputs_no_outputs():
    return [jax.jit(lambda: jnp.arange(3) * 2)(), jax.jit(lambda x: ())(jnp.ones(2))]


@operation
def gradient():
    def loss(w, x):
        return jnp.tanh(x @ w).sum()

    w, x = jnp.linspace(-1, 1, 12).reshape(4, 3), jnp.linspace(0, 2, 8).reshape(2, 4)
    return [jax.jit(jax.grad(loss))(w, x), jax.jit(jax.hessian(loss))(w[:, :1], x).reshape(4, 4)]


@operation
def control_flow():
    def f(x):
        total = lax.fori_loop(0, 10, lambda i, s: s + i * x, jnp.zeros_like(x))
        carry, history = lax.scan(lambda c, a: (c * 2 + a, c), x[0], x)
        picked = lax.cond(x[0] > 0, lambda: x, lambda: -x)
        powered = lax.while_loop(lambda s: s[0] < 100, lambda s: (s[0] * 2, s[1] + 1), (jnp.float32(1), 0))
        switched = lax.switch(2, [lambda: x + i for i in range(4)])
        return total, carry, history, picked, powered, switched

    return jax.jit(f)(jnp.arange(1.0, 5.0))


@operation
def vmap_and_indexing():
    table = jnp.arange(30).reshape(10, 3)
    return [
        jax.vmap(lambda i: table[i].sum())(jnp.array([1, 9, 0])),
        table.at[jnp.array([2, 5])].add(100)[2:6],
        jnp.take_along_axis(table[:2], jnp.array([[2], [0]]), axis=1),
    ]


@operation
def sort_and_top_k():
    x = jnp.array([3.0, -1.0, 2.5, 7.0, 0.0, 7.5])
    return [jnp.sort(x), jnp.argsort(x), lax.top_k(x, 3), lax.approx_max_k(x, 2), jnp.unique(x, size=6)]


@operation
def convolution():
    x = jnp.arange(2 * 6 * 6 * 3, dtype=jnp.float32).reshape(2, 6, 6, 3) / 100
    kernel = jnp.ones((3, 3, 3, 4)) * jnp.arange(4)
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


@operation
def fft():
    return jnp.abs(jnp.fft.fft(jnp.sin(jnp.arange(16.0))))


@operation
def reductions():
    x = jnp.arange(24, dtype=jnp.float32).reshape(4, 6) % 7
    return [x.sum(0), x.max(1), jnp.cumsum(x, 1), jnp.argmax(x, 1), jnp.median(x), jnp.einsum("ij,kj->ik", x, x)]


@operation
def random_numbers():
    key = jax.random.key(7)
    a, b = jax.random.split(key)
    return [
        jax.random.uniform(a, (5,)),
        jax.random.normal(b, (5,)),
        jax.random.permutation(a, 10),
        jax.random.bernoulli(b, 0.3, (6,)),
        jax.random.key_data(a),
    ]


@operation
def random_sharded():
    sharding = NamedSharding(mesh(8), P("x"))
    return jax.jit(lambda: jax.random.normal(jax.random.key(1), (16,)), out_shardings=sharding)()


@operation
def collectives():
    def body(x):
        index = lax.axis_index("x")
        return (
            lax.psum(x, "x"),
            lax.pmax(x, "x"),
            lax.pmean(x, "x"),
            lax.all_gather(x, "x", tiled=True),
            lax.psum_scatter(jnp.tile(x, 8), "x", tiled=True),
            lax.ppermute(x, "x", [(i, (i + 1) % 8) for i in range(8)]),
            lax.all_to_all(jnp.tile(x + index, 8).reshape(8, -1), "x", 0, 0, tiled=True),
        )

    x = jax.device_put(np.arange(16, dtype=np.float32), NamedSharding(mesh(8), P("x")))
    f = jax.shard_map(body, mesh=mesh(8), in_specs=P("x"), out_specs=P("x"), check_vma=False)
    return jax.jit(f)(x)


@operation
def collectives_over_one_axis():
    f = jax.shard_map(
        lambda a: lax.psum(a, "y") + 10 * lax.axis_index("x"), mesh=mesh(2, 4), in_specs=P("x", "y"), out_specs=P("x")
    )
    return jax.jit(f)(jnp.arange(32, dtype=jnp.int32).reshape(4, 8))


@operation
def sharding_constraint():
    m = mesh(2, 4)

    @jax.jit
    def f(a):
        b = lax.with_sharding_constraint(a * 2, NamedSharding(m, P("x", "y")))
        return lax.with_sharding_constraint(b.T + 1, NamedSharding(m, P("y"))).sum(1)

    return f(jax.device_put(np.arange(64, dtype=np.float32).reshape(8, 8), NamedSharding(m, P("x"))))


@operation
def indexing_sharded():
    x = jax.device_put(np.arange(64, dtype=np.float32).reshape(16, 4), NamedSharding(mesh(8), P("x")))
    return [x[3], x[2:9:3], x.reshape(4, 16).sum(1), jnp.concatenate([x, x])[15:18]]


@operation
def programs_on_several_device_sets():
    pieces = []
    for start in (0, 2, 4, 6):
        m = Mesh(np.array(jax.devices()[start : start + 2]), ("x",))
        x = jax.device_put(np.arange(4, dtype=np.float32) + start, NamedSharding(m, P("x")))
        pieces.append(jax.jit(lambda a: a - a.mean())(x))
    return pieces


@operation
def threads():
    results = [None] * 4

    def work(i):
        f = jax.jit(lambda a: (a * (i + 1)).sum())
        x = jax.device_put(np.arange(10, dtype=np.float32), jax.devices()[i])
        for _ in range(20):
            results[i] = f(x)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return results


@operation
def threads_share_a_program():
    f = jax.jit(lambda a: a * 3 - 1)
    results = [None] * 8

    def work(i):
        results[i] = np.asarray(f(jnp.float32(i)))

    workers = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return results


@operation
def wrong_use_is_an_error_and_harmless():
    try:
        jax.jit(lambda a, b: a + b)(
            jax.device_put(jnp.ones(2), jax.devices()[0]), jax.device_put(jnp.ones(2), jax.devices()[1])
        )
        raised = "nothing"
    except ValueError:
        raised = "ValueError"
    return [raised, jnp.ones(2) + 1]


def linalg_inputs(dtype=np.float32):
    a = np.random.RandomState(0).randn(6, 6)
    if np.issubdtype(dtype, np.complexfloating):
        a = a + 1j * a.T
    a = a.astype(dtype)
    return a, a @ a.conj().T + 6 * np.eye(6, dtype=dtype)


@operation
def exported_program():
    spread = NamedSharding(mesh(8), P("x"))
    f = jax.jit(lambda a: jnp.cumsum(a * 2), in_shardings=spread, out_shardings=spread)
    x = jax.device_put(np.arange(16, dtype=np.float32), spread)
    loaded = export.deserialize(export.export(f)(x).serialize())
    return [jax.jit(loaded.call)(x), loaded.nr_devices]


@operation
def linalg_factorizations():
    a, positive = linalg_inputs()
    return {
        "cholesky": jnp.linalg.cholesky(positive),
        "qr": jnp.abs(jnp.linalg.qr(a)[1]),
        "svd": jnp.linalg.svd(a, compute_uv=False),
        "eigh": jnp.linalg.eigh(positive)[0],
        "eig": jnp.sort(jnp.abs(jnp.linalg.eig(a)[0])),
        "hessenberg and schur": jnp.linalg.norm(jax.scipy.linalg.schur(a)[0]),
    }


@operation
def linalg_solvers_of_complex_matrices():
    a, positive = linalg_inputs(np.complex64)
    return [jnp.linalg.solve(positive, a), jnp.linalg.inv(positive), jnp.linalg.slogdet(positive)[1]]


@operation
def linalg_batched_and_sharded():
    _, positive = linalg_inputs()
    batch = jnp.stack([positive * (i + 1) for i in range(8)])
    sharded = jax.device_put(batch, NamedSharding(mesh(8), P("x")))
    return [jnp.linalg.cholesky(batch), jax.jit(jnp.linalg.cholesky)(sharded)]


@operation
def linalg_gradient():
    a, positive = linalg_inputs()
    return jax.grad(lambda x: jnp.linalg.slogdet(x)[1] + jnp.linalg.solve(x, a).sum())(positive)


def main():
    jax.config.update("jax_threefry_partitionable", True)
    results = {}
    for name, function in OPERATIONS.items():
        try:
            results[name] = encode(function())
        except Exception as error:  # pylint: disable=broad-except
            results[name] = {"raised": f"{type(error).__name__}: {error}"}
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
