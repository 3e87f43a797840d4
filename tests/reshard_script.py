"""Moving arrays between shardings, meshes and memories, through every way that jaxlib and pathwaysutils have.

As a program: runs the cases named as arguments (all without any), each of which checks itself against numpy, and
prints {name: "ok" or what was raised} as JSON.
"""

import json
import sys
import traceback

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pathwaysutils
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P, SingleDeviceSharding

pathwaysutils.initialize()

from pathwaysutils import jax as pathways_jax  # noqa: E402: they need the backend.
from pathwaysutils import reshard as pathways_reshard  # noqa: E402
from pathwaysutils.experimental.concatenate_by_mesh_axis import concatenate_by_mesh_axis  # noqa: E402
from pathwaysutils.experimental.split_by_mesh_axis import split_by_mesh_axis  # noqa: E402

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def mesh(devices, *shape, names="xyz"):
    return Mesh(np.array(devices).reshape(shape), tuple(names[: len(shape)]))


def numbers(*shape, dtype=np.float32):
    return np.arange(np.prod(shape, dtype=int), dtype=np.int64).reshape(shape).astype(dtype)


def check(array, expected, sharding):
    """Every shard holds what its sharding says, on the device that it says."""
    assert array.sharding.is_equivalent_to(sharding, array.ndim), f"{array.sharding} is not {sharding}"
    places = sharding.devices_indices_map(expected.shape)
    shards = array.addressable_shards
    assert {shard.device for shard in shards} == set(places)
    for shard in shards:
        found, wanted = np.asarray(shard.data), expected[places[shard.device]]
        assert found.dtype == wanted.dtype and found.shape == wanted.shape, (found.dtype, found.shape, wanted.shape)
        assert found.tobytes() == wanted.tobytes(), f"{shard.device}: {found} is not {wanted}"


def fails_as_deleted(use):
    try:
        use()
    except (RuntimeError, ValueError) as error:
        return "delete" in str(error).lower() or "donate" in str(error).lower()
    return False


def reshard(x, sharding, **options):
    return pathways_reshard.reshard(x, sharding, **options)


@case
def resharding_is_available():
    assert pathways_jax.ifrt_reshard_available()


@case
def any_sharding_to_any_other():
    seed = int.from_bytes(np.random.SeedSequence().generate_state(1).tobytes(), "little")
    random = np.random.default_rng(seed)

    def any_sharding(dims):
        shape = [(8,), (4,), (1,), (2, 4), (4, 2), (2, 2), (3,), (2, 2, 2), (2, 3)][random.integers(9)]
        devices = random.permutation(np.array(jax.devices()))[: np.prod(shape)]
        made = mesh(devices, *shape)
        while True:
            axes = list(random.permutation(made.axis_names))
            spec = []
            for _ in dims:
                taken = tuple(axes.pop() for _ in range(min(len(axes), int(random.integers(3)))))
                spec.append(taken or None)
            sharding = NamedSharding(made, P(*spec))
            parts = [np.prod([made.shape[a] for a in axes or ()], dtype=int) for axes in spec]
            if all(size % count == 0 for size, count in zip(dims, parts)):
                return sharding

    for round_number in range(60):
        dims = [(), (24,), (8, 12), (6, 8), (2, 4, 6), (0, 4)][random.integers(6)]
        x = numbers(*dims, dtype=[np.float32, np.int8, np.int32][random.integers(3)])
        source, destination = any_sharding(dims), any_sharding(dims)
        try:
            array = jax.device_put(x, source)
            check(reshard(array, destination), x, destination)
            check(array, x, source)
            check(reshard(array, destination, donate=True), x, destination)
        except BaseException as error:
            raise AssertionError(f"seed {seed} round {round_number}: {dims} {source} to {destination}") from error


@case
def every_dtype():
    rows = NamedSharding(mesh(jax.devices(), 8), P("x"))
    columns = NamedSharding(mesh(jax.devices()[::-1], 4, 2), P(None, ("y", "x")))
    dtypes = [
        np.bool_, np.int8, np.int16, np.int32, np.uint8, np.uint16, np.uint32, np.float16, np.float32, np.complex64,
        ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4, ml_dtypes.uint4,
    ]  # fmt: skip
    for dtype in dtypes:
        x = (numbers(8, 16) % 7).astype(dtype)
        array = jax.device_put(x, rows)
        moved = reshard(array, columns)
        assert moved.dtype == dtype
        np.testing.assert_array_equal(np.asarray(moved).astype(np.complex64), x.astype(np.complex64), str(dtype))
        np.testing.assert_array_equal(np.asarray(reshard(moved, rows)).astype(np.complex64), x.astype(np.complex64))
    with jax.enable_x64(True):
        for dtype in (np.int64, np.uint64, np.float64, np.complex128):
            x = numbers(8, 16, dtype=dtype)
            check(reshard(jax.device_put(x, rows), columns), x, columns)


@case
def memory_kinds():
    x = numbers(8, 8)
    whole = mesh(jax.devices(), 8)
    rows, columns = NamedSharding(whole, P("x")), NamedSharding(whole, P(None, "x"))
    array = jax.device_put(x, rows)
    for kind in ("pinned_host", "unpinned_host"):
        for target in (rows.with_memory_kind(kind), columns.with_memory_kind(kind)):
            moved = reshard(array, target)
            check(moved, x, target)
            assert {s.data.sharding.memory_kind for s in moved.addressable_shards} == {kind}
            check(reshard(moved, columns), x, columns)


@case
def large_arrays():
    x = numbers(1024, 2048)
    rows = NamedSharding(mesh(jax.devices(), 8), P("x"))
    columns = NamedSharding(mesh(jax.devices(), 8), P(None, "x"))
    array = jax.device_put(x, rows)
    for _ in range(5):
        array = reshard(reshard(array, columns, donate=True), rows, donate=True)
    check(array, x, rows)


@case
def many_arrays_at_once():
    tree = {f"layer {n}": [numbers(8, 4 * n), numbers(8)] for n in range(1, 5)}
    whole = mesh(jax.devices(), 2, 4)
    source = NamedSharding(whole, P("x"))
    destination = NamedSharding(mesh(jax.devices()[4:], 4), P("x"))
    moved = reshard(jax.device_put(tree, source), destination)
    jax.tree.map(lambda m, x: check(m, x, destination), moved, tree)


@case
def donation():
    x = numbers(8, 8)
    whole = mesh(jax.devices(), 8)
    rows, columns = NamedSharding(whole, P("x")), NamedSharding(whole, P(None, "x"))
    for target in (rows, columns, NamedSharding(whole, P())):
        array = jax.device_put(x, rows)
        kept = reshard(array, target)
        # The result is its own: a program may write where it lies.
        doubled = jax.jit(lambda a: a + a, donate_argnums=0)(kept)
        check(array, x, rows)
        np.testing.assert_array_equal(np.asarray(doubled), x + x)
        assert fails_as_deleted(lambda: np.asarray(kept))
        moved = reshard(array, target, donate=True)
        assert array.is_deleted() and fails_as_deleted(lambda: np.asarray(array))
        np.testing.assert_array_equal(np.asarray(jax.jit(lambda a: a + a, donate_argnums=0)(moved)), x + x)


@case
def between_programs_without_waiting():
    whole = mesh(jax.devices(), 8)
    rows, columns = NamedSharding(whole, P("x")), NamedSharding(whole, P(None, "x"))
    step = jax.jit(lambda a: a + 1, donate_argnums=0)
    x = jax.device_put(numbers(64, 64), rows)
    for _ in range(20):
        x = reshard(step(x), columns, donate=True)
        x = reshard(step(x), rows, donate=True)
    check(x, numbers(64, 64) + 40, rows)


@case
def intermediate_sharding():
    x = numbers(8, 8)
    source = NamedSharding(mesh(jax.devices()[:4], 4, 1, names=("fsdp", "tp")), P("fsdp", "tp"))
    destination = NamedSharding(mesh(jax.devices()[4:6], 1, 2, names=("fsdp", "tp")), P("fsdp", "tp"))
    array = jax.device_put(x, source)
    sharding, _ = pathways_reshard.find_intermediate_sharding(source, destination)
    assert sharding.spec != source.spec
    moved = pathways_reshard.reshard_with_intermediate_sharding(array, source, destination)
    check(moved, x, destination)


def split_expectation(x, sharding, axis, sections):
    """What the shards of split arrays are: those of the whole on the devices of each part."""
    devices = np.split(sharding.mesh.devices, sections, axis=sharding.mesh.axis_names.index(axis))
    places = sharding.devices_indices_map(x.shape)
    return [{device: x[places[device]] for device in part.flat} for part in devices]


@case
def split_by_a_mesh_axis():
    x = numbers(8, 12)
    whole = mesh(np.random.default_rng(5).permutation(np.array(jax.devices())), 2, 4)
    specs = [P("x", "y"), P("y", "x"), P("x"), P(None, "y"), P(), P(("x", "y")), P(("y", "x"))]
    for spec in specs:
        for axis, parts, sections in (("x", 2, 2), ("y", 2, 2), ("y", None, 4), ("y", [1, 3], [1, 3])):
            source = NamedSharding(whole, spec)
            array = jax.device_put(x, source)
            given = list(parts) if isinstance(parts, list) else parts
            wanted = split_expectation(x, source, axis, sections)
            for donate in (False, True):
                made = split_by_mesh_axis(array, axis, given, donate=donate)
                given = list(parts) if isinstance(parts, list) else parts
                assert len(made) == len(wanted)
                for part, shards in zip(made, wanted):
                    assert {s.device for s in part.addressable_shards} == set(shards)
                    for shard in part.addressable_shards:
                        np.testing.assert_array_equal(np.asarray(shard.data), shards[shard.device])
                if donate:
                    assert array.is_deleted()
                else:
                    check(array, x, source)


@case
def split_and_concatenate():
    x, y = numbers(8, 8), numbers(16, dtype=np.int32)
    whole = mesh(jax.devices(), 4, 2)
    shardings = NamedSharding(whole, P("x", "y")), NamedSharding(whole, P("x"))
    tree = {"a": jax.device_put(x, shardings[0]), "b": jax.device_put(y, shardings[1])}
    for axis in ("x", "y"):
        parts = split_by_mesh_axis(tree, axis)
        assert [p["a"].sharding.mesh.devices.size for p in parts] == [8 // len(parts)] * len(parts)
        joined = concatenate_by_mesh_axis(parts, axis)
        assert all(part["a"].is_deleted() and part["b"].is_deleted() for part in parts)
        check(joined["a"], x, shardings[0])
        check(joined["b"], y, shardings[1])
        # Parts and whole shared their buffers; the whole is still there.
        check(tree["a"], x, shardings[0])
    swapped = split_by_mesh_axis(tree["b"], "x", 2)[::-1]
    np.testing.assert_array_equal(np.asarray(concatenate_by_mesh_axis(swapped, "x")), np.roll(y, 8))


@case
def parts_are_used_by_programs():
    x = numbers(8, 8)
    whole = jax.device_put(x, NamedSharding(mesh(jax.devices(), 2, 4), P("x", "y")))
    upper, lower = split_by_mesh_axis(jax.jit(lambda a: a * 2)(whole), "x", donate=True)
    upper = jax.jit(lambda a: a + 1, donate_argnums=0)(upper)
    joined = concatenate_by_mesh_axis([upper, lower], "x")
    np.testing.assert_array_equal(np.asarray(joined), x * 2 + np.repeat([[1.0], [0.0]], 4, axis=0))


@case
def another_order_of_devices():
    x = numbers(8, 8)
    devices = np.array(jax.devices())
    source = NamedSharding(mesh(devices, 2, 4), P("x", "y"))
    for order in (devices[::-1], np.roll(devices, 3), devices.reshape(2, 4).T.reshape(-1)):
        for spec in (P("x", "y"), P("y", "x"), P("x"), P()):
            destination = NamedSharding(mesh(order, 2, 4), spec)
            for options in ({}, {"may_alias": True}, {"may_alias": False}, {"donate": True}):
                array = jax.device_put(x, source)
                check(jax.device_put(array, destination, **options), x, destination)
                if "donate" not in options:
                    check(array, x, source)


@case
def other_devices():
    x = numbers(8, 8)
    devices = jax.devices()
    source = NamedSharding(mesh(devices[:4], 2, 2), P("x", "y"))
    targets = [
        NamedSharding(mesh(devices[4:], 2, 2), P("x", "y")),
        NamedSharding(mesh(devices[2:6], 2, 2), P("y")),
        NamedSharding(mesh(devices, 8), P(None, "x")),
        NamedSharding(mesh(devices[5:7], 2), P()),
        SingleDeviceSharding(devices[7]),
        SingleDeviceSharding(devices[1]),
    ]
    for target in targets:
        for options in ({}, {"may_alias": True}, {"donate": True}):
            array = jax.device_put(x, source)
            check(jax.device_put(array, target, **options), x, target)
        array = jax.device_put(x, source)
        check(reshard(array, target), x, target)
        # And back, as one array among others that stay.
        back, same = pathways_jax.transfer_to_shardings([reshard(array, target), array], [source, source], False)
        check(back, x, source)
        check(same, x, source)


@case
def the_same_sharding():
    x = numbers(8, 8)
    sharding = NamedSharding(mesh(jax.devices(), 8), P("x"))
    array = jax.device_put(x, sharding)
    copies = [reshard(array, sharding) for _ in range(3)]
    del array
    for copy in copies:
        check(copy, x, sharding)
    moved = reshard(copies[0], sharding, donate=True)
    assert copies[0].is_deleted()
    check(moved, x, sharding)


def main():
    outcome = {}
    for name in sys.argv[1:] or CASES:
        try:
            CASES[name]()
            outcome[name] = "ok"
        except Exception:  # The test decides what a failure means.
            outcome[name] = traceback.format_exc()
    print(json.dumps(outcome))


if __name__ == "__main__":
    main()
