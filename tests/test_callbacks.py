"""Python callbacks (jax.debug.print, pure_callback, ...) do on Helmway what they do on JAX's own CPU backend."""

import json
import pathlib
import signal
import subprocess
import sys

import pytest
from conftest import Server, cpu_environment, run_python, shape, start_python, tell
from test_ops import differences

SCRIPT = pathlib.Path(__file__).with_name("callbacks_script.py")


def program_names():
    """Read from the source, so that collecting tests does not import JAX."""
    lines = SCRIPT.read_text().splitlines()
    return [
        function.removeprefix("def ").split("(")[0]
        for decorator, function in zip(lines, lines[1:])
        if decorator == "@program"
    ]


# Each device calls for itself, in whatever order.
UNORDERED = ("shard_map", "pmap", "vmap")


@pytest.fixture(scope="module")
def expected():
    return json.loads(run_python(SCRIPT, env=cpu_environment()).stdout)


@pytest.fixture(scope="module")
def cluster(helmway_binary):
    """The same devices on four workers, which programs span."""
    running = Server(helmway_binary, *shape(4))
    yield running
    assert running.close() == 0, running.log()


@pytest.fixture(scope="module", params=["one_worker", "four_workers"])
def actual(request, server):
    where = server if request.param == "one_worker" else request.getfixturevalue("cluster")
    return json.loads(run_python(SCRIPT, env=where.environment()).stdout)


@pytest.mark.parametrize("name", program_names())
def test_program(name, expected, actual):
    assert "raised" not in expected[name], f"the reference fails: {expected[name]}"
    if any(word in name for word in UNORDERED):
        for found in (expected[name], actual[name]):
            found["notes"].sort(key=str)
    assert not (found := list(differences(expected[name], actual[name]))), "\n".join(found[:20])


def test_debug_print_prints_here(server):
    script = """if True:
        import jax, jax.numpy as jnp
        @jax.jit
        def f(x):
            jax.debug.print("x = {x}, sum = {y:.2f}", x=x, y=x.sum())
            jax.debug.print("first", ordered=True)
            jax.debug.print("second", ordered=True)
            return x + 1
        f(jnp.arange(3))
        jax.effects_barrier()
        print("end")
        f(jnp.arange(3) + 1)  # printed too, though nobody waits for it
    """
    lines = run_python(script, env=server.environment()).stdout.splitlines()
    end = lines.index("end")
    for part, values in ((lines[:end], "x = [0 1 2], sum = 3.00"), (lines[end + 1 :], "x = [1 2 3], sum = 6.00")):
        assert sorted(part) == ["first", "second", values]
        assert part.index("first") < part.index("second")


def test_what_the_partitioner_does_not_ask_is_told_once(server):
    script = """if True:
        import jax, jax.numpy as jnp
        from jax.experimental.custom_partitioning import custom_partitioning
        @custom_partitioning
        def twice(x):
            return x * 2
        twice.def_partition(partition=None, sharding_rule="i -> i", infer_sharding_from_operands=lambda *a: None)
        mesh = jax.make_mesh((2,), ("x",), devices=jax.devices()[:2], axis_types=(jax.sharding.AxisType.Auto,))
        x = jax.device_put(jnp.arange(4.0), jax.NamedSharding(mesh, jax.P("x")))
        for add in range(2):
            print(jax.jit(lambda x: twice(x) + add)(x))
        @jax.jit
        def inspect(x):
            jax.debug.inspect_array_sharding(x, callback=print)
            return x
        print(inspect(x))
        twice(jnp.arange(4.0))  # on one device nothing is partitioned
    """
    done = run_python(script, env=server.environment())
    assert done.stdout == "[0. 2. 4. 6.]\n[1. 3. 5. 7.]\n[0. 1. 2. 3.]\n"
    warnings = [line for line in done.stderr.splitlines() if "custom partitioning" in line or "inspect_array" in line]
    assert len(warnings) == 2, done.stderr
    assert "twice" in warnings[0] and "is not used" in warnings[0] and "is not called" in warnings[1]


def test_other_backends_are_as_before(server):
    """A program on the CPU backend beside the server runs JAX's own callback, in its own way."""
    script = """if True:
        import jax, jax.numpy as jnp, numpy as np
        f = jax.jit(lambda x: jax.pure_callback(lambda v: np.asarray(v) * 2, x, x))
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            x = jnp.arange(3.0)
            text = f.lower(x).as_text()
            print("client =" in text, f(x).tolist())
        x = jnp.arange(3.0)
        text = f.lower(x).as_text()
        print("client =" in text, f(x).tolist())
    """
    assert run_python(script, env=server.environment()).stdout == "False [0.0, 2.0, 4.0]\nTrue [0.0, 2.0, 4.0]\n"


@pytest.mark.one_jax
def test_arrays_of_hundreds_of_megabytes(server):
    script = """if True:
        import jax, jax.numpy as jnp, numpy as np
        f = jax.jit(lambda x: jax.pure_callback(lambda v: np.asarray(v) + 1, jax.ShapeDtypeStruct(x.shape, x.dtype), x))
        y = f(jnp.arange(300 << 18, dtype=jnp.int32))  # 300 MiB
        print(y.shape, int(y[0]), int(y[-1]), bool((y[1:] - y[:-1] == 1).all()))
    """
    assert run_python(script, env=server.environment()).stdout == f"({300 << 18},) 1 {300 << 18} True\n"


def test_a_thousand_callbacks_at_once(server):
    """From many threads, each of which waits inside its callback until all have been called."""
    script = """if True:
        import threading
        import jax, jax.numpy as jnp, numpy as np
        CALLERS, LAUNCHES = 25, 40
        meeting = threading.Barrier(CALLERS)
        def called(v):
            if v % LAUNCHES == 0:
                meeting.wait()
            return np.asarray(v) * 2
        f = jax.jit(lambda x: jax.pure_callback(called, jax.ShapeDtypeStruct((), jnp.int32), x))
        f.lower(jnp.int32(1)).compile()
        found = {}
        def call(t):
            values = [f(jnp.int32(t * LAUNCHES + i)) for i in range(LAUNCHES)]
            found[t] = [int(v) for v in values]
        threads = [threading.Thread(target=call, args=(t,)) for t in range(CALLERS)]
        for t in threads: t.start()
        for t in threads: t.join()
        flat = sum((found[t] for t in range(CALLERS)), [])
        print(flat == [2 * i for i in range(CALLERS * LAUNCHES)])
    """
    assert run_python(script, env=server.environment()).stdout == "True\n"


def test_callbacks_that_use_jax(server):
    script = """if True:
        import jax, jax.numpy as jnp, numpy as np
        g = jax.jit(lambda x: x * 3)
        g(jnp.arange(4.0)).block_until_ready()
        f = jax.jit(lambda x: jax.pure_callback(lambda v: np.asarray(g(jnp.asarray(v))), x, x) + 1)
        print(f(jnp.arange(4.0)).tolist())
    """
    assert run_python(script, env=server.environment()).stdout == "[1.0, 4.0, 7.0, 10.0]\n"


def test_a_process_with_one_session_after_another(server):
    script = """if True:
        import jax, jax.numpy as jnp, numpy as np
        from jax.extend import backend
        for i in range(3):
            f = jax.jit(lambda x: jax.pure_callback(lambda v: np.asarray(v) + i, x, x))
            print(f(jnp.arange(2.0)).tolist())
            backend.clear_backends()
    """
    assert run_python(script, env=server.environment()).stdout == "[0.0, 1.0]\n[1.0, 2.0]\n[2.0, 3.0]\n"


def test_without_the_package_the_clients_error_stays(server):
    script = """if True:
        import sys
        sys.modules["helmway"] = None  # as if it were not installed
        import pathwaysutils
        pathwaysutils.initialize()
        import jax, jax.numpy as jnp
        try:
            jax.jit(lambda x: jax.pure_callback(lambda v: v, x, x))(jnp.arange(3.0)).block_until_ready()
        except Exception as e:
            print(e)
        print((jnp.arange(3.0) + 1).tolist())
    """
    lines = run_python(script, env=server.environment()).stdout.splitlines()
    assert "Unsupported host callback type" in lines[0]
    assert lines[-1] == "[1.0, 2.0, 3.0]"


# Calls a function that says so and never returns.
STUCK = """
import os, time
import jax, jax.numpy as jnp, numpy as np
def stuck(v):
    os.write(1, b"called\\n")  # one write: several threads may be here
    time.sleep(3600)
    return v
f = jax.jit(lambda x: jax.pure_callback(stuck, jax.ShapeDtypeStruct(x.shape, x.dtype), x) + 1)
f(jnp.arange(4.0)).block_until_ready()
"""
ALL_STUCK = STUCK.replace(
    "f(jnp.arange(4.0))",
    """from jax.sharding import PartitionSpec as P
mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
g = jax.jit(jax.shard_map(lambda x: jax.lax.psum(f(x), "x"), mesh=mesh, in_specs=P("x"), out_specs=P()))
g(jnp.arange(8.0))""",
)
SUM = """if True:
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import NamedSharding, PartitionSpec as P
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jax.device_put(np.arange(16.0, dtype=np.float32), NamedSharding(mesh, P("x")))
    print(float(jax.jit(jnp.sum)(x)))
    print(float(jax.jit(lambda x: jax.pure_callback(lambda v: np.sum(v), jax.ShapeDtypeStruct((), x.dtype), x))(x)))
"""


@pytest.mark.parametrize("script", [STUCK, ALL_STUCK], ids=["one device", "all devices"])
@pytest.mark.parametrize("with_signal", [signal.SIGKILL, signal.SIGTERM])
def test_a_client_that_dies_in_a_callback(server, script, with_signal):
    client = subprocess.Popen(
        [sys.executable, "-c", script], env=server.environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert client.stdout.readline() == b"called\n"
        # Others are undisturbed while it hangs, and when it is gone.
        assert run_python(SUM, env=server.environment()).stdout == "120.0\n120.0\n"
        client.send_signal(with_signal)
        client.wait(60)
    finally:
        client.kill()
        client.wait()
        client.stdout.close()
    assert run_python(SUM, env=server.environment()).stdout == "120.0\n120.0\n"


def test_interpreters_end_well(server):
    """With calls under way at exit, and with functions that nobody needs any more."""
    script = """if True:
        import jax, jax.numpy as jnp
        @jax.jit
        def f(x):
            jax.debug.callback(lambda v: print(int(v), flush=True), x)
            return x
        for i in range(20):
            f(jnp.int32(i))
    """
    done = run_python(script, env=server.environment())
    assert sorted(map(int, done.stdout.split())) == list(range(20))
    assert "Traceback" not in done.stderr and "terminate" not in done.stderr


def test_a_function_that_does_not_answer_holds_up_only_what_needs_it(cluster):
    """Other programs of this client, and other clients, go on; also where programs span workers."""
    script = """if True:
        import sys, threading
        import jax, jax.numpy as jnp, numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
        split = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), P("x"))
        x = jax.device_put(jnp.arange(16.0), split)
        may_answer = threading.Event()
        def called(v):
            may_answer.wait()
            return np.asarray(v) * 2
        calls = jax.jit(lambda x: jax.pure_callback(called, jax.ShapeDtypeStruct(x.shape, x.dtype), x))
        spans = jax.jit(lambda x: x + x.sum())
        donates = jax.jit(lambda x: x + 1, donate_argnums=0)
        np.asarray(spans(x))
        before = jax.device_put(jnp.ones(16), split)
        waits = jax.jit(lambda x, y: spans(x) + y)(calls(x), before)
        back = NamedSharding(Mesh(np.array(jax.devices()[::-1]), ("x",)), P("x"))
        elsewhere = spans(jax.device_put(waits, back))  # another program, of copies
        gone = donates(before)  # what waits uses it still
        print(np.asarray(spans(x)).tolist() == (np.arange(16.0) + 120).tolist(), np.asarray(gone).tolist() == [2.0] * 16)
        print("others", flush=True)
        sys.stdin.readline()
        may_answer.set()
        want = np.arange(16.0) * 2 + 240 + 1
        print(np.asarray(waits).tolist() == want.tolist(), np.asarray(elsewhere).tolist() == (want + want.sum()).tolist())
    """
    other = """if True:
        import jax, jax.numpy as jnp, numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
        split = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), P("x"))
        x = jax.device_put(jnp.arange(16.0), split)
        for _ in range(20):
            x = jax.jit(lambda x: x - x.mean())(x)
        print(float(x.sum()))
    """
    process = start_python(script, env=cluster.environment())
    try:
        assert process.stdout.readline() == "True True\n"
        assert process.stdout.readline() == "others\n"
        assert run_python(other, env=cluster.environment()).stdout == "0.0\n"
        tell(process, "go on")
        assert process.stdout.readline() == "True True\n"
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def test_programs_that_span_workers_call_from_many_threads(cluster):
    script = """if True:
        import threading
        import jax, jax.numpy as jnp, numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
        devices = jax.devices()
        want = np.arange(16.0) * 2 + 120
        double = lambda v: np.asarray(v) * 2
        programs = []
        for some in (devices, devices[2:6], devices[:4], [devices[1], devices[7]], devices[4:6], devices[3:4]):
            mesh = Mesh(np.array(some), ("x",))
            x = jax.device_put(jnp.arange(16.0), NamedSharding(mesh, P("x")))
            call = lambda x: jax.pure_callback(double, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="sequential")
            programs += [
                (jax.jit(lambda x: call(x) + x.sum()), x),
                (jax.jit(lambda x: x * 2 + x.sum()), x),
                (jax.jit(jax.shard_map(lambda x: call(x) + jax.lax.psum(x.sum(), "x"), mesh=mesh, in_specs=P("x"), out_specs=P("x"))), x),
            ]
        wrong = []
        def work(seed):
            order = np.random.default_rng(seed).integers(len(programs), size=60)
            results = [programs[i][0](programs[i][1]) for i in order]
            again = [programs[i][0](r) for i, r in zip(order, results) if i % 2]
            wrong.extend(r for r in results if not np.array_equal(np.asarray(r), want))
            jax.block_until_ready(again)
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for t in threads: t.start()
        for t in threads: t.join()
        print(len(wrong))
    """
    assert run_python(script, env=cluster.environment()).stdout == "0\n"
