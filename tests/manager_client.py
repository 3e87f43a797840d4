"""Peers of the resource manager that are only messages: an onlooker, and workers that may lie. Talks gRPC.

Messages are made from the schemas in helmway/cluster by protoc at run time.
"""

import functools
import queue
import random
import threading

import grpc
from conftest import seconds
from google.protobuf import message_factory
from schemas import pool_of

_SERVICE = "/helmway.cluster.proto.Manager/"
PROTOCOL = 1
DEVICE_IDS_PER_WORKER = 2048
TIMEOUT_S = seconds(60)


@functools.cache
def _pool():
    return pool_of("helmway/cluster/manager.proto")


@functools.cache
def message(name):
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"helmway.cluster.proto.{name}"))


class Call:
    """A stream to the manager. `status` is set when it is over."""

    def __init__(self, channel, method, answer_type):
        self._out = queue.SimpleQueue()
        self._answer = message(answer_type)
        self._call = channel.stream_stream(_SERVICE + method)(iter(self._out.get, None))
        self.status = None

    def send(self, data):
        self._out.put(data if isinstance(data, bytes) else data.SerializeToString())

    def read(self):
        """The next message, or None at the end of the stream."""
        try:
            return self._answer.FromString(next(self._call))
        except StopIteration:
            self.status = grpc.StatusCode.OK, ""
        except grpc.RpcError as error:
            self.status = error.code(), error.details()
        return None

    def close(self):
        self._out.put(None)
        self._call.cancel()


def channel_to(address):
    # A port may have had a server before.
    return grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)])


class FakeWorker:
    """Registers; has no devices but those that it is told to describe."""

    def __init__(self, address, protocol=PROTOCOL, incarnation=None, port=1, **hello):
        self._channel = channel_to(address)
        self._call = Call(self._channel, "Register", "ManagerToWorker")
        self.incarnation = incarnation or random.getrandbits(63) + 1
        sent = message("WorkerMessage")()
        sent.hello.version.protocol = protocol
        sent.hello.version.software = "0.0.0-test"
        sent.hello.incarnation = self.incarnation
        sent.hello.host = "fake"
        sent.hello.port = port
        for name, value in hello.items():
            setattr(sent.hello, name, value)
        self._call.send(sent)
        answer = self._call.read()
        self.assigned = answer.assigned if answer else None

    def ready(self, devices, platform="cpu"):
        """Describes devices. True if the manager takes them."""
        sent = message("WorkerMessage")()
        sent.ready.info.platform_name = platform
        for i in range(devices):
            sent.ready.info.devices.add().id = DEVICE_IDS_PER_WORKER * self.assigned.place.worker + i
        self._call.send(sent)
        answer = self._call.read()
        return answer is not None and answer.HasField("registered")

    @property
    def status(self):
        """(code, text) of the end of the stream, once it has been seen."""
        return self._call.status

    def close(self):
        self._call.close()
        self._channel.close()


class Watcher:
    """Knows what the manager tells: `workers` (by index), `slices`, `lease`. Comes again when it is lost."""

    def __init__(self, address, lease_all=None, lease_types=(), protocol=PROTOCOL, name="watcher"):
        self._address = address
        self._hello = message("ProxyMessage")()
        self._hello.hello.version.protocol = protocol
        self._hello.hello.version.software = "0.0.0-test"
        self._hello.hello.incarnation = random.getrandbits(63) + 1
        self._hello.hello.name = name
        if lease_all or lease_types:
            self._hello.hello.lease.all = bool(lease_all)
            self._hello.hello.lease.instance_types.extend(lease_types)
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._call = None
        self.manager = None  # incarnation
        self.slices = []
        self.workers = {}
        self.infos = {}
        self.lease = None
        self.leases_lost = 0
        self.refusal = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while not self._stop.is_set():
            with channel_to(self._address) as channel:
                call = self._call = Call(channel, "Watch", "ManagerToProxy")
                call.send(self._hello)
                done = threading.Event()
                beats = threading.Thread(target=self._beat, args=(call, done), daemon=True)
                beats.start()
                while (answer := call.read()) is not None:
                    with self._changed:
                        self._take(answer)
                        self._changed.notify_all()
                done.set()
                beats.join()
                with self._changed:
                    self.refusal = call.status
                    self._changed.notify_all()
            self._stop.wait(0.1)

    def _beat(self, call, done):
        heartbeat = message("ProxyMessage")()
        heartbeat.heartbeat.SetInParent()
        while not done.wait(1):
            call.send(heartbeat)

    def _take(self, answer):
        if answer.HasField("snapshot"):
            self.manager = answer.snapshot.manager_incarnation
            self.slices = list(answer.snapshot.slices)
            self._take_workers(answer.snapshot.workers)
        elif answer.HasField("changes"):
            self._take_workers(answer.changes.workers)
        elif answer.HasField("lease"):
            granted = message("Lease").GRANTED
            if self.lease is not None and self.lease.state == granted and answer.lease.state != granted:
                self.leases_lost += 1
            self.lease = answer.lease
            del self._hello.hello.held_slices[:]
            self._hello.hello.held_slices.extend(answer.lease.slices)
            self._hello.hello.held_lease = answer.lease.number

    def _take_workers(self, records):
        for record in records:
            self.workers[record.worker] = record
            if record.HasField("info"):
                self.infos[record.worker] = record.info

    def wait(self, wanted, what):
        """Waits until wanted(self)."""
        with self._changed:
            if not self._changed.wait_for(lambda: wanted(self), TIMEOUT_S):
                states = {i: (self.state(i), w.reason) for i, w in self.workers.items()}
                raise AssertionError(f"did not come: {what}; workers {states}, lease {self.lease}, {self.refusal}")

    def state(self, worker):
        record = self.workers.get(worker)
        return "EXPECTED" if record is None else message("WorkerRecord").State.Name(record.state)

    def wait_state(self, worker, state):
        self.wait(lambda w: w.state(worker) == state, f"worker {worker} {state}")
        return self.workers[worker]

    def wait_lease(self):
        self.wait(lambda w: w.lease is not None and w.lease.state == message("Lease").GRANTED, "a lease")
        return list(self.lease.slices)

    def device_ids(self, worker):
        return [device.id for device in self.infos[worker].devices]

    def close(self):
        """Gives the lease back."""
        self._stop.set()
        goodbye = message("ProxyMessage")()
        goodbye.goodbye.SetInParent()
        if self._call is not None:
            self._call.send(goodbye)
        self._thread.join(TIMEOUT_S)
