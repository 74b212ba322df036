"""An HTTP server that reflects what it was sent: headers and query come back in results, and one call is refused with them."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


class Echo:
    """`with Echo() as echo:` listens at `echo.url` on the loopback until the block ends."""

    def __init__(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=lambda: self._server.serve_forever(poll_interval=0.01), daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/mcp"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's word
        pass

    def do_GET(self) -> None:
        self._send(405, {})

    def do_POST(self) -> None:
        message: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["content-length"])))
        told = f"{self.path} {self.headers['authorization']}"
        if "id" not in message:
            self._send(202, None)
        elif message["method"] == "initialize":
            identity = {"name": "echo", "version": told}
            self._reply(
                message, {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": identity, "instructions": told}
            )
        elif message["method"] == "tools/list":
            schema = {"type": "object", "properties": {}}
            self._reply(message, {"tools": [{"name": "reflect", "description": told, "inputSchema": schema}]})
        elif message["method"] == "tools/call":
            self._send(503, {"why": told})
        else:
            self._send(400, {"why": told})

    def _reply(self, message: dict[str, Any], result: dict[str, Any]) -> None:
        self._send(200, {"jsonrpc": "2.0", "id": message["id"], "result": result})

    def _send(self, status: int, body: object) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
