"""Every collective of every element type gives on a cluster, bit for bit, what plain JAX gives on eight CPU devices.

What plain JAX refuses is left out, whatever it is.
"""

import pathlib
import pickle
import subprocess
import sys

import pytest
from conftest import Server, cpu_environment, run_python, seconds, shape

SCRIPT = pathlib.Path(__file__).with_name("collectives_matrix_script.py")

FLOAT8 = ("e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")
TYPES = (
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("int4", "uint4", "float4_e2m1fn", *(f"float8_{kind}" for kind in FLOAT8)),
    *("bfloat16", "float16", "float32", "float64", "complex64", "complex128"),
)
# In processes of their own: plain JAX writes beyond its memory, and may end.
FRAGILE_TYPES = ("int2", "uint2")


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """(types, file) of the results of plain JAX."""
    folder = tmp_path_factory.mktemp("collectives")
    path = folder / "cpu"
    run_python(SCRIPT, ",".join(TYPES), str(path), env=cpu_environment())
    types, found = list(TYPES), pickle.loads(path.read_bytes())
    for name in FRAGILE_TYPES:
        alone = folder / name
        # The C library's checks make it end where its results would be chance.
        checks = {"LD_PRELOAD": "libc_malloc_debug.so.0", "MALLOC_CHECK_": "3"}
        done = subprocess.run(
            [sys.executable, str(SCRIPT), name, str(alone)],
            env=cpu_environment() | checks, capture_output=True, timeout=seconds(300), check=False,
        )  # fmt: skip
        if done.returncode == 0:
            types.append(name)
            found |= pickle.loads(alone.read_bytes())
    path.write_bytes(pickle.dumps(found))
    return types, path


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_as_on_one_process(workers, reference, helmway_binary, tmp_path, tmp_path_factory):
    types, expected = reference
    # The second cluster and the third load what the first has compiled.
    cache = tmp_path_factory.getbasetemp() / "collectives_cache"
    server = Server(helmway_binary, *shape(workers), "--gcs_scratch_location", str(cache))
    try:
        run_python(SCRIPT, ",".join(types), str(tmp_path / "out"), str(expected), env=server.environment())
    finally:
        code = server.close()
    assert code == 0
    wanted = {case: result for case, result in pickle.loads(expected.read_bytes()).items() if "error" not in result}
    found = pickle.loads((tmp_path / "out").read_bytes())
    wrong = [
        f"{case}: {found.get(case, {}).get('error', 'another value')}"
        for case, result in wanted.items()
        if found.get(case) != result
    ]
    assert not wrong, f"{len(wrong)} of {len(wanted)}\n" + "\n".join(wrong[:40])
    assert len(wanted) > 750
