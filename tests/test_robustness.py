"""A server outlives clients that misbehave, and says what was wrong. After every test another client is served."""

import random
import threading

import grpc
import pytest
import raw_client
from conftest import DEVICES, Server
from raw_client import (
    DATA_LOSS, FIRST_SERVER_HANDLE, INVALID_ARGUMENT, NOT_FOUND, OK, SESSION_HEADER, STORE_HEADER, UNIMPLEMENTED,
    Connection, message, on_device, serialized, version,
)

pytestmark = pytest.mark.one_jax

Code = grpc.StatusCode
SEED = 20260801
FUZZED_REQUESTS = 400


@pytest.fixture(scope="module")
def own_server(helmway_binary):
    running = Server(helmway_binary, "--devices", str(DEVICES))
    yield running
    assert running.close() == 0, running.log()


@pytest.fixture(autouse=True)
def survivor(own_server):
    yield
    assert own_server.process.poll() is None, f"the server died\n{own_server.log()}"
    raw_client.round_trip(own_server.address)


@pytest.fixture
def connection(own_server):
    with Connection(own_server.address) as made:
        yield made


@pytest.fixture
def session(connection):
    stream = connection.stream().start()
    yield stream
    stream.cancel()


def rpc_code(call):
    with pytest.raises(grpc.RpcError) as raised:
        call()
    return raised.value.code()


# Start of a session


def test_init_describes_the_devices(session):
    init = session.init
    assert (init.platform_name, init.runtime_type, init.process_index) == ("cpu", "pathways", 0)
    assert init.session_id != 0
    devices = {device.id: device for device in init.all_devices}
    memories = {memory.id: memory for memory in init.memories}
    assert len(init.primary_device_ids) == DEVICES
    assert set(init.primary_device_ids) <= set(init.addressable_device_ids) <= devices.keys()
    for device in devices.values():
        assert set(device.memory_ids) <= memories.keys()
        assert memories[device.default_memory_id].memory_space_kind == "device"
        assert {"slice_index", "colocation_id"} <= device.attributes.attributes.keys()
    for memory in memories.values():
        assert set(memory.device_ids) <= devices.keys()


@pytest.mark.parametrize(
    "low, high",
    [((1, 0), (15, 3)), ((26, 3), (30, 6)), ((16, 0), (25, 2)), ((16, 7), (25, 9)), ((25, 6), (16, 3)), ((0, 0), (0, 0))],
)
def test_version_refused_with_what_works(connection, low, high):
    request = message("GrpcGetVersionRequest")(min_version=version(*low), max_version=version(*high))
    with pytest.raises(grpc.RpcError) as raised:
        connection.get_version(request)
    assert raised.value.code() == Code.INVALID_ARGUMENT
    assert "0.10.2" in raised.value.details() and "0.12.0.1" in raised.value.details()


def test_empty_version_request_is_refused(connection):
    assert rpc_code(lambda: connection.get_version(message("GrpcGetVersionRequest")())) == Code.INVALID_ARGUMENT


@pytest.mark.parametrize("high, chosen", [((16, 3), (16, 3)), ((25, 6), (25, 6)), ((99, 99), (25, 6)), ((20, 4), (20, 4))])
def test_version_is_the_smaller_maximum(connection, high, chosen):
    request = message("GrpcGetVersionRequest")(min_version=version(16, 0), max_version=version(*high))
    assert connection.get_version(request).version == version(*chosen)


@pytest.mark.parametrize(
    "header",
    [[], [(SESSION_HEADER, b"\xff\xff\xff")], [(SESSION_HEADER, b"")], [(SESSION_HEADER, b"\x0a\x04\x08\x01\x10\x01")]],
    ids=["absent", "garbage", "empty", "unsupported version"],
)
def test_session_header_refused(connection, header):
    stream = connection.stream(metadata=header)
    assert stream.end_status() == Code.INVALID_ARGUMENT


# Nonsense on the stream


@pytest.mark.parametrize("data", [b"\xff" * 40, b"\x0a\xff\xff\xff\xff\x0f", b"\x12\x03abc"])
def test_bytes_that_are_no_request(connection, data):
    stream = connection.stream().start()
    stream.send_bytes(data)
    assert stream.end_status() != Code.OK


def test_request_without_member(session):
    op_id = session.send()
    assert not session.settle(op_id) or session.response(op_id).response_metadata.status.code != OK


def test_request_without_metadata(session):
    session.send_bytes(message("IfrtRequest")(check_value_ready_request={}).SerializeToString())
    # Whatever the server makes of op_id 0, it does not hang on it.
    op_id = session.send(check_value_ready_request=message("CheckValueReadyRequest")())
    session.settle(op_id)


def test_request_before_init(connection):
    stream = connection.stream()
    op_id = stream.send(check_value_ready_request=message("CheckValueReadyRequest")(value_handles=[1]))
    assert not stream.settle(op_id) or stream.response(op_id).response_metadata.status.code != OK
    stream.cancel()


def test_second_init_does_not_make_a_second_session(session):
    op_id = session.send(init_request=message("InitRequest")())
    if session.settle(op_id):
        response = session.response(op_id)
        assert response.response_metadata.status.code != OK or response.init_response.session_id == session.session_id


def unknown_handle_requests():
    h = 12345
    yield "check_future_request", dict(future_handle=h)
    yield "check_value_ready_request", dict(value_handles=[h])
    yield "copy_to_host_buffer_request", dict(array_handle=h, host_buffer_handle=77)
    yield "disassemble_into_single_device_arrays_request", dict(array_handle=h, result_handles=[78])
    yield "fully_replicated_shard_request", dict(array_handle=h, result_handle=79)
    yield "destruct_array_request", dict(array_handle=[h])
    yield "is_array_deleted_request", dict(array_handle=h)
    yield "copy_arrays_request", dict(array_handles=[h], device_ids=[0], result_handles=[80])
    yield "loaded_executable_metadata_request", dict(loaded_executable_handle=h)
    yield "loaded_executable_execute_request", dict(loaded_executable_handle=h, result_array_handle=[81])
    yield "loaded_executable_destruct_request", dict(loaded_executable_handle=h)
    yield "loaded_executable_fetch_execute_result_request", dict(result_status_handle=h)


@pytest.mark.parametrize("handle", [0, 12345, FIRST_SERVER_HANDLE + 5, 2**64 - 1])
@pytest.mark.parametrize("member, fields", list(unknown_handle_requests()), ids=lambda value: value if isinstance(value, str) else "")
def test_unknown_handle(session, member, fields, handle):
    fields = {
        name: handle if value == 12345 else [handle] if value == [12345] else value for name, value in fields.items()
    }
    request = session.request()
    getattr(request, member).SetInParent()
    for name, value in fields.items():
        if isinstance(value, list):
            getattr(getattr(request, member), name).extend(value)
        else:
            setattr(getattr(request, member), name, value)
    session.send_bytes(request.SerializeToString())
    status = session.response(request.request_metadata.op_id).response_metadata.status
    assert status.code == NOT_FOUND and status.message


def test_results_of_a_failed_run_carry_its_error(session):
    assert session.code(
        loaded_executable_execute_request=message("LoadedExecutableExecuteRequest")(
            loaded_executable_handle=4711, result_array_handle=[20, 21]
        )
    ) == NOT_FOUND
    first = session.ready_status(20)
    assert first.code == NOT_FOUND and first.message == session.ready_status(21).message
    # And so does what is made of them.
    assert session.code(
        fully_replicated_shard_request=message("FullyReplicatedShardRequest")(array_handle=20, result_handle=22)
    ) == NOT_FOUND
    assert session.ready_status(22).message == first.message


# Arrays that cannot be


def bad_array_overrides():
    shape, dtype, sharding = message("ifrt.ShapeProto"), message("ifrt.DTypeProto"), message("ifrt.ShardingProto")
    strides = message("ifrt.proto.ByteStrides")
    yield "negative size", dict(shape=shape(dims=[-2, -2]))
    yield "size overflows", dict(shape=shape(dims=[2**62, 2**62]))
    yield "larger than the buffer", dict(shape=shape(dims=[3, 3]))
    yield "smaller than the buffer", dict(shape=shape(dims=[1, 3]))
    yield "unknown element type", dict(dtype=dtype(kind=98))
    yield "no element type", dict(dtype=dtype())
    yield "no sharding", dict(sharding=sharding())
    yield "unknown sharding", dict(sharding=sharding(serialized_sharding=serialized("NoSuchSharding")))
    yield "unparsable sharding", dict(sharding=sharding(serialized_sharding=serialized("HloSharding", b"\xff\xff")))
    yield "unknown device", dict(sharding=on_device(999))
    yield "negative device", dict(sharding=on_device(-1))
    yield "unknown memory kind", dict(sharding=on_device(0, memory_kind="attic"))
    yield "hlo sharding without devices", dict(sharding=hlo_sharding([], {}))
    yield "tiles without devices", dict(sharding=hlo_sharding([0, 1], dict(type=3, tile_assignment_dimensions=[4, 4])))
    yield "endless tiles", dict(
        sharding=hlo_sharding([0, 1], dict(type=3, tile_assignment_dimensions=[2**40, 2**40], iota_reshape_dims=[2**62]))
    )
    yield "negative tiles", dict(
        sharding=hlo_sharding([0, 1], dict(type=3, tile_assignment_dimensions=[-2, 1], iota_reshape_dims=[2]))
    )
    yield "strides of another rank", dict(byte_strides=strides(strides=[4]))
    yield "zero strides", dict(byte_strides=strides(strides=[0, 0]))
    yield "negative strides", dict(byte_strides=strides(strides=[-8, -4]))
    yield "far strides", dict(byte_strides=strides(strides=[2**62, 2**62]))


def hlo_sharding(devices, op_sharding):
    payload = message("ifrt.HloShardingProto")()
    payload.devices.device_ids.extend(devices)
    for name, value in op_sharding.items():
        field = payload.xla_op_sharding
        if isinstance(value, list):
            getattr(field, name).extend(value)
        else:
            setattr(field, name, value)
    return message("ifrt.ShardingProto")(serialized_sharding=serialized("HloSharding", payload))


@pytest.mark.parametrize("overrides", [pytest.param(value, id=name) for name, value in bad_array_overrides()])
def test_array_that_cannot_be(connection, session, overrides):
    stored = connection.store(session.session_id, 5, [bytes(16)])
    response = session.call(make_array_from_host_buffer_request=session.make_array_request(5, **overrides))
    stored.result()
    status = response.response_metadata.status
    # The buffer comes on another connection, so an error in it may show only when the array is used.
    later = session.ready_status(5)
    assert later.code in (INVALID_ARGUMENT, NOT_FOUND, UNIMPLEMENTED) and later.message
    if status.code != OK:
        assert (status.code, status.message) == (later.code, later.message)


def test_buffer_that_never_arrives_blocks_nothing_else(connection, session):
    assert session.code(make_array_from_host_buffer_request=session.make_array_request(30)) == OK
    waiting = session.send(check_value_ready_request=message("CheckValueReadyRequest")(value_handles=[30]))
    assert session.make_array(31, bytes(range(16))) == OK
    assert session.read(31, 32) == bytes(range(16))
    assert not session.answered(waiting)
    # It may still come.
    connection.store(session.session_id, 30, [b"\x01" * 16]).result()
    assert session.response(waiting).response_metadata.status.code == OK
    assert session.read(30, 33) == b"\x01" * 16


def test_session_that_ends_while_a_buffer_is_awaited(connection):
    stream = connection.stream().start()
    assert stream.code(make_array_from_host_buffer_request=stream.make_array_request(30)) == OK
    stream.send(check_value_ready_request=message("CheckValueReadyRequest")(value_handles=[30]))
    stream.send(copy_to_host_buffer_request=message("CopyToHostBufferRequest")(array_handle=30, host_buffer_handle=31))
    stream.cancel()


# Bulk data


@pytest.mark.parametrize(
    "chunks, size, code",
    [
        ([b"abcd"], 5, Code.DATA_LOSS),
        ([], 1, Code.DATA_LOSS),
        ([b"abcd", b"efgh"], 8, Code.OK),
        ([], 0, Code.OK),
        ([b"abcd"], 3, None),
        ([b"a"], 0, None),
        ([b"a"], -1, None),
        ([b"a"], 2**62, None),
    ],
)
def test_announced_size(connection, session, chunks, size, code):
    call = connection.store(session.session_id, 40, chunks, size=size)
    got = Code.OK if call.exception() is None else call.exception().code()
    assert got == code if code is not None else got != Code.OK


def test_store_header_refused(connection, session):
    for header in ([], [(STORE_HEADER, b"\xff\xff")]):
        assert connection.store(session.session_id, 41, [b"a"], metadata=header).exception().code() == Code.INVALID_ARGUMENT


def test_duplicate_buffer(connection, session):
    connection.store(session.session_id, 42, [b"first"]).result()
    assert connection.store(session.session_id, 42, [b"again"]).exception().code() == Code.ALREADY_EXISTS
    assert connection.lookup(session.session_id, 42) == b"first"


def test_unknown_buffer(connection, session):
    assert rpc_code(lambda: connection.lookup(session.session_id, 43)) == Code.NOT_FOUND
    assert rpc_code(lambda: connection.delete(session.session_id, 43)) == Code.NOT_FOUND


def test_unknown_session(connection, session):
    for wrong in (0, session.session_id ^ 1, 2**64 - 1):
        assert connection.store(wrong, 44, [b"a"]).exception().code() == Code.NOT_FOUND
        assert rpc_code(lambda: connection.lookup(wrong, 44)) == Code.NOT_FOUND
        assert rpc_code(lambda: connection.delete(wrong, 44)) == Code.NOT_FOUND


def test_handles_belong_to_their_session(connection, session):
    other = connection.stream().start()
    assert other.session_id != session.session_id
    assert session.make_array(50, bytes(16)) == OK
    connection.store(session.session_id, 51, [b"mine"]).result()
    assert other.ready_status(50).code == NOT_FOUND
    assert rpc_code(lambda: connection.lookup(other.session_id, 51)) == Code.NOT_FOUND
    other.cancel()
    assert session.ready_status(50).code == OK
    assert connection.lookup(session.session_id, 51) == b"mine"


def test_session_id_is_void_after_the_stream(connection):
    stream = connection.stream().start()
    connection.store(stream.session_id, 52, [b"data"]).result()
    stream.cancel()
    stream.end_status()
    # The server learns of the cancellation in its own time: ask until the session is gone.
    for _ in range(10_000):
        try:
            connection.lookup(stream.session_id, 52)
        except grpc.RpcError as error:
            assert error.code() == Code.NOT_FOUND
            return
    pytest.fail("the buffers of a session that has ended can still be read")


def test_client_that_dies_in_the_middle_of_an_upload(own_server):
    doomed = Connection(own_server.address)
    stream = doomed.stream().start()
    assert stream.code(make_array_from_host_buffer_request=stream.make_array_request(60)) == OK
    sent, never = threading.Event(), threading.Event()

    def chunks():
        yield bytes(8)
        sent.set()
        never.wait()

    upload = doomed.store(stream.session_id, 60, chunks(), size=16)
    assert sent.wait(raw_client.TIMEOUT_S)
    doomed.channel.close()
    never.set()
    assert upload.exception() is not None


def test_upload_that_is_given_up_fails_the_array(connection, session):
    assert session.code(make_array_from_host_buffer_request=session.make_array_request(61)) == OK
    assert connection.store(session.session_id, 61, [bytes(8)], size=16).exception().code() == Code.DATA_LOSS
    assert session.ready_status(61).code == DATA_LOSS


# Programs


def compile_request(program, options):
    return message("CompileRequest")(program=program, compile_options=options)


@pytest.mark.parametrize(
    "program, options",
    [
        (serialized("XlaProgram", b"this is no program"), serialized("XlaCompileOptions")),
        (serialized("XlaProgram", b""), serialized("XlaCompileOptions")),
        (serialized("XlaProgram", b"ML\xefR\x0dStableHLO_v1.13.7\x00" + bytes(200)), serialized("XlaCompileOptions")),
        (serialized("XlaProgram", b"module {}"), serialized("XlaCompileOptions", b"\xff\xff\xff")),
        (serialized("NoSuchProgram", b"x"), serialized("XlaCompileOptions")),
        (serialized("XlaProgram", b"x"), serialized("NoSuchOptions")),
    ],
    ids=["text", "empty", "cut", "options", "unknown program", "unknown options"],
)
def test_program_that_cannot_be_compiled(session, program, options):
    status = session.call(compile_request=compile_request(program, options)).response_metadata.status
    assert status.code in (INVALID_ARGUMENT, UNIMPLEMENTED) and status.message


# Everything else: valid requests with random damage


def damaged(data, rng):
    data = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        action = rng.randrange(4)
        if action == 0 and data:
            data[rng.randrange(len(data))] = rng.randrange(256)
        elif action == 1 and data:
            del data[rng.randrange(len(data)) :]
        elif action == 2:
            at = rng.randint(0, len(data))
            data[at:at] = rng.randbytes(rng.randint(1, 8))
        elif data:
            at = rng.randrange(len(data))
            data[at : at + 8] = b"\xff\xff\xff\xff\xff\xff\xff\x7f"
    return bytes(data)


def test_damaged_requests(connection):
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    stream = None
    members = [field for field in message("IfrtRequest").DESCRIPTOR.fields if field.name != "request_metadata"]
    for i in range(FUZZED_REQUESTS):
        if stream is None or stream.ended():
            stream = connection.stream().start()
            assert stream.make_array(1, bytes(16)) == OK
        request = stream.request()
        if i % 2:
            request.make_array_from_host_buffer_request.CopyFrom(stream.make_array_request(1000 + i))
        else:
            fill(getattr(request, rng.choice(members).name), rng)
        metadata = request.request_metadata.SerializeToString()
        request.ClearField("request_metadata")
        # The op_id stays whole, so that what is answered can be matched.
        stream.send_bytes(b"\x0a" + bytes([len(metadata)]) + metadata + damaged(request.SerializeToString(), rng))
    if not stream.ended():
        # Requests are taken in order: when this is answered, all were looked at.
        stream.settle(stream.send(check_value_ready_request=message("CheckValueReadyRequest")(value_handles=[1])))
    stream.cancel()


def fill(target, rng, depth=0):
    """Sets random fields of a message to small and extreme values."""
    target.SetInParent()
    numbers = [0, 1, 2, 7, 1000, 2**31 - 1]
    for field in target.DESCRIPTOR.fields:
        if rng.random() < 0.3 or (depth > 3 and field.message_type):
            continue
        if field.message_type and field.message_type.GetOptions().map_entry:
            continue
        if field.message_type:
            child = getattr(target, field.name)
            fill(child.add() if field.is_repeated else child, rng, depth + 1)
            continue
        if field.cpp_type == field.CPPTYPE_STRING:
            value = b"x" * rng.randrange(4) if field.type == field.TYPE_BYTES else rng.choice(["", "device", "x"])
        elif field.cpp_type == field.CPPTYPE_BOOL:
            value = rng.random() < 0.5
        elif field.cpp_type == field.CPPTYPE_ENUM:
            value = rng.choice(field.enum_type.values).number
        elif field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
            value = rng.choice([0.0, -1.5, 1e30])
        else:
            value = rng.choice(numbers)
        if field.is_repeated:
            getattr(target, field.name).extend([value] * rng.randrange(4))
        else:
            setattr(target, field.name, value)
