"""Starts the processes that are measured and reads their CPU time and memory from /proc."""

import contextlib
import json
import os
import pathlib
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

BENCH = pathlib.Path(__file__).resolve().parent
ROOT = BENCH.parent
PYTHON = os.environ.get("HELMWAY_BENCH_PYTHON", str(ROOT / ".venv/bin/python"))
BUILD = pathlib.Path(os.environ.get("HELMWAY_BENCH_BUILD", ROOT / "build/release/bench"))
BINARY = os.environ.get("HELMWAY_BINARY", str(ROOT / "build/release/helmway/apps/helmway"))
THRESHOLD = "IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_THRESHOLD_BYTES"
FAKE_GCS = "HELMWAY_FAKE_GCS_SERVER"
DIRECTORY = "IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_DIRECTORY"


class Failure(Exception):
  """A measured process failed; the message says which and how."""


def helmway_is_built():
  return os.access(BINARY, os.X_OK)


def clean_environment(extra):
  """The caller's environment without settings that would change what is measured."""
  drop = ("JAX_", "XLA_", "IFRT_PROXY_", "PATHWAYS_")
  env = {k: v for k, v in os.environ.items() if not k.startswith(drop)}
  return env | extra


class Process:
  """A child with line-wise pipes on stdin and stdout. Ends when closed, with its stdin."""

  def __init__(self, name, argv, env=None, **popen):
    self.name = name
    self.log = tempfile.TemporaryFile("w+")
    try:
      self.child = subprocess.Popen(
          [str(a) for a in argv], env=clean_environment(env or {}), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
          stderr=self.log, start_new_session=True, **popen)
    except OSError as e:
      raise Failure(f"{name}: {e}") from e
    self.unread = b""

  def line(self, timeout=120):
    """The next line of its stdout; raises Failure if none comes in time."""
    deadline = time.monotonic() + timeout
    while b"\n" not in self.unread:
      ready, _, _ = select.select([self.child.stdout], [], [], max(0, deadline - time.monotonic()))
      piece = os.read(self.child.stdout.fileno(), 1 << 16) if ready else b""
      if not piece:
        what = "ended" if ready else f"no answer within {timeout} s"
        raise Failure(f"{self.name}: {what}\n{self.stderr()}")
      self.unread += piece
    text, self.unread = self.unread.split(b"\n", 1)
    return text.decode().strip()

  def say(self, text):
    try:
      self.child.stdin.write(text.encode() + b"\n")
      self.child.stdin.flush()
    except OSError as e:
      raise Failure(f"{self.name}: {e}\n{self.stderr()}") from e

  def ask(self, text, timeout=120):
    self.say(text)
    return self.line(timeout)

  def stderr(self):
    self.log.seek(0)
    return self.log.read()[-3000:]

  def close(self):
    with contextlib.suppress(OSError):  # It may have ended with something unread.
      self.child.stdin.close()
    if self.child.poll() is None:
      self.child.terminate()
    try:
      self.child.wait(10)
    except subprocess.TimeoutExpired:
      os.killpg(self.child.pid, signal.SIGKILL)
      self.child.wait()
    self.child.stdout.close()
    self.log.close()

  def pids(self):
    """This process and all below it."""
    found, todo = [], [self.child.pid]
    while todo:
      pid = todo.pop()
      found.append(pid)
      try:
        for task in os.listdir(f"/proc/{pid}/task"):
          with open(f"/proc/{pid}/task/{task}/children") as f:
            todo.extend(int(child) for child in f.read().split())
      except FileNotFoundError:
        continue
    return found

  def cpu_seconds(self):
    """CPU time used so far, by all threads, ended ones too."""
    # The kernel's name for the CPU clock of another process: ~pid << 3 | CPUCLOCK_SCHED.
    return sum(time.clock_gettime((~pid << 3) | 2) for pid in self.pids())

  def memory_bytes(self):
    total = 0
    for pid in self.pids():
      with open(f"/proc/{pid}/statm") as f:
        total += int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return total


class Server(Process):
  """A server that prints the line that users paste into their shell."""

  def __init__(self, name, argv, env=None, **popen):
    super().__init__(name, argv, env, **popen)
    try:
      text = self.line()
      while "JAX_BACKEND_TARGET=" not in text:
        text = self.line()
    except BaseException:
      self.close()
      raise
    self.target = text.split("JAX_BACKEND_TARGET=", 1)[1].strip("'\"")


def helmway(devices=1, env=None, flags=()):
  return Server("helmway", [BINARY, "up", "--devices", devices, "--port", 0, *flags], env)


def helmway_cluster(workers, devices=1, slices=1, flags=(), shared_memory=True):
  """Workers in processes of their own, with so many devices each. Without shared memory: they get none that is as
  large as they want."""
  popen = {} if shared_memory else {
      # The signal that comes with the limit is ignored by Python, and so by what it starts.
      "preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (128 << 20, 128 << 20)), "restore_signals": False}
  return Server("helmway", [BINARY, "up", "--workers", workers, "--devices-per-worker", devices, "--slices", slices,
                            "--port", 0, *flags], None, **popen)


def null_server(devices=1, env=None):
  return Server("null server", [BUILD / "null_server", "--devices", devices], env)


class Side(Process):
  """A Python process that runs the workloads of side.py."""

  def __init__(self, name, env):
    super().__init__(name, [PYTHON, BENCH / "side.py"], env | {"PYTHONUNBUFFERED": "1"})

  def begin(self, what, **arguments):
    self.say(json.dumps({"do": what} | arguments))

  def end(self, what, timeout=180):
    answer = json.loads(self.line(timeout))
    if "error" in answer:
      raise Failure(f"{self.name}: {what}: {answer['error']}")
    return answer["ok"]

  def do(self, what, timeout=180, **arguments):
    self.begin(what, **arguments)
    return self.end(what, timeout)


def free_address():
  """host:port on this host that nobody listens on now."""
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    return "127.0.0.1:%d" % free.getsockname()[1]


def controller_environments(count, devices_per_process=1):
  """Those of the processes of one multi-controller job, with gloo between them (controller.py)."""
  coordinator = free_address()
  return [local_environment(devices_per_process) | {
      "HELMWAY_BENCH_COORDINATOR": coordinator, "HELMWAY_BENCH_PROCESSES": str(count),
      "HELMWAY_BENCH_PROCESS": str(number), "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"} for number in range(count)]


class Controllers:
  """JAX as it is on several hosts: a process for each, all of which run the same."""

  def __init__(self, count, devices_per_process=1):
    self.sides = []
    try:
      for number, env in enumerate(controller_environments(count, devices_per_process)):
        self.sides.append(Side(f"controller {number}", env))
      self.do("hello")
    except BaseException:
      self.close()
      raise

  def do(self, what, timeout=180, **arguments):
    """The answer of the first."""
    return self.do_all(what, timeout, **arguments)[0]

  def do_all(self, what, timeout=180, **arguments):
    for side in self.sides:
      side.begin(what, **arguments)
    return [side.end(what, timeout) for side in self.sides]

  def close(self):
    for side in self.sides:
      side.say("")  # all end together, since each waits for the others
    for side in self.sides:
      side.close()


class Tcp:
  """Bytes over one loopback connection between two processes. Durations in seconds."""

  CHILD = """
import socket, struct, sys
peer = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
memory = memoryview(bytearray(int(sys.argv[2])))
while size := peer.recv(8, socket.MSG_WAITALL):
  left = memory[:struct.unpack("<Q", size)[0]]
  while left:
    left = left[peer.recv_into(left):]
  peer.sendall(b"x")
"""

  def __init__(self, largest):
    self.data = memoryview(bytearray(b"x") * largest)
    with socket.create_server(("127.0.0.1", 0)) as server:
      self.child = Process("tcp", [sys.executable, "-c", self.CHILD, server.getsockname()[1], largest])
      self.peer = server.accept()[0]

  def send(self, size):
    """Until the other has them all."""
    start = time.perf_counter()
    self.peer.sendall(struct.pack("<Q", size))
    self.peer.sendall(self.data[:size])
    self.peer.recv(1)
    return time.perf_counter() - start

  def close(self):
    self.peer.close()
    self.child.close()


def client_environment(server, env=None):
  return {"JAX_PLATFORMS": "proxy", "JAX_BACKEND_TARGET": server.target,
          "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS": "true"} | (env or {})


def run_sessions(script, server, count, seed, seconds):
  """Runs `script session SEED SECONDS` in `count` processes at once; what each counts in its last line, "done N"."""
  sides = [Process(
      f"session {n}", [PYTHON, "-W", "ignore", script, "session", f"{seed}-{n}", seconds], client_environment(server))
           for n in range(count)]
  lines = [side.line(timeout=seconds + 300) for side in sides]
  for side in sides:
    side.close()
  return [int(line.removeprefix("done ")) for line in lines]


def local_environment(devices=1):
  return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}


class FakeGcs:
  """The Cloud Storage emulator that HELMWAY_FAKE_GCS_SERVER names, with an empty bucket called "bench"."""

  def __init__(self):
    self.address = free_address()
    self.child = subprocess.Popen(
        [os.environ[FAKE_GCS], "-backend", "memory", "-scheme", "http", "-host", "127.0.0.1",
         "-port", self.address.split(":")[1], "-external-url", f"http://{self.address}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    for line in self.child.stderr:
      if b"server started" in line:
        break
    threading.Thread(target=self.child.stderr.read, daemon=True).start()
    urllib.request.urlopen(urllib.request.Request(
        f"http://{self.address}/storage/v1/b?project=bench", b'{"name": "bench"}',
        {"Content-Type": "application/json"})).read()

  def close(self):
    self.child.kill()
    self.child.wait()


class StoreIo:
  """Puts and gets of Helmway's own store at a location. Durations in seconds."""

  def __init__(self, location, env=None):
    self.process = Process("store_io", [BUILD / "store_io", location], env)

  def do(self, *words):
    return int(self.process.ask(" ".join(map(str, words)))) * 1e-9

  def close(self):
    self.process.close()


def seconds_of(*argv):
  """How long a command runs, start and end included."""
  start = time.perf_counter()
  done = subprocess.run([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                        stderr=subprocess.PIPE, check=False)
  duration = time.perf_counter() - start
  if done.returncode != 0:
    raise Failure(f"{' '.join(map(str, argv))}: {done.stderr.decode()}")
  return duration


class Echo:
  """The bare gRPC server and its client. Durations in seconds."""

  def __init__(self):
    self.server = Process("grpc_echo server", [BUILD / "grpc_echo", "server"])
    try:
      self.client = Process("grpc_echo client", [BUILD / "grpc_echo", "client", self.server.line().split()[1]])
    except BaseException:
      self.server.close()
      raise

  def do(self, what, *arguments):
    answer = self.client.ask(" ".join([what, *map(str, arguments)]))
    return [int(ns) * 1e-9 for ns in answer.split()]

  def close(self):
    self.client.close()
    self.server.close()
