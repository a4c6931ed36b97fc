"""A hub on this machine that speaks what huggingface_hub asks of the real one: a model's files, and their contents."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest


class FakeHub:
    """Models by (name, revision); `asked` has the path of every file that was sent."""

    def __init__(self) -> None:
        self.models: dict[tuple[str, str], Path] = {}
        self.gated: set[str] = set()
        """Models that everybody sees, and whose files nobody was granted."""
        self.asked: list[str] = []
        self.cut_after: int | None = None
        """The next large file ends after so many bytes, as on a broken line."""

    def add(self, name: str, folder: Path, revision: str = "main") -> str:
        """Puts a folder on the hub, and returns its commit."""
        self.models[name, revision] = folder
        commit = _commit(folder)
        self.models[name, commit] = folder
        return commit


def _commit(folder: Path) -> str:
    return hashlib.sha1(str(folder).encode()).hexdigest()


@contextmanager
def running(hub: FakeHub) -> Iterator[str]:
    """Yields the hub's address while it answers."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, body: bool) -> None:
            path = self.path.partition("?")[0]
            if path.startswith("/api/models/"):
                org, model, *rest = path.removeprefix("/api/models/").split("/")
                self._model(f"{org}/{model}", rest[1] if len(rest) > 1 else "main", tree=rest[:1] == ["tree"])
                return
            org, model, _, revision, *file = [*path.lstrip("/").split("/"), "", "", ""]
            file = [part for part in file if part]
            folder = hub.models.get((f"{org}/{model}", revision))
            if folder is None or not (folder / "/".join(file)).is_file():
                self._send(404, b"", {"X-Error-Code": "EntryNotFound" if folder else "RepoNotFound"}, body)
                return
            if f"{org}/{model}" in hub.gated:
                self._send(403, b"", {"X-Error-Code": "GatedRepo"}, body)
                return
            data = (folder / "/".join(file)).read_bytes()
            if body:
                hub.asked.append("/".join(file))
            self._file(data, _commit(folder), body)

        def _model(self, name: str, revision: str, tree: bool) -> None:
            known = {model for model, _ in hub.models}
            folder = hub.models.get((name, revision))
            if folder is None:
                self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound" if name in known else "RepoNotFound"}, True)
                return
            files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
            facts: Any = {"id": name, "sha": _commit(folder), "siblings": [{"rfilename": file} for file in files]}
            if tree:
                sizes = {file: (folder / file).stat().st_size for file in files}
                facts = [{"type": "file", "path": file, "size": sizes[file], "oid": "0" * 40} for file in files]
            self._send(200, json.dumps(facts).encode(), {"Content-Type": "application/json"}, True)

        def _file(self, data: bytes, commit: str, body: bool) -> None:
            headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
            asked = self.headers.get("Range", "")
            if body and asked.startswith("bytes="):
                start = int(asked.removeprefix("bytes=").split("-")[0])
                hub.asked[-1] += f" from {start}"
                headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
                self._send(206, data[start:], headers, True)
                return
            if body and hub.cut_after is not None and len(data) > hub.cut_after:
                cut, hub.cut_after = hub.cut_after, None
                self._send(200, data[:cut], {**headers, "Content-Length": str(len(data))}, True)
                self.close_connection = True
                return
            self._send(200, data, headers, body)

        def _send(self, status: int, data: bytes, headers: dict[str, str], body: bool) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if body:
                self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Tells nobody."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def point_at(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """Lets huggingface_hub ask at this address."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
