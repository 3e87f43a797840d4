"""Arrays go from any sharding to any other, also by the ways that only pathwaysutils uses."""

import json
import pathlib

import pytest
from conftest import run_python

SCRIPT = pathlib.Path(__file__).with_name("reshard_script.py")


def case_names():
    """Read from the source, so that collecting tests does not import JAX."""
    lines = SCRIPT.read_text().splitlines()
    return [
        function.removeprefix("def ").split("(")[0]
        for decorator, function in zip(lines, lines[1:])
        if decorator == "@case"
    ]


@pytest.fixture(scope="module")
def outcomes(server):
    return json.loads(run_python(SCRIPT, env=server.environment(), timeout_s=600).stdout)


@pytest.mark.parametrize("name", case_names())
def test_case(name, outcomes):
    assert outcomes[name] == "ok", outcomes[name]
