# SPDX-License-Identifier: Apache-2.0
"""What the routers of the examples have in common: they read a request, ask engines, and pass an engine's answer on."""

from __future__ import annotations

import http.client
import json
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# of an engine: it cannot be reached, ends its connection, or answers something else than HTTP or JSON
FAILURES = (OSError, http.client.HTTPException, ValueError)


def start(url: str, method: str, path: str, body: dict[str, Any] | None, headers: dict[str, str]) -> http.client.HTTPConnection:
    """Starts a request to an engine; getresponse() waits for its answer."""
    where = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port)
    connection.request(method, path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json", **headers})
    return connection


def for_one_token(body: dict[str, Any]) -> dict[str, Any]:
    """The request of a client, for an engine that is to compute the prompt alone."""
    left_out = ("stream_options", "max_completion_tokens", "min_tokens")
    return {name: value for name, value in body.items() if name not in left_out} | {"stream": False, "max_tokens": 1}


class Router(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle(self) -> None:
        """Errors of engines are answers, so that an error of a socket here is the client's."""
        try:
            super().handle()
        except OSError as e:
            self.log_error("the client has left: %s", e)

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            self.send_error(411, "a request has a Content-Length")
            return
        try:
            body = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError) as e:
            self.send_error(400, f"the request is not JSON: {e}")
            return
        if not isinstance(body, dict):
            self.send_error(400, "the request is not a JSON object")
            return
        self.route(body, {name: value for name in ("Authorization", "X-Request-Id") if (value := self.headers[name])})

    def route(self, body: dict[str, Any], headers: dict[str, str]) -> None:
        """Answers a request. headers: those that engines get, too."""
        raise NotImplementedError

    def relay(self, answer: http.client.HTTPResponse) -> None:
        """Passes an engine's answer on, as it comes. The client sees by the missing last chunk that an answer has broken off."""
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.getheader("Content-Type") or "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        left = answer.length  # None: the answer has chunks, or ends with the connection
        while left != 0:
            try:
                piece = answer.read1(min(left or 1 << 16, 1 << 16))
                if left and not piece:
                    raise http.client.IncompleteRead(b"", left)
            except FAILURES as e:
                self.log_error("the answer of an engine has broken off: %s", e)
                self.close_connection = True
                return
            if not piece:
                break
            left = left and left - len(piece)
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Quiet: the engines log each request."""


class Server(ThreadingHTTPServer):
    request_queue_size = 1024  # connections that may come at once


def serve(port: int, router: type[Router]) -> None:
    """Serves clients of this host, without end."""
    with Server(("127.0.0.1", port), router) as server:
        print(f"router: http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()
