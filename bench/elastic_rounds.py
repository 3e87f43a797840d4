#!/usr/bin/env python3
"""Kills workers at random moments of examples/elastic_train.py until so many recoveries have been seen. Long.

    HELMWAY_BENCH_PYTHON=PYTHON bench/elastic_rounds.py [--rounds 100] [--seed N]

Each round waits until the program trains on both slices, kills a worker (or, one time in five, two) at a random moment,
and waits until the program goes on. Fails unless all programs end with the loss of an undisturbed run, no process or
shared memory is left, and the server's memory has not grown with the rounds.
"""

import argparse
import os
import pathlib
import random
import re
import signal
import sys
import time

import elastic
import processes

EXAMPLE = processes.ROOT / "examples" / "elastic_train.py"
# Of the server's memory, without its workers, from the first tenth of the rounds to the end.
MAX_GROWTH_BYTES = 64 << 20


def program(server, *flags):
  command = [processes.PYTHON, EXAMPLE, "--steps=400", "--snapshot-every=10", "--poll-interval=0.2", *flags]
  return processes.Process("elastic_train.py", command, processes.client_environment(server))


def final_loss(line):
  found = re.match(r"final loss (\S+) after", line)
  return float(found.group(1)) if found else None


def resident_bytes(pid):
  with open(f"/proc/{pid}/statm") as f:
    return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def shared_memory():
  return set(os.listdir("/dev/shm"))


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--rounds", type=int, default=100)
  parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
  arguments = parser.parse_args()
  rng = random.Random(arguments.seed)
  print(f"seed {arguments.seed}", flush=True)
  shared_before = shared_memory()
  server = processes.helmway_cluster(elastic.WORKERS, elastic.DEVICES, elastic.SLICES,
                                     ["--max_worker_restarts", 10 * arguments.rounds])
  try:
    undisturbed = program(server)
    while (expected := final_loss(undisturbed.line())) is None:
      pass
    undisturbed.close()

    recoveries, programs, recovery_s, early_bytes = 0, 0, [], None
    while recoveries < arguments.rounds:
      running = program(server, "--seconds-per-step=0.02")
      programs += 1
      killed_at = None
      while (loss := final_loss(line := running.line(timeout=180))) is None:
        if killed_at is not None and line.startswith("attempt"):
          recovery_s.append(time.monotonic() - killed_at)
          recoveries += 1
          killed_at = None
          if early_bytes is None and recoveries * 10 >= arguments.rounds:
            early_bytes = resident_bytes(server.child.pid)
        if killed_at is None and re.search(r"on slices \[0, 1\]", line) and recoveries < arguments.rounds:
          time.sleep(rng.uniform(0, 0.3))
          workers = elastic.workers_of(server)
          killed_at = time.monotonic()
          for victim in rng.sample(workers, 1 if rng.random() < 0.8 else 2):
            os.kill(victim, signal.SIGKILL)
      running.close()
      if abs(loss - expected) > 0.02 * expected:
        sys.exit(f"program {programs} ended with the loss {loss}, not {expected}")
    grown = resident_bytes(server.child.pid) - early_bytes
    pids = server.pids()
  finally:
    server.close()
  left = [pid for pid in pids if pathlib.Path(f"/proc/{pid}").exists()]
  shared = shared_memory() - shared_before
  recovery_s.sort()
  print(f"{recoveries} recoveries of {arguments.rounds} rounds in {programs} programs; until the program went on: "
        f"median {recovery_s[len(recovery_s) // 2]:.2f} s, longest {recovery_s[-1]:.2f} s; the server has grown by "
        f"{grown / 2**20:.1f} MiB; processes left: {left}; shared memory left: {sorted(shared)}")
  if left or shared or grown > MAX_GROWTH_BYTES:
    sys.exit("something is left")


if __name__ == "__main__":
  main()
