"""Very large things work or are refused with an error, and the server and its other clients live on."""

import pytest
from conftest import Server, run_python

pytestmark = pytest.mark.one_jax

MIB = 1 << 20


@pytest.fixture(scope="module")
def own_server(helmway_binary):
    """A server whose memory is looked at: one that others share would not do."""
    server = Server(helmway_binary, "--devices", "2")
    yield server
    assert server.close() == 0


def status_bytes(server, name):
    """A line of /proc/PID/status that is in kB."""
    with open(f"/proc/{server.process.pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(name + ":"))


def output_of(script, server):
    return run_python(script, env=server.environment(), timeout_s=600).stdout


TOO_LARGE = """
import os
import jax, jax.numpy as jnp, numpy as np
def refused(f):
    try:
        jax.block_until_ready(f())
    except Exception as error:
        assert "RESOURCE_EXHAUSTED" in str(error), error
        return True
memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
print(refused(lambda: jnp.zeros(1 << 42, jnp.int8)))
# One that fits nowhere though the system would give it out, and one that a program only needs in between.
print(refused(lambda: jnp.zeros(memory // 4 * 3, jnp.int16)))
print(refused(jax.jit(lambda: jax.lax.sort(jax.lax.rng_bit_generator(jnp.zeros(4, jnp.uint32), (memory // 4,))[1])[7])))
print(int(jnp.arange(8).sum()))
"""


def test_arrays_larger_than_memory(own_server):
    assert output_of(TOO_LARGE, own_server) == "True\nTrue\nTrue\n28\n"
    assert own_server.process.poll() is None


MANY_ARGUMENTS = """
import jax, numpy as np
arguments = [jax.device_put(np.int32(i)) for i in range(10_000)]
totals = jax.jit(lambda *a: (sum(a[:100]), *a[:2], a[-1] + 1))(*arguments)
print([int(t) for t in totals])
print(len(jax.jit(lambda *a: [x + 1 for x in a])(*arguments[:2000])))
"""


def test_ten_thousand_arguments(own_server):
    assert output_of(MANY_ARGUMENTS, own_server) == f"[{sum(range(100))}, 0, 1, 10000]\n2000\n"


LARGE_PROGRAM = """
import jax, jax.numpy as jnp, numpy as np
constant = np.random.default_rng(0).integers(0, 1 << 30, 50 << 20, np.int32)  # 200 MiB that do not compress
lowered = jax.jit(lambda x: (jnp.asarray(constant) ^ x).sum(dtype=jnp.int32)).lower(np.int32(5))
print(int(lowered.compile()(np.int32(5))) == int((constant ^ np.int32(5)).sum(dtype=np.int32)))
"""


def test_a_program_of_two_hundred_megabytes(own_server):
    assert output_of(LARGE_PROGRAM, own_server) == "True\n"


MANY_EXECUTABLES = """
import jax, numpy as np
x = np.arange(4, dtype=np.int32)
programs = [jax.jit(lambda a, i=i: a * 3 + i) for i in range(1000)]
for f in programs:
    last = f(x)
print(len(jax.devices()[0].client.live_executables()) >= 1000)
print(all(f(x)[1] == 3 + i for i, f in enumerate(programs)))
"""


def test_a_thousand_live_executables(own_server):
    assert output_of(MANY_EXECUTABLES, own_server) == "True\nTrue\n"


MANY_RUNS = """
import jax, jax.numpy as jnp, numpy as np
step = jax.jit(lambda a: a + 1, donate_argnums=0)
plain = jax.jit(lambda a: a + 1)
x, y = (jax.device_put(np.zeros(4096, np.int32)) for _ in range(2))
for _ in range(25_000):
    x, y = step(x), plain(y)
print(int(x[0]), int(y[-1]))
"""


def test_fifty_thousand_runs_that_nobody_waits_for(own_server):
    # "5" makes the kernel count the peak anew (proc(5), clear_refs).
    with open(f"/proc/{own_server.process.pid}/clear_refs", "w", encoding="ascii") as peak:
        peak.write("5")
    before = status_bytes(own_server, "VmRSS")
    assert output_of(MANY_RUNS, own_server) == "25000 25000\n"
    # All results at once would be 800 MB.
    assert status_bytes(own_server, "VmHWM") - before < 400 * MIB
