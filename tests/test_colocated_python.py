"""Python beside the devices (jax.experimental.colocated_python), in real sidecars.

Each test is a program of its own, so a session and a sidecar of its own. JAX's own tests of it are in test_jax_parity.py.
"""

import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from conftest import Server, run_python, seconds, start_python, tell

PRELUDE = textwrap.dedent(
    """
    import gc, json, os, re, sys, threading, time
    import jax, jax.numpy as jnp, numpy as np
    from jax.experimental import colocated_python as cp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P, SingleDeviceSharding

    devices = cp.colocated_cpu_devices(jax.devices())
    mesh = Mesh(np.array(devices), ("x",))
    rows, whole = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())
    n = len(devices)

    def put(value, sharding=rows):
        return jax.device_put(np.asarray(value), sharding)

    def spec_of(x):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)

    def as_input(f):
        '''Asynchronous from the first call on.'''
        return f.specialize(out_specs_fn=spec_of)

    def error_of(call):
        try:
            jax.block_until_ready(call())
        except jax.errors.JaxRuntimeError as error:
            return str(error)
        raise AssertionError("no error")
    """
)


def program(text):
    return PRELUDE + textwrap.dedent(text)


@pytest.fixture(scope="module")
def workers(helmway_binary):
    """Two workers of two devices, in processes of their own."""
    running = Server(
        helmway_binary, "--workers", "2", "--devices_per_worker", "2", environment={"HELMWAY_PYTHON": sys.executable}
    )
    yield running
    assert running.close() == 0, running.log()


@pytest.fixture(params=["one process", "two workers"])
def any_server(request):
    return request.getfixturevalue("python_server" if request.param == "one process" else "workers")


def run(text, server, **arguments):
    return run_python(program(text), env=server.environment(), **arguments)


# ---- Values ----------------------------------------------------------------------------------------------


def test_every_element_type_and_shape(any_server):
    run(
        """
        jax.config.update("jax_enable_x64", True)
        import ml_dtypes

        @cp.colocated_python
        def same(tree):
            return jax.tree.map(lambda x: x.copy(), tree)

        names = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128"
        tree = {}
        for name in names.split():
            tree[name] = put((np.arange(6 * n).reshape(2 * n, 3) % 2).astype(name))
        for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4"):
            tree[name] = put((np.arange(2 * n) % 7).astype(getattr(ml_dtypes, name)))
        tree["scalar"] = put(np.float64(1 / 3), whole)
        tree["empty"] = put(np.zeros((0, 3), np.float32), whole)
        tree["big"] = put(np.arange(n << 18, dtype=np.int32))
        for _ in range(2):
            got = same(tree)
            for name, x in tree.items():
                assert got[name].dtype == x.dtype and got[name].shape == x.shape and got[name].sharding == x.sharding, name
                assert np.array_equal(np.asarray(got[name]), np.asarray(x)), name

        @as_input
        @cp.colocated_python
        def more(x):
            return x + 1  # would be int32 where 64 bits are off

        x = put(np.arange(n, dtype=np.int64) + (1 << 40))
        assert np.array_equal(np.asarray(more(x)), np.arange(n) + (1 << 40) + 1)
        """,
        any_server,
    )


def test_strings(any_server):
    run(
        """
        @cp.colocated_python
        def shout(x):
            parts = []
            for shard in x.addressable_shards:
                text = np.array([s.upper() + "!" for s in np.asarray(shard.data).reshape(-1)], np.dtypes.StringDType())
                parts.append(jax.device_put(text.reshape(shard.data.shape), shard.device))
            return jax.make_array_from_single_device_arrays(x.shape, x.sharding, parts, dtype=x.dtype)

        kind = np.dtypes.StringDType()
        for words in (["a"] * n, ["grüße"] + ["", "日本", "x" * (1 << 20)] * n, ["w%d" % i for i in range(3 * n)]):
            words = (words * n)[: len(words) - len(words) % n or n]
            x = put(np.array(words, kind))
            for _ in range(2):
                got = [str(s) for shard in shout(x).addressable_shards for s in np.asarray(shard.data)]
                assert got == [w.upper() + "!" for w in words]
        """,
        any_server,
    )


def test_results_are_arrays_like_any_other(any_server):
    run(
        """
        @as_input
        @cp.colocated_python
        def f(x):
            time.sleep(0.05)
            return x * 2

        double = jax.jit(lambda a: a * 2)
        x = put(np.arange(4.0 * n, dtype=np.float32))
        for _ in range(5):
            # What is not there yet goes in, and so does what the function makes.
            y = double(f(double(x)))
            assert np.array_equal(np.asarray(jax.device_put(y, whole)), np.arange(4.0 * n) * 8)
        donated = jax.jit(lambda a: a + 1, donate_argnums=0)
        y = f(x)
        assert np.array_equal(np.asarray(donated(y)), np.arange(4.0 * n) * 2 + 1)
        assert y.is_deleted()
        """,
        any_server,
    )


def test_other_device_orders(any_server):
    run(
        """
        turned = NamedSharding(Mesh(np.array(devices[::-1]), ("x",)), P("x"))

        @cp.colocated_python
        def turn(x):
            parts = [jax.device_put(np.asarray(s.data) * 10, s.device) for s in x.addressable_shards]
            return jax.make_array_from_single_device_arrays(x.shape, x.sharding, parts), x

        for sharding in (rows, turned):
            x = put(np.arange(2 * n), sharding)
            for _ in range(2):
                y, z = turn(x)
                assert np.array_equal(np.asarray(y), np.arange(2 * n) * 10) and y.sharding == sharding
                assert np.array_equal(np.asarray(z), np.arange(2 * n)) and z.sharding == sharding
        some = NamedSharding(Mesh(np.array(devices[1:3]), ("x",)), P("x"))
        y, _ = turn(put(np.arange(4), some))
        assert np.array_equal(np.asarray(y), np.arange(4) * 10)
        """,
        any_server,
    )


def test_an_argument_is_not_copied_and_may_be_kept(python_server):
    run(
        """
        import sys as kept

        @cp.colocated_python
        def keep(x, number):
            # Its memory is what the worker has shared, and nobody writes there again.
            import sys
            sys.helmway_kept = getattr(sys, "helmway_kept", []) + [x]
            address = x.addressable_shards[0].data.unsafe_buffer_pointer()
            for line in open("/proc/self/maps"):
                begin, end = (int(part, 16) for part in line.split()[0].split("-"))
                if begin <= address < end:
                    return number + ("helmway-sidecar" in line)
            return number - 1

        @cp.colocated_python
        def sums(number):
            import sys
            return jax.device_put(np.array([float(np.asarray(x).sum()) for x in sys.helmway_kept], np.float32), number.sharding)

        zero = put(np.int32(0), whole)
        for i in range(4):
            assert int(keep(put(np.full((8 * n, 1 << 16), i, np.float32)), zero)) == 1, i
        assert np.asarray(sums(zero)).tolist() == [i * 8 * n * (1 << 16) for i in range(4)]
        """,
        python_server,
    )


# ---- Order -----------------------------------------------------------------------------------------------


def test_calls_of_a_thread_are_in_order(any_server):
    run(
        """
        @as_input
        @cp.colocated_python
        def note(x):
            import sys
            sys.helmway_notes = getattr(sys, "helmway_notes", []) + [int(np.asarray(x.addressable_shards[0].data)[0])]
            return x

        @cp.colocated_python
        def notes(x):
            import sys
            return jax.device_put(np.array(sys.helmway_notes, np.int32), x.sharding)

        zero = put(np.int32(0), whole)
        slow = jax.jit(lambda x: x + 0 * jnp.linalg.norm(jnp.ones((300, 300)) @ jnp.ones((300, 300))).astype(np.int32))
        for i in range(100):
            x = put(np.full(n, i, np.int32))
            # Some inputs come late.
            note(slow(x) if i % 7 == 0 else x)
        assert np.asarray(notes(zero)).tolist() == list(range(100))
        """,
        any_server,
    )


def test_calls_of_different_threads_run_at_the_same_time(any_server):
    run(
        """
        @as_input
        @cp.colocated_python
        def meet(x):
            import sys, threading
            lock = sys.__dict__.setdefault("helmway_barrier", threading.Barrier(3))
            lock.wait(60)
            return x + 1

        @as_input
        @cp.colocated_python
        def wait_for_the_end(x):
            import sys, threading
            assert sys.__dict__.setdefault("helmway_end", threading.Event()).wait(60)
            return x

        @cp.colocated_python
        def end(x):
            import sys, threading
            sys.__dict__.setdefault("helmway_end", threading.Event()).set()
            return x

        x = put(np.arange(n, dtype=np.int32))
        found = []
        def call():
            found.append(np.asarray(meet(x)))
        threads = [threading.Thread(target=call) for _ in range(3)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert len(found) == 3 and all(np.array_equal(one, np.arange(n) + 1) for one in found)

        # One that is blocked holds up neither other threads nor programs.
        blocked = []
        waiting = threading.Thread(target=lambda: blocked.append(np.asarray(wait_for_the_end(x))))
        waiting.start()
        assert np.array_equal(np.asarray(jax.jit(lambda a: a * 3)(x)), np.arange(n) * 3)
        np.asarray(end(x))
        waiting.join()
        assert np.array_equal(blocked[0], np.arange(n))
        """,
        any_server,
    )


def test_a_call_with_known_outputs_returns_at_once(python_server):
    run(
        """
        @cp.colocated_python
        def f(x):
            import sys, threading
            assert sys.__dict__.setdefault("helmway_go", threading.Event()).wait(60)
            return x + 1

        @cp.colocated_python
        def go(x):
            import sys, threading
            sys.__dict__.setdefault("helmway_go", threading.Event()).set()
            return x

        x = put(np.arange(n))
        y = as_input(f)(x)  # would wait for ever here
        ready = y.is_ready()
        threading.Thread(target=lambda: np.asarray(go(x))).start()
        assert np.array_equal(np.asarray(y), np.arange(n) + 1) and not ready
        """,
        python_server,
    )


def test_the_first_call_runs_once(any_server, tmp_path):
    run(
        f"""
        @cp.colocated_python
        def f(x):
            with open({str(tmp_path / "calls")!r} + str(jax.process_index()), "a") as calls:
                calls.write("call\\n")
            return x + 1

        x = put(np.arange(n))
        for _ in range(3):
            assert np.array_equal(np.asarray(f(x)), np.arange(n) + 1)
        """,
        any_server,
    )
    files = list(tmp_path.iterdir())
    assert files and all(path.read_text() == "call\n" * 3 for path in files)


# ---- Objects ---------------------------------------------------------------------------------------------

COUNTER = """
@cp.colocated_python_class
class Counter:
    def __init__(self, start, folder=None):
        if start < 0:
            raise ValueError("a negative start")
        self.value, self.folder = start, folder

    def add(self, x):
        self.value += 1
        return x + self.value

    def fail(self, x):
        self.value += 10
        raise KeyError("no such thing")

    def __del__(self):
        if self.folder:
            with open(f"{self.folder}/{jax.process_index()}", "a") as gone:
                gone.write("gone\\n")

@cp.colocated_python
def nothing(x):
    return x

x = put(np.zeros(n, np.int32))
"""


def test_objects_keep_their_state(any_server):
    run(
        textwrap.dedent(COUNTER)
        + textwrap.dedent(
            """
            one, other = Counter(0), Counter(100)
            for i in range(1, 4):
                assert np.asarray(one.add(x)).tolist() == [i] * n
                assert np.asarray(other.add(x)).tolist() == [100 + i] * n
            assert "KeyError: 'no such thing'" in error_of(lambda: one.fail(x))
            assert np.asarray(one.add(x)).tolist() == [14] * n
            bad = Counter(-1)
            for _ in range(2):
                assert "ValueError: a negative start" in error_of(lambda: bad.add(x))
            """
        ),
        any_server,
    )


def test_an_object_is_gone_before_the_next_call(any_server, tmp_path):
    run(
        textwrap.dedent(COUNTER)
        + textwrap.dedent(
            f"""
            one = Counter(0, {str(tmp_path)!r})
            np.asarray(one.add(x))
            np.asarray(one.add(x))
            assert not os.listdir({str(tmp_path)!r})
            del one
            gc.collect()
            np.asarray(nothing(x))
            assert len(os.listdir({str(tmp_path)!r})) == len({{d.id // 2048 for d in devices}})
            """
        ),
        any_server,
    )


# ---- Errors ----------------------------------------------------------------------------------------------


def test_errors_have_text_and_traceback(any_server):
    run(
        """
        def inner(x):
            raise RuntimeError("bööm " + chr(0xDC80))

        @cp.colocated_python
        def f(x):
            return inner(x)

        @cp.colocated_python
        def leave(x):
            sys.exit(3)

        @cp.colocated_python
        def fine(x):
            return x

        x = put(np.arange(n))
        for g in (f, as_input(f)):
            for _ in range(2):
                text = error_of(lambda: g(x))
                assert text.startswith("INVALID_ARGUMENT") and "RuntimeError: bööm" in text, text
                assert "in inner" in text and "in f" in text and "helmway sidecar" not in text, text
        # What is made of it fails alike.
        assert "RuntimeError: bööm" in error_of(lambda: jax.jit(lambda a: a + 1)(as_input(f)(x)))
        assert "SystemExit: 3" in error_of(lambda: leave(x))
        assert np.array_equal(np.asarray(fine(x)), np.arange(n))
        """,
        any_server,
    )


def test_wrong_results_are_refused(any_server):
    run(
        """
        def wrong(make):
            @cp.colocated_python
            def f(x):
                return make(x)
            return as_input(f)

        x = put(np.arange(2 * n, dtype=np.int32))
        for make, text in [
            (lambda x: jax.make_array_from_callback((n,), x.sharding, lambda i: np.zeros(n, np.int32)[i]), "int32["),
            (lambda x: jax.make_array_from_callback(x.shape, x.sharding, lambda i: np.zeros(2 * n, np.float32)[i]), "float32["),
            (lambda x: np.zeros(2 * n, np.int32), "a ndarray, it must be a jax.Array"),
            (lambda x: (x, x), "structure"),
            (lambda x: None, "structure"),
            (lambda x: x.addressable_shards[0].data, "int32["),
            (lambda x: jax.make_array_from_callback(x.shape, NamedSharding(x.sharding.mesh, P()), lambda i: np.zeros(2 * n, np.int32)[i]), "sharding"),
        ]:
            found = error_of(lambda: wrong(make)(x))
            assert found.startswith("INVALID_ARGUMENT") and text in found, found
        assert np.array_equal(np.asarray(wrong(lambda x: x)(x)), np.arange(2 * n))
        """,
        any_server,
    )


def test_one_failure_fails_the_run_everywhere(workers):
    run(
        """
        @cp.colocated_python
        def f(x):
            if jax.process_index() == 1:
                raise RuntimeError("only here")
            return x

        x = put(np.arange(n))
        y = as_input(f)(x)
        for shard in y.addressable_shards:
            assert "only here" in error_of(lambda: np.asarray(shard.data)), shard
        # The first call's description of the result is read from one of them.
        assert "only here" in error_of(lambda: f(x))

        @as_input
        @cp.colocated_python
        def part(x):
            if jax.process_index() == 1:
                raise RuntimeError("only here")
            time.sleep(1000)
            return x

        # Nobody waits for those that have not failed.
        assert "only here" in error_of(lambda: part(x))
        """,
        workers,
    )


def test_what_cannot_be_unpickled_says_why(any_server, tmp_path):
    (tmp_path / "only_of_the_client.py").write_text("def helper(x):\n    return x\n")
    run(
        f"""
        sys.path.insert(0, {str(tmp_path)!r})
        from only_of_the_client import helper

        @cp.colocated_python
        def f(x):
            return helper(x)

        x = put(np.arange(n))
        text = error_of(lambda: f(x))
        assert "ModuleNotFoundError: No module named 'only_of_the_client'" in text and "INVALID_ARGUMENT" in text, text
        """,
        any_server,
    )


# ---- Hosts -----------------------------------------------------------------------------------------------


def test_each_host_sees_its_own_shards(workers):
    run(
        """
        @cp.colocated_python
        def who(x):
            own = [d.id for d in jax.local_devices()]
            seen = [s.device.id for s in x.addressable_shards]
            assert seen == own == [2048 * jax.process_index() + i for i in range(2)], (seen, own)
            assert jax.process_count() == 2 and len(jax.devices()) == 4
            assert [d.id for d in cp.colocated_cpu_devices(jax.devices())] == [d.id for d in jax.devices()]
            parts = [jax.device_put(np.full((1,), jax.process_index(), np.int32), d) for d in jax.local_devices()]
            return jax.make_array_from_single_device_arrays((4,), x.sharding, parts)

        x = put(np.arange(n, dtype=np.int32))
        assert np.asarray(who(x)).tolist() == [0, 0, 1, 1]
        one = Mesh(np.array(devices[2:]), ("x",))

        @cp.colocated_python
        def plus(x):
            return x + 1 + jax.process_index()

        # All that needs no other host's data.
        for _ in range(2):
            assert np.asarray(plus(put(np.arange(2), NamedSharding(one, P("x"))))).tolist() == [2, 3]
            assert np.asarray(plus(x)).tolist() == [1, 2, 4, 5]

        @cp.colocated_python
        def new(x):
            return jax.device_put(np.arange(4, dtype=np.int32) * 7, x.sharding)

        assert np.asarray(new(x)).tolist() == [0, 7, 14, 21]

        # And what does.
        @cp.colocated_python
        def together(x):
            from jax.experimental import multihost_utils
            multihost_utils.sync_global_devices("all here")
            assert multihost_utils.process_allgather(np.int32(jax.process_index())).tolist() == [0, 1]
            whole = NamedSharding(x.sharding.mesh, P())
            return jax.jit(lambda a: jnp.full(4, a.sum(), a.dtype), out_shardings=x.sharding)(x), jax.device_put(x, whole)

        for _ in range(2):
            total, copy = together(x)
            assert np.asarray(total).tolist() == [6] * 4 and np.asarray(copy).tolist() == [0, 1, 2, 3]
        """,
        workers,
    )


# ---- Life ------------------------------------------------------------------------------------------------


def test_functions_may_start_processes(python_server):
    run(
        """
        @cp.colocated_python
        def f(x):
            import multiprocessing
            from absl import flags
            assert flags.FLAGS.is_parsed()
            with multiprocessing.get_context("spawn").Pool(2) as pool:
                assert pool.map(abs, [-1, -2, 3]) == [1, 2, 3]
            return x

        np.asarray(f(put(np.arange(n))))
        """,
        python_server,
    )


def test_sessions_share_nothing(python_server):
    text = """
        @cp.colocated_python
        def pid(x):
            return x * 0 + os.getpid()

        print(int(np.asarray(pid(put(np.zeros(n, np.int32))))[0]), flush=True)
        if len(sys.argv) > 1:
            sys.stdin.readline()
        """
    first = start_python(program(text), "wait", env=python_server.environment())
    pid = int(first.stdout.readline())
    assert pathlib.Path(f"/proc/{pid}").exists()
    second = int(run(text, python_server).stdout)
    assert second != pid
    # A sidecar ends with its session, and so do processes that it has started.
    await_end(second)
    tell(first, "")
    assert first.wait(seconds(60)) == 0
    await_end(pid)


def await_end(pid):
    deadline = time.monotonic() + seconds(30)
    while pathlib.Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, f"process {pid} lives on"
        time.sleep(0.02)


def test_children_of_functions_end_with_the_session(python_server):
    pid = int(
        run(
            """
            @cp.colocated_python
            def start(x):
                import subprocess
                return x * 0 + subprocess.Popen(["sleep", "1000"]).pid

            print(int(np.asarray(start(put(np.zeros(n, np.int32))))[0]))
            """,
            python_server,
        ).stdout
    )
    await_end(pid)


@pytest.mark.parametrize("how", ["os.kill(os.getpid(), 9)", "os._exit(5)", "os.abort()"])
def test_the_death_of_a_sidecar(any_server, how):
    run(
        f"""
        @cp.colocated_python
        def die(x):
            if jax.process_index() == 0:
                {how}
            return x

        @cp.colocated_python
        def fine(x):
            return x + 1

        x = put(np.arange(n))
        assert np.array_equal(np.asarray(fine(x)), np.arange(n) + 1)
        text = error_of(lambda: as_input(die)(x))
        assert text.startswith("DATA_LOSS") and "Python process" in text, text
        assert error_of(lambda: fine(x)).startswith("DATA_LOSS")
        # Programs and arrays have lost nothing, and new functions get a new process.
        assert np.array_equal(np.asarray(jax.jit(lambda a: a + 1)(x)), np.arange(n) + 1)

        @cp.colocated_python
        def other(x):
            return x + 2

        assert np.array_equal(np.asarray(other(x)), np.arange(n) + 2)
        """,
        any_server,
    )


def test_collectives_after_the_death_of_a_sidecar(workers):
    run(
        """
        def total():
            @cp.colocated_python
            def f(x):
                return jax.jit(lambda a: jnp.full(4, a.sum(), a.dtype), out_shardings=x.sharding)(x)
            return np.asarray(f(x)).tolist()

        @cp.colocated_python
        def die(x):
            if jax.process_index() == 1:
                os._exit(5)
            return x

        x = put(np.arange(n, dtype=np.int32))
        assert total() == [6] * 4
        assert error_of(lambda: as_input(die)(x)).startswith("DATA_LOSS")
        # The processes that were in collectives with it end when they meet the new one, and then all is well.
        for _ in range(5):
            try:
                found = total()
                break
            except jax.errors.JaxRuntimeError as error:
                assert str(error).startswith(("DATA_LOSS", "INVALID_ARGUMENT")), error
        assert found == [6] * 4 and total() == [6] * 4
        """,
        workers,
    )


def test_a_sidecar_that_is_killed_from_outside(python_server):
    text = """
        @cp.colocated_python
        def pid(x):
            return x * 0 + os.getpid()

        @cp.colocated_python
        def sleep(x):
            time.sleep(1000)
            return x

        x = put(np.zeros(n, np.int32))
        running = as_input(sleep)(x)
        def other():
            print(int(np.asarray(pid(x))[0]), flush=True)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        text = error_of(lambda: running)
        assert text.startswith("DATA_LOSS") and "signal 9" in text, text
        print("lost", flush=True)
        """
    client = start_python(program(text), env=python_server.environment())
    os.kill(int(client.stdout.readline()), signal.SIGKILL)
    assert client.stdout.readline() == "lost\n"
    assert client.wait(seconds(60)) == 0


def test_a_function_that_never_ends_ends_with_its_session(any_server):
    text = """
        @cp.colocated_python
        def f(x):
            while True:
                pass
            return x

        x = put(np.zeros(n, np.int32))
        y = as_input(f)(x)
        print("running", flush=True)
        time.sleep(1000)
        """
    client = start_python(program(text), env=any_server.environment())
    assert client.stdout.readline() == "running\n"
    client.kill()
    client.wait()
    run("assert np.asarray(jax.jit(lambda a: a + 1)(put(np.arange(n)))).tolist() == list(range(1, n + 1))", any_server)


def test_a_killed_server_leaves_no_sidecar(helmway_binary):
    server = Server(helmway_binary, "--devices", "2", environment={"HELMWAY_PYTHON": sys.executable})
    text = """
        @cp.colocated_python
        def pid(x):
            return x * 0 + os.getpid()

        print(int(np.asarray(pid(put(np.zeros(n, np.int32))))[0]), flush=True)
        sys.stdin.readline()
        """
    client = start_python(program(text), env=server.environment(), stderr=subprocess.DEVNULL)
    pid = int(client.stdout.readline())
    server.process.kill()
    server.process.wait()
    server.process.stdout.close()
    await_end(pid)
    client.kill()
    client.wait()


def test_what_functions_print_is_in_the_log(python_server):
    run(
        """
        @cp.colocated_python
        def say(x):
            print("a line of a function")
            print("and one of its errors", file=sys.stderr)
            return x

        np.asarray(say(put(np.arange(n))))
        """,
        python_server,
    )
    deadline = time.monotonic() + seconds(10)
    while "one of its errors" not in python_server.log():
        assert time.monotonic() < deadline, python_server.log()
        time.sleep(0.05)
    assert "a line of a function" in python_server.log()


def test_a_worker_that_comes_back_has_lost_its_functions(helmway_binary):
    server = Server(
        helmway_binary, "--workers", "2", "--devices_per_worker", "1", environment={"HELMWAY_PYTHON": sys.executable}
    )
    run(
        """
        @cp.colocated_python
        def pids(x):
            return x * 0 + os.getppid()

        @cp.colocated_python
        def plus(x):
            return x + jax.process_index() + 1

        def until(call):
            # The worker's loss and its return are noticed in time.
            for _ in range(600):
                try:
                    return np.asarray(call())
                except jax.errors.JaxRuntimeError as error:
                    assert "DATA_LOSS" in str(error), error
                    time.sleep(0.05)
            raise AssertionError("it does not come back")

        fresh = lambda: put(np.zeros(n, np.int32))
        before = np.asarray(pids(fresh())).tolist()
        assert np.asarray(plus(fresh())).tolist() == [1, 2]
        os.kill(before[1], 9)
        add = jax.jit(lambda x: x + 1)
        until(lambda: add(fresh()))
        # Programs are there again, functions with what they had are not.
        assert error_of(lambda: plus(fresh())).startswith("DATA_LOSS")
        after = until(lambda: cp.colocated_python(lambda x: x * 0 + os.getppid())(fresh())).tolist()
        assert after[0] == before[0] and after[1] != before[1]
        one = jax.device_put(np.int32(3), SingleDeviceSharding(devices[0]))
        assert int(cp.colocated_python(lambda x: x + 1)(one)) == 4
        """,
        server,
    )
    assert server.close() == 0, server.log()


# ---- What is refused -------------------------------------------------------------------------------------


def test_a_server_without_python_says_so(helmway_binary):
    server = Server(helmway_binary, "--devices", "2", "--python", "none")
    run(
        """
        text = error_of(lambda: cp.colocated_python(lambda x: x)(put(np.arange(n))))
        assert text.startswith("FAILED_PRECONDITION") and "--python" in text, text
        """,
        server,
    )
    assert server.close() == 0


def test_other_versions_are_refused(python_server):
    text = """
        import jax
        version, jax.__version__ = jax.__version__, "0.11.1"
        """
    run_python(
        textwrap.dedent(text)
        + program(
            """
            text = error_of(lambda: cp.colocated_python(lambda x: x)(put(np.arange(n))))
            assert text.startswith("FAILED_PRECONDITION"), text
            assert "the client has jax 0.11.1" in text and f"has {version};" in text, text
            """
        ),
        env=python_server.environment(),
    )


def test_a_python_that_lacks_something_is_named(helmway_binary, tmp_path):
    (tmp_path / "cloudpickle.py").write_text("raise ModuleNotFoundError(\"No module named 'cloudpickle'\")\n")
    server = Server(
        helmway_binary,
        "--devices",
        "2",
        environment={"HELMWAY_PYTHON": sys.executable, "PYTHONPATH": str(tmp_path)},
    )
    run(
        """
        for _ in range(2):
            text = error_of(lambda: cp.colocated_python(lambda x: x)(put(np.arange(n))))
            assert text.startswith("FAILED_PRECONDITION") and "No module named 'cloudpickle'" in text, text
            assert "-m pip install jax cloudpickle" in text, text
        """,
        server,
    )
    assert server.close() == 0
