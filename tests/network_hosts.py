"""Hosts of their own on one machine: namespaces with network addresses, process numbers and a bridge between them.

Needs root, `ip` (iproute2) and `unshare` (util-linux).
"""

import contextlib
import os
import pathlib
import random
import shutil
import subprocess


def _run(*command):
    subprocess.run(command, check=True, capture_output=True, text=True)


def why_not():
    """Why this machine can't make hosts, or None."""
    if os.geteuid() != 0:
        return "not root"
    for program in ("ip", "unshare"):
        if shutil.which(program) is None:
            return f"no {program}"
    try:
        hosts = Hosts(1)
        try:
            _run(*hosts.words(0), "true")
        finally:
            hosts.close()
    except subprocess.CalledProcessError as error:
        return f"{' '.join(error.cmd)}: {error.stderr.strip()}"
    return None


class Hosts:
    """`count` hosts at a bridge. This process is at it too, under `own_address`."""

    def __init__(self, count):
        self._name = f"hw{os.getpid() % 100000}"
        self._stack = contextlib.ExitStack()
        net = f"10.{random.randrange(64, 192)}.{random.randrange(1, 255)}"
        self.own_address = f"{net}.1"
        self.addresses = [f"{net}.{10 + i}" for i in range(count)]
        try:
            self._make(f"{self._name}b", "type", "bridge")
            _run("ip", "addr", "add", f"{self.own_address}/24", "dev", f"{self._name}b")
            _run("ip", "link", "set", f"{self._name}b", "up")
            for i, address in enumerate(self.addresses):
                namespace = self._namespace(i)
                _run("ip", "netns", "add", namespace)
                self._stack.callback(_run, "ip", "netns", "del", namespace)
                self._make(self._cable(i), "type", "veth", "peer", "name", "eth0", "netns", namespace)
                _run("ip", "link", "set", self._cable(i), "master", f"{self._name}b", "up")
                inside = ("ip", "-n", namespace)
                _run(*inside, "addr", "add", f"{address}/24", "dev", "eth0")
                _run(*inside, "link", "set", "eth0", "up")
                _run(*inside, "link", "set", "lo", "up")
        except BaseException:
            self.close()
            raise

    def _make(self, device, *arguments):
        _run("ip", "link", "add", device, *arguments)
        self._stack.callback(_run, "ip", "link", "del", device)

    def _namespace(self, host):
        return f"{self._name}h{host}"

    def _cable(self, host):
        return f"{self._name}c{host}"

    def words(self, host):
        """What to put before a command so that it runs on a host. It dies with whoever runs it."""
        return ["ip", "netns", "exec", self._namespace(host),
                "unshare", "--pid", "--ipc", "--fork", "--mount-proc", "--kill-child", "--"]

    def bytes_from(self, host):
        """How many bytes the host has sent, all in all."""
        return int(pathlib.Path(f"/sys/class/net/{self._cable(host)}/statistics/rx_bytes").read_text())

    def unplug(self, host):
        _run("ip", "link", "set", self._cable(host), "down")

    def plug(self, host):
        _run("ip", "link", "set", self._cable(host), "up")

    def close(self):
        self._stack.close()
