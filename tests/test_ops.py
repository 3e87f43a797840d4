"""Ordinary JAX operations give on Helmway what they give on JAX's own CPU backend, same jax version."""

import json
import math
import pathlib

import pytest
from conftest import cpu_environment, run_python

SCRIPT = pathlib.Path(__file__).with_name("ops_script.py")
# The server's compiler is not the one of every client, so the last bits of floats may differ.
RELATIVE, ABSOLUTE = 2e-5, 2e-5


def operation_names(script=SCRIPT):
    """Read from the source, so that collecting tests does not import JAX."""
    lines = script.read_text().splitlines()
    return [
        function.removeprefix("def ").split("(")[0]
        for decorator, function in zip(lines, lines[1:])
        if decorator == "@operation"
    ]


@pytest.fixture(scope="module")
def expected():
    return json.loads(run_python(SCRIPT, env=cpu_environment()).stdout)


@pytest.fixture(scope="module")
def actual(server):
    return json.loads(run_python(SCRIPT, env=server.environment()).stdout)


def differences(expected, actual, path=""):
    """Where two results differ, as text; floats may differ in their last bits."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        if expected.keys() != actual.keys():
            yield f"{path}: {expected} became {actual}"
            return
        for key in expected:
            yield from differences(expected[key], actual[key], f"{path}.{key}")
    elif isinstance(expected, list) and isinstance(actual, list):
        if len(expected) != len(actual):
            yield f"{path}: {len(expected)} items became {len(actual)}: {actual}"
            return
        for i, (a, b) in enumerate(zip(expected, actual)):
            yield from differences(a, b, f"{path}[{i}]")
    elif isinstance(expected, float) and isinstance(actual, float):
        if not math.isclose(expected, actual, rel_tol=RELATIVE, abs_tol=ABSOLUTE):
            if not (math.isnan(expected) and math.isnan(actual)):
                yield f"{path}: {expected} became {actual}"
    elif type(expected) is not type(actual) or expected != actual:
        yield f"{path}: {expected} became {actual}"


@pytest.mark.parametrize("name", operation_names())
def test_operation(name, expected, actual):
    assert "raised" not in expected[name], f"the reference fails: {expected[name]}"
    assert not (found := list(differences(expected[name], actual[name]))), "\n".join(found[:20])


def test_every_operation_ran(expected, actual):
    assert list(actual) == list(expected) == operation_names()


def test_comparison_sees_differences():
    value = {"dtype": "float32", "shape": [2], "elements": [1.0, 2.0]}
    for other in (
        value | {"dtype": "float64"},
        value | {"shape": [1, 2]},
        value | {"elements": [1.0, 2.1]},
        value | {"elements": [1.0]},
        {"raised": "RuntimeError"},
    ):
        assert list(differences(value, other))
    assert list(differences(True, 1)) and not list(differences(value, dict(value)))
