"""Every collective of every element type gives on a cluster, bit for bit, what plain JAX gives on eight CPU devices.

What plain JAX refuses is left out, whatever it is.
"""

import pathlib
import pickle
import re

import pytest
from conftest import Server, cpu_environment, run_python, shape

SCRIPT = pathlib.Path(__file__).with_name("collectives_matrix_script.py")

FLOAT8 = ("e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")
TYPES = (
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("int4", "uint4", "float4_e2m1fn", *(f"float8_{kind}" for kind in FLOAT8)),
    *("bfloat16", "float16", "float32", "float64", "complex64", "complex128"),
)
# Plain JAX writes beyond the memory of these, and may end or hang: what is expected comes from wider types, except for
# what XLA itself refuses ("AllReduce for datatype 's2' is not supported", and jnp.sum of them).
WIDENED_TYPES = {"int2": "int8", "uint2": "uint8"}
REFUSED_OF_WIDENED = re.compile("psum|pmin|pmax|sum|prod|min|max")


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The file of the results of plain JAX."""
    path = tmp_path_factory.mktemp("collectives") / "cpu"
    types = (*TYPES, *(f"{name}={wider}" for name, wider in WIDENED_TYPES.items()))
    run_python(SCRIPT, ",".join(types), str(path), env=cpu_environment())
    return path


def is_wanted(case, result):
    refused = case.split("/")[0] in WIDENED_TYPES and REFUSED_OF_WIDENED.search(case)
    return "error" not in result and not refused


@pytest.mark.parametrize(
    "workers", [4, pytest.param(2, marks=pytest.mark.one_jax), pytest.param(8, marks=pytest.mark.one_jax)])
def test_as_on_one_process(workers, reference, helmway_binary, tmp_path, tmp_path_factory):
    # The second cluster and the third load what the first has compiled.
    cache = tmp_path_factory.getbasetemp() / "collectives_cache"
    server = Server(helmway_binary, *shape(workers), "--gcs_scratch_location", str(cache))
    try:
        types = ",".join((*TYPES, *WIDENED_TYPES))
        run_python(SCRIPT, types, str(tmp_path / "out"), str(reference), env=server.environment())
    finally:
        code = server.close()
    assert code == 0
    wanted = {case: result for case, result in pickle.loads(reference.read_bytes()).items() if is_wanted(case, result)}
    found = pickle.loads((tmp_path / "out").read_bytes())
    wrong = [
        f"{case}: {found.get(case, {}).get('error', 'another value')}"
        for case, result in wanted.items()
        if found.get(case) != result
    ]
    assert not wrong, f"{len(wrong)} of {len(wanted)}\n" + "\n".join(wrong[:40])
    assert len(wanted) > 750
