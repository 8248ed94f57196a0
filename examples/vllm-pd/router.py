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
from typing import Any

from routing import FAILURES, Router, for_one_token, serve, start

PREFILL: dict[str, Any] = {"do_remote_decode": True, "do_remote_prefill": False}


class Handler(Router):
    prefill = decode = ""
    push = False
    where: dict[str, Any] | None = None  # kv_transfer_params of the prefill engine's last answer

    def route(self, body: dict[str, Any], headers: dict[str, str]) -> None:
        body.pop("kv_transfer_params", None)  # only a router may say where an engine reads or writes blocks
        params = {**PREFILL, "transfer_id": secrets.token_hex(16)} if self.push else PREFILL
        where = {**self.where, "transfer_id": params["transfer_id"]} if self.push and self.where else None
        engine = "prefill"
        try:
            prefill = start(self.prefill, "POST", self.path, {**for_one_token(body), "kv_transfer_params": params}, headers)
            answer = None if where else prefill.getresponse()
            if answer is None or answer.status == 200:
                copied = self.learn(answer) if answer else where  # None: the decode engine computes all of it
                body.pop("ec_transfer_params", None)  # of examples/vllm-epd: outputs for the engine that computes the prompt
                engine = "decode"
                answer = start(self.decode, "POST", self.path, {**body, "kv_transfer_params": copied} if copied else body,
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


def main() -> None:
    parser = argparse.ArgumentParser(description="A router for one prefill engine and one decode engine.")
    parser.add_argument("--push", action="store_true", help="start both engines at once; they run in mode 'push'")
    parser.add_argument("port", type=int)
    parser.add_argument("prefill", help="URL of the prefill engine")
    parser.add_argument("decode", help="URL of the decode engine")
    given = parser.parse_args()
    Handler.push, Handler.prefill, Handler.decode = given.push, given.prefill, given.decode
    serve(given.port, Handler)


if __name__ == "__main__":
    main()
