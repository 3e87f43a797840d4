"""`helmway server`: a resource manager and its workers as processes, and what becomes of them."""

import contextlib
import json
import pathlib
import random
import re
import signal
import socket

import grpc
import pytest
from manager_client import Call, FakeWorker, Watcher, channel_to
from role_processes import SERVING, Cluster, starting

pytestmark = pytest.mark.one_jax

LINES = [
    json.loads(line)
    for line in (pathlib.Path(__file__).parent.parent / "helmway/apps/testdata/argv.jsonl").read_text().splitlines()
]


def lines_of(role):
    return [pytest.param(line, id=f"{i}") for i, line in enumerate(LINES) if line["role"] == role]


@pytest.fixture
def start(helmway_binary):
    with starting(helmway_binary) as begin:
        yield begin


@pytest.fixture
def watch():
    with contextlib.ExitStack() as stack:

        def begin(address, **options):
            watcher = Watcher(address, **options)
            stack.callback(watcher.close)
            return watcher

        yield begin


@pytest.mark.parametrize("line", lines_of("resource_manager"))
def test_public_command_lines_of_resource_managers(start, line):
    manager = start(*line["argv"], "--server_port=0", **line["env"])
    expect = line["expect"]
    if "refuse" in expect:
        assert manager.wait() == 2
        assert expect["refuse"] in manager.log()
        assert "serving" not in manager.log()
        return
    manager.wait_for(SERVING)
    said = manager.wait_for(r"resource manager for (\d+) slices? of .*; slice 0: (\d+) host\(s\) of (\d+) device")
    assert [int(n) for n in said.groups()] == [
        expect["slices"],
        expect["hosts_per_slice"],
        expect["devices_per_host"],
    ]
    for flag in expect.get("warn", []):
        assert re.search(rf"warning: .*{flag}", manager.log())
    assert manager.end() == 143


@pytest.mark.parametrize("line", lines_of("worker"))
def test_public_command_lines_of_workers(start, line):
    # Managers of these names are not to be found: workers serve, and look for them until they are told to end.
    worker = start(*line["argv"], "--server_port=0", **line["env"])
    expect = line.get("expect", {})
    if "refuse" in expect:
        assert worker.wait() == 2
        assert expect["refuse"] in worker.log()
        return
    worker.wait_for(SERVING)
    told = {"MEGASCALE_SLICE_ID", "LWS_WORKER_INDEX"} & line["env"].keys()
    worker.wait_for(rf"its place is told by .*{told.pop()}" if told else "its place is the manager's choice")
    worker.wait_for("is not reached, trying on")
    assert worker.end() == 143


def test_a_cluster_comes_up_and_tells_what_it_has(start, watch):
    cluster = Cluster(start, 2, 2, 2)
    cluster.wait_ready(1)
    cluster.wait_ready(2)
    watcher = watch(cluster.address, lease_all=True)
    assert watcher.wait_lease() == [0, 1]
    for index in range(4):
        record = watcher.wait_state(index, "UP")
        assert (record.slice, record.task) == divmod(index, 2)
        assert watcher.device_ids(index) == [2048 * index, 2048 * index + 1]
        for device in watcher.infos[index].devices:
            assert device.attributes["slice_index"].number == index // 2
            assert device.attributes["virtual_task_index"].number == index % 2
    assert len({memory.id for info in watcher.infos.values() for memory in info.memories}) == sum(
        len(info.memories) for info in watcher.infos.values()
    )
    assert [slice.instance_type for slice in watcher.slices] == ["cpu:2x2"] * 2
    for process in [*cluster.workers, cluster.manager]:
        assert process.end() == 143


@pytest.mark.parametrize("with_signal", [signal.SIGTERM, signal.SIGINT])
def test_no_process_ends_with_0_on_a_signal(start, with_signal):
    manager = start("--node_type=resource_manager", "--instance_type=cpu:1", "--server_port=0")
    worker = start(f"--resource_manager_address=localhost:{manager.port()}", "--server_port=0")
    manager.wait_for(r"\*\*\* 1/1 ")
    assert worker.end(with_signal) == 128 + with_signal
    manager.wait_for("was told to end")
    manager.wait_for(r"\*\*\* 0/1 ")
    assert manager.end(with_signal) == 128 + with_signal


def test_workers_without_numbers_come_to_the_first_free_place(start, watch):
    manager = start("--node_type=resource_manager", "--instance_count=2", "--instance_type=cpu:1x3", "--server_port=0")
    address = f"localhost:{manager.port()}"
    watcher = watch(address)
    start(f"--resource_manager_address={address}", "--server_port=0")
    watcher.wait_state(0, "UP")
    start(f"--resource_manager_address={address}", "--server_port=0")
    watcher.wait_state(1, "UP")
    assert watcher.device_ids(1) == [2048, 2049, 2050]
    third = start(f"--resource_manager_address={address}", "--server_port=0")
    third.wait_for("is one too many: all 2 places")


def test_a_killed_worker_comes_back_with_the_same_devices(start, watch):
    cluster = Cluster(start, 2, 1, 2)
    cluster.wait_ready(2)
    watcher = watch(cluster.address, lease_all=True)
    before = watcher.wait_state(1, "UP")
    ids = watcher.device_ids(1)
    cluster.workers[1].end(signal.SIGKILL)
    lost = watcher.wait_state(1, "DOWN")
    assert lost.incarnation == before.incarnation
    assert "connection" in lost.reason
    cluster.wait_ready(1, count=2)
    cluster.start_worker(1)
    after = watcher.wait_state(1, "UP")
    assert after.incarnation != before.incarnation
    assert watcher.device_ids(1) == ids
    cluster.wait_ready(2, count=2)
    assert watcher.state(0) == "UP"
    assert watcher.leases_lost == 0


def test_a_stopped_worker_is_lost_until_it_goes_on(start, watch):
    cluster = Cluster(
        start,
        2,
        1,
        1,
        "--health_check_period=200ms",
        "--health_check_timeout=2s",
        "--health_check_failure_threshold=2",
    )
    cluster.wait_ready(2)
    watcher = watch(cluster.address)
    before = watcher.wait_state(1, "UP")
    cluster.workers[1].send(signal.SIGSTOP)
    lost = watcher.wait_state(1, "DOWN")
    assert "does not answer" in lost.reason
    cluster.workers[1].send(signal.SIGCONT)
    assert watcher.wait_state(1, "UP").incarnation == before.incarnation
    cluster.workers[1].wait_for("registered with the resource manager")


def test_another_worker_takes_the_place_of_one_that_does_not_answer(start, watch):
    cluster = Cluster(
        start,
        1,
        1,
        1,
        "--health_check_period=200ms",
        "--health_check_timeout=2s",
        "--health_check_failure_threshold=2",
    )
    cluster.wait_ready(1)
    watcher = watch(cluster.address)
    before = watcher.wait_state(0, "UP")
    cluster.workers[0].send(signal.SIGSTOP)
    watcher.wait_state(0, "DOWN")
    cluster.start_worker(0)
    watcher.wait(
        lambda w: w.state(0) == "UP" and w.workers[0].incarnation != before.incarnation, "the second worker"
    )
    # When the first one wakes up, its place is another's.
    cluster.workers[0].send(signal.SIGCONT)
    cluster.workers[0].wait_for("refused, trying on: .*(has taken|two workers claim) slice 0, host 0")


@pytest.mark.parametrize("with_signal", [signal.SIGTERM, signal.SIGKILL])
def test_a_manager_that_restarts_is_rebuilt_from_its_peers(start, watch, with_signal):
    cluster = Cluster(start, 2, 2, 1)
    cluster.wait_ready(2)
    watcher = watch(cluster.address, lease_types=["cpu:2x1"], name="holder")
    held = watcher.wait_lease()
    for index in range(4):
        watcher.wait_state(index, "UP")
    before = {index: record.incarnation for index, record in watcher.workers.items()}
    first = watcher.manager
    cluster.manager.end(with_signal)
    cluster.start_manager()
    cluster.wait_ready(2)
    watcher.wait(lambda w: w.manager != first, "the new manager")
    for index in range(4):
        assert watcher.wait_state(index, "UP").incarnation == before[index]
        assert watcher.device_ids(index) == [2048 * index]
        assert cluster.workers[index].log().count("placed in slice") == 1
    # The lease is still the first one's; another gets the other slice, once leases from before had their time.
    cluster.manager.wait_for(rf"slice\(s\) {held[0]} leased to the proxy holder")
    other = watch(cluster.address, lease_types=["cpu:2x1"], name="other")
    assert other.wait_lease() != held
    assert watcher.leases_lost == 0


def test_leases_are_exclusive_and_end_with_their_proxy(start, watch):
    cluster = Cluster(start, 2, 1, 1)
    cluster.wait_ready(2)
    one = Watcher(cluster.address, lease_types=["cpu:1x1"], name="one")
    two = watch(cluster.address, lease_types=["cpu:1x1"], name="two")
    assert sorted(one.wait_lease() + two.wait_lease()) == [0, 1]
    all_of_it = watch(cluster.address, lease_all=True, name="all")
    all_of_it.wait(lambda w: w.lease is not None and "the proxy" in w.lease.waits_for, "to wait")
    one.close()
    two.close()
    assert all_of_it.wait_lease() == [0, 1]
    impossible = watch(cluster.address, lease_types=["cpu:1x1"] * 3)
    impossible.wait(lambda w: w.refusal is not None, "a refusal")
    assert impossible.refusal[0] == grpc.StatusCode.FAILED_PRECONDITION
    assert "asks for 3 slice(s) of cpu:1x1" in impossible.refusal[1]


def test_of_two_workers_for_one_place_the_later_is_refused_while_the_first_lives(start, watch):
    cluster = Cluster(start, 1, 1, 1)
    cluster.wait_ready(1)
    watcher = watch(cluster.address)
    first = watcher.wait_state(0, "UP").incarnation
    twin = cluster.start_worker(0)
    said = twin.wait_for(r"two workers claim slice 0, host 0: .*incarnation ([0-9a-f]+), has it .*incarnation ")
    assert int(said.group(1), 16) == first
    cluster.manager.wait_for("a worker is refused: two workers claim")
    assert watcher.state(0) == "UP" and watcher.workers[0].incarnation == first
    cluster.workers[0].end(signal.SIGKILL)
    watcher.wait(lambda w: w.state(0) == "UP" and w.workers[0].incarnation != first, "the twin")


MISMATCH = "The newly added instance does not match with the expected instances"


def test_cpu_workers_are_no_tpus_unless_they_stand_in(start, watch):
    manager = start("--node_type=resource_manager", "--instance_type=tpuv5e:2x4", "--server_port=0")
    address = f"localhost:{manager.port()}"
    flags = [f"--resource_manager_address={address}", "--server_port=0", "--slice_id=0"]
    worker = start(*flags, "--host_id=0")
    for process in (worker, manager):
        process.wait_for(rf"{MISMATCH}: .*4 cpu device.*tpuv5e:2x4 with 4 tpu device.*HELMWAY_CPU_STANDIN=1")
    assert worker.end() == 143
    start(*flags, "--host_id=0", HELMWAY_CPU_STANDIN="1")
    start(*flags, "--host_id=1", HELMWAY_CPU_STANDIN="1")
    manager.wait_for(r"\*\*\* 1/1 Pathways Slices Now Ready \*\*\*")
    watcher = watch(address)
    watcher.wait(lambda w: len(w.infos) == 2, "both workers")
    coords = {
        tuple(device.attributes["coords"].numbers.values)
        for info in watcher.infos.values()
        for device in info.devices
    }
    assert coords == {(x, y, 0) for x in range(2) for y in range(4)}


def test_another_number_of_devices_is_refused(start):
    manager = start("--node_type=resource_manager", "--instance_type=cpu:2x4", "--server_port=0")
    address = f"localhost:{manager.port()}"
    worker = FakeWorker(address)
    assert not worker.ready(8)
    code, text = worker.status
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert MISMATCH in text and "8 cpu device(s)" in text and "cpu:2x4 with 4" in text and "--instance_type" in text
    manager.wait_for(re.escape(MISMATCH))
    misplaced = FakeWorker(address, slice=3, task=0)
    assert misplaced.assigned is None
    assert MISMATCH in misplaced.status[1] and "slice 3" in misplaced.status[1]
    good = FakeWorker(address)
    assert good.ready(4)
    good.close()


def test_version_skew_is_refused_and_names_both(start, watch):
    manager = start("--node_type=resource_manager", "--instance_type=cpu:1", "--server_port=0")
    address = f"localhost:{manager.port()}"
    worker = FakeWorker(address, protocol=99)
    assert worker.assigned is None
    proxy = watch(address, protocol=0)
    proxy.wait(lambda w: w.refusal is not None, "a refusal")
    for (code, text), theirs in ((worker.status, 99), (proxy.refusal, 0)):
        assert code == grpc.StatusCode.FAILED_PRECONDITION
        assert re.search(r"the resource manager is helmway \d+\.\d+\.\d+ \(cluster protocol 1\)", text)
        assert f"is helmway 0.0.0-test (cluster protocol {theirs})" in text
    manager.wait_for("version skew", count=2)


def test_nonsense_does_not_end_the_manager(start):
    manager = start("--node_type=resource_manager", "--instance_type=cpu:1", "--server_port=0")
    address = f"localhost:{manager.port()}"
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    with channel_to(address) as channel:
        for _ in range(50):
            for method, answer in (("Register", "ManagerToWorker"), ("Watch", "ManagerToProxy")):
                call = Call(channel, method, answer)
                call.send(chance.randbytes(chance.randrange(40)))
                call.send(chance.randbytes(chance.randrange(40)))
                call.close()
                while call.read() is not None:
                    pass
    worker = FakeWorker(address)
    assert worker.ready(1)
    worker.close()
    assert manager.end() == 143


def test_dirty_command_lines(start):
    manager = start(
        "",
        "--server_port=0 --instance_type='cpu:2' --instance_count=1",
        "--node_type=worker",
        "--node_type",
        "resource_manager",
        "--gcs_scratch_location=",
        "--xla_tpu_use_enhanced_launch_barrier",
    )
    port = manager.port()
    worker = start("--resource_manager_address=$(PATHWAYS_HEAD):%d" % port, "", "--server_port=0")
    worker.wait_for("warning: .*PATHWAYS_HEAD")
    manager.wait_for(r"\*\*\* 1/1 ")
    for arguments, named in (
        (["--resource_manger_address=head:1"], "resource_manager_address"),
        (["--resource_manager_address=$(OTHER):1"], "OTHER"),
        (["--server_port=0"], "--resource_manager_address is missing"),
        (["--node_type=proxy"], "node_type"),
        (["--resource_manager_address=head:1", "--host_id=-1"], "host_id"),
    ):
        refused = start(*arguments)
        assert refused.wait() == 2
        assert named in refused.log()
        assert "serving" not in refused.log()


def test_port_in_use(start):
    with socket.socket(socket.AF_INET6) as taken:
        taken.bind(("::", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for flags in (["--node_type=resource_manager", "--instance_type=cpu:1"], ["--resource_manager_address=h:1"]):
            process = start(f"--server_port={port}", *flags)
            assert process.wait() == 1
            assert f"port {port} is already in use" in process.log()


def test_a_plugin_that_is_none(start, tmp_path):
    broken = tmp_path / "broken.so"
    broken.write_text("this is no shared library")
    worker = start("--resource_manager_address=localhost:1", "--server_port=0", f"--pjrt_plugin={broken}")
    assert worker.wait() == 1
    assert str(broken) in worker.log()
