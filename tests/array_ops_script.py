"""What JAX does with element types, memories, layouts and donations; results as in ops_script.py, whose main() it uses.

A failure that both sides must show is caught and returned as the name of the exception's type.
"""

import functools
import warnings

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import ops_script
from jax import lax
from jax._src import partition_spec  # UnreducedKind is nowhere else yet
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.layout import Format, Layout
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P, SingleDeviceSharding
from ops_script import mesh, shards

OPERATIONS = {}


def operation(function):
    OPERATIONS[function.__name__] = function
    return function


def outcome(function, *arguments):
    """What the function returns, or the type of what it raises."""
    try:
        return function(*arguments)
    except Exception as error:  # pylint: disable=broad-except
        return f"raised {type(error).__name__}"


MATRIX = np.arange(24, dtype=np.float32).reshape(4, 6)
KINDS = ("device", "pinned_host", "unpinned_host")


def single(kind=None, device=0):
    return SingleDeviceSharding(jax.devices()[device], memory_kind=kind)


def split(kind=None):
    return NamedSharding(mesh(2, 2), P("x", "y"), memory_kind=kind)


def replicated(kind=None):
    return NamedSharding(mesh(2, 2), P(), memory_kind=kind)


# Element types


def types_named(*prefixes):
    return [np.dtype(getattr(ml_dtypes, name)) for name in dir(ml_dtypes) if name.startswith(prefixes)]


def element_types():
    small = types_named("float4", "float8")
    integers = [getattr(ml_dtypes, name) for name in ("int2", "int4", "uint2", "uint4")]
    plain = ["bool", "int8", "int64", "uint16", "float16", "float64", "complex64", "complex128"]
    # Not those of six bits: a constant of them is more than XLA survives.
    return [np.dtype(kind) for kind in [ml_dtypes.bfloat16, *small, *integers, *plain]]


def every_type(function):
    """function(values of each type), where JAX has the type."""
    results = {}
    with jax.enable_x64(True):
        for dtype in element_types():
            # All of them can hold these.
            values = (np.arange(16).reshape(4, 4) % 2).astype(dtype)
            try:
                jax.device_put(values[0])
            except (TypeError, ValueError, RuntimeError):
                continue
            results[dtype.name] = function(values)
    return results


@operation
def types_on_one_device():
    def f(values):
        x = jax.device_put(values, jax.devices()[3])
        return [x, jax.device_put(x, jax.devices()[4]), x.T, jax.jit(lambda a: (a, a[1:3, ::2]))(x)]

    return every_type(f)


@operation
def types_on_several_devices():
    def f(values):
        x = jax.device_put(values, split())
        y = jax.jit(lambda a: a, out_shardings=NamedSharding(mesh(4), P("x")))(x)
        return [shards(x), shards(jax.device_put(values, replicated())), shards(y), jax.device_put(x, replicated())]

    return every_type(f)


@operation
def types_in_host_memory():
    def f(values):
        x = jax.device_put(values, split("pinned_host"))
        y = jax.device_put(x, split("device"))
        return [x, x.sharding.memory_kind, y, y.sharding.memory_kind, jax.device_put(y, single("unpinned_host", 5))]

    return every_type(f)


@operation
def types_of_empty_arrays():
    def f(values):
        x = jax.device_put(values[:0], split())
        y = jax.jit(lambda a: a.reshape(4, 0, 2))(x)
        return [x, y, jax.device_put(y, jax.devices()[2]), shards(jax.device_put(values[:, :0], replicated()))]

    return every_type(f)


@operation
def six_bit_types_without_programs():
    results = {}
    for dtype in types_named("float6"):
        values = (np.arange(16).reshape(4, 4) % 2).astype(dtype)
        try:
            x = jax.device_put(values, jax.devices()[2])
        except (TypeError, ValueError, RuntimeError):
            continue
        y = jax.device_put(values, split("pinned_host"))
        results[dtype.name] = [x, jax.device_put(x, jax.devices()[1]), shards(y), jax.device_put(y, split("device"))]
    return results


@operation
def tokens():
    def consume(x, token):
        return x * 2, jax.lax.create_token(x) if token is None else token

    x = jnp.arange(4.0)
    _, token = jax.jit(lambda a: consume(a, None))(x)
    for _ in range(3):
        x, token = jax.jit(consume)(x, token)
    jax.block_until_ready(token)
    return [x, type(token).__name__]


# Memories


def kinds_of(*arrays):
    return [[array, array.sharding.memory_kind] for array in arrays]


@operation
def put_into_each_memory():
    return [
        kinds_of(jax.device_put(MATRIX, make(kind)))
        for kind in KINDS
        for make in (functools.partial(single, device=1), split, replicated)
    ]


@operation
def move_between_memories():
    results = []
    for source in KINDS:
        for target in KINDS:
            for make in (single, split, replicated):
                results.append(kinds_of(jax.device_put(jax.device_put(MATRIX, make(source)), make(target))))
    return results


@operation
def move_between_memories_and_devices():
    results = []
    for source in KINDS:
        for target in KINDS:
            x = jax.device_put(MATRIX, single(source, 1))
            y = jax.device_put(x, single(target, 6))
            results.append([kinds_of(y), sorted(jax.devices().index(device) for device in y.devices()), y * 2])
    return results


@operation
def programs_between_memories():
    results = []
    for kind in KINDS:
        for make in (single, split):
            double = jax.jit(lambda a: a * 2, out_shardings=make(kind))
            results.append(kinds_of(double(jax.device_put(MATRIX, make("device")))))
            inside = jax.jit(lambda a: jax.device_put(jax.device_put(a + 1, make(kind)), make("device")) * 2)
            results.append(kinds_of(inside(jax.device_put(MATRIX, make("device")))))
            results.append(kinds_of(jax.jit(lambda a: a * 3)(jax.device_put(MATRIX, make(kind)))))
    return results


@operation
def memory_spaces():
    host, device = jax.memory.Space.Host, jax.memory.Space.Device
    x = jnp.asarray(MATRIX)
    y = jax.device_put(x, host)
    return kinds_of(
        y, jax.device_put(y, device), jax.jit(lambda a: jax.device_put(a, host))(x),
        jax.jit(lambda a: jax.device_put(jax.device_put(a + 1, host), device) * 2)(x),
    )


@operation
def offloaded_residuals():
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=["hidden"], offload_src="device",
        offload_dst="pinned_host",
    )
    dots = jax.checkpoint_policies.offload_dot_with_no_batch_dims("device", "pinned_host")

    def loss(w, x):
        hidden = checkpoint_name(jnp.sin(x @ w), "hidden")
        return jnp.sin(hidden @ w).sum()

    def layers(x):
        body = jax.checkpoint(lambda c, _: (checkpoint_name(jnp.sin(c), "hidden"), None), policy=policy)
        return jax.lax.scan(body, x, None, length=3)[0].sum()

    w = MATRIX[:4, :4] / 10
    results = []
    for put in (jnp.asarray, lambda a: jax.device_put(a, split())):
        results.append(jax.jit(jax.grad(jax.checkpoint(loss, policy=policy)))(put(w), put(w)))
        results.append(jax.jit(jax.grad(jax.checkpoint(loss, policy=dots)))(put(w), put(w)))
        results.append(jax.jit(jax.grad(layers))(put(w)))
    return results


@operation
def optimizer_state_in_host_memory():
    on_device, on_host = split(), split("pinned_host")

    @functools.partial(jax.jit, out_shardings=(on_device, on_host), donate_argnums=(0, 1))
    def step(parameters, state):
        state = 0.9 * jax.device_put(state, jax.memory.Space.Device) + parameters
        return parameters - 0.1 * state, jax.device_put(state, jax.memory.Space.Host)

    parameters, state = jax.device_put(MATRIX, on_device), jax.device_put(MATRIX * 0, on_host)
    for _ in range(5):
        parameters, state = step(parameters, state)
    return kinds_of(parameters, state)


@operation
def arrays_of_parts_in_host_memory():
    sharding = NamedSharding(mesh(2), P("x"), memory_kind="pinned_host")
    parts = [jax.device_put(MATRIX, single("pinned_host", device)) for device in range(2)]
    return kinds_of(
        jax.make_array_from_single_device_arrays((8, 6), sharding, parts),
        jax.make_array_from_callback(MATRIX.shape, sharding, lambda index: MATRIX[index]),
    )


@operation
def memories_that_do_not_fit():
    x, y = jax.device_put(MATRIX, single("pinned_host")), jnp.asarray(MATRIX)
    compiled = jax.jit(lambda a: a * 2).lower(y).compile()
    return [
        outcome(lambda: x + y),
        outcome(lambda: x[1:3]),
        outcome(lambda: compiled(x)),
        outcome(lambda: jax.device_put(MATRIX, single("attic"))),
        outcome(lambda: jax.jit(lambda a: a, out_shardings=split("attic"))(MATRIX)),
    ]


# Layouts

COLUMNS = Layout((1, 0))


def order(array):
    return [list(array.format.layout.major_to_minor), array]


@operation
def put_with_a_layout():
    results = []
    for make in (single, split, replicated):
        x = jax.device_put(MATRIX, Format(COLUMNS, make()))
        results += [order(x), [order(shard.data) for shard in x.addressable_shards]]
        results.append(order(jax.device_put(jax.device_put(MATRIX, make()), Format(COLUMNS, make()))))
        results.append(order(jax.device_put(x, Format(Layout((0, 1)), make()))))
    cube = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    results += [order(jax.device_put(cube, Format(Layout(p), single()))) for p in ((2, 0, 1), (1, 2, 0), (0, 2, 1))]
    return results


@operation
def programs_with_layouts():
    results = []
    for make in (single, split, replicated):
        columns = Format(COLUMNS, make())
        x = jax.device_put(MATRIX, columns)
        results += [
            order(jax.jit(lambda a: a * 2)(x)),
            order(jax.jit(lambda a: a * 2, in_shardings=columns)(x)),
            order(jax.jit(lambda a: a * 2, out_shardings=columns)(MATRIX)),
            order(jax.jit(lambda a: a * 2, in_shardings=columns, out_shardings=columns, donate_argnums=0)(x)),
            x.is_deleted(),
            outcome(jax.jit(lambda a: a * 2, in_shardings=columns), jax.device_put(MATRIX, make())),
        ]
    return results


@operation
def layouts_that_the_compiler_chooses():
    results = []
    for make in (None, split, replicated):
        automatic = Format(Layout.AUTO, make()) if make else Format(Layout.AUTO)
        f = jax.jit(lambda a, b: a.T @ b, in_shardings=automatic, out_shardings=Format(Layout.AUTO))
        compiled = f.lower(*[jax.ShapeDtypeStruct((4, 6), jnp.float32)] * 2).compile()
        inputs = [jax.device_put(MATRIX, format) for format in compiled.input_formats[0]]
        results.append([order(x) for x in [*inputs, compiled(*inputs)]])
        results.append(list(compiled.output_formats.layout.major_to_minor))
    return results


@operation
def layouts_survive_moves():
    # Values only: not every client knows the layout of what it moved.
    x = jax.device_put(MATRIX, Format(COLUMNS, single()))
    y = jax.device_put(MATRIX, Format(COLUMNS, split()))
    moved = [jax.device_put(x, single(kind, 1)) for kind in KINDS] + [jax.device_put(y, split(kind)) for kind in KINDS]
    moved += [jax.device_put(x, jax.devices()[2]), jax.device_put(y, NamedSharding(mesh(2, 2), P("y", "x")))]
    parts = [jax.device_put(MATRIX, Format(COLUMNS, single(device=device))) for device in range(2)]
    moved.append(jax.make_array_from_single_device_arrays((8, 6), NamedSharding(mesh(2), P("x")), parts))
    moved += [x.copy(), x + 1, x[1:3], jax.device_put(x, split())]
    # JAX's own CPU backend of 0.10.2 confuses the programs of moved arrays, so they are held to numpy here.
    ours = jax.devices()[0].client.runtime_type.startswith("proxy")
    return [[z, not ours or np.array_equal(jax.jit(lambda a: a * 2)(z), np.asarray(z) * 2)] for z in moved]


# Donation


def fresh(sharding=None):
    return jax.device_put(MATRIX, sharding or single()) + 0


DONATE_FIRST = jax.jit(lambda a, b: a + b, donate_argnums=0)
DONATE_BOTH = jax.jit(lambda a, b: (a + b, a - b), donate_argnums=(0, 1))


@operation
def donation_that_no_output_takes():
    results = []
    for make in (single, split):
        for f in (lambda a: a.sum(), lambda a: a.sum(0), lambda a: a @ a.T, lambda a: a[:2]):
            x = fresh(make())
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = jax.jit(f, donate_argnums=0)(x)
            results.append([result, x.is_deleted(), outcome(lambda: x + 1)])
    return results


@operation
def donation_of_one_array_twice():
    # Not of several devices: JAX's own CPU backend of 0.10.2 does not survive that.
    x, y = fresh(), fresh()
    return [outcome(DONATE_FIRST, x, x), outcome(DONATE_BOTH, y, y), DONATE_BOTH(fresh(split()), fresh(split()))]


@operation
def donation_of_what_others_share():
    x = fresh(split())
    pieces = [shard.data for shard in x.addressable_shards]
    whole = DONATE_FIRST(x, fresh(split()))
    y = fresh(split())
    piece = DONATE_FIRST(y.addressable_shards[0].data, jnp.ones((2, 3)))
    parts = [fresh(single(device=device)) for device in range(2)]
    z = jax.make_array_from_single_device_arrays((8, 6), NamedSharding(mesh(2), P("x")), parts)
    assembled = jax.jit(lambda a: a + 1, donate_argnums=0)(z)
    # What shares a donated buffer can't be read; how it says so is the client's matter.
    gone = [not isinstance(outcome(np.asarray, a), np.ndarray) for a in [*pieces, y, *parts]]
    return [whole, piece, assembled, x.is_deleted(), z.is_deleted(), gone]


@operation
def donation_of_what_is_gone():
    x = fresh()
    DONATE_FIRST(x, fresh())
    y = fresh()
    y.delete()
    z = fresh()
    return [
        outcome(DONATE_FIRST, x, fresh()), outcome(DONATE_FIRST, fresh(), x), outcome(DONATE_FIRST, y, fresh()),
        outcome(DONATE_FIRST, z, x), z.is_deleted(), z,
    ]


@operation
def donation_leaves_earlier_uses_alone():
    x = fresh(split())
    before, copy, on_host = x + 1, x.copy(), np.asarray(x).copy()
    x.copy_to_host_async()
    after = DONATE_FIRST(x, copy)
    return [before, copy, on_host, after]


@operation
def donation_of_host_arrays():
    x = MATRIX.copy()
    result = jax.jit(lambda a: a * 0, donate_argnums=0)(x)
    y = fresh()
    moved = jax.device_put(y, jax.devices()[1], donate=True)
    return [result, x, moved]


@operation
def deletion_of_what_others_share():
    x = fresh(split())
    x.addressable_shards[1].data.delete()
    y = fresh(split())
    pieces = [shard.data for shard in y.addressable_shards]
    y.delete()
    z = fresh()
    alias, copy = [jax.device_put(z, jax.devices()[0], may_alias=may_alias) for may_alias in (True, False)]
    z.delete()
    z.delete()
    gone = [not isinstance(outcome(np.asarray, array), np.ndarray) for array in (x, *pieces, alias)]
    return [gone, y.is_deleted(), z.is_deleted(), copy]


@operation
def sums_maxima_and_minima_that_stay_unreduced():
    kinds = getattr(partition_spec, "UnreducedKind", None)
    if kinds is None:  # before jax 0.11
        return []
    explicit = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2, devices=jax.devices()[:4])
    results = []
    with jax.set_mesh(explicit):
        x = jax.device_put(MATRIX, P("x", "y"))
        for kind, reduce in ((kinds.sum, lax.reduce_sum), (kinds.max, lax.reduce_max), (kinds.min, lax.reduce_min)):
            spec = P("y", unreduced={"x"}, unreduced_kind=kind)
            y = jax.jit(lambda a, r=reduce, s=spec: r(a, axes=(0,), out_sharding=s))(x)
            copy = jax.jit(lambda a: a)(y)
            partly = jax.jit(lambda a, r=reduce, k=kind: r(
                a, axes=(0, 1), out_sharding=P(unreduced={"x", "y"}, unreduced_kind=k)))(x)  # fmt: skip
            for array in (y, copy, partly):
                # Their shards have no index.
                left = array.sharding.spec
                results += [sorted(left.unreduced), str(left.unreduced_kind), jax.sharding.reshard(array, P())]
                results += [shard.data for shard in array.addressable_shards]
    return results


@operation
def memory_analysis():
    def sizes(compiled):
        stats = compiled.memory_analysis()
        names = ["argument", "output", "alias", "temp", "generated_code"]
        return {
            f"{prefix}{name}": getattr(stats, f"{prefix}{name}_size_in_bytes") for name in names for prefix in ("", "host_")
        }

    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    y = jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=split())
    return [
        sizes(jax.jit(lambda a: a).lower(x).compile()),
        sizes(jax.jit(lambda a: (a * 2, a.sum())).lower(x).compile()),
        sizes(jax.jit(lambda a: a + 1, donate_argnums=0).lower(x).compile()),
        sizes(jax.jit(lambda a: a + 1, donate_argnums=0).lower(y).compile()),
        sizes(jax.jit(lambda a: a * 2, out_shardings=split("pinned_host")).lower(y).compile()),
        sizes(jax.jit(lambda a: jnp.zeros(4, jnp.int8)).lower(y).compile()),
    ]


if __name__ == "__main__":
    ops_script.OPERATIONS = OPERATIONS
    ops_script.main()
