"""Arrays that only the protocol can ask for: made of errors, strings and tokens, by a client without JAX."""

import struct

import pytest
import raw_client
from raw_client import (
    DATA_LOSS, F32, INVALID_ARGUMENT, OK, PRED, STRING, TOKEN, UNIMPLEMENTED, Connection, array_spec, hlo_sharding,
    device_id, message, on_device, split,
)

pytestmark = pytest.mark.one_jax

ALREADY_EXISTS = 6

ADD = """
module @add {
  func.func public @main(%a: tensor<2x2xf32>, %b: tensor<2x2xf32>) -> tensor<2x2xf32> {
    %0 = stablehlo.add %a, %b : tensor<2x2xf32>
    return %0 : tensor<2x2xf32>
  }
}"""

PASS_TOKEN = """
module @pass_token {
  func.func public @main(%t: !stablehlo.token, %a: tensor<2x2xf32>) -> (!stablehlo.token, tensor<2x2xf32>) {
    %0 = stablehlo.after_all %t : !stablehlo.token
    return %0, %a : !stablehlo.token, tensor<2x2xf32>
  }
}"""


@pytest.fixture
def connection(server):
    with Connection(server.address) as made:
        yield made


@pytest.fixture
def session(connection):
    stream = connection.stream().start()
    yield stream
    stream.cancel()


def status_of(response):
    return response.response_metadata.status


def make_errors(session, handles, specs, code=DATA_LOSS, text="gone with the slice", **payload):
    request = message("MakeErrorArraysRequest")(array_specs=specs, array_handles=handles)
    request.error.code, request.error.message = code, text
    for url, value in payload.items():
        request.error.payload[url] = value
    return session.call(make_error_arrays_request=request)


def read_status(session, array, buffer=900):
    request = message("CopyToHostBufferRequest")(array_handle=array, host_buffer_handle=buffer)
    return status_of(session.call(copy_to_host_buffer_request=request))


def deleted(session, handle):
    request = message("IsArrayDeletedRequest")(array_handle=handle)
    return session.call(is_array_deleted_request=request).is_array_deleted_response.deleted


# Errors


def test_every_use_of_an_error_array_fails_with_its_error(session):
    specs = [array_spec(on_device(0)), array_spec(split([0, 1], 2, "pinned_host"), kind=PRED, layout=b"{0,1}")]
    response = make_errors(session, [10, 11], specs, why=b"because")
    assert status_of(response).code == OK
    assert response.make_error_arrays_response.array_handles == [10, 11]

    def failed_as_given(status):
        return (status.code, status.message, dict(status.payload)) == (
            DATA_LOSS, "gone with the slice", {"why": b"because"},
        )

    assert failed_as_given(session.ready_status(10)) and failed_as_given(session.ready_status(11))
    assert failed_as_given(read_status(session, 10))
    # Parts, compositions and copies: the requests are in order, what they make has failed.
    assert session.code(
        fully_replicated_shard_request=message("FullyReplicatedShardRequest")(array_handle=10, result_handle=20)
    ) == OK
    assert session.code(
        disassemble_into_single_device_arrays_request=message("DisassembleIntoSingleDeviceArraysRequest")(
            array_handle=11, result_handles=[21, 22]
        )
    ) == OK
    assert session.code(copy_arrays_request=message("CopyArraysRequest")(
        array_handles=[10], device_ids=[*map(device_id, (3,))], result_handles=[23], copy_semantics=1
    )) == OK
    assemble = message("AssembleArrayFromSingleDeviceArraysRequest")(
        sharding=split([0, 1], 2, "pinned_host"), single_device_array_handles=[21, 22], result_handle=24, copy_semantics=2
    )
    assemble.shape.dims.extend([2, 2])
    assert session.code(assemble_array_from_single_device_arrays_request=assemble) == OK
    for handle in (20, 21, 22, 23, 24):
        assert failed_as_given(session.ready_status(handle)), handle
    assert session.make_array(1, bytes(16)) == OK
    executable = session.compile(ADD)
    first = session.execute(executable, [1, 10])
    assert status_of(first).code == OK
    (output,) = first.loaded_executable_execute_response.outputs
    assert failed_as_given(session.ready_status(output.array_handle))
    # An error is not a deletion, and a deletion does not hide it from what was made of the array before.
    assert not deleted(session, 10)
    assert session.code(delete_array_request=message("DeleteArrayRequest")(array_handle=[10])) == OK
    assert deleted(session, 10) and session.ready_status(10).code == INVALID_ARGUMENT
    assert failed_as_given(session.ready_status(23)) and failed_as_given(session.ready_status(output.array_handle))


def test_deleted_before_its_bytes_come(connection, session):
    # As a client does with an argument that it makes for one run. What uses it was commanded before.
    executable = session.compile(ADD)
    assert session.make_array(1, struct.pack("4f", 1, 2, 3, 4)) == OK
    assert session.code(make_array_from_host_buffer_request=session.make_array_request(2)) == OK
    (total,) = session.execute(executable, [1, 2]).loaded_executable_execute_response.outputs
    assert session.code(copy_arrays_request=message("CopyArraysRequest")(
        array_handles=[2], device_ids=[device_id(3)], result_handles=[3], copy_semantics=1
    )) == OK
    assert session.code(delete_array_request=message("DeleteArrayRequest")(array_handle=[2])) == OK
    assert session.code(destruct_array_request=message("DestructArrayRequest")(array_handle=[2])) == OK
    connection.store(session.session_id, 2, [struct.pack("4f", 10, 20, 30, 40)]).result()
    assert struct.unpack("4f", session.read(total.array_handle, 40)) == (11, 22, 33, 44)
    assert struct.unpack("4f", session.read(3, 40)) == (10, 20, 30, 40)


def test_deleting_frees_what_others_share(session):
    assert session.make_array(1, bytes(range(16)), sharding=split([0, 1], 2)) == UNIMPLEMENTED
    assert session.make_array(2, bytes(range(16)), sharding=hlo_sharding([0, 1])) == OK
    disassemble = message("DisassembleIntoSingleDeviceArraysRequest")
    assert session.code(disassemble_into_single_device_arrays_request=disassemble(
        array_handle=2, result_handles=[10, 11], copy_semantics=2
    )) == OK
    assert session.code(disassemble_into_single_device_arrays_request=disassemble(
        array_handle=2, result_handles=[20, 21], copy_semantics=1
    )) == OK
    shard = message("FullyReplicatedShardRequest")
    assert session.code(fully_replicated_shard_request=shard(array_handle=2, result_handle=30, copy_semantics=1)) == OK
    assert session.code(delete_array_request=message("DeleteArrayRequest")(array_handle=[10])) == OK
    # The whole has lost a shard; the other shard and all copies live.
    assert session.ready_status(2).code == INVALID_ARGUMENT and not deleted(session, 2)
    assert session.read(11, 40) == bytes(range(16))
    for handle in (20, 21, 30):
        assert session.read(handle, 40) == bytes(range(16))


def test_the_first_cause_is_kept(session):
    make_errors(session, [10], [array_spec(on_device(0))], text="one")
    make_errors(session, [11], [array_spec(on_device(0))], text="two")
    executable = session.compile(ADD)
    (sum_12,) = session.execute(executable, [10, 11]).loaded_executable_execute_response.outputs
    session.execute(executable, [11, sum_12.array_handle], [30])
    session.execute(executable, [sum_12.array_handle, 11], [31])
    assert session.ready_status(sum_12.array_handle).message == "one"
    assert session.ready_status(30).message == "two"
    assert session.ready_status(31).message == "one"


def test_error_arrays_that_cannot_be(session):
    good = array_spec(on_device(0))
    assert status_of(make_errors(session, [10], [good], code=OK)).code == INVALID_ARGUMENT
    assert status_of(make_errors(session, [11, 12], [good])).code == INVALID_ARGUMENT
    assert status_of(make_errors(session, [13, 14], [good, array_spec(on_device(999))])).code == INVALID_ARGUMENT
    assert status_of(make_errors(session, [0], [good])).code == INVALID_ARGUMENT
    for handle in range(10, 15):
        assert session.ready_status(handle).code == INVALID_ARGUMENT
    assert status_of(make_errors(session, [20], [good])).code == OK
    assert status_of(make_errors(session, [21, 20, 22], [good] * 3)).code == ALREADY_EXISTS
    assert session.ready_status(21).code == session.ready_status(20).code == DATA_LOSS
    assert session.ready_status(22).code == ALREADY_EXISTS


# Strings


def strings(*values):
    return message("ifrt.proto.StringArrayContents")(strings=values).SerializeToString()


def of_kind(kind):
    return message("ifrt.DTypeProto")(kind=kind)


def test_strings_come_back_as_they_were(connection, session):
    values = strings(b"one", b"", "zwölf".encode(), b"\x00\xff" * 1000)
    assert session.make_array(1, values, dims=(2, 2), dtype=of_kind(STRING)) == OK
    assert session.ready_status(1).code == OK and session.read(1, 2) == values
    # On several devices, in another memory, by way of a copy.
    replicated = hlo_sharding([4, 2, 6])
    assert session.make_array(3, values, dims=(4,), dtype=of_kind(STRING), sharding=replicated) == OK
    assert session.code(copy_arrays_request=message("CopyArraysRequest")(
        array_handles=[3], device_ids=[*map(device_id, (0, 1, 2,))], memory_kind="pinned_host", result_handles=[4], copy_semantics=3
    )) == OK
    assert deleted(session, 3)
    assert session.code(
        fully_replicated_shard_request=message("FullyReplicatedShardRequest")(array_handle=4, result_handle=5)
    ) == OK
    session.code(destruct_array_request=message("DestructArrayRequest")(array_handle=[3, 4]))
    assert session.read(5, 6) == values
    assert session.make_array(7, b"", dims=(3, 0), dtype=of_kind(STRING)) == OK
    assert session.read(7, 8) == b""


def test_strings_of_several_shards(connection, session):
    parts = [strings(b"a", b"bb"), strings(b"ccc", b"")]
    request = message("MakeArraysFromHostBufferShardsRequest")(array_handles=[10])
    spec = request.specs.add(array_spec=array_spec(split([5, 1], 1), dims=(4,), kind=STRING))
    for position, part in enumerate(parts):
        connection.store(session.session_id, 10 + position, [part]).result()
        spec.host_buffers.add(
            dtype=of_kind(STRING), shape=message("ifrt.ShapeProto")(dims=[2]), host_buffer_handle=10 + position
        )
        spec.addressable_shard_indices.add(indices=[position])
    assert session.code(make_arrays_from_host_buffer_shards_request=request) == OK
    assert session.code(
        disassemble_into_single_device_arrays_request=message("DisassembleIntoSingleDeviceArraysRequest")(
            array_handle=10, result_handles=[20, 21]
        )
    ) == OK
    assert [session.read(20, 30), session.read(21, 31)] == parts
    assemble = message("AssembleArrayFromSingleDeviceArraysRequest")(
        sharding=split([5, 1], 1), single_device_array_handles=[20, 21], result_handle=22, copy_semantics=1, dtype=of_kind(STRING)
    )
    assemble.shape.dims.extend([4])
    assert session.code(assemble_array_from_single_device_arrays_request=assemble) == OK
    assert session.ready_status(22).code == OK


@pytest.mark.parametrize("contents", [strings(b"a"), strings(b"a", b"b", b"c"), b"\xff\xff", b"\x0a\x7fshort"])
def test_strings_that_are_not_what_they_say(session, contents):
    session.make_array(1, contents, dims=(2,), dtype=of_kind(STRING))
    status = session.ready_status(1)
    assert status.code == INVALID_ARGUMENT and "string" in status.message


def test_strings_have_no_strides_and_no_programs(session):
    with_strides = dict(dtype=of_kind(STRING), byte_strides=message("ifrt.proto.ByteStrides")(strides=[16, 8]))
    assert session.make_array(1, strings(*[b"a"] * 4), **with_strides) == INVALID_ARGUMENT
    assert session.make_array(2, strings(*[b"a"] * 4), dtype=of_kind(STRING)) == OK
    request = message("CopyToHostBufferRequest")(array_handle=2, host_buffer_handle=3)
    request.byte_strides.strides.extend([16, 8])
    assert session.code(copy_to_host_buffer_request=request) == INVALID_ARGUMENT
    status = status_of(session.execute(session.compile(ADD), [2, 2]))
    assert status.code == INVALID_ARGUMENT and "string" in status.message


def test_layout_of_what_no_device_holds(session):
    for kind, dims, text in ((STRING, [2, 3], "{1,0}"), (TOKEN, [], "{}")):
        request = message("GetDefaultLayoutRequest")(dtype=of_kind(kind), dims=dims, device_id=0)
        response = session.call(get_default_layout_request=request)
        assert response.get_default_layout_response.serialized_pjrt_layout == text.encode()


# Tokens


def test_tokens_order_programs(session):
    assert session.make_array(1, b"", dims=(), dtype=of_kind(TOKEN)) == OK
    assert session.make_array(2, b"", dims=(0,), dtype=of_kind(PRED)) == OK
    assert session.make_array(3, bytes(range(16))) == OK
    executable = session.compile(PASS_TOKEN)
    token, data = session.execute(executable, [1, 3]).loaded_executable_execute_response.outputs
    assert token.dtype.kind == TOKEN and token.shape.dims == [] and data.dtype.kind == F32
    # What a program returned, and an empty array, for which JAX takes tokens.
    assert status_of(session.execute(executable, [token.array_handle, data.array_handle], [10, 11])).code == OK
    assert status_of(session.execute(executable, [2, 11], [12, 13])).code == OK
    assert session.code(copy_arrays_request=message("CopyArraysRequest")(
        array_handles=[12], device_ids=[*map(device_id, (0,))], result_handles=[14], copy_semantics=1
    )) == OK
    assert status_of(session.execute(executable, [14, 13], [15, 16])).code == OK
    for handle in (10, 12, 14, 15):
        assert session.ready_status(handle).code == OK
    assert session.read(16, 20) == bytes(range(16))


def data(session, handle):
    assert session.make_array(handle, bytes(16)) == OK
    return handle


def test_tokens_are_assembled_as_empty_arrays(session):
    """As JAX does with the tokens of a program that ran on several devices."""
    code = PASS_TOKEN.replace("@pass_token {", "@pass_token attributes {mhlo.num_partitions = 2 : i32} {")
    tokens = []
    for device in (0, 1):
        sharding = on_device(device)
        assert session.make_array(10 + device, b"", dims=(), dtype=of_kind(TOKEN), sharding=sharding) == OK
        assert session.make_array(20 + device, bytes(16), sharding=sharding) == OK
        executable = session.compile(PASS_TOKEN, [device])
        response = session.execute(executable, [10 + device, 20 + device])
        tokens.append(response.loaded_executable_execute_response.outputs[0].array_handle)
    assemble = message("AssembleArrayFromSingleDeviceArraysRequest")(
        sharding=split([0, 1], 1), single_device_array_handles=tokens, result_handle=30, copy_semantics=1,
        dtype=of_kind(TOKEN),
    )
    assemble.shape.dims.append(0)
    assert session.code(assemble_array_from_single_device_arrays_request=assemble) == OK
    assert session.ready_status(30).code == OK
    assemble.result_handle = 31
    assemble.dtype.kind = F32
    assert session.code(assemble_array_from_single_device_arrays_request=assemble) == INVALID_ARGUMENT
    assert session.make_array(40, bytes(16), sharding=hlo_sharding([0, 1])) == OK
    executable = session.compile(code, [0, 1])
    assert status_of(session.execute(executable, [30, 40])).code == OK


def test_tokens_have_no_contents(connection, session):
    assert session.make_array(1, b"", dims=(), dtype=of_kind(TOKEN), sharding=hlo_sharding([0, 1])) == OK
    assert session.ready_status(1).code == OK
    assert session.code(
        fully_replicated_shard_request=message("FullyReplicatedShardRequest")(array_handle=1, result_handle=2)
    ) == OK
    assert read_status(session, 2).code == INVALID_ARGUMENT
    (token, _) = session.execute(session.compile(PASS_TOKEN), [2, data(session, 5)]).loaded_executable_execute_response.outputs
    assert session.ready_status(token.array_handle).code == OK
    assert read_status(session, token.array_handle).code == INVALID_ARGUMENT
    assert session.make_array(3, b"", dims=(2,), dtype=of_kind(TOKEN)) == INVALID_ARGUMENT
    session.make_array(4, b"x", dims=(), dtype=of_kind(TOKEN))
    assert session.ready_status(4).code == INVALID_ARGUMENT
