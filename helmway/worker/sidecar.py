"""The sidecar: a process beside a worker that runs the Python functions of one client's session (colocated Python).

A part of the program `helmway`, which starts it as `python -c ...` and gives it this text over the connection. It needs
jax and cloudpickle, in the client's versions; nothing of Helmway is installed for it.

The connection is a stream socket. A message, in either direction, is
  <u32 bytes of JSON> <u32 flags> <u64 bytes of the region> <JSON, UTF-8> <region>
With flag 1 the region is the contents of a memory file whose descriptor comes with the first byte, else it follows. It
holds the bytes of arrays, which the JSON names by their place; arrays of strings are serialized
xla.ifrt.proto.StringArrayContents, others dense and row-major, narrow types one element a byte. Offsets are multiples
of 64. A memory file can't be made smaller, and whoever got it may keep it.

From the worker, which begins:
  {start, process, hosts, parent}   hosts: [[process, devices, slice, task]...], all that the session has, in order
  {load, call, name, x64}           the region is the pickled program; `load` its number
  {run, call, stream, inputs}       inputs: [[[device, offset, size]...]...]: the shards of this host, of each argument
  {unload, stream}
  {shared}                          what another sidecar of the session has said with `share`
To the worker:
  {ready, python, jax} or {failed}  answers start
  {share}                           [[key, base64 value]...] for the stores of the others; with a third member: who has
                                    given this is not to join
  {ends}                            it will end at once, and why
  {call, outputs}                   answers load and run; outputs: as inputs
  {call, error}

Runs and unloads of one stream happen in order, each stream on a thread of its own. Programs are loaded one after the
other. At the end of the connection the process group is killed.
"""

import array
import base64
import contextlib
import ctypes
import faulthandler
import gc
import json
import mmap
import os
import queue
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import traceback

_PREFIX = struct.Struct("<IIQ")
_IN_FILE = 1
_ALIGNMENT = 64
# Regions up to this size follow their message; larger ones are memory files.
_MAX_INLINE = 64 << 10
_MAX_ERROR_CHARACTERS = 32 << 10
_IDLE_THREAD_S = 60.0
_GARBAGE_DELAY_S = 0.1
_PR_SET_PDEATHSIG = 1
# Where XLA's CPU client keeps the addresses of its collectives, and how often they are looked for.
_COLLECTIVES_KEYS = "cpu:gloo/"
_SHARE_INTERVAL_S = 0.005
# linux/fcntl.h: SEAL | SHRINK | GROW.
_F_ADD_SEALS, _SEALS = 1033, 1 | 2 | 4


# ---- Messages --------------------------------------------------------------------------------------------


class Connection:
    """Messages over the socket. Any thread sends; one receives."""

    def __init__(self, stream: socket.socket):
        self._stream = stream
        self._sending = threading.Lock()

    def receive(self) -> tuple[dict, memoryview]:
        """The next message and its region. EOFError at the end."""
        prefix, fds = bytearray(), []
        while len(prefix) < _PREFIX.size:
            data, control, _, _ = self._stream.recvmsg(
                _PREFIX.size - len(prefix), socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC
            )
            for level, kind, content in control:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds.extend(array.array("i", content))
            if not data:
                raise EOFError
            prefix += data
        json_size, flags, size = _PREFIX.unpack(prefix)
        message = json.loads(bytes(self._exactly(json_size)))
        if not flags & _IN_FILE:
            return message, self._exactly(size)
        mapped = mmap.mmap(fds[0], size, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ)
        os.close(fds[0])
        # Children that a function forks have no use for it.
        mapped.madvise(mmap.MADV_DONTFORK)
        # The arrays that are made of it keep it alive.
        return message, memoryview(mapped)

    def _exactly(self, size: int) -> memoryview:
        data = memoryview(bytearray(size))
        at = 0
        while at < size:
            got = self._stream.recv_into(data[at:])
            if not got:
                raise EOFError
            at += got
        return data

    def send(self, message: dict, parts=()) -> None:
        """`parts`: the region, as (offset, bytes)... in order."""
        size = parts[-1][0] + len(parts[-1][1]) if parts else 0
        text = json.dumps(message).encode()
        file = None
        tail = b""
        if size > _MAX_INLINE:
            file = _memory_file(size, parts)
        elif size:
            region = bytearray(size)
            for offset, data in parts:
                region[offset : offset + len(data)] = data
            tail = bytes(region)
        prefix = _PREFIX.pack(len(text), 0 if file is None else _IN_FILE, size)
        fds = [] if file is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file]))]
        try:
            with self._sending:
                sent = self._stream.sendmsg([prefix], fds)
                self._stream.sendall(prefix[sent:] + text + tail)
        finally:
            if file is not None:
                os.close(file)


def _memory_file(size: int, parts) -> int:
    import fcntl

    file = os.memfd_create("helmway-sidecar", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(file, size)
        fcntl.fcntl(file, _F_ADD_SEALS, _SEALS)
        for offset, data in parts:
            data = memoryview(data)
            while len(data):
                written = os.pwrite(file, data, offset)
                data, offset = data[written:], offset + written
    except BaseException:
        os.close(file)
        raise
    return file


def _strings_to_bytes(values) -> bytes:
    """A StringArrayContents."""
    out = bytearray()
    for value in values:
        encoded = value.encode() if isinstance(value, str) else bytes(value)
        out.append(1 << 3 | 2)
        size = len(encoded)
        while size > 0x7F:
            out.append(size & 0x7F | 0x80)
            size >>= 7
        out.append(size)
        out += encoded
    return bytes(out)


def _strings_from_bytes(data) -> list[str]:
    values, at = [], 0
    while at < len(data):
        if data[at] != 1 << 3 | 2:
            raise ValueError("strings that can't be read")
        at += 1
        size = shift = 0
        while True:
            byte = data[at]
            at += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        values.append(bytes(data[at : at + size]).decode())
        at += size
    return values


# ---- Errors ----------------------------------------------------------------------------------------------


def _describe(error: BaseException) -> str:
    """`Type: message`, and below it the traceback from the first frame that is not ours."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:
        text = f"{type(error).__name__} (whose text can't be made)"
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    try:
        lines = "".join(traceback.format_exception(type(error), error, trace))
    except Exception:
        lines = ""
    if len(lines) > _MAX_ERROR_CHARACTERS:
        lines = "...\n" + lines[-_MAX_ERROR_CHARACTERS:]
    # Python's strings may hold what is no text.
    return f"{text[:_MAX_ERROR_CHARACTERS]}\n{lines}".rstrip("\n").encode(errors="replace").decode()


def _release_frames(error: BaseException) -> None:
    """Frames hold what the function used, for as long as anybody holds the error: JAX keeps those of constructors."""
    waiting, seen = [error], set()
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        waiting += [one.__cause__, one.__context__]
        one.__traceback__ = one.__cause__ = one.__context__ = None


class WrongResult(Exception):
    """What a function returned is not what its program says."""


# ---- JAX -------------------------------------------------------------------------------------------------

# A client whose devices have these ids times the number of a process, plus the device's number there.
_DEVICES_OF_A_PROCESS = 2048


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _field(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _topology_of(process: int, devices: int, slice_index: int, task: int) -> bytes:
    """An xla.LocalTopologyProto."""
    topology = _number(1, process)
    for ordinal in range(devices):
        id = process * _DEVICES_OF_A_PROCESS + ordinal
        name = f"TFRT_CPU_{id}".encode()
        device = _number(1, ordinal) + _number(4, id) + _field(8, b"cpu") + _field(9, name) + _field(10, name)
        for key, value in (("slice_index", slice_index), ("virtual_task_index", task), ("colocation_id", id)):
            device += _field(11, _field(1, key.encode()) + _field(2, _number(3, value)))
        topology += _field(3, device)
    return topology


def _make_backend(process: int, hosts: list) -> tuple:
    """JAX with the CPU devices that the client sees, of which those of `process` are this process's own.

    A client learns of other hosts from a key-value store. This one has a store of its own, which says what the worker
    said, and does not die with other sidecars. Collectives find their peers through keys in the store, which the
    sidecars of a session give to each other. Returns what must live as long as JAX, the store last.
    """
    from jax._src import xla_bridge
    from jax._src.lib import _jax, xla_client

    own = next(host for host in hosts if host[0] == process)
    entries = [_topology_of(*host) for host in hosts]
    if len(entries) == 1 and process != 0:
        # The ids of a client that is alone begin with 0. A host without devices counts nowhere else.
        entries.append(_topology_of(process + 1, 0, 0, 0))
    with tempfile.TemporaryDirectory() as folder:
        address = f"unix:{folder}/store"
        service = _jax.get_distributed_runtime_service(address, 1)
        store = _jax.get_distributed_runtime_client(address, 0, init_timeout=60, use_compression=False)
        store.connect()
        if process == 0:
            # It puts the list together.
            for number, entry in enumerate(entries[1:], 1):
                store.key_value_set_bytes(f"cpu:local_topology/cpu/{number}", entry)
        else:
            store.key_value_set_bytes("cpu:global_topology/cpu", b"".join(_field(1, entry) for entry in entries))
        client = xla_client.make_cpu_client(
            asynchronous=True,
            distributed_client=store,
            node_id=process,
            num_nodes=len(entries),
            num_devices=own[1],
            collectives=_jax.make_gloo_tcp_collectives(distributed_client=store) if len(hosts) > 1 else None,
            get_local_topology_timeout_minutes=1,
            get_global_topology_timeout_minutes=1,
        )
    xla_bridge._backend_factories["cpu"] = xla_bridge.BackendRegistration(lambda: client, 0, False, False)
    return service, client, store


def _put_without_peers() -> None:
    """Lets device_put place a host array over devices of several hosts: it would compare the values with theirs."""
    from jax.experimental import multihost_utils

    compare = multihost_utils.assert_equal

    def assert_equal(*args, **kwargs):
        if sys._getframe(1).f_globals.get("__name__") != "jax._src.dispatch":
            compare(*args, **kwargs)

    multihost_utils.assert_equal = assert_equal


class Program:
    """A function of the client, unpickled, and what it takes and returns."""

    def __init__(self, name: str, pickled: bytes, x64: bool):
        from jax.experimental.colocated_python import serialization

        self.name = name
        with _loading, _x64(x64):
            (
                self.function,
                self.in_tree,
                self.in_specs,
                self.out_tree,
                self.out_specs,
                devices,
            ) = serialization._deserialize(pickled)
        self.x64 = x64
        self.default_device = devices.addressable_device_list[0]
        self.spans_hosts = len(devices) > len(devices.addressable_device_list)

    def run(self, inputs: list, region: memoryview) -> tuple[list, list]:
        """Calls the function. Returns the outputs' places in a region, and that region's parts."""
        import jax

        with _x64(self.x64), jax.default_device(self.default_device):
            leaves = [_to_array(spec, shards, region) for spec, shards in zip(self.in_specs, inputs, strict=True)]
            del region
            args, kwargs = jax.tree_util.tree_unflatten(self.in_tree, leaves)
            del leaves
            results, tree = jax.tree_util.tree_flatten(self.function(*args, **kwargs))
            del args, kwargs
            self._check(results, tree)
            jax.block_until_ready(results)
            outputs, parts, at = [], [], 0
            for result, spec in zip(results, self.out_specs, strict=True):
                places = []
                for shard in result.addressable_shards:
                    data = _to_bytes(shard.data, spec.dtype)
                    places.append([shard.device.id, at, len(data)])
                    if len(data):
                        parts.append((at, data))
                        at += -(-len(data) // _ALIGNMENT) * _ALIGNMENT
                outputs.append(places)
            return outputs, parts

    def _check(self, results: list, tree) -> None:
        import jax

        if tree != self.out_tree:
            raise WrongResult(f"the function returned the structure {tree}, its program has {self.out_tree}")
        for number, (result, spec) in enumerate(zip(results, self.out_specs, strict=True)):
            if not isinstance(result, jax.Array):
                raise WrongResult(f"output {number} is a {type(result).__name__}, it must be a jax.Array")
            if result.shape != spec.shape or result.dtype != spec.dtype:
                raise WrongResult(
                    f"output {number} is {result.dtype}{list(result.shape)}, "
                    f"its program has {spec.dtype}{list(spec.shape)}"
                )
            if result.sharding.is_equivalent_to(spec.sharding, result.ndim):
                continue
            # JAX describes results by a text that it makes on each host alone.
            local = result.sharding.is_fully_replicated and result.ndim == 0 and _is_string(spec.dtype)
            if not local or result.sharding.device_set != spec.sharding.addressable_devices:
                raise WrongResult(
                    f"output {number} has the sharding {result.sharding}, its program has {spec.sharding}"
                )


def _x64(wanted: bool):
    """64-bit types in what the thread does. The client's settings don't come with its programs."""
    if not wanted:
        return contextlib.nullcontext()
    import jax

    return jax.enable_x64(True)


def _is_string(dtype) -> bool:
    return getattr(dtype, "kind", None) == "T"


def _to_array(spec, shards: list, region: memoryview):
    import jax
    import numpy as np
    from jax._src.lib import xla_client

    shape = spec.sharding.shard_shape(spec.shape)
    by_device = {}
    for device, offset, size in shards:
        data = region[offset : offset + size]
        if _is_string(spec.dtype):
            by_device[device] = np.array(_strings_from_bytes(data), dtype=spec.dtype).reshape(shape)
        elif size:
            by_device[device] = np.frombuffer(data, np.uint8).view(spec.dtype).reshape(shape)
        else:
            by_device[device] = np.empty(shape, spec.dtype)
    devices = list(spec.sharding._internal_device_list.addressable_device_list)
    values = [by_device[device.id] for device in devices]
    if _is_string(spec.dtype):
        parts = [jax.device_put(value, device) for value, device in zip(values, devices, strict=True)]
        return jax.make_array_from_single_device_arrays(spec.shape, spec.sharding, parts, dtype=spec.dtype)
    aval = jax.core.ShapedArray(spec.shape, spec.dtype)
    return xla_client.batched_device_put(aval, spec.sharding, values, devices)


def _to_bytes(shard, dtype):
    import numpy as np

    value = np.asarray(shard)
    if _is_string(dtype):
        return _strings_to_bytes(value.reshape(-1))
    if not value.size:
        return b""
    return memoryview(np.ascontiguousarray(value).reshape(-1).view(np.uint8))


# ---- Work ------------------------------------------------------------------------------------------------

# Imports in several threads at once can wait for each other.
_loading = threading.RLock()


class Sharing:
    """Gives the keys by which collectives find their peers to the other sidecars, and takes theirs."""

    def __init__(self, connection: Connection, store):
        self._connection = connection
        self._store = store
        self._known: dict[str, bytes] = {}
        self._own: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._running = 0
        self._some_run = threading.Event()
        threading.Thread(target=self._share, name="share", daemon=True).start()

    @contextlib.contextmanager
    def running(self):
        """While a function runs that may begin a collective."""
        with self._lock:
            self._running += 1
            self._some_run.set()
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                if not self._running:
                    self._some_run.clear()

    def take(self, entries: list) -> None:
        for key, text, *refused in entries:
            value = base64.b64decode(text)
            with self._lock:
                changed = self._known.get(key, value) != value
                if not refused:
                    self._known[key] = value
                own = self._own.get(key) == value
            if refused:
                if own:
                    self._end("it wanted to join collectives of processes that had begun without it")
                continue
            if changed:
                # A new process in the place of one with which this one has connections. JAX never makes others, and
                # both would wait for ever, or take what was meant for another run. Both end; the next ones meet.
                self._connection.send({"share": [[key, text, 1]]})
                self._end("it was in collectives with a process that has ended")
            self._store.key_value_set_bytes(key, value, allow_overwrite=True)

    def _end(self, why: str) -> None:
        self._connection.send({"ends": why})
        os.killpg(0, signal.SIGKILL)

    def _share(self) -> None:
        while True:
            self._some_run.wait()
            entries = []
            for key, value in self._store.key_value_dir_get_bytes(_COLLECTIVES_KEYS):
                with self._lock:
                    if self._known.get(key) != value:
                        self._known[key] = self._own[key] = value
                        entries.append([key, base64.b64encode(value).decode()])
            if entries:
                self._connection.send({"share": entries})
            time.sleep(_SHARE_INTERVAL_S)


class Sidecar:
    def __init__(self, connection: Connection, kept: tuple, spans_hosts: bool):
        self._connection = connection
        # Were these to be collected at the end, they would end the process with an abort.
        self._kept = kept
        self._sharing = Sharing(connection, kept[-1]) if spans_hosts else None
        self._programs: dict[int, Program] = {}  # of the streams' threads: a program is loaded before it is named
        self._lock = threading.Lock()
        self._streams: dict[int, queue.SimpleQueue] = {}
        self._loads = queue.SimpleQueue()
        self._garbage = threading.Event()
        for target in (self._load_all, self._collect_garbage):
            threading.Thread(target=target, name=target.__name__, daemon=True).start()

    def serve(self) -> None:
        while True:
            message, region = self._connection.receive()
            if "load" in message:
                self._loads.put((message, region))
            elif "shared" in message:
                if self._sharing is not None:
                    self._sharing.take(message["shared"])
            else:
                self._post(message["stream"], (message, region))
            del message, region

    def _load_all(self) -> None:
        while True:
            self._load(*self._loads.get())

    def _load(self, message: dict, region: memoryview) -> None:
        try:
            self._programs[message["load"]] = Program(message["name"], bytes(region), message["x64"])
            answer = {"call": message["call"], "outputs": []}
        except BaseException as error:
            answer = {"call": message["call"], "error": _describe(error)}
            _release_frames(error)
        self._connection.send(answer)

    def _post(self, stream: int, task: tuple) -> None:
        with self._lock:
            tasks = self._streams.get(stream)
            if tasks is None:
                tasks = self._streams[stream] = queue.SimpleQueue()
                thread = threading.Thread(target=self._serve_stream, args=(stream, tasks), daemon=True)
                thread.name = f"stream {stream}"
                thread.start()
            tasks.put(task)

    def _serve_stream(self, stream: int, tasks: queue.SimpleQueue) -> None:
        while True:
            try:
                task = tasks.get(timeout=_IDLE_THREAD_S)
            except queue.Empty:
                with self._lock:
                    if tasks.empty():
                        del self._streams[stream]
                        return
                continue
            message, region = task
            del task
            if "unload" in message:
                self._programs.pop(message["unload"], None)
                self._garbage.set()
            else:
                self._run(message, region)
            del message, region

    def _run(self, message: dict, region: memoryview) -> None:
        program = self._programs[message["run"]]
        answer, parts = {"call": message["call"]}, []
        try:
            with self._sharing.running() if program.spans_hosts else contextlib.nullcontext():
                answer["outputs"], parts = program.run(message["inputs"], region)
        except BaseException as error:
            answer["error"] = _describe(error)
            # Nobody may ever ask for it.
            print(f"{program.name}: {answer['error']}", file=sys.stderr, flush=True)
            _release_frames(error)
        try:
            self._connection.send(answer, parts)
        except Exception as error:
            # No memory for the outputs, of which nothing has been said yet; or nobody listens any more.
            self._connection.send({"call": message["call"], "error": _describe(error)})

    def _collect_garbage(self) -> None:
        """After functions were dropped: what they used may lie in cycles, and have threads and processes."""
        while True:
            self._garbage.wait()
            self._garbage.clear()
            # Those that are dropped with them.
            threading.Event().wait(_GARBAGE_DELAY_S)
            gc.collect()


def _start(connection: Connection) -> "Sidecar | None":
    message, _ = connection.receive()
    # With the thread of the worker that waits for this process, so with the worker.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != message["parent"]:
        return None
    faulthandler.enable()
    # A function that computes in Python makes others wait for so long.
    sys.setswitchinterval(1e-4)
    try:
        import cloudpickle  # noqa: F401
        import jax
        from jax.experimental import colocated_python  # noqa: F401

        with contextlib.suppress(ImportError):
            from absl import flags

            # Libraries ask whether they have been.
            flags.FLAGS.mark_as_parsed()
        kept = _make_backend(message["process"], message["hosts"])
        spans_hosts = len(message["hosts"]) > 1
        if spans_hosts:
            _put_without_peers()
        jax.devices()
    except BaseException as error:
        connection.send({"failed": _describe(error)})
        return None
    connection.send({"ready": 1, "python": "%d.%d" % sys.version_info[:2], "jax": jax.__version__})
    return Sidecar(connection, kept, spans_hosts)


def main(stream: socket.socket) -> None:
    connection = Connection(stream)
    try:
        if (sidecar := _start(connection)) is not None:
            sidecar.serve()
    except (EOFError, OSError):
        pass
    finally:
        # Whatever the functions have started goes too.
        os.killpg(0, signal.SIGKILL)
