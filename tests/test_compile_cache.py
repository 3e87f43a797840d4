"""The compile cache: what persists, what is shared, and that nothing wrong with it harms a program."""

import hashlib
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile

import gcs_front
import pytest
from conftest import Server, clean_environment, run_python
from role_processes import Cluster, Proxy, starting

SMALL = """if True:
    import jax
    compiled = jax.jit(lambda x: x * 3 + 1).lower(jax.ShapeDtypeStruct((4,), "float32")).compile()
    print(compiled.as_text() is not None)
"""

# Everything that a client learns of a program, and what the programs compute.
THOROUGH = """if True:
    import re, jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    devices = jax.devices()
    step = jax.jit(lambda x: (x - x.sum(0), (x @ x.T).mean()), donate_argnums=0)
    for chosen in (devices[:2], devices[:1:-1]):
        sharding = NamedSharding(Mesh(np.array(chosen), ("x",)), P("x"))
        x = jax.device_put(np.arange(16.0, dtype=np.float32).reshape(4, 4), sharding)
        compiled = step.lower(x).compile()
        print(compiled.memory_analysis(), compiled.output_shardings, compiled.input_shardings)
        print(compiled.input_formats, compiled.output_formats)
        print(compiled.as_text())
        y, mean = step(x)
        print(x.is_deleted(), y.sharding, sorted(d.id for d in mean.devices()), np.asarray(y), mean)
    host = NamedSharding(Mesh(np.array(devices[:1]), ("x",)), P(), memory_kind="pinned_host")
    print(jax.jit(lambda x: x + 1, out_shardings=host)(jnp.ones(3)).sharding.memory_kind)
    a = np.random.default_rng(0).normal(size=(5, 5)).astype(np.float32)
    print(np.linalg.norm(jnp.linalg.qr(jnp.asarray(a))[0]) > 0, jnp.linalg.eigvalsh(jnp.asarray(a + a.T)))
"""


class Outcome:
    """How a program ended under a server of its own, and what the server's cache did."""

    def __init__(self, code, stdout, log):
        assert code == 0, log
        self.stdout, self.log = stdout, log
        # One line of each worker.
        counts = re.findall(
            r"Compile cache: (\d+) hits in memory, (\d+) in (?:no store|\S+), (\d+) misses, (\d+) rejected, (\d+) published, "
            r"(\d+) not published", log)
        assert counts, log
        self.memory_hits, self.store_hits, self.misses, self.rejected, self.published, self.unpublished = (
            sum(map(int, column)) for column in zip(*counts))


ONE_WORKER = ("--devices=4",)


def run(binary, location=None, program=SMALL, flags=(), environment=None, shape=ONE_WORKER, **popen):
    flags = ["--minloglevel=0", *shape, *flags]
    if location is not None:
        flags.append(f"--gcs_scratch_location={location}")
    done = subprocess.run(
        [binary, "up", *flags, "--", sys.executable, *([program] if os.path.exists(program) else ["-c", program])],
        env=clean_environment(**(environment or {})), stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=300, check=False, **popen,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def entries(location):
    return sorted(path for path in pathlib.Path(location).rglob("*") if path.is_file())


def expect_second_run_compiles_nothing(binary, location, environment=None):
    first = run(binary, location, THOROUGH, environment=environment)
    assert first.misses > 0 and first.published == first.misses and first.store_hits == 0
    assert first.memory_hits > 0, "the second devices were to share the program of the first"
    second = run(binary, location, THOROUGH, environment=environment)
    assert (second.misses, second.rejected, second.published) == (0, 0, 0)
    assert second.store_hits == first.misses
    assert second.stdout == first.stdout
    return first


def test_a_second_run_compiles_nothing_and_is_the_same(helmway_binary, tmp_path):
    first = expect_second_run_compiles_nothing(helmway_binary, tmp_path)
    assert run(helmway_binary, None, THOROUGH).stdout == first.stdout
    assert "file://" not in first.log
    assert run(helmway_binary, f"file://{tmp_path}", THOROUGH).misses == 0


def test_workers_in_processes_of_their_own_share_it(helmway_binary, tmp_path):
    shape = ("--workers=2", "--devices_per_worker=2")
    first = run(helmway_binary, tmp_path, THOROUGH, shape=shape)
    assert first.misses > 0 and first.published == first.misses
    second = run(helmway_binary, tmp_path, THOROUGH, shape=shape)
    assert (second.misses, second.rejected, second.published) == (0, 0, 0)
    assert second.stdout == first.stdout
    # Programs of one worker are those of any worker, in a cluster or alone.
    assert run(helmway_binary, tmp_path, SMALL).misses == 1
    assert run(helmway_binary, tmp_path, SMALL, shape=shape).misses == 0


@pytest.mark.one_jax
def test_the_workers_of_one_cluster_share_it_with_those_of_the_next(helmway_binary, front):
    def run_on_a_cluster(*proxy_flags):
        with starting(helmway_binary) as begin:

            def start(*arguments, **variables):
                return begin(*arguments, **variables, **front.environment())

            location = "--gcs_scratch_location=gs://bucket/job"
            cluster = Cluster(start, 1, 2, 2, worker_flags=[location])
            proxy = Proxy(start, cluster.address, location, *proxy_flags)
            done = run_python(THOROUGH, env=proxy.environment())
            assert [process.end() for process in (proxy.process, *cluster.workers)] == [0, 143, 143]
            return Outcome(0, done.stdout, "".join(worker.log() for worker in cluster.workers))

    first = run_on_a_cluster()
    assert first.misses > 0 and first.published == first.misses
    second = run_on_a_cluster()
    assert (second.misses, second.rejected, second.published) == (0, 0, 0)
    assert second.stdout == first.stdout
    # Dumps are written by workers too.
    run_on_a_cluster("--xla_dump_to=gs://bucket/job/dumps")
    assert any(re.fullmatch(r"job/dumps/.*module.*", name) for name in front.objects()), front.objects()


def test_without_a_location_the_next_run_compiles_again(helmway_binary):
    assert [run(helmway_binary).misses for _ in range(2)] == [1, 1]
    assert run(helmway_binary, "").misses == 1


def test_it_is_shared_through_a_bucket(helmway_binary, front):
    expect_second_run_compiles_nothing(helmway_binary, "gs://bucket/some/job", front.environment())
    names = front.objects()
    assert names and all(re.fullmatch(r"some/job/helmway-cache/v1/(..)/\1[0-9a-f]{62}", name) for name in names)


def test_neither_path_nor_line_of_the_program_matters_but_flags_do(helmway_binary, tmp_path):
    location = tmp_path / "scratch"
    for folder, text in (("a", SMALL), ("b/c", "# another line\n" + SMALL)):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "program.py").write_text(text)
    assert run(helmway_binary, location, str(tmp_path / "a/program.py")).misses == 1
    assert run(helmway_binary, location, str(tmp_path / "b/c/program.py")).misses == 0
    flag = ["--xla_backend_optimization_level=0"]
    assert run(helmway_binary, location, str(tmp_path / "a/program.py"), flag).misses == 1


def test_sessions_at_the_same_time_compile_a_program_once(helmway_binary):
    server = Server(helmway_binary, "--devices", "4", "--minloglevel=0")
    programs = [subprocess.Popen([sys.executable, "-c", SMALL], env=server.environment(), stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL) for _ in range(3)]
    assert [program.wait(120) for program in programs] == [0, 0, 0]
    assert server.close() == 0
    assert "2 hits in memory, 0 in no store, 1 misses" in server.log()


@pytest.mark.parametrize("fault", [500, 503, 429, "reset", "lose", "truncate"])
def test_faults_that_pass_are_not_noticed(helmway_binary, front, fault):
    seen = set()

    def once_per_request(method, path):
        kind = (method, path.split("&")[0])
        if kind in seen or not (gcs_front.is_upload(method, path) or gcs_front.is_read(method, path)):
            return None
        seen.add(kind)
        return fault

    front.fault = once_per_request
    first = run(helmway_binary, "gs://bucket/x", environment=front.environment())
    assert (first.misses, first.published, first.unpublished) == (1, 1, 0), first.log
    seen.clear()
    second = run(helmway_binary, "gs://bucket/x", environment=front.environment())
    assert (second.store_hits, second.misses, second.rejected) == (1, 0, 0), second.log
    assert len(seen) >= 1


@pytest.mark.parametrize("fault", [403, 503, "reset"])
def test_a_bucket_that_cannot_be_reached_costs_a_warning(helmway_binary, front, fault):
    front.fault = lambda method, path: fault
    outcome = run(helmway_binary, "gs://bucket/x", environment=front.environment())
    assert (outcome.misses, outcome.published) == (1, 0)
    assert "gs://bucket/x/helmway-cache can't be read" in outcome.log


@pytest.mark.one_jax
def test_killed_while_publishing(helmway_binary, front):
    front.fault = lambda method, path: "hang" if gcs_front.is_upload(method, path) else None
    server = Server(helmway_binary, "--gcs_scratch_location=gs://bucket/x", environment=front.environment())
    run_python(SMALL, env=server.environment())
    assert front.hanging.wait(60)
    server.close(signal.SIGKILL)
    assert not front.objects()
    front.fault = lambda method, path: None
    first = run(helmway_binary, "gs://bucket/x", environment=front.environment())
    assert (first.misses, first.published) == (1, 1)
    assert run(helmway_binary, "gs://bucket/x", environment=front.environment()).store_hits == 1


def with_another_plugin(entry):
    """The entry as a plugin of another version would have written it."""
    header_size = int.from_bytes(entry[12:16], "little")
    prefix, header, body = entry[:24], entry[56 : 56 + header_size], entry[56 + header_size :]
    changed = header.replace(b"cpu ", b"CPU ", 1)
    assert changed != header
    return prefix + hashlib.sha256(prefix + changed + body).digest() + changed + body


@pytest.mark.one_jax
@pytest.mark.parametrize("harm", ["truncated", "empty", "one bit", "another plugin", "torn"])
def test_bad_entries_are_told_and_replaced(helmway_binary, tmp_path, harm):
    run(helmway_binary, tmp_path)
    (path,) = entries(tmp_path)
    good = path.read_bytes()
    if harm == "torn":  # what a writer that was killed leaves
        path.unlink()
        (path.parent / ".helmway-tmp-0123456789abcdef").write_bytes(good[:100])
    else:
        path.write_bytes({
            "truncated": good[: len(good) // 2],
            "empty": b"",
            "one bit": good[:-9] + bytes([good[-9] ^ 1]) + good[-8:],
            "another plugin": with_another_plugin(good),
        }[harm])
    outcome = run(helmway_binary, tmp_path)
    assert (outcome.store_hits, outcome.misses, outcome.published) == (0, 1, 1)
    assert outcome.rejected == (0 if harm == "torn" else 1)
    assert harm == "torn" or path.name in outcome.log
    assert run(helmway_binary, tmp_path).store_hits == 1


def test_a_location_that_may_only_be_read(helmway_binary):
    folder = pathlib.Path(tempfile.mkdtemp())
    # Root may write everywhere, so the server runs as somebody else.
    other = {"user": 65534} if os.getuid() == 0 else {}

    def serve(program):
        server = Server(helmway_binary, "--devices=4", "--minloglevel=0", "--python=none",
                        f"--gcs_scratch_location={location}", environment={"HOME": "/"}, **other)
        done = run_python(program, env=server.environment())
        return Outcome(server.close(), done.stdout, server.log())

    try:
        folder.chmod(0o755)
        location = folder / "scratch"
        run(helmway_binary, location)
        for path in [location, *location.rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        hit = serve(SMALL)
        assert (hit.store_hits, hit.misses) == (1, 0)
        miss = serve(SMALL.replace("* 3", "* 4"))
        assert (miss.misses, miss.published, miss.unpublished) == (1, 0, 1)
        assert "can't be written" in miss.log and str(location) in miss.log
    finally:
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755)
        shutil.rmtree(folder)


def test_a_full_disk(helmway_binary, tmp_path):
    def no_large_files():  # stands for the end of a disk
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    outcome = run(helmway_binary, tmp_path, preexec_fn=no_large_files, environment={"PYTHONDONTWRITEBYTECODE": "1"})
    assert (outcome.misses, outcome.published, outcome.unpublished) == (1, 0, 1)
    assert "can't be written" in outcome.log
    assert not entries(tmp_path)
