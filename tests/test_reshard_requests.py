"""RemapArrays, ReshardArrays and BitcastArrays as they come over the wire, also in forms that no jaxlib sends."""

import itertools
import random

import numpy as np
import pytest
from conftest import DEVICES
from raw_client import INVALID_ARGUMENT, NOT_FOUND, OK, UNIMPLEMENTED, Connection, device_id, message, on_device, serialized

pytestmark = pytest.mark.one_jax

ALREADY_EXISTS = 6
ALWAYS_COPY, REUSE, DONATE = 1, 2, 3
DTYPES = {"s8": (2, np.int8), "s32": (4, np.int32), "u8": (6, np.uint8), "f32": (11, np.float32), "s4": (21, np.uint8)}
OTHER, UNREDUCED = 3, 6


def tiled(devices, *tiles, replicas=1, memory_kind=None, kind=OTHER):
    """A ShardingProto: tiles over devices in their order, the same tile on `replicas` devices in a row."""
    op = dict(type=kind)
    if kind == OTHER:
        op.update(
            tile_assignment_dimensions=[*tiles, replicas],
            iota_reshape_dims=[len(devices)],
            iota_transpose_perm=[0],
            replicate_on_last_tile_dim=True,
        )
    proto = message("ifrt.HloShardingProto")(devices=dict(device_ids=map(device_id, devices)), xla_op_sharding=op)
    if memory_kind is not None:
        proto.memory_kind = memory_kind
    return message("ifrt.ShardingProto")(serialized_sharding=serialized("HloSharding", proto))


def spec(dims, sharding, dtype="f32", layout=None):
    made = message("ifrt.ArraySpecProto")(
        dtype=dict(kind=DTYPES[dtype][0]), shape=dict(dims=dims), sharding=sharding
    )
    if layout is not None:
        made.layout = layout.encode()
    return made


class Arrays:
    """A session with short ways to make arrays, and to read their shards."""

    def __init__(self, connection):
        self._connection = connection
        self.stream = connection.stream().start()
        self._handles = itertools.count(1)

    def new(self, count=1):
        return [next(self._handles) for _ in range(count)]

    def put(self, array_spec, shards):
        """An array whose shard i is shards[i], a numpy array in its host form."""
        handles = self.new(len(shards))
        stored = [
            self._connection.store(self.stream.session_id, handle, [shard.tobytes()])
            for handle, shard in zip(handles, shards)
        ]
        made = message("MakeArraysFromHostBufferShardsRequest")(array_handles=[handles[0]])
        one = made.specs.add(array_spec=array_spec)
        for position, (handle, shard) in enumerate(zip(handles, shards)):
            one.addressable_shard_indices.add(indices=[position])
            one.host_buffers.add(
                dtype=array_spec.dtype, shape=dict(dims=shard.shape), host_buffer_handle=handle
            )
        response = self.stream.call(make_arrays_from_host_buffer_shards_request=made)
        assert response.response_metadata.status.code == OK, response
        for store in stored:
            store.result()
        return handles[0]

    def split(self, whole, devices, axis=0, dtype="f32", **options):
        """An array cut along one axis."""
        tiles = [1] * whole.ndim
        tiles[axis] = len(devices)
        made = spec(whole.shape, tiled(devices, *tiles, **options), dtype)
        return self.put(made, np.split(whole.astype(DTYPES[dtype][1]), len(devices), axis))

    def shards(self, handle, count, dtype="f32"):
        """The shards, flat."""
        parts = self.new(count)
        response = self.stream.call(
            disassemble_into_single_device_arrays_request=message("DisassembleIntoSingleDeviceArraysRequest")(
                array_handle=handle, copy_semantics=REUSE, result_handles=parts
            )
        )
        assert response.response_metadata.status.code == OK, response
        return [np.frombuffer(self.stream.read(part, self.new()[0]), DTYPES[dtype][1]) for part in parts]

    def status(self, handle):
        return self.stream.ready_status(handle)

    def call(self, kind, results, **fields):
        """One of the three requests; answers with its status."""
        name = "".join(word.capitalize() for word in kind.split("_"))
        request = message(f"{name}Request")(result_handles=results, **fields)
        response = self.stream.call(**{f"{kind}_request": request})
        status = response.response_metadata.status
        if status.code == OK:
            assert list(getattr(response, f"{kind}_response").array_handles) == list(results)
        else:
            # Whoever uses a result meets the same.
            for handle in results:
                met = self.status(handle)
                assert (met.code, met.message) == (status.code, status.message)
        return status

    def remap(self, plan, arrays, semantics=REUSE):
        results = self.new(len(plan.output_specs))
        fields = dict(plan=plan, array_handles=arrays, copy_semantics=semantics)
        return results, self.call("remap_arrays", results, **fields)

    def reshard(self, array, to, semantics=ALWAYS_COPY):
        results = self.new()
        fields = dict(array_handles=[array], array_specs=[to], copy_semantics=semantics)
        return results[0], self.call("reshard_arrays", results, **fields)

    def bitcast(self, array, to, semantics=REUSE):
        results = self.new()
        fields = dict(array_handles=[array], array_specs=[to], copy_semantics=semantics)
        return results[0], self.call("bitcast_arrays", results, **fields)

    def live(self, handle):
        return self.status(handle).code == OK

    def deleted(self, handle):
        request = message("IsArrayDeletedRequest")(array_handle=handle)
        return self.stream.call(is_array_deleted_request=request).is_array_deleted_response.deleted


@pytest.fixture
def arrays(server):
    with Connection(server.address) as connection:
        made = Arrays(connection)
        yield made
        made.stream.cancel()


def listed(shards):
    return [shard.tolist() for shard in shards]


# RemapArrays


def intervals(plan, in_array, out_array, pairs):
    """Adds a mapping; pairs of (start, end, step) for (start, end, step)."""
    mapping = plan.mappings.add(in_array=in_array, out_array=out_array)
    for source, target in pairs:
        for name, (start, end, step) in (("from", source), ("to", target)):
            getattr(mapping, f"{name}_start").append(start)
            getattr(mapping, f"{name}_end").append(end)
            getattr(mapping, f"{name}_step").append(step)


def every_other(form):
    """Eight numbers over four devices: the even shards as one array, the odd ones, turned around, as another."""
    plan = message("ifrt.RemapPlanProto")(input_specs=[spec([8], tiled([0, 1, 2, 3], 4))])
    plan.output_specs.extend([spec([4], tiled([0, 2], 2)), spec([4], tiled([3, 1], 2))])
    if form == "intervals":
        intervals(plan, 0, 0, [((0, 4, 2), (0, 2, 1))])
        intervals(plan, 0, 1, [((3, 4, 1), (0, 1, 1)), ((1, 2, 1), (1, 2, 1))])
    else:
        plan.version_number = 6
        for output, devices in enumerate(([0, 2], [1, 3])):
            one = plan.input_devices_for_output.add(out_array=output)
            one.input_devices.add(in_array=0, device_list=dict(device_ids=map(device_id, devices)))
    return plan


@pytest.mark.parametrize("form", ["intervals", "devices"])
@pytest.mark.parametrize("semantics", [ALWAYS_COPY, REUSE, DONATE])
def test_remap(arrays, form, semantics):
    whole = arrays.split(np.arange(8), [0, 1, 2, 3])
    (even, odd), status = arrays.remap(every_other(form), [whole], semantics)
    assert status.code == OK, status
    assert listed(arrays.shards(even, 2)) == [[0, 1], [4, 5]]
    assert listed(arrays.shards(odd, 2)) == [[6, 7], [2, 3]]
    assert arrays.deleted(whole) == (semantics == DONATE)
    if semantics != DONATE:
        assert listed(arrays.shards(whole, 4)) == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_remap_spells_out_defaults(arrays):
    # The kind of memory and the layout that arrays have anyway, named in the plan but not in the array.
    whole = arrays.split(np.arange(8), [0, 1, 2, 3])
    plan = every_other("devices")
    plan.input_specs[0].CopyFrom(spec([8], tiled([0, 1, 2, 3], 4, memory_kind="device"), layout="{0}"))
    (even, _), status = arrays.remap(plan, [whole])
    assert status.code == OK, status
    assert listed(arrays.shards(even, 2)) == [[0, 1], [4, 5]]


def test_remap_refuses(arrays):
    whole = arrays.split(np.arange(8), [0, 1, 2, 3])
    other = arrays.split(np.arange(8), [0, 1, 2, 3], dtype="s32")

    def refused(change, inputs=None, semantics=DONATE):
        plan = every_other("intervals")
        change(plan)
        _, status = arrays.remap(plan, inputs or [whole], semantics)
        assert status.code == INVALID_ARGUMENT, status
        assert arrays.live(whole)
        return status.message

    def set_to(field, index, value):
        def change(plan):
            getattr(plan.mappings[0], field)[index] = value

        return change

    assert "lies on device 1" in refused(set_to("from_start", 0, 1))
    assert "interval" in refused(set_to("from_end", 0, 9))
    assert "interval" in refused(set_to("to_step", 0, 0))
    assert "nothing is given" in refused(lambda plan: plan.mappings.pop())
    assert "given twice" in refused(lambda plan: plan.mappings.add().CopyFrom(plan.mappings[0]))
    assert "output 7" in refused(lambda plan: setattr(plan.mappings[0], "out_array", 7))
    assert "the plan expects f32" in refused(lambda plan: None, [other])
    assert "type s32" in refused(lambda plan: plan.output_specs[0].dtype.CopyFrom(spec([4], on_device(0), "s32").dtype))
    assert "shape" in refused(lambda plan: plan.output_specs[0].shape.dims.__setitem__(0, 6))
    assert "the plan expects" in refused(lambda plan: plan.input_specs[0].CopyFrom(spec([8], tiled([0, 1, 2, 4], 4))))
    assert "pinned_host" in refused(
        lambda plan: plan.output_specs[0].CopyFrom(spec([4], tiled([0, 2], 2, memory_kind="pinned_host")))
    )
    assert "no device 99" in refused(lambda plan: plan.output_specs[0].CopyFrom(spec([4], tiled([0, 99], 2))))
    assert "specs for" in refused(lambda plan: plan.input_specs.pop())
    assert "donated twice" in refused(
        lambda plan: plan.input_specs.add().CopyFrom(plan.input_specs[0]), [whole, whole]
    )

    results = arrays.new(1)
    status = arrays.call("remap_arrays", results, plan=every_other("devices"), array_handles=[whole])
    assert status.code == INVALID_ARGUMENT
    plan = every_other("devices")
    plan.version_number = 5
    assert arrays.remap(plan, [whole])[1].code == UNIMPLEMENTED
    assert arrays.remap(every_other("devices"), [12345])[1].code == NOT_FOUND


def test_remap_of_a_failed_array(arrays):
    _, status = arrays.reshard(12345, spec([8], tiled([0, 1, 2, 3], 4)))
    failed, _ = arrays.reshard(12345, spec([8], tiled([0, 1, 2, 3], 4)))
    _, met = arrays.remap(every_other("devices"), [failed])
    assert (met.code, met.message) == (status.code, status.message)


# ReshardArrays


def test_reshard_uneven(arrays):
    # Five rows in steps of two over four devices: two, two, one and none.
    whole = np.arange(15, dtype=np.float32).reshape(5, 3)
    rows = spec([5, 3], tiled([0, 1, 2, 3], 4, 1))
    array = arrays.put(spec([5, 3], on_device(6)), [whole])
    split, status = arrays.reshard(array, rows)
    assert status.code == OK, status
    assert listed(arrays.shards(split, 4)) == [whole[:2].ravel().tolist(), whole[2:4].ravel().tolist(),
                                               whole[4:].ravel().tolist(), []]  # fmt: skip
    again, status = arrays.reshard(split, spec([5, 3], tiled([7, 5], 1, 2)))
    assert status.code == OK, status
    assert listed(arrays.shards(again, 2)) == [whole[:, :2].ravel().tolist(), whole[:, 2:].ravel().tolist()]


def test_reshard_partly_replicated(arrays):
    whole = np.arange(16)
    array = arrays.split(whole, list(range(DEVICES)))
    halves, status = arrays.reshard(array, spec([16], tiled([3, 1, 7, 0], 2, replicas=2)))
    assert status.code == OK, status
    assert listed(arrays.shards(halves, 4)) == [list(range(8))] * 2 + [list(range(8, 16))] * 2


@pytest.mark.parametrize("semantics", [ALWAYS_COPY, REUSE, DONATE])
def test_reshard_semantics(arrays, semantics):
    array = arrays.split(np.arange(8), [0, 1, 2, 3])
    # Shards 1 and 2 stay on their devices, 0 and 3 change places.
    moved, status = arrays.reshard(array, spec([8], tiled([3, 1, 2, 0], 4)), semantics)
    assert status.code == OK, status
    assert listed(arrays.shards(moved, 4)) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert arrays.deleted(array) == (semantics == DONATE)
    if semantics != DONATE:
        assert listed(arrays.shards(array, 4)) == [[0, 1], [2, 3], [4, 5], [6, 7]]
        request = message("DestructArrayRequest")(array_handle=[array])
        assert arrays.stream.code(destruct_array_request=request) == OK
        assert listed(arrays.shards(moved, 4)) == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_reshard_given_up_twice(arrays):
    array = arrays.split(np.arange(8), [0, 1])
    to = spec([8], tiled([0, 1], 2))
    results = arrays.new(2)
    status = arrays.call(
        "reshard_arrays", results, array_handles=[array, array], array_specs=[to, to], copy_semantics=DONATE
    )
    assert status.code == OK, status
    request = message("DeleteArrayRequest")(array_handle=[results[0]])
    assert arrays.stream.code(delete_array_request=request) == OK
    assert listed(arrays.shards(results[1], 2)) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_reshard_layouts_and_narrow_types(arrays):
    whole = np.arange(12).reshape(3, 4)
    array = arrays.split(whole, [0, 1], axis=1, dtype="s4")
    turned, status = arrays.reshard(array, spec([3, 4], on_device(2), "s4"))
    assert status.code == OK, status
    assert (arrays.shards(turned, 1, "s4")[0] & 15).tolist() == whole.ravel().tolist()
    plain = arrays.split(whole, [0, 1], axis=1)
    column_major, status = arrays.reshard(plain, spec([3, 4], on_device(2), layout="{0,1}"), REUSE)
    assert status.code == OK, status
    assert arrays.shards(column_major, 1)[0].tolist() == whole.ravel().tolist()
    # From one layout to another on the same device nothing can be shared.
    back, status = arrays.reshard(column_major, spec([3, 4], on_device(2)), REUSE)
    assert status.code == OK, status
    assert arrays.shards(back, 1)[0].tolist() == whole.ravel().tolist()


def test_reshard_refuses(arrays):
    array = arrays.split(np.arange(8), [0, 1])

    def code(to, source=array):
        return arrays.reshard(source, to, DONATE)[1].code

    assert code(spec([8], on_device(0), "s32")) == INVALID_ARGUMENT
    assert code(spec([9], on_device(0))) == INVALID_ARGUMENT
    assert code(spec([8], on_device(99))) == INVALID_ARGUMENT
    assert code(spec([8], tiled([0, 1], 2, 1))) == INVALID_ARGUMENT
    assert code(spec([8], on_device(0), layout="{1,0}")) == INVALID_ARGUMENT
    assert code(spec([8], tiled([0, 1], kind=UNREDUCED))) == UNIMPLEMENTED
    assert code(spec([8], on_device(0)), 12345) == NOT_FOUND
    status = arrays.call(
        "reshard_arrays", arrays.new(2), array_handles=[array], array_specs=[spec([8], on_device(0))] * 2
    )
    assert status.code == INVALID_ARGUMENT
    request = message("ReshardArraysRequest")(
        array_handles=[array], array_specs=[spec([8], on_device(0))], copy_semantics=DONATE, result_handles=[array]
    )
    assert arrays.stream.code(reshard_arrays_request=request) == ALREADY_EXISTS
    assert listed(arrays.shards(array, 2)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    # A memory that a device lacks is the array's own error.
    drum, status = arrays.reshard(array, spec([8], on_device(0, "drum")))
    assert status.code == OK
    assert arrays.status(drum).code == INVALID_ARGUMENT and "drum" in arrays.status(drum).message


def test_reshard_before_the_bytes_come(arrays):
    # Named, moved, moved again and asked for, and only then sent.
    (buffer,) = arrays.new()
    request = arrays.stream.make_array_request(buffer, dims=(4,), device=1)
    assert arrays.stream.code(make_array_from_host_buffer_request=request) == OK
    split, status = arrays.reshard(buffer, spec([4], tiled([2, 3], 2)), DONATE)
    assert status.code == OK, status
    joined, status = arrays.reshard(split, spec([4], on_device(0)), DONATE)
    assert status.code == OK, status
    asked = arrays.stream.send(
        check_value_ready_request=message("CheckValueReadyRequest")(value_handles=[joined, split])
    )
    assert arrays.stream.response(asked).response_metadata.status.code == INVALID_ARGUMENT  # split was given up
    asked = arrays.stream.send(check_value_ready_request=message("CheckValueReadyRequest")(value_handles=[joined]))
    connection = arrays._connection
    connection.store(arrays.stream.session_id, buffer, [np.arange(4, dtype=np.float32).tobytes()]).result()
    assert arrays.stream.response(asked).response_metadata.status.code == OK
    assert arrays.shards(joined, 1)[0].tolist() == [0, 1, 2, 3]


# BitcastArrays


def test_bitcast(arrays):
    whole = np.arange(8, dtype=np.float32)
    array = arrays.split(whole, [4, 5])
    bits, status = arrays.bitcast(array, spec([4, 2], tiled([4, 5], 2, 1), "s32"))
    assert status.code == OK, status
    assert listed(arrays.shards(bits, 2, "s32")) == whole.view(np.int32).reshape(2, 4).tolist()
    narrow, status = arrays.bitcast(bits, spec([32], tiled([4, 5], 2), "u8"), DONATE)
    assert status.code == OK, status
    assert arrays.deleted(bits)
    assert listed(arrays.shards(narrow, 2, "u8")) == whole.view(np.uint8).reshape(2, 16).tolist()
    nibbles, status = arrays.bitcast(narrow, spec([64], tiled([4, 5], 2), "s4"))
    assert status.code == OK, status
    low_first = np.stack([whole.view(np.uint8) & 15, whole.view(np.uint8) >> 4], axis=1).reshape(2, 32)
    assert listed(shard & 15 for shard in arrays.shards(nibbles, 2, "s4")) == low_first.tolist()
    request = message("DeleteArrayRequest")(array_handle=[array, narrow])
    assert arrays.stream.code(delete_array_request=request) == OK
    assert listed(shard & 15 for shard in arrays.shards(nibbles, 2, "s4")) == low_first.tolist()


def test_bitcast_to_another_sharding(arrays):
    # The same shards seen as one array of two rows, and as two copies of one row.
    array = arrays.split(np.arange(4), [0, 1])
    seen, status = arrays.bitcast(array, spec([2], tiled([0, 1], 1, replicas=2)))
    assert status.code == OK, status
    assert listed(arrays.shards(seen, 2)) == [[0, 1], [2, 3]]


def test_bitcast_refuses(arrays):
    array = arrays.split(np.arange(8), [0, 1])

    def code(to, semantics=DONATE):
        return arrays.bitcast(array, to, semantics)[1].code

    pair = tiled([0, 1], 2)
    assert code(spec([8], pair, "u8")) == INVALID_ARGUMENT
    assert code(spec([2**62], pair, "s32")) == INVALID_ARGUMENT
    assert code(spec([8], tiled([1, 0], 2), "s32")) == INVALID_ARGUMENT
    assert code(spec([8], tiled([0, 1], 2, memory_kind="pinned_host"), "s32")) == INVALID_ARGUMENT
    assert code(spec([8], pair, "s32"), ALWAYS_COPY) == INVALID_ARGUMENT
    twice = dict(array_handles=[array] * 2, array_specs=[spec([8], pair)] * 2, copy_semantics=DONATE)
    assert arrays.call("bitcast_arrays", arrays.new(2), **twice).code == INVALID_ARGUMENT
    assert listed(arrays.shards(array, 2)) == [[0, 1, 2, 3], [4, 5, 6, 7]]


# Anything at all


def numbers_in(proto):
    """Every number in a message, as (set it, value)."""
    for field, value in proto.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        repeated = not isinstance(value, (int, float, str, bytes)) and not hasattr(value, "ListFields")
        items = list(value) if repeated else [value]
        for i, item in enumerate(items):
            if field.message_type is not None:
                yield from numbers_in(item)
            elif isinstance(item, int) and not isinstance(item, bool):
                if repeated:
                    yield (lambda new, value=value, i=i: value.__setitem__(i, new)), item
                else:
                    yield (lambda new, proto=proto, field=field: setattr(proto, field.name, new)), item


def test_damaged_requests(arrays):
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    array = arrays.split(np.arange(8), [0, 1, 2, 3])
    codes = set()
    for _ in range(300):
        results = arrays.new(2)
        fields = dict(array_handles=[array], result_handles=results[:1], copy_semantics=REUSE)
        to = chance.choice([
            spec([8], tiled([3, 1, 2, 0], 4)), spec([8], tiled([0, 1, 2, 3], 2, replicas=2)), spec([8], on_device(5)),
        ])  # fmt: skip
        request = chance.choice([
            message("RemapArraysRequest")(plan=every_other("intervals"), **fields | dict(result_handles=results)),
            message("RemapArraysRequest")(plan=every_other("devices"), **fields | dict(result_handles=results)),
            message("ReshardArraysRequest")(array_specs=[to], **fields),
            message("BitcastArraysRequest")(array_specs=[spec([4, 2], tiled([0, 1, 2, 3], 4, 1), "s32")], **fields),
        ])  # fmt: skip
        for _ in range(chance.randint(0, 3)):
            change, value = chance.choice(list(numbers_in(request)))
            try:
                change(chance.choice([0, 1, -1, 2, 7, value + 1, value - 1, 2**31 - 1, -(2**31), 2**62, -(2**63)]))
            except ValueError:
                pass  # out of the field's range
        request.copy_semantics = chance.choice([ALWAYS_COPY, REUSE])
        name = request.DESCRIPTOR.name.removesuffix("ArraysRequest").lower()
        codes.add(arrays.stream.code(**{f"{name}_arrays_request": request}))
        # Whatever was made of it answers, with or without an error.
        arrays.status(request.result_handles[0])
    assert {OK, INVALID_ARGUMENT} <= codes
    assert listed(arrays.shards(array, 4)) == [[0, 1], [2, 3], [4, 5], [6, 7]]
