"""A Hugging Face hub on this machine: what huggingface_hub asks for when it lists and downloads a repository."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import huggingface_hub.constants as constants
import pytest
from huggingface_hub.utils import disable_progress_bars


@dataclass
class Hub:
    """Repositories by their paths ("models/owner/name", "datasets/owner/name"): the files of each commit by its number.

    A commit's name is its number, written 40 times; `main` is the last one. Gated repositories let nobody read them.
    """

    commits: dict[str, list[dict[str, bytes]]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    requests: list[str] = field(default_factory=list)
    """The method and the path of each request."""

    def add(self, repository: str, folder: Path | None = None, /, **files: bytes) -> str:
        """Adds a commit with the files of a folder, or these, and returns its name."""
        of_folder = {} if folder is None else {
            str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()
        }  # fmt: skip
        self.commits.setdefault(repository, []).append({**of_folder, **files})
        return str(len(self.commits[repository])) * 40

    def downloads(self) -> set[str]:
        """The names of the files that were asked for."""
        return {path.rpartition("/")[2] for path in self.requests if path.startswith("GET") and "/resolve/" in path}

    def commit(self, repository: str, revision: str) -> str | None:
        names = {str(n + 1) * 40: n for n in range(len(self.commits[repository]))}
        return (
            list(names)[-1] if revision in ("main", "refs/convert/parquet") else revision if revision in names else None
        )

    def answer(self, method: str, path: str) -> tuple[int, dict[str, str], bytes]:
        """(status, headers, content) of a request."""
        self.requests.append(f"{method} {path}")
        parts = unquote(path.partition("?")[0]).strip("/").split("/")
        api, parts = parts[0] == "api", parts[1:] if parts[0] == "api" else parts
        kind = parts.pop(0) if parts[0] in ("models", "datasets") else "models"
        verb = next((at for at, part in enumerate(parts) if part in ("revision", "tree", "resolve")), len(parts))
        repository, rest = f"{kind}/{'/'.join(parts[:verb])}", parts[verb + 1 :]
        if repository not in self.commits:
            return 401, {"X-Error-Code": "RepoNotFound"}, b"{}"
        own = 3 if rest[:1] == ["refs"] else 1
        commit = self.commit(repository, "/".join(rest[:own]) or "main")
        if commit is None:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
        files = self.commits[repository][int(commit[0]) - 1]
        sizes = [{"type": "file", "path": name, "size": len(raw), "oid": _digest(raw)} for name, raw in files.items()]
        if api:
            names = [{"rfilename": name} for name in files]
            tree = sizes if parts[verb : verb + 1] == ["tree"] else {"id": repository, "sha": commit, "siblings": names}
            return 200, {"Content-Type": "application/json"}, json.dumps(tree).encode()
        if repository in self.gated:
            return 403, {"X-Error-Code": "GatedRepo"}, b"{}"
        name = "/".join(rest[own:])
        if name not in files:
            return 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}, b"{}"
        return 200, {"ETag": f'"{_digest(files[name])}"', "X-Repo-Commit": commit}, files[name]


def _digest(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@contextmanager
def hub_server(hub: Hub) -> Iterator[str]:
    """Serves a hub, and gives its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, headers, content = hub.answer(self.command, self.path)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def use_hub(patch: pytest.MonkeyPatch, address: str, cache: Path) -> None:
    """Has huggingface_hub, which reads its environment when it is imported, ask this hub, with a cache of its own."""
    patch.setattr(constants, "ENDPOINT", address)
    for module in ("constants", "file_download"):  # earlier versions keep it in both
        name = f"huggingface_hub.{module}.HUGGINGFACE_CO_URL_TEMPLATE"
        patch.setattr(name, address + "/{repo_id}/resolve/{revision}/{filename}", raising=False)
    patch.setattr(constants, "HF_HUB_CACHE", str(cache))
    disable_progress_bars()
