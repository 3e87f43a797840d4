"""Element types, memories, layouts and donations: Helmway gives what JAX's own CPU backend gives, same jax version."""

import json
import pathlib

import pytest
from conftest import cpu_environment, run_python
from test_ops import differences, operation_names

SCRIPT = pathlib.Path(__file__).with_name("array_ops_script.py")


@pytest.fixture(scope="module")
def expected():
    return json.loads(run_python(SCRIPT, env=cpu_environment()).stdout)


@pytest.fixture(scope="module")
def actual(server):
    return json.loads(run_python(SCRIPT, env=server.environment()).stdout)


@pytest.mark.parametrize("name", operation_names(SCRIPT))
def test_operation(name, expected, actual):
    assert "raised" not in expected[name], f"the reference fails: {expected[name]}"
    assert not (found := list(differences(expected[name], actual[name]))), "\n".join(found[:20])


def test_every_operation_ran(expected, actual):
    assert list(actual) == list(expected) == operation_names(SCRIPT)
