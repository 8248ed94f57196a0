#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A router for one engine that encodes images: what a real router has to do, and nothing else.

    route_images.py PORT http://127.0.0.1:8100 http://127.0.0.1:8200

A request with images, video or audio goes to the encoder first. Its answer holds ec_transfer_params. They are copied into the
same request for the next engine, whose answer is the client's. The next one is an engine that computes prompts and answers, or
the router of examples/vllm-pd before two that do one of these each.

The parameters decide whose outputs an engine uses, so that those of clients are removed. If the encoder does not answer, the next
engine encodes the images itself.
"""

from __future__ import annotations

import argparse
import http.client
import json
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def start(url: str, method: str, path: str, body: dict[str, Any] | None, headers: dict[str, str]) -> http.client.HTTPResponse:
    """Sends a request to an engine, and waits until its answer begins."""
    where = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port)
    connection.request(method, path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json", **headers})
    return connection.getresponse()


def has_media(body: dict[str, Any]) -> bool:
    """True if a message of a chat has a part that is not text."""
    contents = [message.get("content") for message in body.get("messages", ())]
    return any(part.get("type") != "text" for content in contents if isinstance(content, list) for part in content)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    encoder = following = ""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        headers = {name: value for name in ("Authorization", "X-Request-Id") if (value := self.headers[name])}
        for name in ("ec_transfer_params", "kv_transfer_params"):
            body.pop(name, None)
        if has_media(body) and (params := self.encode(body, headers)):
            body["ec_transfer_params"] = params
        self.relay("POST", body, headers)

    def encode(self, body: dict[str, Any], headers: dict[str, str]) -> dict[str, Any] | None:
        """ec_transfer_params of the encoder's answer; None: it offers nothing."""
        first = {**body, "stream": False, "max_tokens": 1}
        for name in ("stream_options", "max_completion_tokens", "min_tokens"):
            first.pop(name, None)
        try:
            answer = start(self.encoder, "POST", self.path, first, headers)
            text = answer.read()
        except (OSError, http.client.HTTPException) as e:
            self.log_error("the encoder does not answer: %s", e)
            return None
        params: dict[str, Any] | None = json.loads(text).get("ec_transfer_params") if answer.status == 200 else None
        return params

    def do_GET(self) -> None:
        """/health and other pages are those of the next engine."""
        self.relay("GET", None, {})

    def relay(self, method: str, body: dict[str, Any] | None, headers: dict[str, str]) -> None:
        """Passes the next engine's answer on, as it comes."""
        try:
            answer = start(self.following, method, self.path, body, headers)
        except (OSError, http.client.HTTPException) as e:
            self.send_error(502, f"the engine does not answer: {e}")
            return
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.getheader("Content-Type") or "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while piece := answer.read1(1 << 16):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Quiet: the engines log each request."""


class Server(ThreadingHTTPServer):
    request_queue_size = 1024  # connections that may come at once


def main() -> None:
    parser = argparse.ArgumentParser(description="A router for one engine that encodes images.")
    parser.add_argument("port", type=int)
    parser.add_argument("encoder", help="URL of the engine that encodes")
    parser.add_argument("following", help="URL of the engine that uses the outputs, or of the router of examples/vllm-pd")
    given = parser.parse_args()
    Handler.encoder, Handler.following = given.encoder, given.following
    with Server(("127.0.0.1", given.port), Handler) as server:
        print(f"router: http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
