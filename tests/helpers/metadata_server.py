"""A cloud's metadata server, as Google's answers on each machine."""

import contextlib
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


@contextlib.contextmanager
def metadata_server(state: dict[str, str], flavor: str = "Google") -> Iterator[str]:
    """Serves the values of instance/KEY from `state`, which may change; yields host:port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            key = path.removeprefix("/computeMetadata/v1/instance/")
            asked = dict(part.split("=") for part in query.split("&") if part)
            # A request that waits for a change is held until the value is another, as the real server does.
            end = time.monotonic() + 20
            while asked.get("wait_for_change") and asked["last_etag"] == tag(key) and time.monotonic() < end:
                time.sleep(0.02)
            fit = self.headers.get("Metadata-Flavor") == "Google"
            self.send_response((200 if key in state else 404) if fit else 403)
            self.send_header("Metadata-Flavor", flavor)
            self.send_header("ETag", tag(key))
            self.end_headers()
            self.wfile.write(state.get(key, "no such key").encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    def tag(key: str) -> str:
        return "".join(c for c in state.get(key, "") if c.isalnum()) or "none"

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
