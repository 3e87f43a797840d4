"""The stream over which programs on the server call Python functions of this process.

It goes beside JAX's own connection, to the same server, and is opened when the first program with a callback is
lowered. The messages are those of helmway/net/python_callbacks.proto, read and written by hand here: the package
needs grpcio and nothing that would tie it to a version of protobuf.

Threads: grpcio's; one of ours that reads the stream; and one for each call that runs, as many as there are, up to
a limit. All of them are daemons, so that they never keep the interpreter; a handler at exit waits for what is
under way and ends the streams. None of this survives a fork: a forked child, like JAX's other threads and
connections, has lost it and must not run programs.
"""

import atexit
import os
import queue
import struct
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence

import numpy as np

_VERSION = 1
_METHOD = "/helmway.callbacks.PythonCallbacks/Serve"
_INSECURE = "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS"
_OPEN_TIMEOUT_S = 60.0

# Results up to this size go with the answer; longer ones in pieces before it, of which a few may wait for the
# transport.
_PIECE = 1 << 20
_MAX_PIECES_WAITING = 8
_MAX_ERROR_CHARACTERS = 32 << 10
# Functions that run at one time; further calls wait. They may wait for each other, so it is far above what a
# program needs.
_MAX_THREADS = 256
# How long the end of the process waits for functions that still run.
_EXIT_TIMEOUT_S = 5.0

# Of this process; programs carry it, so that no other process takes their calls for its own. 63 bits, since MLIR's
# Python takes no more.
CLIENT = int.from_bytes(os.urandom(8), "little") >> 1


# ---- Messages --------------------------------------------------------------------------------------------


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, *parts) -> bytes:
    """A field of bytes or text, or a message inside a message; the parts one after the other."""
    return b"".join((_varint(field << 3 | 2), _varint(sum(len(part) for part in parts)), *parts))


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """(number, value) of each field: an int, or the bytes of a text, a message or packed numbers."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    while at < len(message):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
        elif tag & 7 == 2:
            size = varint()
            if size > len(message) - at:
                raise ValueError("a message of the server is cut off")
            yield tag >> 3, message[at : at + size]
            at += size
        elif tag & 7 in (1, 5):
            size = 8 if tag & 7 == 1 else 4
            yield tag >> 3, message[at : at + size]
            at += size
        else:
            raise ValueError("a message of the server can't be read")


def _packed(value: int | memoryview) -> list[int]:
    """The numbers of a repeated field of varints, in either of its forms."""
    if isinstance(value, int):
        return [value]
    numbers, number, shift = [], 0, 0
    for byte in value:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(number)
            number = shift = 0
    return numbers


# ---- Values ----------------------------------------------------------------------------------------------

# Names of numpy dtypes by the number of an IFRT dtype. What numpy lacks is ml_dtypes'.
_DTYPES = {
    1: "bool", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "uint8", 7: "uint16", 8: "uint32", 9: "uint64",
    10: "float16", 11: "float32", 12: "float64", 15: "complex64", 16: "bfloat16", 18: "complex128",
    19: "float8_e5m2", 20: "float8_e4m3fn", 21: "int4", 22: "uint4", 23: "float8_e4m3b11fnuz",
    24: "float8_e5m2fnuz", 25: "float8_e4m3fnuz", 26: "int2", 27: "uint2", 28: "float8_e4m3", 29: "float8_e3m4",
    30: "float4_e2m1fn", 31: "float8_e8m0fnu", 32: "int1", 33: "uint1",
}  # fmt: skip
_TOKEN = 17
# Several of these share a byte on the device.
_BITS = {"int4": 4, "uint4": 4, "int2": 2, "uint2": 2, "float4_e2m1fn": 4, "int1": 1, "uint1": 1}


def _dtype(number: int) -> np.dtype:
    name = _DTYPES.get(number)
    if name is None:
        raise ValueError(f"arguments of the element type {number} are not supported")
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))


def _unpack(packed: np.ndarray, count: int, dtype: np.dtype) -> np.ndarray:
    """One array element a byte, from several."""
    bits = _BITS[dtype.name]
    values = packed[:, None] >> np.arange(0, 8, bits, dtype=np.uint8) & np.uint8((1 << bits) - 1)
    values = values.reshape(-1)[:count]
    if dtype.name.startswith("int"):
        # The sign belongs into the high bits.
        values = (values << np.uint8(8 - bits)).view(np.int8) >> np.int8(8 - bits)
        return values.astype(dtype)
    return values.astype(np.uint8).view(dtype)


def _pack(values: np.ndarray) -> np.ndarray:
    bits = _BITS[values.dtype.name]
    each = 8 // bits
    low = np.zeros(-(-values.size // each) * each, np.uint8)
    low[: values.size] = np.ascontiguousarray(values).reshape(-1).view(np.uint8) & np.uint8((1 << bits) - 1)
    shifted = low.reshape(-1, each) << np.arange(0, 8, bits, dtype=np.uint8)
    return np.bitwise_or.reduce(shifted, axis=1).astype(np.uint8)


def decode_arguments(arrays: Sequence[tuple[int, tuple[int, ...]]], data) -> list[np.ndarray | None]:
    """The arguments of a call: arrays that share `data`'s memory and must not be written; None for a token."""
    values, at = [], 0
    for type_number, dims in arrays:
        if type_number == _TOKEN:
            values.append(None)
            continue
        dtype = _dtype(type_number)
        count = int(np.prod(dims, dtype=np.int64))
        if dtype.name in _BITS:
            size = (count * _BITS[dtype.name] + 7) // 8
            value = _unpack(np.frombuffer(data, np.uint8, size, at), count, dtype)
        else:
            size = count * dtype.itemsize
            # numpy reads no empty buffers.
            value = np.frombuffer(data, dtype, count, at) if size else np.empty(count, dtype)
        at += size
        value = value.reshape(dims)
        value.flags.writeable = False
        values.append(value)
    if at != len(data):
        raise ValueError(f"{len(data)} bytes came for arguments of {at}")
    return values


def encode_results(results: Sequence) -> list[memoryview]:
    """What a function has returned, as the device wants it; None, a token, is nothing."""
    parts = []
    for result in results:
        if result is None:
            continue
        value = np.asarray(result)
        value = _pack(value) if value.dtype.name in _BITS else np.ascontiguousarray(value)
        if value.size:
            parts.append(memoryview(value.reshape(-1).view(np.uint8)))
    return parts


# ---- Threads for the functions -----------------------------------------------------------------------------


class _Threads:
    """Daemon threads, one for each task that runs. concurrent.futures' pools refuse work once the interpreter
    begins to end, when JAX still waits for callbacks."""

    def __init__(self):
        self._tasks = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._threads: list[threading.Thread] = []

    def run(self, task: Callable[[], None]) -> None:
        with self._lock:
            if self._idle:
                self._idle -= 1
            elif len(self._threads) < _MAX_THREADS:
                name = f"helmway-callback-{len(self._threads) + 1}"
                self._threads.append(threading.Thread(target=self._serve, name=name, daemon=True))
                self._threads[-1].start()
        self._tasks.put(task)

    def stop(self, timeout: float) -> None:
        """Ends the threads, and waits for `timeout` seconds for those that are in a task. The interpreter ends a
        daemon thread wherever it next takes the GIL; inside JAX's C++ code that aborts the process."""
        with self._lock:
            threads, self._threads, self._idle = self._threads, [], 0
        for _ in threads:
            self._tasks.put(None)
        until = time.monotonic() + timeout
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))

    def _serve(self):
        while (task := self._tasks.get()) is not None:
            task()
            # What the task holds must not outlive it: it may be arrays of JAX.
            del task
            with self._lock:
                self._idle += 1


# ---- The stream ----------------------------------------------------------------------------------------------


class _Call:
    """A call on its way in."""

    def __init__(self, number: int, callback: int, arrays, size: int):
        self.number = number
        self.callback = callback
        self.arrays = arrays
        self.data = None
        self.missing = size

    def take(self, data: memoryview) -> None:
        if self.missing == len(data) and self.data is None:
            self.data = data
        else:
            if self.data is None:
                self.data = np.empty(self.missing, np.uint8)
            at = len(self.data) - self.missing
            self.data[at : at + len(data)] = np.frombuffer(data, np.uint8)
        self.missing -= len(data)


class Handle:
    """Keeps a function callable for as long as it lives."""

    __slots__ = ("index", "__weakref__")

    def __init__(self, index: int):
        self.index = index


class Connection:
    """The callbacks of one session of this process with a server. Any thread."""

    def __init__(self, target: str, key: str):
        self._target = target
        self._key = key
        self._lock = threading.Lock()
        self._functions: dict[int, Callable] = {}
        # Functions that JAX has let go of, and the server has not.
        self._dropped: set[int] = set()
        self._stream: _Stream | None = None
        self._next_index = 1

    def open(self) -> None:
        """Opens the stream unless it is open. RuntimeError says why it cannot."""
        with self._lock:
            if self._stream is not None and self._stream.is_open():
                return
            self._stream = _Stream(self, self._target, self._key)
            dropped = list(self._dropped)
        if dropped:
            self._stream.forget(dropped)

    def add(self, function: Callable) -> Handle:
        """`function` takes and returns sequences of arrays. It stays as long as the handle lives, and then until
        no program on the server has it."""
        with self._lock:
            index = self._next_index
            self._next_index += 1
            self._functions[index] = function
        handle = Handle(index)
        weakref.finalize(handle, _drop, weakref.ref(self), index).atexit = False
        return handle

    def function(self, index: int) -> Callable | None:
        return self._functions.get(index)

    def forgotten(self, indices: Sequence[int]) -> None:
        for index in indices:
            self._functions.pop(index, None)
            self._dropped.discard(index)

    def close(self) -> None:
        stream = self._stream
        if stream is not None:
            stream.close()


def _drop(connection_ref, index: int) -> None:
    # Runs wherever the garbage collector happens to run, so it takes no lock.
    connection = connection_ref()
    if connection is None:
        return
    connection._dropped.add(index)
    stream = connection._stream
    if stream is not None and stream.is_open():
        stream.forget([index])
    else:
        # Its programs cannot call any more.
        connection.forgotten([index])


class _Stream:
    """One gRPC stream, from its beginning to its end."""

    def __init__(self, connection: Connection, target: str, key: str):
        import grpc

        self._connection = connection
        self._target = target
        # SimpleQueue: the garbage collector may put into it while this thread does.
        self._outgoing = queue.SimpleQueue()
        self._room = threading.BoundedSemaphore(_MAX_PIECES_WAITING)
        self._ready = threading.Event()
        self._ended = threading.Event()
        self._error = ""
        self._calls: dict[int, _Call] = {}
        options = [
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        address = target.removeprefix("grpc://")
        # As JAX's client decides it.
        if os.environ.get(_INSECURE) == "true":
            self._channel = grpc.insecure_channel(address, options)
        else:
            self._channel = grpc.secure_channel(address, grpc.alts_channel_credentials(), options)
        hello = _number(1, _VERSION) + _bytes(2, key.encode()) + b"\x19" + struct.pack("<Q", CLIENT)
        self._outgoing.put(_bytes(1, hello))
        self._call = self._channel.stream_stream(_METHOD)(self._messages(), wait_for_ready=True)
        self._reader = threading.Thread(target=self._read, name="helmway-callbacks", daemon=True)
        self._reader.start()
        timeout = float(os.environ.get("PATHWAYS_PROXY_CONNECTION_TIMEOUT_SECS") or _OPEN_TIMEOUT_S)
        if not self._ready.wait(timeout) or self._ended.is_set():
            self.close()
            raise RuntimeError(
                f"cannot open the stream for Python callbacks to {target}: {self._error or 'no answer'}"
            )

    def is_open(self) -> bool:
        return not self._ended.is_set()

    def forget(self, indices: Sequence[int]) -> None:
        self._outgoing.put(_bytes(4, _bytes(1, b"".join(_varint(index) for index in indices))))

    def close(self) -> None:
        self._ended.set()
        self._outgoing.put(None)
        self._call.cancel()
        self._channel.close()
        if threading.current_thread() is not self._reader:
            self._reader.join(5)

    def _messages(self) -> Iterator[bytes]:
        while (message := self._outgoing.get()) is not None:
            if isinstance(message, tuple):
                self._room.release()
                (message,) = message
            yield message

    def _read(self) -> None:
        import grpc

        try:
            for message in self._call:
                self._take(memoryview(message))
            self._error = "the server has ended it"
        except grpc.RpcError as error:
            self._error = f"{error.code().name}: {error.details()}"
        except Exception as error:  # pylint: disable=broad-except
            self._error = f"{type(error).__name__}: {error}"
            self._call.cancel()
        finally:
            self._ended.set()
            self._ready.set()
            self._outgoing.put(None)

    def _take(self, message: memoryview) -> None:
        for kind, body in _fields(message):
            if kind == 1:
                self._ready.set()
            elif kind == 2:
                self._take_call(body)
            elif kind == 3:
                number, data = 0, memoryview(b"")
                for field, value in _fields(body):
                    if field == 1:
                        number = value
                    elif field == 2:
                        data = value
                call = self._calls[number]
                call.take(data)
                self._start_if_complete(call)
            elif kind == 4:
                for field, value in _fields(body):
                    if field == 1:
                        self._connection.forgotten(_packed(value))

    def _take_call(self, body: memoryview) -> None:
        number = callback = size = 0
        arrays, data = [], memoryview(b"")
        for field, value in _fields(body):
            if field == 1:
                number = value
            elif field == 2:
                callback = value
            elif field == 3:
                type_number, dims = 0, []
                for inner, inner_value in _fields(value):
                    if inner == 1:
                        type_number = inner_value
                    elif inner == 2:
                        dims += _packed(inner_value)
                arrays.append((type_number, tuple(dims)))
            elif field == 4:
                size = value
            elif field == 5:
                data = value
        call = _Call(number, callback, arrays, size)
        if len(data) or not size:
            call.take(data)
        self._calls[number] = call
        self._start_if_complete(call)

    def _start_if_complete(self, call: _Call) -> None:
        if call.missing == 0:
            del self._calls[call.number]
            _threads.run(lambda: self._run(call))

    def _run(self, call: _Call) -> None:
        """Runs the function, on a thread of its own."""
        try:
            parts = self._result_of(call)
        except BaseException as error:  # pylint: disable=broad-except
            self._outgoing.put(_bytes(3, _number(1, call.number), _bytes(3, _describe(error))))
            return
        number = _number(1, call.number)
        if sum(len(part) for part in parts) > _PIECE:
            for part in parts:
                for at in range(0, len(part), _PIECE):
                    piece = _bytes(2, number, _bytes(2, part[at : at + _PIECE]))
                    while not self._room.acquire(timeout=1):
                        if self._ended.is_set():
                            return
                    self._outgoing.put((piece,))
            parts = []
        self._outgoing.put(_bytes(3, number, _bytes(2, *parts)))

    def _result_of(self, call: _Call) -> list[memoryview]:
        function = self._connection.function(call.callback)
        if function is None:
            raise RuntimeError(f"Python callback {call.callback} is no more")
        return encode_results(function(*decode_arguments(call.arrays, call.data)))


def _describe(error: BaseException) -> bytes:
    """The text that a failed callback has in JAX."""
    trace = error.__traceback__
    # Without the frames of this file.
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace)
    text = "CpuCallback error calling callback: " + "".join(lines).rstrip()
    if len(text) > _MAX_ERROR_CHARACTERS:
        half = _MAX_ERROR_CHARACTERS // 2
        text = f"{text[:half]}\n[...]\n{text[-half:]}"
    return text.encode(errors="replace")


# ---- All connections of this process ----------------------------------------------------------------------------

_threads = _Threads()
_lock = threading.Lock()
_connections: dict[str, Connection] = {}


def connection(target: str, key: str) -> Connection:
    """The connection for the session that has this key, with an open stream. RuntimeError if there can be none."""
    with _lock:
        found = _connections.get(key)
        if found is None:
            if not _connections:
                atexit.register(_at_exit)
                os.register_at_fork(after_in_child=_after_fork)
            found = _connections[key] = Connection(target, key)
    found.open()
    return found


def _at_exit() -> None:
    # Runs before the handler in which JAX waits for side effects, which may need the streams.
    jax = sys.modules.get("jax")
    try:
        if jax is not None:
            jax.effects_barrier()
    finally:
        with _lock:
            found = list(_connections.values())
        for one in found:
            one.close()
        _threads.stop(_EXIT_TIMEOUT_S)


def _after_fork() -> None:
    # The child has neither the threads nor the connections. What there is of them is left alone.
    global _threads, _lock, _connections
    _abandoned.append((_threads, _connections))
    _threads, _lock, _connections = _Threads(), threading.Lock(), {}


_abandoned: list = []
