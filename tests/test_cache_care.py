"""How old entries go away, and `helmway cache`."""

import os
import re
import subprocess
import time

import gcs_front
import pytest
from conftest import Server, clean_environment
from test_compile_cache import SMALL, entries, run

pytestmark = pytest.mark.one_jax

DAY_S = 86400
OURS = {"action": {"type": "Delete"}, "condition": {"age": 30, "matchesPrefix": ["job/helmway-cache/"]}}


def serve(binary, front, *flags):
    """Starts and ends a server, and returns its log. The end waits for what was begun at the start."""
    server = Server(binary, "--minloglevel=0", "--gcs_scratch_location=gs://bucket/job", *flags,
                    environment=front.environment())
    assert server.close() == 0
    return server.log()


def test_a_rule_is_set_once_and_those_of_others_stay(helmway_binary, front):
    others = [{"action": {"type": "SetStorageClass", "storageClass": "NEARLINE"}, "condition": {"age": 3}, "odd": [1.5]}]
    front.lifecycle = {"rule": list(others)}
    assert "will delete entries below gs://bucket/job/helmway-cache after 30 days" in serve(helmway_binary, front)
    assert front.lifecycle == {"rule": [*others, OURS]}
    serve(helmway_binary, front)
    assert front.metageneration == 2
    serve(helmway_binary, front, "--compile_cache_days=7")
    assert front.lifecycle["rule"][1]["condition"]["age"] == 7 and len(front.lifecycle["rule"]) == 2
    serve(helmway_binary, front, "--compile_cache_days=0")
    assert front.metageneration == 3


def test_a_rule_that_somebody_changes_in_between_survives(helmway_binary, front):
    def somebody():
        front.before_patch = lambda: None
        front.lifecycle = {"rule": [{"action": {"type": "Delete"}, "condition": {"age": 99}}]}
        front.metageneration += 1

    front.before_patch = somebody
    serve(helmway_binary, front)
    assert front.lifecycle["rule"] == [{"action": {"type": "Delete"}, "condition": {"age": 99}}, OURS]


def test_a_full_bucket_is_left_as_it_is(helmway_binary, front):
    rule = {"action": {"type": "Delete"}, "condition": {"age": 1, "matchesPrefix": [f"p{i}/" for i in range(50)]}}
    front.lifecycle = {"rule": [rule]}
    log = serve(helmway_binary, front)
    assert "50 prefixes" in log and "share one location" in log
    assert front.lifecycle == {"rule": [rule]} and front.metageneration == 1


@pytest.mark.parametrize("permission, consequence", [
    ("storage.buckets.update", "no life cycle rule"), ("storage.buckets.get", "no life cycle rule"),
    ("storage.objects.create", "not kept"), ("storage.objects.get", "can't be read"),
    ("storage.objects.list", "can't list"),
])
def test_a_missing_permission_is_named_with_what_will_not_work(helmway_binary, front, permission, consequence):
    front.permissions.remove(permission)
    log = serve(helmway_binary, front)
    (line,) = (line for line in log.splitlines() if f"{permission} is missing" in line)
    assert consequence in line
    assert (front.lifecycle is None) == permission.startswith("storage.buckets")


def test_the_five_permissions_suffice(helmway_binary, front):
    # No deleting, and no overwriting, which would need it.
    front.fault = lambda method, path: 403 if method == "DELETE" or (
        gcs_front.is_upload(method, path) and method == "POST" and "ifGenerationMatch=0" not in path) else None
    for expected in ((0, 1, 1), (1, 0, 0)):
        outcome = run(helmway_binary, "gs://bucket/job", environment=front.environment())
        assert (outcome.store_hits, outcome.misses, outcome.published) == expected
        assert "missing" not in outcome.log and "can't" not in outcome.log


def cache(binary, *arguments, environment=None):
    return subprocess.run([binary, "cache", *arguments], env=clean_environment(**(environment or {})),
                          capture_output=True, text=True, timeout=60, check=False)


def test_a_directory_is_swept_and_can_be_looked_at(helmway_binary, tmp_path):
    run(helmway_binary, tmp_path)
    run(helmway_binary, tmp_path, SMALL.replace("* 3", "* 4"))
    old, young = entries(tmp_path)
    leftover = old.parent / ".helmway-tmp-0123456789abcdef"
    leftover.write_bytes(b"torn")
    location = f"--location={tmp_path}"

    listing = cache(helmway_binary, "ls", location)
    assert listing.returncode == 0, listing.stderr
    lines = listing.stdout.splitlines()
    assert lines[-1] == "2 programs"
    assert re.fullmatch(rf"{old.name[:16]}  \d{{4}}-\d\d-\d\d \d\d:\d\d +[\d.]+ K?B  cpux1  jit__lambda", lines[0])
    stats = cache(helmway_binary, "stats", location).stdout
    assert "programs  2\n" in stats and re.search(r"plugin    cpu .*: 2 programs", stats)

    then = time.time() - 10 * DAY_S
    for path in (old, leftover):
        os.utime(path, (then, then))
    assert cache(helmway_binary, "purge", location, "--older_than_days=11").stdout == "deleted 0 programs\n"
    run(helmway_binary, tmp_path, flags=["--compile_cache_days=9"], program="pass")
    assert entries(tmp_path) == [young]
    assert cache(helmway_binary, "purge", location).stdout == "deleted 1 programs\n"
    assert cache(helmway_binary, "ls", location).stdout == "0 programs\n"


def test_a_bucket_can_be_looked_at(helmway_binary, front):
    run(helmway_binary, "gs://bucket/job", environment=front.environment())
    arguments = ["--location=gs://bucket/job"]
    assert "jit__lambda" in cache(helmway_binary, "ls", *arguments, environment=front.environment()).stdout
    assert "programs  1\n" in cache(helmway_binary, "stats", *arguments, environment=front.environment()).stdout
    assert cache(helmway_binary, "purge", *arguments, environment=front.environment()).returncode == 0
    assert not front.objects()
    front.fault = lambda method, path: 403
    denied = cache(helmway_binary, "ls", *arguments, environment=front.environment())
    assert denied.returncode == 1 and "PERMISSION_DENIED" in denied.stderr


def test_cache_says_how_it_is_used(helmway_binary):
    for arguments, code in (([], 2), (["rm"], 2), (["ls"], 2), (["ls", "--location=s3://x"], 2), (["--help"], 0),
                            (["purge", "--help"], 0)):
        done = cache(helmway_binary, *arguments)
        assert done.returncode == code, (arguments, done.stderr)
        assert "location" in done.stdout + done.stderr
