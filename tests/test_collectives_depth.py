"""Thousands of launches with collectives may wait at once; none blocks another for ever."""

import pathlib

import pytest

from conftest import DEVICES, run_python

SCRIPT = pathlib.Path(__file__).with_name("collectives_script.py")


@pytest.mark.one_jax
def test_three_thousand_launches_in_flight(server):
    done = run_python(SCRIPT, "3000", env=server.environment())
    assert f"6000 launches on {DEVICES} devices" in done.stdout
