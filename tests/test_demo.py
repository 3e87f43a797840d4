"""The example trains on Helmway as it does on JAX's own CPU backend."""

import re

import pytest
from conftest import DEVICES, ROOT, cpu_environment, run_python

EXAMPLE = ROOT / "examples" / "train_digits.py"


def history(output):
    """(loss, accuracy) of each epoch."""
    return [tuple(map(float, pair)) for pair in re.findall(r"^epoch .*loss (\S+) +accuracy (\S+)", output, re.M)]


def test_trains_like_the_cpu_backend(server):
    actual = run_python(EXAMPLE, env=server.environment()).stdout
    expected = run_python(EXAMPLE, env=cpu_environment()).stdout
    assert f"{DEVICES} devices" in actual and "runtime proxy/pathways" in actual
    assert "runtime proxy" not in expected
    assert len(history(expected)) == 12
    # Differences in the last bits grow as training goes on.
    for epoch, (got, wanted) in enumerate(zip(history(actual), history(expected), strict=True), start=1):
        assert got == pytest.approx(wanted, rel=1e-4 if epoch <= 2 else 0.05, abs=5e-3), f"epoch {epoch}"
    assert float(re.search(r"test accuracy (\S+) %", actual).group(1)) >= 95


def test_fails_when_the_network_has_not_learned(server):
    done = run_python(EXAMPLE, "--epochs", "1", "--learning-rate", "0", env=server.environment(), check=False)
    assert done.returncode == 1
    assert "below 95" in done.stderr
