"""(l) The loss of a worker: until the program knows, goes on, and has the slice again."""

import os
import random
import signal
import time

import processes
import report

SIDE = processes.BENCH / "elastic_side.py"
WORKERS, DEVICES, SLICES = 4, 2, 2


def workers_of(server):
  """Process ids of the workers of a `helmway up`."""
  def is_worker(pid):
    with open(f"/proc/{pid}/cmdline", "rb") as f:
      return b"local_worker" in f.read()
  return [pid for pid in server.pids() if is_worker(pid)]


def lose_a_worker(rng):
  """Seconds from the kill to the error, to the first good step, and until the slice is back."""
  server = processes.helmway_cluster(WORKERS, DEVICES, SLICES)
  program = processes.Process("program on Helmway", [processes.PYTHON, SIDE], processes.client_environment(server))
  try:
    assert program.line() == "step"
    time.sleep(rng.uniform(0.2, 0.7))
    start = time.monotonic()
    os.kill(rng.choice(workers_of(server)), signal.SIGKILL)
    found = [program.line().split() for _ in range(3)]
    assert [name for name, _ in found] == ["error", "good", "back"]
    return [float(when) - start for _, when in found]
  finally:
    program.close()
    server.close()


def start_job():
  """A multi-controller job with as many processes and devices, after its first step."""
  job = [processes.Process(f"process {n} of the job", [processes.PYTHON, SIDE], environment)
         for n, environment in enumerate(processes.controller_environments(WORKERS, DEVICES))]
  for process in job:
    while process.line() != "step":
      pass  # gloo says that it is connected
  return job


def restart_a_job(rng):
  """Seconds from the kill of one process to the first step of a new job. Whoever restarts it knows at once."""
  job = start_job()
  time.sleep(rng.uniform(0.2, 0.7))
  start = time.monotonic()
  for process in rng.sample(job, len(job)):
    process.child.kill()
  again = start_job()
  duration = time.monotonic() - start
  for process in job + again:
    process.child.kill()
    process.close()
  return duration


def losing(bench):
  """(l) A worker of four is killed."""
  rng = random.Random(0)
  sides = {"multi-controller JAX, restarted": lambda: [restart_a_job(rng)]}
  found = {"error": [], "good": [], "back": []}
  if bench.with_helmway:
    def helmway():
      for name, duration in zip(found, lose_a_worker(rng), strict=True):
        found[name].append(duration)
      return [found["good"][-1]]
    sides["Helmway"] = helmway
  series = bench.alternate(bench.rounds(5), sides)
  restarted = series["multi-controller JAX, restarted"]
  results = {"restart_s": restarted.median}
  rows = [["multi-controller JAX, restarted: first step", restarted.median, restarted.p99, 1.0]]
  names = {"error": "Helmway: the program has the error", "good": "Helmway: first step on the slice that is left",
           "back": "Helmway: the slice is back"}
  for name, durations in found.items():
    if durations:
      measured = report.Series([durations[1:]])  # the first turn is not recorded
      results[f"{name}_s"] = measured.median
      rows.append([names[name], measured.median, measured.p99, measured.median / restarted.median])
  report.table("(l) kill -9 of one worker of four, seconds; targets: error 0.5, first step 2 after it",
               ["", "median", "p99", "of a restart"], rows)
  return results
