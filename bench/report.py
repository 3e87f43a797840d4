"""Statistics, text tables and the description of the machine."""

import datetime
import math
import os
import platform
import subprocess


def quantile(samples, q):
  ordered = sorted(samples)
  return ordered[min(len(ordered) - 1, math.ceil(q * len(ordered)) - 1 if q > 0 else 0)]


def median(samples):
  ordered = sorted(samples)
  middle = len(ordered) // 2
  return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


class Series:
  """What one side measured: one list of samples per round. All sides of a table have the same rounds."""

  def __init__(self, rounds):
    self.rounds = rounds
    self.samples = [sample for one in rounds for sample in one]

  @property
  def median(self):
    return median(self.samples)

  @property
  def p99(self):
    return quantile(self.samples, 0.99)

  def ratio_to(self, yardstick):
    """Median over the rounds of this side's median through the yardstick's median of the same round."""
    return median([median(a) / median(b) for a, b in zip(self.rounds, yardstick.rounds, strict=True)])


def table(title, head, rows):
  """Prints rows of cells under a head; the first column is text."""
  cells = [head] + [[cell if isinstance(cell, str) else f"{cell:.4g}" for cell in row] for row in rows]
  widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
  print(f"\n{title}")
  for n, row in enumerate(cells):
    print("  " + "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))))
    if n == 0:
      print("  " + "  ".join("-" * w for w in widths))


def output_of(*argv):
  try:
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
  except (OSError, subprocess.SubprocessError):
    return "unknown"


def describe(python):
  """Machine, date and versions, as a dict of short texts."""
  model = "unknown"
  with open("/proc/cpuinfo") as f:
    for line in f:
      if line.startswith("model name"):
        model = line.split(":", 1)[1].strip()
        break
  with open("/proc/meminfo") as f:
    memory = int(f.readline().split()[1]) // 2**20
  packages = "; ".join([
      "import importlib.metadata as m",
      "have = {d.name: d.version for d in m.distributions()}",
      "print(', '.join(f'{p} {have.get(p, \"missing\")}' for p in ('jax', 'jaxlib', 'flax', 'pathwaysutils', 'numpy')))"])
  root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
  return {
      "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
      "cpu": f"{model}, {len(os.sched_getaffinity(0))} usable cores",
      "memory": f"{memory} GiB",
      "kernel": platform.release(),
      "load": " ".join(f"{x:.2f}" for x in os.getloadavg()),
      "commit": output_of("git", "-C", root, "describe", "--always", "--dirty"),
      "packages": output_of(python, "-c", packages),
  }
