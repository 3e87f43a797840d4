"""All collectives over all element types; writes what each gives, and compares nothing.

  collectives_matrix_script.py TYPES OUT          all cases that this JAX does not refuse
  collectives_matrix_script.py TYPES OUT FILE     the cases that FILE, an earlier OUT, has results of

TYPES are names with commas between; NAME=WIDER computes NAME's cases in WIDER and narrows what comes out, which gives
integers the same results where WIDER holds all values of NAME. OUT is a pickle:
{case: {"shape", "dtype", "bytes"}}, or {case: {"error"}} for one that failed. A result shows what every device got, and
must not depend on where it ran. The cases of one element type are few programs, and most types get only the cases of
EVERY_TYPE, since compiling takes most of the time; HELMWAY_TEST_ALL_COLLECTIVES=1 gives all cases to all types.
"""

import os
import pickle
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

jax.config.update("jax_enable_x64", True)

DEVICES = 8
devices = jax.devices()
assert len(devices) == DEVICES, devices


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def values(name, shape, seed):
    """Of all bits where the type allows it, and of no NaN, whose sign is nobody's promise."""
    random = np.random.default_rng(seed)
    dtype = dtype_of(name)
    if name == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if dtype.kind == "c":
        return (random.normal(size=shape) + 1j * random.normal(size=shape)).astype(dtype)
    if dtype.kind == "f" or name.startswith(("bfloat", "float")):
        made = random.normal(size=shape) * 4
        if name == "float8_e8m0fnu":  # has no sign
            made = np.abs(made)
        return made.astype(np.float32 if dtype.itemsize < 4 else dtype).astype(dtype)
    bits = int(name.removeprefix("u").removeprefix("int"))
    low, high = (0, 2**bits) if name.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    wide = random.integers(low, high, shape, dtype=np.uint64 if low == 0 else np.int64)
    return wide.astype(dtype)


# ---- In shard_map over one axis: x is this device's (8, 4, 6), y its (16, 2). -----------------------------------
ONE = {}


def one(function):
    ONE[function.__name__] = function
    return function


HALVES = [[0, 1, 2, 3], [4, 5, 6, 7]]
PAIRS = [[7, 0], [1, 6], [2, 5], [3, 4]]

for reduce_name in ("psum", "pmax", "pmin"):
    reduce = getattr(lax, reduce_name)
    ONE[reduce_name] = lambda x, y, reduce=reduce: reduce(x, "x")
    ONE[f"{reduce_name}_groups"] = lambda x, y, reduce=reduce: reduce(x, "x", axis_index_groups=PAIRS)
    ONE[f"{reduce_name}_of_two"] = lambda x, y, reduce=reduce: reduce((x, y), "x")
    ONE[f"{reduce_name}_scalar"] = lambda x, y, reduce=reduce: reduce(x[0, 0, 0], "x")
    ONE[f"{reduce_name}_large"] = lambda x, y, reduce=reduce: reduce(jnp.tile(x, (1, 90, 10)), "x")[:, ::7, ::5]
for axis in range(3):
    for tiled in (False, True):
        ONE[f"all_gather_{axis}{tiled}"] = lambda x, y, a=axis, t=tiled: lax.all_gather(x, "x", axis=a, tiled=t)
ONE["all_gather_groups"] = lambda x, y: lax.all_gather(x, "x", axis_index_groups=HALVES)
ONE["all_gather_turned"] = lambda x, y: lax.all_gather(x.T, "x", axis=1, tiled=True)
ONE["all_gather_scalar"] = lambda x, y: lax.all_gather(y[1, 1], "x")
ONE["psum_scatter"] = lambda x, y: lax.psum_scatter(x, "x")
ONE["psum_scatter_tiled"] = lambda x, y: lax.psum_scatter(y, "x", tiled=True)
ONE["psum_scatter_1"] = lambda x, y: lax.psum_scatter(y.T, "x", scatter_dimension=1, tiled=True)
ONE["psum_scatter_groups"] = lambda x, y: lax.psum_scatter(
    y, "x", scatter_dimension=1, tiled=True, axis_index_groups=PAIRS
)
ONE["all_to_all"] = lambda x, y: lax.all_to_all(x, "x", 0, 0)
ONE["all_to_all_02"] = lambda x, y: lax.all_to_all(x, "x", 0, 2)
ONE["all_to_all_tiled"] = lambda x, y: lax.all_to_all(y, "x", 0, 1, tiled=True)
ONE["all_to_all_groups"] = lambda x, y: lax.all_to_all(x, "x", 1, 0, axis_index_groups=HALVES, tiled=True)
ONE["ppermute"] = lambda x, y: lax.ppermute(x, "x", [(i, (i + 3) % 8) for i in range(8)])
ONE["ppermute_some"] = lambda x, y: lax.ppermute((x, y), "x", [(0, 5), (5, 1), (2, 2), (7, 0)])
ONE["ppermute_none"] = lambda x, y: lax.ppermute(y, "x", [])
ONE["pshuffle"] = lambda x, y: lax.pshuffle(y, "x", [3, 1, 4, 0, 5, 2, 7, 6])
if hasattr(lax, "pbroadcast"):
    ONE["pbroadcast"] = lambda x, y: lax.pbroadcast(x, "x", 5)


@one
def ragged_all_to_all(x, y):
    # Device i sends (i + j) % 2 rows to device j, behind what lower devices send.
    here = lax.axis_index("x")
    numbers = jnp.arange(8)
    sizes = ((here + numbers) % 2).astype(np.int32)
    starts = (2 * numbers).astype(np.int32)
    targets = jnp.broadcast_to(here, 8).astype(np.int32)
    return lax.ragged_all_to_all(y, jnp.zeros((8, 2), y.dtype), starts, sizes, targets, sizes, axis_name="x")


@one
def in_a_loop(x, y):
    def step(i, carry):
        turned = lax.ppermute(carry, "x", [(d, (d + 1) % 8) for d in range(8)])
        return lax.cond(i == 1, lambda c: lax.pmax(c, "x"), lambda c: c, turned)

    return lax.fori_loop(0, 3, step, x)


@one
def zero_size(x, y):
    return lax.psum(x[:0], "x"), lax.all_gather(x[:0], "x"), lax.ppermute(x[:0], "x", [(0, 1)])


@one
def odd_sizes(x, y):
    return lax.all_gather(x[:3, 0, :5], "x"), lax.ppermute(x[:3, 0, :5], "x", [(0, 1), (1, 0)])


@one
def odd_all_to_all(x, y):
    return lax.all_to_all(x[:, :3, :5], "x", 0, 0)


# ---- Over two axes: a of 2, b of 4 ------------------------------------------------------------------------------
TWO = {}
for axes in ("a", "b", ("a", "b"), ("b", "a")):
    label = "".join(axes)
    size = {"a": 2, "b": 4}.get(axes, 8)
    TWO[f"psum_{label}"] = lambda x, y, a=axes: lax.psum(x, a)
    TWO[f"pmin_{label}"] = lambda x, y, a=axes: lax.pmin(y, a)
    TWO[f"all_gather_{label}"] = lambda x, y, a=axes: lax.all_gather(x, a, axis=1)
    TWO[f"psum_scatter_{label}"] = lambda x, y, a=axes: lax.psum_scatter(y, a, tiled=True)
    TWO[f"all_to_all_{label}"] = lambda x, y, a=axes: lax.all_to_all(y, a, 0, 0, tiled=True)
    if label != "ba":  # which JAX refuses
        pairs = [(i, size - 1 - i) for i in range(1, size)]
        TWO[f"ppermute_{label}"] = lambda x, y, a=axes, p=pairs: lax.ppermute(x, a, p)

# ---- By the partitioner: x is (8, 16, 6), sharded along the first two dimensions --------------------------------
AUTO = {}
for name in ("sum", "prod", "max", "min", "any", "all"):
    AUTO[name] = lambda x, name=name: getattr(jnp, name)(x, axis=(0, 1))
for name in ("and", "or", "xor"):
    AUTO[name] = lambda x, name=name: getattr(lax, f"reduce_{name}")(x, (0, 1))


def resharded(x, *axes):
    return lax.with_sharding_constraint(x, NamedSharding(TWO_AXES, P(*axes)))


AUTO["to_rows"] = lambda x: resharded(x, ("a", "b"))
AUTO["to_columns"] = lambda x: resharded(x, None, ("b", "a"))
AUTO["swapped"] = lambda x: resharded(x, "b", "a")
AUTO["replicated"] = lambda x: resharded(x)
AUTO["sorted"] = lambda x: jnp.sort(x, axis=0)
AUTO["rolled"] = lambda x: jnp.roll(x, 3, axis=1)
AUTO["reversed"] = lambda x: x[::-1, ::-1]

ONE_AXIS = Mesh(np.array(devices), ("x",))
TWO_AXES = Mesh(np.array(devices).reshape(2, 4), ("a", "b"))
PERMUTED = Mesh(np.array(devices)[[5, 2, 7, 0, 3, 6, 1, 4]].reshape(2, 4), ("a", "b"))


def per_device(function, mesh):
    """Of arrays with a leading dimension of devices; the result has one too."""
    axes = P(mesh.axis_names)

    def local(x, y):
        return jax.tree.map(lambda r: r[None], function(x[0], y[0]))

    return jax.shard_map(local, mesh=mesh, in_specs=(axes, axes), out_specs=axes, check_vma=False)


# Types that get all cases, one of each kind of width; the others get these.
EVERY_CASE = ("int4", "bfloat16", "float32")
EVERY_TYPE = {
    "x": "psum pmax pmin psum_large all_gather_0False all_gather_2True psum_scatter_1 all_to_all_02 all_to_all_tiled "
    "ppermute_some pbroadcast ragged_all_to_all",
    "ab": "psum_b pmin_ab all_gather_a psum_scatter_ba all_to_all_b",
    "auto": "sum prod max min any all and or xor swapped",
}  # fmt: skip


def cases_of(name, kind, cases):
    if name in EVERY_CASE or os.environ.get("HELMWAY_TEST_ALL_COLLECTIVES"):
        return cases
    return {case: cases[case] for case in EVERY_TYPE[kind].split() if case in cases}


def groups(types):
    """(label, {case: function}, arguments, narrowed) of each program; `narrowed` tells what dtype becomes which."""
    for name in types:
        name, _, wider = name.partition("=")
        number = sum(name.encode())
        try:
            x = values(name, (8, 8, 4, 6), number)
            y = values(name, (8, 16, 2), number + 100)
            z = values(name, (8, 16, 6), number + 200)
        except (TypeError, AttributeError):
            continue  # a type that this NumPy or ml_dtypes does not have
        narrowed = {}
        if wider:
            narrowed[dtype_of(wider)] = x.dtype
            x, y, z = (v.astype(wider) for v in (x, y, z))
        if x.dtype.kind in "fc" or "float" in name:
            # Their sums and products are exact, in whatever order the partitioner has them made.
            other = np.float32(2 if name == "float8_e8m0fnu" else -1)
            z = np.where(values("bool", z.shape, number), np.float32(1), other).astype(x.dtype)

        def arrays(mesh, x=x, y=y):
            return tuple(jax.device_put(v, NamedSharding(mesh, P(mesh.axis_names))) for v in (x, y))

        # All on the same devices in the same order, so they may be one program.
        z_sharding = NamedSharding(TWO_AXES, P("a", "b"))
        cases = {}
        for kind, functions, mesh in (("x", ONE, ONE_AXIS), ("ab", TWO, TWO_AXES)):
            for k, f in cases_of(name, kind, functions).items():
                cases[f"{kind}/{k}"] = lambda x, y, z, f=per_device(f, mesh): f(x, y)
        for k, f in cases_of(name, "auto", AUTO).items():
            cases[f"auto/{k}"] = lambda x, y, z, f=f: f(z)
        yield name, cases, lambda z=z, a=arrays, s=z_sharding: (*a(ONE_AXIS), jax.device_put(z, s)), narrowed
        if name == "float32":
            permuted = {k: per_device(f, PERMUTED) for k, f in TWO.items()}
            yield f"{name}/permuted", permuted, lambda a=arrays: a(PERMUTED), narrowed
        if name in ("int32", "bfloat16", "complex64"):
            for case, function in pmaps().items():
                yield f"{name}/{case}", {case: function}, lambda x=x, y=y: (x, y), narrowed


def pmaps():
    """Replicas instead of partitions, where this JAX still has them."""
    cases = "psum all_gather_0False psum_scatter all_to_all ppermute_some psum_groups all_gather_groups pmax_of_two"
    return {f"pmap_{case}": jax.pmap(ONE[case], axis_name="x") for case in cases.split()}


def run(cases, arguments, narrowed, refused):
    """What the cases give, in one program. Those that JAX refuses while it traces go to `refused`."""

    def program(*a):
        results = {}
        for name, function in cases.items():
            try:
                results[name] = function(*a)
            except Exception as error:  # noqa: BLE001 - whatever JAX says
                refused[name] = f"{type(error).__name__}: {error}"
        return results

    is_pmap = any(name.startswith("pmap_") for name in cases)
    found = {}
    for name, result in (program if is_pmap else jax.jit(program))(*arguments).items():
        for i, leaf in enumerate(jax.tree.leaves(result)):
            host = np.ascontiguousarray(np.asarray(leaf))
            host = host.astype(narrowed.get(host.dtype, host.dtype))
            found[f"{name}#{i}"] = {"shape": host.shape, "dtype": str(host.dtype), "bytes": host.tobytes()}
    return found


def run_all(cases, arguments, narrowed, suspects):
    """As run, but what the compiler refuses is found by halving. `suspects` are tried alone, and replaced by it."""
    refused = {}
    found = {}
    rest = {name: function for name, function in cases.items() if name not in suspects}
    halves = [{name: function} for name, function in cases.items() if name in suspects] + [rest] * bool(rest)
    suspects.clear()
    while halves:
        some = halves.pop()
        try:
            found.update(run(some, arguments(), narrowed, refused))
        except Exception as error:  # noqa: BLE001
            names = list(some)
            if len(names) == 1:
                suspects.add(names[0])
                refused[names[0]] = f"{type(error).__name__}: {error}"
            else:
                middle = len(names) // 2
                halves += [{name: some[name] for name in half} for half in (names[:middle], names[middle:])]
    return found | {f"{name}#0": {"error": text} for name, text in refused.items()}


def main(types, out, reference=None):
    wanted = None
    if reference is not None:
        with open(reference, "rb") as file:
            results = pickle.load(file)
        wanted = {case.rpartition("#")[0] for case, result in results.items() if "error" not in result}
    found = {}
    suspects = set()
    for label, cases, arguments, narrowed in groups(types.split(",")):
        if wanted is not None:
            cases = {name: function for name, function in cases.items() if f"{label}/{name}" in wanted}
        if cases:
            # Types are alike in what is refused; other programs than the main one of a type have other cases.
            results = run_all(cases, arguments, narrowed, suspects if "/" not in label else set())
            found.update({f"{label}/{name}": result for name, result in results.items()})
    with open(out, "wb") as file:
        pickle.dump(found, file)


main(*sys.argv[1:])
