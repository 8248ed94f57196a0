#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A router for one prefill engine and one decode engine: what a real router has to do, and nothing else.

    router.py [--push] PORT http://127.0.0.1:8100 http://127.0.0.1:8200

A request goes to the prefill engine first, for one token and with kv_transfer_params that say that another
engine will decode. Its answer holds new kv_transfer_params. They are copied into the request for the
decode engine, whose answer is the client's.

With --push the engines run in mode 'push', and the request goes to both at once, with a transfer id that
nobody else knows. The decode engine is told where the prefill engine is; the router knows that from the
prefill engine's answer to an earlier request, so that the first request goes to one after the other.
"""

from __future__ import annotations

import argparse
import http.client
import json
import secrets
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# of an engine: it cannot be reached, ends its connection, or answers something else than HTTP or JSON
FAILURES = (OSError, http.client.HTTPException, ValueError)
PREFILL: dict[str, Any] = {"do_remote_decode": True, "do_remote_prefill": False}


def start(url: str, path: str, body: dict[str, Any], headers: dict[str, str]) -> http.client.HTTPConnection:
    """Starts a request to an engine; getresponse() waits for its answer."""
    where = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **headers})
    return connection


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    prefill = decode = ""
    push = False
    where: dict[str, Any] | None = None  # kv_transfer_params of the prefill engine's last answer

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
        body.pop("kv_transfer_params", None)  # only a router may say where an engine reads or writes blocks
        params = {**PREFILL, "transfer_id": secrets.token_hex(16)} if self.push else PREFILL
        where = {**self.where, "transfer_id": params["transfer_id"]} if self.push and self.where else None
        first = {**body, "kv_transfer_params": params, "stream": False, "max_tokens": 1}
        for name in ("stream_options", "max_completion_tokens", "min_tokens"):
            first.pop(name, None)
        engine = "prefill"
        try:
            prefill = start(self.prefill, self.path, first, headers)
            answer = None if where else prefill.getresponse()
            if answer is None or answer.status == 200:
                copied = self.learn(answer) if answer else where  # None: the decode engine computes all of it
                body.pop("ec_transfer_params", None)  # of examples/vllm-epd: outputs for the engine that computes the prompt
                engine = "decode"
                answer = start(self.decode, self.path, {**body, "kv_transfer_params": copied} if copied else body,
                               headers).getresponse()
        except FAILURES as e:
            self.send_error(502, f"the {engine} engine does not answer: {e}")
            return
        self.relay(answer)
        if where:
            try:
                self.learn(prefill.getresponse())
            except FAILURES as e:
                self.log_error("the prefill engine does not answer: %s", e)

    @classmethod
    def learn(cls, answer: http.client.HTTPResponse) -> dict[str, Any] | None:
        """kv_transfer_params of the prefill engine's answer. ValueError: it is not a JSON object."""
        text = answer.read()
        if answer.status != 200:
            return None
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError("its answer is not a JSON object")
        params = found.get("kv_transfer_params")
        if not isinstance(params, dict):
            return None
        cls.where = params or cls.where
        return params

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

    def do_GET(self) -> None:
        """/health: the router runs. Other pages, such as /v1/models, are the decode engine's."""
        where = urllib.parse.urlsplit(self.decode)
        try:
            connection = http.client.HTTPConnection(where.hostname or "", where.port)
            connection.request("GET", self.path)
            answer = connection.getresponse()
            text = answer.read()
        except FAILURES as e:
            self.send_error(502, f"the decode engine does not answer: {e}")
            return
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.getheader("Content-Type") or "text/plain")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Quiet: the engines log each request."""


class Server(ThreadingHTTPServer):
    request_queue_size = 1024  # connections that may come at once


def main() -> None:
    parser = argparse.ArgumentParser(description="A router for one prefill engine and one decode engine.")
    parser.add_argument("--push", action="store_true", help="start both engines at once; they run in mode 'push'")
    parser.add_argument("port", type=int)
    parser.add_argument("prefill", help="URL of the prefill engine")
    parser.add_argument("decode", help="URL of the decode engine")
    given = parser.parse_args()
    Handler.push, Handler.prefill, Handler.decode = given.push, given.prefill, given.decode
    with Server(("127.0.0.1", given.port), Handler) as server:
        print(f"router: http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
