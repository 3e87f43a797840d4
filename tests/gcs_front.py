"""Cloud Storage for tests: the emulator fake-gcs-server, and a proxy in front of it that can misbehave.

The proxy also answers for what the emulator lacks: the bucket's lifecycle with its metageneration, and permissions.
"""

import http.client
import http.server
import json
import os
import re
import socket
import subprocess
import threading
import urllib.parse

PERMISSIONS = (
    "storage.buckets.get",
    "storage.buckets.update",
    "storage.objects.list",
    "storage.objects.create",
    "storage.objects.get",
)


def _free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Front:
    """`fault(method, path)` decides about each request: None passes it on; a number is answered as that code; "reset"
    breaks the connection, "truncate" stops half way through the answer, "lose" breaks it after the emulator has acted,
    "hang" waits until close()."""

    def __init__(self, program):
        self.fault = lambda method, path: None
        self.requests = []
        self.permissions = set(PERMISSIONS)
        self.lifecycle = None
        self.metageneration = 1
        self.before_patch = lambda: None
        self.hanging = threading.Event()
        self._closing = threading.Event()
        self._port = _free_port()
        front = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def _handle(self):
                length = int(self.headers.get("Content-Length") or 0)
                front._serve(self, self.rfile.read(length))

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _handle

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):  # clients are killed in tests
                pass

        self._http = Server(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._http.server_address[1]}"
        self._emulator = subprocess.Popen(
            [program, "-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-port", str(self._port),
             "-external-url", f"http://{self.address}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )
        for line in self._emulator.stderr:
            if b"server started" in line:
                break
        threading.Thread(target=self._emulator.stderr.read, daemon=True).start()
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        code, body = self.call("POST", "/storage/v1/b?project=test", json.dumps({"name": "bucket"}).encode())
        assert code == 200, body

    def close(self):
        self._closing.set()
        self._http.shutdown()
        self._http.server_close()
        self._emulator.kill()
        self._emulator.wait()

    def environment(self):
        return {"STORAGE_EMULATOR_HOST": self.address}

    def call(self, method, path, body=b"", headers=None):
        """One request to the emulator itself."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            connection.request(method, path, body, headers or {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def objects(self, prefix=""):
        """Names of the bucket's objects."""
        query = urllib.parse.urlencode({"prefix": prefix})
        _, body = self.call("GET", f"/storage/v1/b/bucket/o?{query}")
        return [item["name"] for item in json.loads(body).get("items", [])]

    def read(self, name):
        _, body = self.call("GET", f"/storage/v1/b/bucket/o/{urllib.parse.quote(name, safe='')}?alt=media")
        return body

    def write(self, name, contents):
        query = urllib.parse.urlencode({"uploadType": "media", "name": name})
        code, body = self.call("POST", f"/upload/storage/v1/b/bucket/o?{query}", contents)
        assert code == 200, body

    def _serve(self, handler, body):
        method, path = handler.command, handler.path
        self.requests.append((method, path))
        fault = self.fault(method, path)
        if fault == "hang":
            self.hanging.set()
            self._closing.wait()
            fault = "reset"
        if fault == "reset":
            return self._break(handler)
        if isinstance(fault, int):
            return self._answer(handler, fault, b"a fault of the test")
        own = self._bucket(method, path, body)
        if own is not None:
            return self._answer(handler, *own)
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            connection.request(method, path, body, {
                name: value for name, value in handler.headers.items() if name.lower() not in ("host", "connection")
            })
            answer = connection.getresponse()
            contents = answer.read()
            headers = [(name, value) for name, value in answer.getheaders()
                       if name.lower() not in ("transfer-encoding", "content-length", "connection")]
        finally:
            connection.close()
        if fault == "lose":
            return self._break(handler)
        self._answer(handler, answer.status, contents, headers, truncate=fault == "truncate")

    @staticmethod
    def _break(handler):
        handler.close_connection = True
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        handler.connection.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def _answer(handler, code, contents, headers=(), truncate=False):
        handler.send_response_only(code)
        for name, value in headers:
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(contents)))
        handler.end_headers()
        if truncate:
            contents = contents[: len(contents) // 2]
            handler.close_connection = True
        handler.wfile.write(contents)

    def _bucket(self, method, path, body):
        """(code, bytes) for requests about the bucket itself."""
        url = urllib.parse.urlsplit(path)
        query = urllib.parse.parse_qs(url.query)
        if url.path == "/storage/v1/b/bucket/iam/testPermissions":
            granted = [name for name in query["permissions"] if name in self.permissions]
            return 200, json.dumps({"permissions": granted} if granted else {}).encode()
        if url.path != "/storage/v1/b/bucket":
            return None
        if method == "GET":
            if "storage.buckets.get" not in self.permissions:
                return 403, b"storage.buckets.get denied"
            info = {"location": "US-CENTRAL1", "metageneration": str(self.metageneration)}
            if self.lifecycle is not None:
                info["lifecycle"] = self.lifecycle
            return 200, json.dumps(info).encode()
        if method == "PATCH":
            if "storage.buckets.update" not in self.permissions:
                return 403, b"storage.buckets.update denied"
            self.before_patch()
            if query["ifMetagenerationMatch"] != [str(self.metageneration)]:
                return 412, b"conditionNotMet"
            self.lifecycle = json.loads(body)["lifecycle"]
            self.metageneration += 1
            return 200, b"{}"
        return None


def start_or_none():
    program = os.environ.get("HELMWAY_FAKE_GCS_SERVER")
    return Front(program) if program else None


def is_upload(method, path):
    return method in ("POST", "PUT") and path.startswith(("/upload/", "/resumable"))


def is_read(method, path):
    return method == "GET" and re.search(r"/o/[^?]+\?alt=media", path) is not None
