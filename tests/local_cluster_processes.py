"""`helmway up` with workers in processes of their own, as tests start and disturb it."""

import contextlib
import pathlib
import time

from conftest import Server


def workers_of(process):
    """Process ids of the workers of a `helmway up`, by number."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            words = (entry / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue  # it has ended
        if parent == process.pid and "local_worker" in words:
            number = next(word for word in words if word.startswith("--number="))
            found[int(number.removeprefix("--number="))] = int(entry.name)
    return found


def is_alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, timeout_s=30):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)


@contextlib.contextmanager
def starting(helmway_binary):
    """A function that starts clusters, which end with the context."""
    servers = []

    def start_one(*arguments, **popen):
        servers.append(Server(helmway_binary, *arguments, **popen))
        return servers[-1]

    try:
        yield start_one
    finally:
        for server in servers:
            server.close()
