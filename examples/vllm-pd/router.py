#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A router for one prefill engine and one decode engine: what a real router has to do, and nothing else.

    router.py PORT http://127.0.0.1:8100 http://127.0.0.1:8200

A request goes to the prefill engine first, for one token and with kv_transfer_params that say that another
engine will decode. Its answer holds new kv_transfer_params. They are copied into the request for the
decode engine, whose answer is the client's.
"""

from __future__ import annotations

import http.client
import json
import sys
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PREFILL = {"do_remote_decode": True, "do_remote_prefill": False}


def send(url: str, path: str, body: dict[str, Any], headers: dict[str, str]) -> http.client.HTTPResponse:
    """Starts a request to an engine."""
    where = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **headers})
    return connection.getresponse()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    prefill = decode = ""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        headers = {name: value for name in ("Authorization", "X-Request-Id") if (value := self.headers[name])}
        try:
            first = {**body, "kv_transfer_params": PREFILL, "stream": False, "max_tokens": 1}
            for name in ("stream_options", "max_completion_tokens", "min_tokens"):
                first.pop(name, None)
            answer = send(self.prefill, self.path, first, headers)
            text = answer.read()
            if answer.status == 200:
                params = json.loads(text).get("kv_transfer_params")  # None: the decode engine computes all of it
                answer = send(self.decode, self.path, {**body, "kv_transfer_params": params} if params else body, headers)
                text = b""
        except OSError as e:
            self.send_error(502, f"an engine does not answer: {e}")
            return
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.getheader("Content-Type") or "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while piece := text or answer.read1(1 << 16):
            text = b""
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def do_GET(self) -> None:
        """/health: the router runs. Other pages, such as /v1/models, are the decode engine's."""
        where = urllib.parse.urlsplit(self.decode)
        connection = http.client.HTTPConnection(where.hostname or "", where.port)
        connection.request("GET", self.path)
        answer = connection.getresponse()
        text = answer.read()
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.getheader("Content-Type") or "text/plain")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet: the engines log each request."""


def main() -> None:
    port, Handler.prefill, Handler.decode = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        print(f"router: http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
