"""Runs the benchmarks and prints them. Use bench/run.sh; bench/README.md says what each number means."""

import argparse
import contextlib
import json
import os
import pathlib
import sys
import tempfile
import time

import elastic
import processes
import report
from processes import Side, client_environment, local_environment
from report import Series

MICRO = 1e6
CONTROLLERS = "multi-controller JAX, gloo"


class Bench:
  """What all benchmarks share: the number of rounds, and the sides, which end with the benchmark."""

  def __init__(self, rounds_factor, with_helmway):
    self.rounds_factor = rounds_factor
    self.with_helmway = with_helmway
    self.exits = contextlib.ExitStack()

  def rounds(self, usual):
    return max(2, round(usual * self.rounds_factor))

  def keep(self, process):
    self.exits.callback(process.close)
    return process

  def local(self, devices=1):
    return self.keep(Side("local JAX", local_environment(devices)))

  def null(self, env=None):
    """A client of the null server, and the server; env is set for both."""
    server = self.keep(processes.null_server(env=env))
    return self.keep(Side("client of the null server", client_environment(server, env))), server

  def helmway(self, devices=1, env=None):
    """A client of Helmway, and the server; env is set for both."""
    server = self.keep(processes.helmway(devices, env))
    return self.keep(Side("client of Helmway", client_environment(server, env))), server

  def controllers(self, processes_, devices_per_process=1):
    return self.keep(processes.Controllers(processes_, devices_per_process))

  def cluster(self, workers, devices_per_worker=1, **how):
    """A client of a cluster of workers in processes of their own."""
    server = self.keep(processes.helmway_cluster(workers, devices_per_worker, **how))
    return self.keep(Side("client of a cluster", client_environment(server)))

  def on_workers(self, workers):
    """Sides that have one device on each of so many workers."""
    sides = {CONTROLLERS: self.controllers(workers)}
    if self.with_helmway:
      sides["Helmway"] = self.cluster(workers)
    return sides

  def alternate(self, rounds, sides):
    """sides: name -> function returning a list of samples. Runs them in turns; name -> Series.

    Each side runs once before that, unrecorded. The order is turned around in every second round, so that
    no side always runs behind the same neighbour.
    """
    found = {name: [] for name in sides}
    for round_number in range(-1, rounds):
      names = list(sides)
      for name in names if round_number % 2 else reversed(names):
        samples = sides[name]()
        if round_number >= 0:
          found[name].append(samples)
    return {name: Series(samples) for name, samples in found.items()}


def get(bench):
  """(a) Blocking read of 256 bytes."""
  echo = bench.keep(processes.Echo())
  local = bench.local()
  null, _ = bench.null()
  sides = {
      "bare gRPC round trip": lambda: echo.do("unary", 256, 300),
      "local JAX": lambda: local.do("get", count=100),
      "client's floor (null server)": lambda: null.do("get", count=100),
  }
  if bench.with_helmway:
    client, _ = bench.helmway()
    sides["Helmway"] = lambda: client.do("get", count=100)
  series = bench.alternate(bench.rounds(10), sides)
  floor, ceiling = series["bare gRPC round trip"], series["client's floor (null server)"]
  report.table(
      "(a) blocking jax.device_get of 256 B; target: Helmway at most 4 round trips",
      ["", "median us", "p99 us", "round trips", "to client's floor"],
      [[name, s.median * MICRO, s.p99 * MICRO, s.ratio_to(floor), s.ratio_to(ceiling)] for name, s in series.items()])
  return {name: {"median_us": s.median * MICRO, "p99_us": s.p99 * MICRO, "round_trips": s.ratio_to(floor),
                 "to_null_server": s.ratio_to(ceiling)} for name, s in series.items()}


def tiny(bench):
  """(b) Rate of tiny programs, server CPU per run, and the length that hides the distance."""
  count = 2000
  local = bench.local()
  null, null_server = bench.null()
  sides = {"local JAX": (local, None), "client's ceiling (null server)": (null, null_server)}
  if bench.with_helmway:
    sides["Helmway"] = bench.helmway()
  results = {}
  for chained in (True, False):
    enqueued = {name: [] for name in sides}
    cpu = {name: [] for name in sides}

    def once(name):
      side, server = sides[name]
      before = server.cpu_seconds() if server else 0
      answer = side.do("tiny", count=count, chained=chained)
      cpu[name].append(((server.cpu_seconds() if server else 0) - before) / count)
      enqueued[name].append([answer["enqueued"] / count])
      return [answer["drained"] / count]

    drained = bench.alternate(bench.rounds(10), {name: lambda name=name: once(name) for name in sides})
    rows, kind = [], "chained" if chained else "unchained"
    yardstick = "client's ceiling (null server)"
    first = {name: Series(samples[1:]) for name, samples in enqueued.items()}
    results[kind] = {}
    for name in sides:
      row = {
          "enqueued_per_s": 1 / first[name].median,
          "enqueued_per_s_p99": 1 / first[name].p99,
          "drained_per_s": 1 / drained[name].median,
          "drained_per_s_p99": 1 / drained[name].p99,
          "enqueued_to_ceiling": 1 / first[name].ratio_to(first[yardstick]),
          "drained_to_ceiling": 1 / drained[name].ratio_to(drained[yardstick]),
          "server_cpu_us_per_run": report.median(cpu[name][1:]) * MICRO if sides[name][1] else None,
          "server_cpu_us_per_run_p99": report.quantile(cpu[name][1:], 0.99) * MICRO if sides[name][1] else None,
      }
      results[kind][name] = row
      rows.append([name] + ["-" if value is None else value for value in row.values()])
    report.table(
        f"(b) jit(x + 1), {kind}; targets: drained at least 0.8 of the ceiling, at most 25 us server CPU per run",
        ["", "enqueued/s", "p99", "drained/s", "p99", "enq./ceiling", "drained/ceiling", "CPU us/run", "p99"], rows)
  if bench.with_helmway:
    results["parity"] = parity(bench, local, sides["Helmway"][0])
  return results


def parity(bench, local, client):
  """From which length of a program a chain of runs is as fast as in local JAX."""
  rows, results, smallest = [], [], None
  for loops in (1, 8, 16, 32, 64, 128, 256, 512):
    probe = local.do("work", loops=loops, count=50) / 50
    count = max(20, min(400, int(0.15 / probe)))
    series = bench.alternate(bench.rounds(5), {
        "local": lambda: [local.do("work", loops=loops, count=count) / count],
        "Helmway": lambda: [client.do("work", loops=loops, count=count) / count]})
    ratio = series["Helmway"].ratio_to(series["local"])
    length = series["local"].median
    results.append({"local_us": length * MICRO, "local_p99_us": series["local"].p99 * MICRO,
                    "helmway_us": series["Helmway"].median * MICRO, "helmway_p99_us": series["Helmway"].p99 * MICRO,
                    "ratio": ratio})
    rows.append([f"{loops} products of 32x32"] + list(results[-1].values()))
    # The smallest length from which all longer ones are in reach too.
    smallest = (length if smallest is None else smallest) if ratio <= 1.05 else None
  report.table("(b) a chain of longer runs; target: ratio at most 1.05 from 200 us on",
               ["", "local us", "p99", "Helmway us", "p99", "Helmway/local"], rows)
  print("  parity with local JAX " +
        ("from %.0f us per run" % (smallest * MICRO) if smallest else "not reached") + " (ratio at most 1.05)")
  return {"lengths": results, "smallest_us": smallest * MICRO if smallest else None}


def transfer(bench):
  """(c) Bandwidth between client and device."""
  sizes = (2**12, 2**16, 2**20, 2**24, 2**28)
  threshold = 2**20
  echo = bench.keep(processes.Echo())
  null, _ = bench.null()
  base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None

  def shared_environment():
    # Clients name the files by handles that repeat from session to session, so each pair has a directory.
    directory = bench.exits.enter_context(tempfile.TemporaryDirectory(dir=base))
    return {processes.DIRECTORY: directory, processes.THRESHOLD: str(threshold)}

  clients = {"client's ceiling (null server)": null}
  shared = {"client's ceiling, shared directory": bench.null(env=shared_environment())[0]}
  if bench.with_helmway:
    clients["Helmway"] = bench.helmway()[0]
    shared["Helmway, shared directory"] = bench.helmway(env=shared_environment())[0]
  results = {}
  for what, stream, title in (("put", "upload", "H2D, jax.device_put"), ("read", "download", "D2H, np.asarray")):
    rows = []
    for size in sizes:
      repeats = 20 if size < 2**20 else 4 if size < 2**24 else 1
      rounds = bench.rounds(5 if size <= 2**24 else 3)
      sides = {"memcpy": lambda: [echo.do("memcpy", size)[0] for _ in range(repeats)],
               "bare gRPC stream": lambda: [echo.do(stream, size)[0] for _ in range(repeats)]}
      # Reads never go through the shared directory, nor do buffers under the threshold.
      used = clients | (shared if what == "put" and size >= threshold else {})
      for name, client in used.items():
        sides[name] = lambda client=client: [client.do(what, size=size) for _ in range(repeats)]
      series = bench.alternate(rounds, sides)
      for client in used.values():
        client.do("forget")
      found = {}
      for name, s in series.items():
        found[name] = {"median_us": s.median * MICRO, "p99_us": s.p99 * MICRO, "gib_per_s": size / s.median / 2**30,
                       "of_stream": 1 / s.ratio_to(series["bare gRPC stream"]),
                       "of_memcpy": 1 / s.ratio_to(series["memcpy"]),
                       "of_ceiling": 1 / s.ratio_to(series["client's ceiling (null server)"])}
        rows.append([f"{size / 1024:.0f} KiB  {name}"] + list(found[name].values()))
      results.setdefault(what, {})[size] = found
    report.table(f"(c) {title}; target: Helmway at least 0.7 of the bare stream",
                 ["", "median us", "p99 us", "GiB/s", "of stream", "of memcpy", "of ceiling"], rows)
  return results


def train(bench):
  """(d) Training steps of a small transformer."""
  steps, rows, results = 3, [], {}
  for devices in (1, 8):
    local = bench.local(devices)
    losses = {}

    def once(name, side):
      answer = side.do("train", steps=steps, devices=devices)
      losses.setdefault(name, []).append(answer["loss"])
      return [answer["seconds"] / steps]

    sides = {"local JAX": lambda: once("local JAX", local)}
    if bench.with_helmway:
      client, _ = bench.helmway(devices)
      sides["Helmway"] = lambda: once("Helmway", client)
    series = bench.alternate(bench.rounds(5), sides)
    results[devices] = {}
    for name, s in series.items():
      found = {"median_ms": s.median * 1e3, "p99_ms": s.p99 * 1e3, "to_local": s.ratio_to(series["local JAX"]),
               "loss": losses[name][-1]}
      results[devices][name] = found
      rows.append([f"{devices} device{'s' * (devices > 1)}  {name}"] + list(found.values()))
  report.table("(d) training step of a transformer with a million parameters; target: at most 1.15 of local JAX",
               ["", "median ms", "p99 ms", "to local", "last loss"], rows)
  return results


def standing(bench):
  """(e) Start-up, idle CPU, memory of many arrays."""
  script = ("import os, jax\n"
            "if 'proxy' in os.environ['JAX_PLATFORMS']:\n  import pathwaysutils; pathwaysutils.initialize()\n"
            "print(jax.devices(), flush=True)")
  ready = []  # Seconds until a server of Helmway printed its address.

  def seconds_to_devices(start_server):
    start = time.perf_counter()
    with contextlib.ExitStack() as exits:
      environment = local_environment()
      if start_server:
        server = start_server()
        exits.callback(server.close)
        environment = client_environment(server)
        if start_server is processes.helmway:
          ready.append(time.perf_counter() - start)
      client = processes.Process("client", [processes.PYTHON, "-c", script], environment)
      exits.callback(client.close)
      client.line()
      return [time.perf_counter() - start]

  sides = {"local JAX": lambda: seconds_to_devices(None),
           "null server and client": lambda: seconds_to_devices(processes.null_server)}
  if bench.with_helmway:
    sides["helmway up and client"] = lambda: seconds_to_devices(processes.helmway)
  series = bench.alternate(bench.rounds(3), sides)
  results = {"start": {name: {"median_s": s.median, "p99_s": s.p99, "to_local": s.ratio_to(series["local JAX"])}
                       for name, s in series.items()}}
  report.table("(e) start until jax.devices() is printed", ["", "median s", "p99 s", "to local"],
               [[name] + list(row.values()) for name, row in results["start"].items()])
  if ready:
    results["helmway_ready_s"] = report.median(ready)
    print(f"  helmway up prints its address after {results['helmway_ready_s']:.3g} s (median)")

  count, idle_seconds, rows = 100_000, 3, []
  sides = {"null server": bench.null()}
  if bench.with_helmway:
    sides["Helmway"] = bench.helmway()
  for name, (client, server) in sides.items():
    client.do("tiny", count=100, chained=True)
    time.sleep(1)
    before = server.cpu_seconds()
    time.sleep(idle_seconds)
    idle = (server.cpu_seconds() - before) / idle_seconds
    empty = server.memory_bytes()
    client.do("live", count=count, timeout=300)
    full = server.memory_bytes()
    results[name] = {"idle_cpu_percent": idle * 100, "empty_mib": empty / 2**20, "full_mib": full / 2**20,
                     "bytes_per_array": (full - empty) / count}
    rows.append([name] + list(results[name].values()))
  report.table(f"(e) the server with one idle client, then with {count} live arrays of 32 bytes",
               ["", "idle CPU %", "RSS MiB empty", "RSS MiB full", "bytes/array"], rows)
  return results


def spread(bench):
  """(f) Rate of programs that span workers, and the length that hides the distance."""
  rows, results = [], {}
  for workers in (2, 4):
    sides = bench.on_workers(workers)
    results[workers], smallest = {}, None
    for loops in (1, 64, 256, 1024, 4096):
      probe = sides[CONTROLLERS].do("spread", loops=loops, count=20) / 20
      count = max(20, min(300, int(0.2 / probe)))
      series = bench.alternate(bench.rounds(5), {
          name: lambda side=side: [side.do("spread", loops=loops, count=count) / count]
          for name, side in sides.items()})
      for name, s in series.items():
        found = {"median_us": s.median * MICRO, "p99_us": s.p99 * MICRO, "runs_per_s": 1 / s.median,
                 "rate_to_controllers": 1 / s.ratio_to(series[CONTROLLERS])}
        results[workers].setdefault(loops, {})[name] = found
        rows.append([f"{workers} workers, {loops} products  {name}"] + list(found.values()))
      if bench.with_helmway:
        reached = series["Helmway"].ratio_to(series[CONTROLLERS]) <= 1.05
        smallest = (series[CONTROLLERS].median if smallest is None else smallest) if reached else None
    results[workers]["parity_from_us"] = smallest and smallest * MICRO
  report.table("(f) a chain of runs over all workers, 32x32 products on each and an all-reduce of one number; target: "
               "rate at least 1.0 of the controllers', then 1.5",
               ["", "median us", "p99 us", "runs/s", "rate to controllers"], rows)
  for workers, found in results.items():
    if bench.with_helmway:
      length = found["parity_from_us"]
      print(f"  {workers} workers: parity " + (f"from {length:.0f} us per run" if length else "not reached"))
  return results


def move(bench):
  """(g) From worker to worker."""
  sizes = (2**20, 2**22, 2**24, 2**26, 2**28)
  echo = bench.keep(processes.Echo())
  tcp = bench.keep(processes.Tcp(max(sizes)))
  clients = {}
  if bench.with_helmway:
    clients["Helmway, shared memory"] = bench.cluster(2)
    clients["Helmway, stream"] = bench.cluster(2, shared_memory=False)
  rows, results = [], {}
  for size in sizes:
    repeats = 8 if size <= 2**22 else 3 if size <= 2**26 else 1
    # Several small ones in a row too: of one alone the client's questions take the most time.
    in_a_row = max(1, 2**24 // size)
    sides = {"memcpy": lambda: [echo.do("memcpy", size)[0] for _ in range(repeats)]}
    yardsticks = {}
    for count in sorted({1, in_a_row}):
      tail = f", {count} in a row" if count > 1 else ""
      yardstick = "loopback TCP" + tail
      sides[yardstick] = lambda count=count: [tcp.send(size * count) / count for _ in range(repeats)]
      yardsticks[yardstick] = yardstick
      for name, client in clients.items():
        sides[name + tail] = lambda client=client, count=count: [
            client.do("move", size=size, count=count) for _ in range(repeats)]
        yardsticks[name + tail] = yardstick
    series = bench.alternate(bench.rounds(5), sides)
    for client in clients.values():
      client.do("forget")
    results[size] = {}
    for name, s in series.items():
      found = {"median_us": s.median * MICRO, "p99_us": s.p99 * MICRO, "gib_per_s": size / s.median / 2**30,
               "of_tcp": 1 / s.ratio_to(series[yardsticks.get(name, "loopback TCP")]),
               "of_memcpy": 1 / s.ratio_to(series["memcpy"])}
      results[size][name] = found
      rows.append([f"{size / 2**20:.0f} MiB  {name}"] + list(found.values()))
  report.table("(g) device_put from a device of one worker to one of another, until it is ready; targets: through "
               "shared memory at least 1.5 of TCP, without it 1.0",
               ["", "median us", "p99 us", "GiB/s", "of TCP", "of memcpy"], rows)
  return results


def allreduce(bench):
  """(h) All-reduces over workers."""
  rows, results = [], {}
  for workers in (2, 4):
    sides = bench.on_workers(workers)
    if bench.with_helmway:
      sides["Helmway, without shared memory"] = bench.cluster(workers, shared_memory=False)
    results[workers] = {}
    for size in (2**12, 2**16, 2**20, 2**24, 2**26):
      count = 200 if size <= 2**16 else 20 if size <= 2**20 else 3
      series = bench.alternate(bench.rounds(5), {
          name: lambda side=side: [side.do("allreduce", size=size, count=count)] for name, side in sides.items()})
      for side in sides.values():
        side.do("forget")
      results[workers][size] = {}
      for name, s in series.items():
        found = {"median_us": s.median * MICRO, "p99_us": s.p99 * MICRO, "gib_per_s": size / s.median / 2**30,
                 "of_controllers": 1 / s.ratio_to(series[CONTROLLERS])}
        results[workers][size][name] = found
        rows.append([f"{workers} workers, {size / 1024:.0f} KiB  {name}"] + list(found.values()))
  report.table("(h) all-reduce of float32, several in one program, for each; target: speed at least 1.0 of gloo's",
               ["", "median us", "p99 us", "GiB/s", "speed to gloo"], rows)
  return results


def train_workers(bench):
  """(i) Training steps over four workers."""
  workers, steps = 4, 3
  sides = bench.on_workers(workers)
  rows, results = [], {}
  for what, model_parallel in (("data parallel", 1), ("2 x 2 data and tensor parallel", 2)):
    losses = {}

    def once(name):
      answer = sides[name].do("train", steps=steps, devices=workers, model_parallel=model_parallel)
      losses[name] = answer["loss"]
      return [answer["seconds"] / steps]

    series = bench.alternate(bench.rounds(5), {name: lambda name=name: once(name) for name in sides})
    results[what] = {}
    for name, s in series.items():
      found = {"median_ms": s.median * 1e3, "p99_ms": s.p99 * 1e3, "to_controllers": s.ratio_to(series[CONTROLLERS]),
               "loss": losses[name]}
      results[what][name] = found
      rows.append([f"{what}  {name}"] + list(found.values()))
  report.table("(i) training step of a transformer with a million parameters on four workers; target: at most 1.0 of "
               "the controllers'", ["", "median ms", "p99 ms", "to controllers", "last loss"], rows)
  return results


def dispatch(bench):
  """(j) The proxy's own work for a launch and for a transfer."""
  rows, results = [], {}
  if not bench.with_helmway:
    return results
  stubs = bench.keep(processes.Process("stub_cluster", [processes.BUILD / "stub_cluster"]))
  for what in ("launch", "copy"):
    series = bench.alternate(bench.rounds(5), {
        workers: lambda workers=workers: [int(ns) * 1e-9 for ns in stubs.ask(f"{what} {workers} 20").split()]
        for workers in (8, 64, 512)})
    results[what] = {}
    for workers, s in series.items():
      found = {"median_us": s.median * MICRO, "p99_us": s.p99 * MICRO, "us_per_worker": s.median * MICRO / workers}
      results[what][workers] = found
      rows.append([f"{what}, {workers} workers of 4 devices"] + list(found.values()))
  report.table("(j) CPU time of the proxy for one command, workers are stubs; target: linear, a launch at most 1000 us",
               ["", "median us", "p99 us", "us per worker"], rows)
  return results


def compile_workers(bench):
  """(k) Compiling for several workers."""
  rows, results = [], {}
  for workers in (2, 4):
    def sample(start, do):
      with contextlib.ExitStack() as exits:
        side = start(exits)
        return [max(do(side))]

    def controllers(exits):
      side = processes.Controllers(workers)
      exits.callback(side.close)
      return side

    def cluster(exits):
      server = processes.helmway_cluster(workers)
      exits.callback(server.close)
      side = Side("compiling side", client_environment(server))
      exits.callback(side.close)
      side.do("hello")
      return side

    # Every sample has processes of its own, so that nothing is compiled yet.
    sides = {CONTROLLERS: lambda: sample(
        controllers, lambda side: side.do_all("compile", program="transformer", devices=workers))}
    if bench.with_helmway:
      sides["Helmway"] = lambda: sample(
          cluster, lambda side: [side.do("compile", program="transformer", devices=workers)[0]])
    series = bench.alternate(bench.rounds(3), sides)
    results[workers] = {}
    for name, s in series.items():
      found = {"median_ms": s.median * 1e3, "p99_ms": s.p99 * 1e3, "to_controllers": s.ratio_to(series[CONTROLLERS])}
      results[workers][name] = found
      rows.append([f"{workers} workers  {name}"] + list(found.values()))
  report.table("(k) compiling the step of (d), cold: once and loaded by each worker, or by each controller for itself",
               ["", "median ms", "p99 ms", "to controllers"], rows)
  return results


def reshard(bench):
  """(reshard) From rows to columns over eight devices."""
  devices = 8
  echo = bench.keep(processes.Echo())
  local = bench.local(devices)
  client = bench.helmway(devices)[0] if bench.with_helmway else None
  rows, results = [], {}
  for size in (2**20, 2**22, 2**24, 2**26, 2**28):
    repeats = 8 if size <= 2**22 else 2 if size <= 2**26 else 1

    def moved(side, way):
      return lambda: [side.do("reshard", size=size, way=way) for _ in range(repeats)]

    sides = {"memcpy": lambda: [echo.do("memcpy", size)[0] for _ in range(repeats)],
             "local JAX, device_put": moved(local, "put")}
    if client:
      sides["Helmway, reshard"] = moved(client, "transfer")
      sides["Helmway, jit"] = moved(client, "jit")
    series = bench.alternate(bench.rounds(5), sides)
    for side in filter(None, (local, client)):
      side.do("forget")
    results[size] = {}
    for name, s in series.items():
      found = {"median_us": s.median * MICRO, "p99_us": s.p99 * MICRO, "gib_per_s": size / s.median / 2**30,
               "of_memcpy": 1 / s.ratio_to(series["memcpy"])}
      results[size][name] = found
      rows.append([f"{size / 2**20:.0f} MiB  {name}"] + list(found.values()))
  report.table("(reshard) float32, split by rows and then by columns over eight devices, until it is ready",
               ["", "median us", "p99 us", "GiB/s", "of memcpy"], rows)
  return results


def callback(bench):
  """(callback) From a program to Python and back."""
  local = bench.local(1)
  sides = {"local JAX": lambda: local.do("callback", count=200)}
  if bench.with_helmway:
    client = bench.helmway(1)[0]
    sides["Helmway"] = lambda: client.do("callback", count=200)
  series = bench.alternate(bench.rounds(5), sides)
  rows, results = [], {}
  for name, s in series.items():
    results[name] = {"median_us": s.median * MICRO, "p99_us": s.p99 * MICRO, "of_local": s.ratio_to(series["local JAX"])}
    rows.append([name] + list(results[name].values()))
  report.table("(callback) jit of a pure_callback that returns its 8 floats, blocking",
               ["", "median us", "p99 us", "times local JAX"], rows)
  return results


def compiling(bench):
  """(m) Compiling, and what the caches save."""
  directory = bench.exits.enter_context(tempfile.TemporaryDirectory())
  jax_cache = {"JAX_COMPILATION_CACHE_DIR": f"{directory}/jax", "JAX_ENABLE_COMPILATION_CACHE": "true",
               "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
  emulator = bench.keep(processes.FakeGcs()) if os.environ.get(processes.FAKE_GCS) else None
  programs = ("tiny", "transformer")

  def sample(program, environment):
    with contextlib.ExitStack() as exits:
      side = Side("compiling side", environment)
      exits.callback(side.close)
      side.do("hello")
      return [side.do("compile", program=program)]

  def helmway(program, flags=(), env=None):
    with contextlib.ExitStack() as exits:
      server = processes.helmway(1, env, flags)
      exits.callback(server.close)
      return sample(program, client_environment(server))

  results = {}
  for program in programs:
    # Every sample has a process of its own. The unrecorded first turns fill the caches.
    sides = {"local JAX, cold": lambda: sample(program, local_environment()),
             "local JAX, its cache directory": lambda: sample(program, local_environment() | jax_cache)}
    if program == "tiny":  # a program of the kind that the null server knows
      null = bench.keep(processes.null_server())
      sides["client's floor (null server)"] = lambda: sample(program, client_environment(null))
    if bench.with_helmway:
      warm = processes.helmway(1)
      bench.keep(warm)
      sides["Helmway, cold"] = lambda: helmway(program)
      sides["Helmway, in memory"] = lambda: sample(program, client_environment(warm))
      sides["Helmway, directory, after a restart"] = lambda: helmway(
          program, [f"--gcs_scratch_location={directory}/helmway"])
      if emulator:
        sides["Helmway, Cloud Storage emulator, after a restart"] = lambda: helmway(
            program, ["--gcs_scratch_location=gs://bench/scratch"], {"STORAGE_EMULATOR_HOST": emulator.address})
    pairs = bench.alternate(bench.rounds(3), sides)
    results[program] = {}
    for number, what in enumerate(("until the compile returns", "until the first result is there")):
      series = {name: Series([[pair[number] for pair in one] for one in s.rounds]) for name, s in pairs.items()}
      cold = series["Helmway, cold" if bench.with_helmway else "local JAX, cold"]
      results[program][what] = {name: {"median_ms": s.median * 1e3, "p99_ms": s.p99 * 1e3,
                                       "to_jax_cache": s.ratio_to(series["local JAX, its cache directory"]),
                                       "cold_to_this": 1 / s.ratio_to(cold)} for name, s in series.items()}
      report.table(
          f"(m) compiling, {program}, {what}; targets: after a restart at most 1 of JAX's cache"
          + (", and at least 10 times faster than cold" if program == "transformer" else ""),
          ["", "median ms", "p99 ms", "to JAX's cache", "faster than cold"],
          [[name] + list(row.values()) for name, row in results[program][what].items()])
  return results


def store(bench):
  """(n) Objects into a store and out of it."""
  directory = pathlib.Path(bench.exits.enter_context(tempfile.TemporaryDirectory()))
  emulator = bench.keep(processes.FakeGcs()) if os.environ.get(processes.FAKE_GCS) else None
  local = bench.keep(processes.StoreIo(directory / "store"))
  bucket = emulator and bench.keep(
      processes.StoreIo("gs://bench/store", {"STORAGE_EMULATOR_HOST": emulator.address}))
  rows, results = [], {}
  for size in (2**16, 2**20, 2**24, 2**27):
    repeats = 8 if size <= 2**20 else 2
    source, copy = directory / "source", directory / "copy"
    source.write_bytes(os.urandom(size))
    copy.write_bytes(source.read_bytes())  # so that there is something to read in the first turn

    def several(function):
      return lambda: [function() for _ in range(repeats)]

    def put(side):
      return several(lambda: side.do("put", f"object-{size}", size))

    def get(side):
      return several(lambda: side.do("get", f"object-{size}"))

    def curl(*arguments):
      return several(lambda: processes.seconds_of("curl", "--fail", "--silent", "--show-error", *arguments))

    sides = {"directory, put": put(local), "directory, get": get(local),
             "cp, and sync of the copy": several(lambda: processes.seconds_of(
                 "sh", "-c", 'rm -f "$2" && cp "$1" "$2" && sync "$2"', "sh", source, copy)),
             "cp": several(lambda: processes.seconds_of("cp", source, copy)),
             "cat": several(lambda: processes.seconds_of("sh", "-c", 'cat "$1" | cat >/dev/null', "sh", source))}
    if emulator:
      url = f"http://{emulator.address}"
      sides |= {"emulator, put": put(bucket), "emulator, get": get(bucket),
                "curl, upload": curl("-T", source, "-X", "POST", "-H", "Content-Type: application/octet-stream", "-H",
                                     "Expect:", f"{url}/upload/storage/v1/b/bench/o?uploadType=media&name=curl-{size}"),
                "curl, download": curl("-o", "/dev/null", f"{url}/storage/v1/b/bench/o/curl-{size}?alt=media")}
    # A get finds what a put of the same turn has left, so puts come first in every turn.
    for side in filter(None, (local, bucket)):
      side.do("put", f"object-{size}", size)
    if emulator:
      sides["curl, upload"]()
    series = bench.alternate(bench.rounds(5), sides)
    yardsticks = {"directory, put": "cp, and sync of the copy", "directory, get": "cp", "emulator, put": "curl, upload",
                  "emulator, get": "curl, download"}
    results[size] = {}
    for name, s in series.items():
      found = {"median_ms": s.median * 1e3, "p99_ms": s.p99 * 1e3, "mib_per_s": size / 2**20 / s.median}
      row = list(found.values())
      if name in yardsticks:
        found["of_yardstick"] = 1 / s.ratio_to(series[yardsticks[name]])
        row.append(found["of_yardstick"])
      else:
        row.append("")
      results[size][name] = found
      rows.append([f"{size / 2**20:g} MiB  {name}"] + row)
  report.table("(n) objects of noise into a store and out of it, one at a time; yardsticks: cp with a sync, cp, curl",
               ["", "median ms", "p99 ms", "MiB/s", "of its yardstick"], rows)
  return results


BENCHMARKS = {"a": get, "b": tiny, "c": transfer, "d": train, "e": standing, "f": spread, "g": move, "h": allreduce,
              "i": train_workers, "j": dispatch, "k": compile_workers, "l": elastic.losing, "m": compiling, "n": store,
              "reshard": reshard, "callback": callback}


def main():
  parser = argparse.ArgumentParser(prog="bench/run.sh", description="Helmway beside its yardsticks.")
  parser.add_argument("name", nargs="*",
                      help="benchmarks to run, of a b c d e f g h i j k l m n reshard callback; all by default")
  parser.add_argument("--rounds", type=float, default=1.0, metavar="FACTOR",
                      help="multiplies the number of rounds of every benchmark")
  parser.add_argument("--without-helmway", action="store_true", help="measure the yardsticks only")
  arguments = parser.parse_args()
  unknown = set(arguments.name) - set(BENCHMARKS)
  if unknown:
    parser.error(f"no benchmark called {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
  with_helmway = not arguments.without_helmway
  if with_helmway and not processes.helmway_is_built():
    sys.exit(f"{processes.BINARY} is not there: build it, set HELMWAY_BINARY, or give --without-helmway")

  about = report.describe(processes.PYTHON)
  for key, value in about.items():
    print(f"{key + ':':10} {value}")
  results, failed = {}, False
  for name in arguments.name or BENCHMARKS:
    start = time.monotonic()
    bench = Bench(arguments.rounds, with_helmway)
    try:
      with bench.exits:
        results[name] = BENCHMARKS[name](bench)
    except processes.Failure as e:
      print(f"\n({name}) failed: {e}", file=sys.stderr)
      results[name], failed = {"failed": str(e)}, True
    print(f"  [{time.monotonic() - start:.0f} s]", flush=True)
  directory = pathlib.Path(__file__).resolve().parent / "results"
  directory.mkdir(exist_ok=True)
  path = directory / (time.strftime("%Y%m%d-%H%M%S", time.gmtime()) + ".json")
  path.write_text(json.dumps({"about": about, "results": results}, indent=2) + "\n")
  print(f"\nwritten to {path}")
  sys.exit(1 if failed else 0)


if __name__ == "__main__":
  main()
