"""A client of the IFRT proxy protocol that can also misbehave; talks gRPC, needs no JAX.

Messages are made from the schemas in helmway/wire by protoc at run time.
"""

import functools
import os
import queue
import threading

import grpc
from conftest import seconds
from google.protobuf import message_factory
from schemas import ROOT, pool_of

_SERVICE = "/xla.ifrt.proxy.GrpcIfrtService/"
SESSION_HEADER = "ifrt-proxy-grpc-ifrt-session-metadata-bin"
STORE_HEADER = "ifrt-proxy-grpc-host-buffer-store-metadata-bin"
TIMEOUT_S = seconds(60)

# tensorflow.error.Code, the same numbers as gRPC's.
OK, INVALID_ARGUMENT, NOT_FOUND, UNIMPLEMENTED, DATA_LOSS = 0, 3, 5, 12, 15
# xla.ifrt.DTypeProto.Kind
PRED, F32, TOKEN, STRING = 1, 11, 17, 99
FIRST_SERVER_HANDLE = 1 << 48


@functools.cache
def _pool():
    return pool_of(*sorted(str(path.relative_to(ROOT)) for path in (ROOT / "helmway" / "wire").glob("*.proto")))


@functools.cache
def message(name):
    """The class of a message: of package xla.ifrt.proxy, or "ifrt.X" of xla.ifrt, "ifrt.proto.X" of xla.ifrt.proto."""
    full = f"xla.{name}" if name.startswith("ifrt.") else f"xla.ifrt.proxy.{name}"
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(full))


def serialized(type_name, data=b""):
    if not isinstance(data, bytes):
        data = data.SerializeToString()
    return message("ifrt.Serialized")(type_name=f"xla::ifrt::{type_name}", data=data)


def device_id(number):
    """The id of a device of the tests' server (conftest.py): devices are numbered on each worker."""
    workers = int(os.environ.get("HELMWAY_TEST_WORKERS", "0")) or 1
    per_worker = max(1, 8 // workers)
    return number // per_worker * 2048 + number % per_worker if number < 8 else number


def on_device(device, memory_kind=None):
    """A ShardingProto: the whole array on one device."""
    single = message("ifrt.SingleDeviceShardingProto")(device_id=device_id(device))
    if memory_kind is not None:
        single.memory_kind = memory_kind
    return message("ifrt.ShardingProto")(serialized_sharding=serialized("SingleDeviceSharding", single))


def hlo_sharding(devices, memory_kind=None, **op_sharding):
    """A ShardingProto over several devices; replicated unless the members of an xla.OpSharding say otherwise."""
    payload = message("ifrt.HloShardingProto")()
    payload.devices.device_ids.extend(map(device_id, devices))
    for name, value in op_sharding.items():
        if isinstance(value, list):
            getattr(payload.xla_op_sharding, name).extend(value)
        else:
            setattr(payload.xla_op_sharding, name, value)
    if memory_kind is not None:
        payload.memory_kind = memory_kind
    return message("ifrt.ShardingProto")(serialized_sharding=serialized("HloSharding", payload))


def split(devices, rank, memory_kind=None):
    """A ShardingProto: the first dimension in equal parts over the devices."""
    return hlo_sharding(
        devices, memory_kind, type=3, tile_assignment_dimensions=[len(devices)] + [1] * (rank - 1),
        iota_reshape_dims=[len(devices)], iota_transpose_perm=[0],
    )


def array_spec(sharding, dims=(2, 2), kind=F32, layout=None):
    """An ArraySpecProto; `layout` is bytes."""
    spec = message("ifrt.ArraySpecProto")(sharding=sharding)
    spec.dtype.kind = kind
    spec.shape.dims.extend(dims)
    if layout is not None:
        spec.layout = layout
    return spec


def version(protocol=25, serdes=6):
    return message("IfrtProxyVersion")(protocol_version=protocol, ifrt_serdes_version_number=serdes)


class Connection:
    """One channel to the server."""

    def __init__(self, address):
        self.channel = grpc.insecure_channel(
            address, options=[("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.channel.close()

    def method(self, kind, name, request, response):
        """A gRPC callable; `request` None means that raw bytes are sent as they are."""
        return getattr(self.channel, kind)(
            _SERVICE + name,
            request_serializer=request and message(request).SerializeToString,
            response_deserializer=message(response).FromString,
        )

    def get_version(self, request):
        call = self.method("unary_unary", "GetVersion", "GrpcGetVersionRequest", "GrpcGetVersionResponse")
        return call(request, timeout=TIMEOUT_S)

    def store(self, session_id, handle, chunks, size=None, metadata=None):
        """HostBufferStore; `chunks` is a list or an iterator of bytes."""
        header = message("GrpcHostBufferStoreMetadata")(
            session_id=session_id, handle=handle, buffer_size=sum(map(len, chunks)) if size is None else size
        )
        call = self.method(
            "stream_unary", "HostBufferStore", "GrpcHostBufferStoreRequest", "GrpcHostBufferStoreResponse"
        )
        if metadata is None:
            metadata = [(STORE_HEADER, header.SerializeToString())]
        request = message("GrpcHostBufferStoreRequest")
        return call.future((request(data=chunk) for chunk in chunks), metadata=metadata, timeout=TIMEOUT_S)

    def lookup(self, session_id, handle):
        call = self.method(
            "unary_stream", "HostBufferLookup", "GrpcHostBufferLookupRequest", "GrpcHostBufferLookupResponse"
        )
        request = message("GrpcHostBufferLookupRequest")(session_id=session_id, handle=handle)
        return b"".join(response.data for response in call(request, timeout=TIMEOUT_S))

    def delete(self, session_id, handle):
        call = self.method(
            "unary_unary", "HostBufferDelete", "GrpcHostBufferDeleteRequest", "GrpcHostBufferDeleteResponse"
        )
        request = message("GrpcHostBufferDeleteRequest")(session_id=session_id, handle=handle)
        return call(request, timeout=TIMEOUT_S)

    def stream(self, metadata=None):
        """IfrtSession with any header and any bytes."""
        if metadata is None:
            header = message("GrpcIfrtSessionMetadata")(version=version())
            metadata = [(SESSION_HEADER, header.SerializeToString())]
        return Stream(self, metadata)


class Stream:
    """One IfrtSession stream. Responses are kept by op_id."""

    def __init__(self, connection, metadata):
        self._connection = connection
        self._outgoing = queue.SimpleQueue()
        call = connection.method("stream_stream", "IfrtSession", None, "IfrtResponse")
        self._call = call(iter(self._outgoing.get, None), metadata=metadata)
        self._changed = threading.Condition()
        self._responses = {}
        self._ended = False
        self._next_op_id = 1
        self.session_id = 0
        self.init = None
        threading.Thread(target=self._receive, daemon=True).start()

    def _receive(self):
        try:
            for response in self._call:
                with self._changed:
                    self._responses[response.response_metadata.op_id] = response
                    self._changed.notify_all()
        except grpc.RpcError:
            pass
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def ended(self):
        with self._changed:
            return self._ended

    def send_bytes(self, data):
        self._outgoing.put(data)

    def request(self, **member):
        """An IfrtRequest with the next op_id."""
        request = message("IfrtRequest")(**member)
        request.request_metadata.op_id = self._next_op_id
        self._next_op_id += 1
        return request

    def send(self, **member):
        request = self.request(**member)
        self.send_bytes(request.SerializeToString())
        return request.request_metadata.op_id

    def answered(self, op_id):
        with self._changed:
            return op_id in self._responses

    def response(self, op_id):
        """The response to a request; fails if the stream ends first or none comes."""
        with self._changed:
            done = self._changed.wait_for(lambda: op_id in self._responses or self._ended, TIMEOUT_S)
            assert op_id in self._responses, "the stream ended" if done else f"no response to request {op_id}"
            return self._responses.pop(op_id)

    def call(self, **member):
        return self.response(self.send(**member))

    def code(self, **member):
        """Status code of the response."""
        return self.call(**member).response_metadata.status.code

    def start(self):
        """Init; returns self."""
        response = self.call(init_request=message("InitRequest")())
        assert response.response_metadata.status.code == OK, response
        self.init = response.init_response
        self.session_id = self.init.session_id
        return self

    def end_status(self):
        """Waits until the stream ends; returns the gRPC status code."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._ended, TIMEOUT_S), "the stream did not end"
        return self._call.code()

    def settle(self, op_id):
        """Waits for an answer or for the end of the stream, whichever comes first; True if answered."""
        with self._changed:
            assert self._changed.wait_for(lambda: op_id in self._responses or self._ended, TIMEOUT_S), "neither"
            return op_id in self._responses

    def cancel(self):
        self._call.cancel()
        self._outgoing.put(None)

    # Requests that several tests make.

    def make_array_request(self, handle, dims=(2, 2), device=None, **overrides):
        fields = dict(
            dtype=message("ifrt.DTypeProto")(kind=F32),
            shape=message("ifrt.ShapeProto")(dims=dims),
            sharding=on_device(0 if device is None else device),
            host_buffer_handle=handle,
            array_handle=handle,
        )
        fields.update(overrides)
        return message("MakeArrayFromHostBufferRequest")(**fields)

    def make_array(self, handle, data, dims=(2, 2), **overrides):
        """Uploads data and makes an array of it; returns the status code."""
        stored = self._connection.store(self.session_id, handle, [data])
        code = self.code(make_array_from_host_buffer_request=self.make_array_request(handle, dims, **overrides))
        stored.result()
        return code

    def ready_status(self, handle):
        response = self.call(check_value_ready_request=message("CheckValueReadyRequest")(value_handles=[handle]))
        return response.response_metadata.status

    def compile(self, code, devices=(0,)):
        """Compiles MLIR text for one partition per device; returns the handle."""
        options = message("ifrt.XlaCompileOptionsProto")()
        build = options.compile_options.executable_build_options
        build.device_ordinal, build.num_replicas, build.num_partitions = -1, 1, len(devices)
        build.use_spmd_partitioning = len(devices) > 1
        build.device_assignment.replica_count = 1
        build.device_assignment.computation_count = len(devices)
        for device in devices:
            build.device_assignment.computation_devices.add(replica_device_ids=[device_id(device)])
        response = self.call(
            compile_request=message("CompileRequest")(
                program=serialized("XlaProgram", code.encode()),
                compile_options=serialized("XlaCompileOptions", options),
            )
        )
        assert response.response_metadata.status.code == OK, response
        return response.compile_response.loaded_executable_handle

    def execute(self, executable, arguments, results=(), **fields):
        """The response to one run; without `results` as the first one of a client."""
        request = message("LoadedExecutableExecuteRequest")(
            loaded_executable_handle=executable, args_handles=arguments, result_array_handle=results, **fields
        )
        return self.call(loaded_executable_execute_request=request)

    def read(self, array, buffer):
        response = self.call(
            copy_to_host_buffer_request=message("CopyToHostBufferRequest")(array_handle=array, host_buffer_handle=buffer)
        )
        assert response.response_metadata.status.code == OK, response
        data = self._connection.lookup(self.session_id, buffer)
        self._connection.delete(self.session_id, buffer)
        return data


def round_trip(address):
    """A well-behaved session: put an array and read it back."""
    with Connection(address) as connection:
        stream = connection.stream().start()
        data = bytes(range(16))
        assert stream.make_array(1, data) == OK
        assert stream.ready_status(1).code == OK
        assert stream.read(1, 2) == data
        stream.cancel()
