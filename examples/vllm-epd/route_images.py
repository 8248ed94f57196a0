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


# of an engine: it cannot be reached, ends its connection, or answers something else than HTTP or JSON
FAILURES = (OSError, http.client.HTTPException, ValueError)


def start(url: str, method: str, path: str, body: dict[str, Any] | None, headers: dict[str, str]) -> http.client.HTTPResponse:
    """Sends a request to an engine, and waits until its answer begins."""
    where = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port)
    connection.request(method, path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json", **headers})
    return connection.getresponse()


def has_media(body: dict[str, Any]) -> bool:
    """True if a message of a chat has a part that is not text."""
    messages = body.get("messages")
    contents = [message.get("content") for message in (messages if isinstance(messages, list) else ()) if isinstance(message, dict)]
    return any(isinstance(part, dict) and part.get("type") != "text" for content in contents if isinstance(content, list) for part in content)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    encoder = following = ""

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
        self.route(body)

    def route(self, body: dict[str, Any]) -> None:
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
            found = json.loads(text) if answer.status == 200 else None
        except FAILURES as e:
            self.log_error("the encoder does not answer: %s", e)
            return None
        params = found.get("ec_transfer_params") if isinstance(found, dict) else None
        return params if isinstance(params, dict) else None

    def do_GET(self) -> None:
        """/health and other pages are those of the next engine."""
        self.relay("GET", None, {})

    def relay(self, method: str, body: dict[str, Any] | None, headers: dict[str, str]) -> None:
        """Passes the next engine's answer on, as it comes. The client sees by the missing last chunk that it has broken off."""
        try:
            answer = start(self.following, method, self.path, body, headers)
        except FAILURES as e:
            self.send_error(502, f"the engine does not answer: {e}")
            return
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
