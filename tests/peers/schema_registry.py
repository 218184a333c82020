"""A small schema registry: the part of Confluent's REST API that clients of schemas use.

For what a real one (`apicurio.py`) cannot be made to do at will: ask for credentials, speak TLS, be
away for a while, answer nonsense. A real HTTP server, in a thread of the test's own process.
"""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from millstream.client.schema_registry import registry_for

_NO_SUBJECT, _NO_SCHEMA = 40401, 40403


@dataclass
class SchemaRegistry:
    """What it has, what it was asked, and how it behaves."""

    url: str = ""
    schemas: dict[int, dict[str, Any]] = field(default_factory=dict)  # by id
    subjects: dict[str, list[int]] = field(default_factory=dict)
    authorization: str | None = None  # the header that it insists on
    requests: list[str] = field(default_factory=list)
    broken_answers: list[tuple[int, bytes]] = field(default_factory=list)  # given first

    def add(self, subject: str, schema: Any, **more: Any) -> int:
        """The id of the schema, which is the newest of its subject now."""
        entry = {"schema": schema if isinstance(schema, str) else json.dumps(schema), **more}
        known = [number for number, it in self.schemas.items() if it == entry]
        number = known[0] if known else len(self.schemas) + 1
        self.schemas[number] = entry
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        match [method, *(unquote(it) for it in path.strip("/").split("/"))]:
            case ["GET", "schemas", "ids", number]:
                return self._one(self.schemas.get(int(number)), _NO_SCHEMA, "Schema not found")
            case ["GET", "subjects", subject, "versions", version]:
                versions = self.subjects.get(subject, [])
                place = len(versions) if version == "latest" else int(version)
                if not 1 <= place <= len(versions):
                    return 404, {"error_code": _NO_SUBJECT, "message": f"no subject {subject}"}
                number = versions[place - 1]
                return 200, self.schemas[number] | {"id": number, "version": place}
            case ["POST", "subjects", subject, "versions"]:
                return 200, {"id": self.add(subject, body["schema"])}
            case ["POST", "subjects", subject]:
                found = [
                    {"id": it}
                    for it in self.subjects.get(subject, [])
                    if self.schemas[it]["schema"] == body["schema"]
                ]
                return self._one(found[0] if found else None, _NO_SCHEMA, "Schema not found")
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _one(self, found: Any, code: int, message: str) -> tuple[int, Any]:
        return (404, {"error_code": code, "message": message}) if found is None else (200, found)


@contextmanager
def running_registry(certificate: Path | None = None) -> Iterator[SchemaRegistry]:
    """On a free port, as long as the context lasts; with TLS if it has a certificate."""
    registry = SchemaRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._serve(None)

        def do_POST(self) -> None:
            self._serve(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _serve(self, body: Any) -> None:
            registry.requests.append(f"{self.command} {self.path}")
            if registry.broken_answers:
                status, content = registry.broken_answers.pop(0)
            elif registry.authorization not in (None, self.headers["Authorization"]):
                status, content = 401, b'{"error_code": 401, "message": "Unauthorized"}'
            else:
                status, found = registry.answer(self.command, self.path, body)
                content = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    scheme = "http"
    if certificate is not None:
        scheme = "https"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    registry.url = f"{scheme}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        registry_for.cache_clear()  # the next one may have the same port, and has other schemas
