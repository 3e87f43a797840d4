"""JAX's own tests pass on Helmway if they pass on JAX's own CPU backend, but for those that docs/fidelity.md lists."""

import fnmatch
import os
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from conftest import DEVICES, cpu_environment, seconds

HERE = pathlib.Path(__file__).resolve().parent
FOLDER = HERE / "third_party" / "jax"
FIDELITY = HERE.parent / "docs" / "fidelity.md"
# The version of JAX that the files belong to. Others lack some of what they use.
HOME = "0.11.2"


def known_losses(file):
    """Patterns of the tests of a file that docs/fidelity.md lists: lines such as "- `array_test.py` `A.test_b*`"."""
    return re.findall(rf"^- `{re.escape(file)}` `([^`]+)`", FIDELITY.read_text(), re.MULTILINE)


def outcomes(file, folder, environment):
    """passed, failed or skipped by "Class.test", of one run of a file."""
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "jax_parity_backend", "-p", "no:cacheprovider"]
    command += ["-c", os.devnull, "--rootdir", str(FOLDER), "--timeout=300", "--tb=short", "-W", "ignore"]
    done = subprocess.run(
        [*command, f"--junitxml={report}", str(FOLDER / file)],
        env={**environment, "PYTHONPATH": str(HERE)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=seconds(1200),
        check=False,
    )
    # Else pytest itself failed (3) or the process was ended.
    assert done.returncode in (0, 1, 2, 5) and report.exists(), f"exit code {done.returncode}\n{done.stdout[-4000:]}"
    found = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        kinds = {child.tag for child in case}
        name = f"{case.get('classname').rsplit('.', 1)[-1]}.{case.get('name')}"
        found[name] = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
    return found, done.stdout


def version_of_jax():
    from importlib import metadata

    return metadata.version("jax")


# Files that need a server with the Python of the tests, and as many CPU devices of JAX's own beside the server's.
WITH_PYTHON = ("colocated_python_test.py",)


@pytest.mark.parametrize("file", sorted(path.name for path in FOLDER.glob("*_test.py")))
def test_parity(file, request, tmp_path):
    expected, output = outcomes(file, tmp_path, cpu_environment())
    passing = {name for name, outcome in expected.items() if outcome == "passed"}
    if not passing and version_of_jax() != HOME:
        pytest.skip(f"the file is not made for jax {version_of_jax()}: {output.strip().splitlines()[-1]}")
    assert passing, output[-4000:]

    if file in WITH_PYTHON:
        environment = request.getfixturevalue("python_server").environment(JAX_NUM_CPU_DEVICES=str(DEVICES))
    else:
        environment = request.getfixturevalue("server").environment()
    actual, output = outcomes(file, tmp_path, environment)
    lost = {name for name in passing if actual.get(name) != "passed"}
    known = {name for name in passing if any(fnmatch.fnmatch(name, p) for p in known_losses(file))}
    assert not lost - known, f"{sorted(lost - known)}\n{output[-6000:]}"
    if version_of_jax() == HOME:
        assert known == lost, f"docs/fidelity.md lists what passes: {sorted(known - lost)}"
