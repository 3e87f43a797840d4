"""Programs that call Python, for test_callbacks.py: prints {name: what happened} as JSON.

Each program gets a function `note`, notes what its callbacks see, and may return arrays. What it notes must not
depend on where it ran.
"""

import functools
import json
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def mesh(devices=4):
    return jax.make_mesh((devices,), ("x",), devices=jax.devices()[:devices], axis_types=(AxisType.Auto,))


def sharded(values, spec=P("x")):
    return jax.device_put(values, NamedSharding(mesh(), spec))


def shape_of(x):
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def listed(x):
    return np.asarray(x).tolist()


# ---- pure_callback ---------------------------------------------------------------------------------------------


@program
def pure_in_jit(note):
    return jax.jit(lambda x: jax.pure_callback(lambda v: np.asarray(v) * 2, shape_of(x), x) + 1)(jnp.arange(4.0))


@program
def pure_outside_jit(note):
    x = jnp.arange(4.0)
    return jax.pure_callback(lambda v: np.sin(v), shape_of(x), x)


@program
def pure_many_values(note):
    """Several arguments and results of several types, some empty, some scalars."""

    def function(a, b, *, c):
        note([listed(a), listed(b), listed(c), str(a.dtype), str(b.dtype), str(c.dtype)])
        return {"sum": np.float32(np.sum(a)), "shape": np.asarray(b.shape, np.int32), "none": np.zeros((0, 3), bool)}

    results = {
        "sum": jax.ShapeDtypeStruct((), jnp.float32),
        "shape": jax.ShapeDtypeStruct((2,), jnp.int32),
        "none": jax.ShapeDtypeStruct((0, 3), jnp.bool_),
    }
    f = jax.jit(lambda a, b, c: jax.pure_callback(function, results, a, b, c=c))
    return f(jnp.arange(3, dtype=jnp.int8), jnp.ones((2, 0), jnp.bfloat16), jnp.array(True))


@program
def pure_without_arguments(note):
    return jax.jit(lambda: jax.pure_callback(lambda: np.arange(3, dtype=np.int32), jax.ShapeDtypeStruct((3,), np.int32)))()


@program
def pure_dtypes(note):
    out = []
    for dtype in (
        "bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "bfloat16", "float32", "complex64",
        "float8_e4m3fn", "float8_e5m2", "int4", "uint4",
    ):  # fmt: skip
        x = jnp.asarray([1, 0, 3, 7, 2]).astype(dtype)

        def function(v, dtype=dtype):
            note([dtype, str(v.dtype), np.asarray(v).astype(np.complex64).real.tolist()])
            return np.asarray(v)[::-1]

        y = jax.jit(lambda x, f=function: jax.pure_callback(f, shape_of(x), x))(x)
        out.append([str(y.dtype), np.asarray(y).astype(np.complex64).real.tolist()])
    return out


@program
def pure_x64(note):
    with jax.enable_x64(True):
        out = []
        for dtype in ("int64", "uint64", "float64", "complex128"):
            x = jnp.asarray([1, 2, 3], dtype)
            y = jax.jit(lambda x: jax.pure_callback(lambda v: np.asarray(v) + 1, shape_of(x), x))(x)
            out.append([str(y.dtype), np.asarray(y).real.tolist()])
        return out


@program
def pure_vmap(note):
    def function(v):
        note(list(v.shape))
        return np.asarray(v) * 2

    x = jnp.arange(6.0).reshape(3, 2)
    out = []
    for method in ("sequential", "expand_dims", "broadcast_all"):
        f = jax.jit(jax.vmap(lambda x, m=method: jax.pure_callback(function, shape_of(x), x, vmap_method=m)))
        out.append(listed(f(x)))
    return out


@program
def pure_scan(note):
    def step(carry, x):
        y = jax.pure_callback(lambda a, b: np.asarray(a) + np.asarray(b), shape_of(x), carry, x)
        return y, y * 2

    return jax.jit(lambda xs: lax.scan(step, jnp.float32(0), xs))(jnp.arange(5.0))


@program
def pure_cond(note):
    def choose(x):
        return lax.cond(
            x > 0,
            lambda x: jax.pure_callback(lambda v: np.float32(note("up") or v + 1), shape_of(x), x),
            lambda x: jax.pure_callback(lambda v: np.float32(note("down") or v - 1), shape_of(x), x),
            x,
        )

    f = jax.jit(choose)
    return [listed(f(jnp.float32(1))), listed(f(jnp.float32(-1)))]


@program
def pure_while(note):
    """The condition of the loop is Python's."""
    go_on = lambda v: jax.pure_callback(lambda a: np.bool_(a < 5), jax.ShapeDtypeStruct((), bool), v)
    return jax.jit(lambda x: lax.while_loop(go_on, lambda v: v + 1, x))(jnp.int32(0))


@program
def pure_grad(note):
    @jax.custom_jvp
    def sin(x):
        return jax.pure_callback(np.sin, shape_of(x), x, vmap_method="sequential")

    sin.defjvp(lambda p, t: (sin(*p), jnp.cos(p[0]) * t[0]))
    return jax.jit(jax.vmap(jax.grad(sin)))(jnp.arange(3.0))


@program
def pure_sharded_jit(note):
    """Once, with the whole value."""
    x = sharded(np.arange(8.0, dtype=np.float32))

    def function(v):
        note(list(v.shape))
        return np.asarray(v) * 2

    y = jax.jit(lambda x: jax.pure_callback(function, shape_of(x), x) + x)(x)
    return y


@program
def pure_shard_map(note):
    """On each device, with its shard."""
    x = sharded(np.arange(8.0, dtype=np.float32))

    def function(v):
        note(listed(v))
        return np.asarray(v) * 2

    f = jax.shard_map(
        lambda x: lax.psum(jax.pure_callback(function, shape_of(x), x), "x"), mesh=mesh(), in_specs=P("x"), out_specs=P()
    )
    return jax.jit(f)(x)


@program
def pure_pmap(note):
    f = jax.pmap(lambda x: jax.pure_callback(lambda v: np.asarray(v) * 2, shape_of(x), x), devices=jax.devices()[:4])
    return np.asarray(f(np.arange(8.0, dtype=np.float32).reshape(4, 2)))


@program
def pure_other_device(note):
    x = jax.device_put(jnp.arange(3.0), jax.devices()[3])
    y = jax.jit(lambda x: jax.pure_callback(lambda v: np.asarray(v) + 1, shape_of(x), x))(x)
    return [listed(y), [jax.devices().index(d) for d in y.devices()]]


@program
def pure_donated(note):
    f = jax.jit(lambda x: jax.pure_callback(lambda v: np.asarray(v) + 1, shape_of(x), x) + x, donate_argnums=0)
    x = jnp.arange(4.0)
    y = f(x)
    return [listed(y), x.is_deleted(), listed(f(y + 0))]


@program
def pure_with_numpy_literals(note):
    f = lambda: jax.pure_callback(lambda: (1.5, [2, 3]), (jax.ShapeDtypeStruct((), np.float32), [jax.ShapeDtypeStruct((), np.int32)] * 2))
    return jax.tree.leaves(jax.jit(f)())


@program
def pure_big(note):
    """Arguments and results of tens of megabytes."""
    x = jnp.arange(6 << 20, dtype=jnp.float32)

    def function(v):
        v = np.asarray(v)
        note([v.nbytes, float(v[0]), float(v[-1])])
        return v[::-1], np.float32(v.sum(dtype=np.float64))

    y, total = jax.jit(lambda x: jax.pure_callback(function, (shape_of(x), jax.ShapeDtypeStruct((), np.float32)), x))(x)
    return [float(y[0]), float(y[-1]), float(y[12345]), float(total)]


@program
def results_feed_other_programs(note):
    f = jax.jit(lambda x: jax.pure_callback(lambda v: np.asarray(v) + 1, shape_of(x), x))
    g = jax.jit(lambda x: (x @ x).sum())
    x = jnp.eye(32)
    for _ in range(5):
        x = f(x)
        x = x / g(x)
    return float(x.sum())


@program
def many_runs_of_one_program(note):
    f = jax.jit(lambda x: jax.pure_callback(lambda v: np.asarray(v) + 1, shape_of(x), x))
    return [float(f(jnp.float32(i))) for i in range(200)]


@program
def many_runs_at_once(note):
    f = jax.jit(lambda x: jax.pure_callback(lambda v: np.asarray(v) + 1, shape_of(x), x))
    return [float(y) for y in [f(jnp.float32(i)) for i in range(300)]]


@program
def a_thousand_calls_in_one_program(note):
    seen = set()

    def function(i):
        seen.add(int(i))
        return np.asarray(i) * 2

    def body(xs):
        return [jax.pure_callback(function, shape_of(x), x) for x in xs]

    ys = jax.jit(body)([jnp.int32(i) for i in range(1000)])
    total = int(sum(ys))
    return [len(seen), total]


# ---- Side effects ------------------------------------------------------------------------------------------------


@program
def debug_callback_in_jit(note):
    f = jax.jit(lambda x: (jax.debug.callback(lambda v, w: note([listed(v), w]), x, 5), x + 1)[1])
    y = f(jnp.arange(3.0))
    jax.effects_barrier()
    return y


@program
def debug_callback_without_arguments(note):
    jax.jit(lambda: jax.debug.callback(lambda: note("called")))()
    jax.effects_barrier()


@program
def debug_callback_keeps_the_order_of_runs(note):
    f = jax.jit(lambda x: jax.debug.callback(lambda v: note(int(v)), x))
    for i in range(50):
        f(i)
    jax.effects_barrier()


@program
def debug_callback_ordered(note):
    def body(x):
        for i in range(5):
            jax.debug.callback(lambda v, i=i: note([i, int(v)]), x + i, ordered=True)
        return x

    f = jax.jit(body)
    for i in range(5):
        f(i)
    jax.effects_barrier()


@program
def debug_callback_in_transformations(note):
    def f(x):
        jax.debug.callback(lambda v: note(["f", listed(v)]), x)
        return jnp.sin(x)

    jax.grad(f)(1.0)
    jax.effects_barrier()
    jax.jit(jax.grad(f))(2.0)
    jax.effects_barrier()
    jax.vmap(f)(jnp.arange(3.0))
    jax.effects_barrier()
    jax.jit(jax.checkpoint(jax.grad(f)))(3.0)
    jax.effects_barrier()
    jax.jit(lambda x: lax.fori_loop(0, 3, lambda i, v: f(v), x))(4.0)
    jax.effects_barrier()


@program
def debug_callback_in_shard_map(note):
    f = jax.shard_map(
        lambda x: jax.debug.callback(lambda v: note(listed(v)), x) or x, mesh=mesh(), in_specs=P("x"), out_specs=P("x")
    )
    y = jax.jit(f)(sharded(np.arange(8.0, dtype=np.float32)))
    jax.effects_barrier()
    return y


@program
def debug_callback_in_sharded_jit(note):
    f = jax.jit(lambda x: (jax.debug.callback(lambda v: note(listed(v)), x), x * 2)[1])
    y = f(sharded(np.arange(8.0, dtype=np.float32)))
    jax.effects_barrier()
    return y


@program
def debug_callback_of_keys(note):
    def seen(key):
        note(list(np.shape(jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key)))

    jax.jit(lambda k: jax.debug.callback(seen, k))(jax.random.key(0))
    jax.effects_barrier()


@program
def io_unordered(note):
    f = jax.jit(lambda x: io_callback(lambda v: note(listed(v)) or np.asarray(v) + 1, shape_of(x), x))
    return f(jnp.arange(3.0))


@program
def io_ordered(note):
    state = [0]

    def count(v):
        state[0] += 1
        note([state[0], int(v)])
        return np.int32(state[0])

    def body(x):
        total = jnp.int32(0)
        for i in range(4):
            total += io_callback(count, jax.ShapeDtypeStruct((), np.int32), x + i, ordered=True) * 10**i
        return total

    f = jax.jit(body)
    return [int(f(0)), int(f(100)), int(f(200))]


@program
def io_ordered_scan(note):
    def step(carry, x):
        io_callback(lambda v: note(int(v)), None, x, ordered=True)
        return carry, x

    jax.jit(lambda xs: lax.scan(step, 0, xs))(jnp.arange(6))
    jax.effects_barrier()


@program
def io_ordered_while_and_cond(note):
    def body(i):
        lax.cond(
            i % 2 == 0,
            lambda v: io_callback(lambda w: note(["even", int(w)]), None, v, ordered=True),
            lambda v: io_callback(lambda w: note(["odd", int(w)]), None, v, ordered=True),
            i,
        )
        return i + 1

    jax.jit(lambda: lax.while_loop(lambda i: i < 5, body, 0))()
    jax.effects_barrier()


@program
def io_ordered_on_several_devices(note):
    f = jax.jit(lambda x: (io_callback(lambda v: note(listed(v)), None, x.sum(), ordered=True), x + 1)[1])
    x = sharded(np.arange(8.0, dtype=np.float32))
    try:
        for _ in range(3):
            x = f(x)
        jax.effects_barrier()
    except (NotImplementedError, ValueError) as e:
        note(type(e).__name__)
    return x


@program
def ordered_effects_between_programs(note):
    """Different programs, and devices."""
    f = jax.jit(lambda x: io_callback(lambda v: note(["f", int(v)]), None, x, ordered=True))
    g = jax.jit(lambda x: io_callback(lambda v: note(["g", int(v)]), None, x, ordered=True))
    for i in range(4):
        f(i)
        g(jax.device_put(i, jax.devices()[i % 2]))
    jax.effects_barrier()


@program
def callbacks_that_run_jax(note):
    """On the devices of the program that calls, and on those of the process."""
    inner = jax.jit(lambda x: (x @ x).sum())
    other = jax.jit(lambda x: jax.pure_callback(lambda v: np.asarray(v) * 2, shape_of(x), x))
    device = jax.devices()[0]

    def function(v):
        local = jnp.sum(v)
        there = jax.device_put(np.asarray(v), device)
        return np.float32(inner(there)) + np.float32(local) + np.float32(other(there).sum())

    f = jax.jit(lambda x: jax.pure_callback(function, jax.ShapeDtypeStruct((), np.float32), x @ x))
    x = jax.device_put(np.eye(4, dtype=np.float32), device)
    y = f(x)
    return [float(y), float(y + 1), float(f(2 * x))]


@program
def callbacks_on_threads(note):
    """Each thread's prints are in order, and they stand in nobody's way."""
    f = jax.jit(lambda x: jax.debug.callback(lambda v: seen[int(v) // 100].append(int(v) % 100), x))
    seen = {i: [] for i in range(8)}

    def work(i):
        for j in range(10):
            f(100 * i + j)
        jax.effects_barrier()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [seen[i] for i in range(8)]


@program
def callbacks_that_wait_for_each_other(note):
    barrier = threading.Barrier(4)

    def function(v):
        barrier.wait(60)
        return np.asarray(v) + 1

    f = jax.shard_map(
        lambda x: jax.pure_callback(function, shape_of(x), x), mesh=mesh(), in_specs=P("x"), out_specs=P("x")
    )
    return jax.jit(f)(sharded(np.arange(4.0, dtype=np.float32)))


# ---- Failures ----------------------------------------------------------------------------------------------------


def failure_of(function):
    """The part of the error's text that is the callback's own."""
    try:
        function()
    except Exception as e:
        text = str(e)
        return [isinstance(e, RuntimeError), "ValueError: no good" in text, text.partition(":")[0]]
    return "no error"


def fail(*_):
    raise ValueError("no good")


@program
def a_pure_callback_fails(note):
    f = jax.jit(lambda x: jax.pure_callback(fail, shape_of(x), x))
    note(failure_of(lambda: f(jnp.ones(2)).block_until_ready()))
    # What is made of it fails with the same cause, and everything else goes on.
    bad = None
    try:
        bad = f(jnp.ones(2))
        bad = bad + 1
        bad.block_until_ready()
    except Exception as e:
        note("no good" in str(e))
    return jnp.ones(2) + 1


@program
def a_debug_callback_fails(note):
    f = jax.jit(lambda x: (jax.debug.callback(fail, x), x)[1])

    def run():
        f(jnp.ones(2))
        jax.effects_barrier()

    note(failure_of(run))
    return jnp.ones(2) + 1


@program
def an_ordered_io_callback_fails(note):
    f = jax.jit(lambda x: io_callback(fail, None, x, ordered=True))

    def run():
        f(jnp.ones(2))
        jax.effects_barrier()

    note(failure_of(run))
    # Where programs run behind the back of Python, JAX may tell of the failure once more before it goes on.
    g = jax.jit(lambda x: io_callback(lambda v: note(int(v)), None, x, ordered=True))
    try:
        g(7)
    except RuntimeError:
        g(7)
    jax.effects_barrier()


@program
def buffers_in_place(note):
    def function(context, out, a, *, b):
        note([str(context.stage), a.shape, str(a.dtype), a.writeable, out["sum"].writeable, listed(np.from_dlpack(b))])
        np.asarray(out["sum"])[...] = np.asarray(a) + np.asarray(b)
        np.asarray(out["less"])[...] = np.asarray(a) < 2

    types = {"sum": jax.ShapeDtypeStruct((3,), np.float32), "less": jax.ShapeDtypeStruct((3,), np.bool_)}
    x = jnp.arange(3.0)
    return [jax.jit(lambda x: buffer_callback(function, types)(x, b=x * 2))(x), buffer_callback(function, types)(x, b=x)]


@program
def buffers_that_share_memory(note):
    def function(context, out, a):
        note(np.asarray(a).ctypes.data == np.asarray(out).ctypes.data)
        np.asarray(out)[1] = 7

    x = jnp.arange(3.0)
    return [buffer_callback(function, shape_of(x), input_output_aliases={0: 0})(x), x]


@program
def buffers_in_vmap(note):
    def function(context, out, a):
        np.asarray(out)[...] = np.asarray(a).sum()

    f = buffer_callback(function, jax.ShapeDtypeStruct((), np.float32), vmap_method="sequential")
    return jax.vmap(f)(jnp.arange(6.0).reshape(2, 3))


@program
def one_device_fails(note):
    def function(v):
        if v[0] == 4:
            raise ValueError("no good")
        return np.asarray(v)

    f = jax.shard_map(
        lambda x: lax.psum(jax.pure_callback(function, shape_of(x), x), "x"), mesh=mesh(), in_specs=P("x"), out_specs=P()
    )
    f = jax.jit(f)
    if jax.devices()[0].client.runtime_type.startswith("proxy"):
        note(failure_of(lambda: f(sharded(np.arange(8.0, dtype=np.float32))).block_until_ready()))
    else:
        # XLA would wait for the device that failed, and end the process.
        note([True, True, "INTERNAL"])
    return jnp.ones(2) + 1


@program
def wrong_results(note):
    def text(results, *functions):
        out = []
        for function in functions:
            try:
                jax.block_until_ready(jax.jit(lambda f=function: jax.pure_callback(f, results))())
            except Exception as e:
                out += [t for t in ("Mismatched number of outputs", "Incorrect output shape", "Incorrect output dtype") if t in str(e)]
        return out

    one = jax.ShapeDtypeStruct((2,), np.float32)
    return text(one, lambda: (np.zeros(2), np.zeros(2)), lambda: np.zeros(3, np.float32), lambda: np.zeros(2, np.int32))


# ---- What asks the partitioner of XLA to call ------------------------------------------------------------------


@custom_partitioning
def scaled_softmax(x):
    """Over the last dimension, which its partitioning never splits."""
    shifted = jnp.exp(x - x.max(axis=-1, keepdims=True))
    return 2 * shifted / shifted.sum(axis=-1, keepdims=True)


def partition_rows(mesh, arg_shapes, result_shape):
    whole = NamedSharding(mesh, P(arg_shapes[0].sharding.spec[0]))
    return mesh, scaled_softmax.fun, whole, (whole,)


def rows_of_operand(mesh, arg_shapes, result_shape):
    return NamedSharding(mesh, P(arg_shapes[0].sharding.spec[0]))


scaled_softmax.def_partition(
    partition=partition_rows,
    infer_sharding_from_operands=rows_of_operand,
    sharding_rule="i j -> i j",
    need_replication_factors=("j",),
)


@program
def custom_partitioning_rule(note):
    x = np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4)
    programs = (jax.jit(scaled_softmax), jax.jit(lambda a: scaled_softmax(a * 3).sum()))
    with mesh():
        return [f(sharded(x, spec)) for f in programs for spec in (P("x"), P(None, "x"), P())]


@program
def inspected_shardings(note):
    def noted(sharding):
        note([str(sharding.spec), [jax.devices().index(d) for d in sharding.mesh.devices.flat]])

    explicit = jax.make_mesh((2, 2), ("x", "y"), devices=jax.devices()[:4], axis_types=(AxisType.Explicit,) * 2)
    with jax.set_mesh(explicit):
        x = jax.device_put(np.arange(8.0).reshape(4, 2), P("x", "y"))

        @jax.jit
        def f(x):
            jax.debug.inspect_array_sharding(x.T * 2, callback=noted)
            return x.sum(axis=0)

        result = f(x)

    @jax.jit
    @functools.partial(jax.shard_map, mesh=mesh(), in_specs=P("x"), out_specs=P("x"))
    def manual(x):
        jax.debug.inspect_array_sharding(x, callback=noted)
        return x + 1

    return [result, manual(np.arange(4.0))]


def main():
    found = {}
    for name in sys.argv[1:] or PROGRAMS:
        notes, lock = [], threading.Lock()

        def note(what):
            with lock:
                notes.append(what)

        print(name, file=sys.stderr, flush=True)
        try:
            result = PROGRAMS[name](note)
            result = jax.tree.map(lambda x: x if isinstance(x, (str, bool, int, float)) else listed(x), result)
            found[name] = {"notes": notes, "result": result}
        except Exception as e:  # pylint: disable=broad-except
            found[name] = {"notes": notes, "raised": type(e).__name__, "text": str(e)[-2000:]}
    print(json.dumps(found, default=listed))


if __name__ == "__main__":
    main()
