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
import json
import pathlib
import sys
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "vllm-pd"))

from routing import FAILURES, Router, for_one_token, serve, start  # noqa: E402


def has_media(body: dict[str, Any]) -> bool:
    """True if a message of a chat has a part that is not text."""
    messages = body.get("messages")
    contents = [message.get("content") for message in (messages if isinstance(messages, list) else ()) if isinstance(message, dict)]
    return any(isinstance(part, dict) and part.get("type") != "text" for content in contents if isinstance(content, list) for part in content)


class Handler(Router):
    encoder = following = ""

    def route(self, body: dict[str, Any], headers: dict[str, str]) -> None:
        for name in ("ec_transfer_params", "kv_transfer_params"):
            body.pop(name, None)
        if has_media(body) and (params := self.encode(body, headers)):
            body["ec_transfer_params"] = params
        self.pass_on("POST", body, headers)

    def encode(self, body: dict[str, Any], headers: dict[str, str]) -> dict[str, Any] | None:
        """ec_transfer_params of the encoder's answer; None: it offers nothing."""
        try:
            answer = start(self.encoder, "POST", self.path, for_one_token(body), headers).getresponse()
            text = answer.read()
            found = json.loads(text) if answer.status == 200 else None
        except FAILURES as e:
            self.log_error("the encoder does not answer: %s", e)
            return None
        params = found.get("ec_transfer_params") if isinstance(found, dict) else None
        return params if isinstance(params, dict) else None

    def do_GET(self) -> None:
        """/health and other pages are those of the next engine."""
        self.pass_on("GET", None, {})

    def pass_on(self, method: str, body: dict[str, Any] | None, headers: dict[str, str]) -> None:
        """Has the next engine answer the client."""
        try:
            answer = start(self.following, method, self.path, body, headers).getresponse()
        except FAILURES as e:
            self.send_error(502, f"the engine does not answer: {e}")
            return
        self.relay(answer)


def main() -> None:
    parser = argparse.ArgumentParser(description="A router for one engine that encodes images.")
    parser.add_argument("port", type=int)
    parser.add_argument("encoder", help="URL of the engine that encodes")
    parser.add_argument("following", help="URL of the engine that uses the outputs, or of the router of examples/vllm-pd")
    given = parser.parse_args()
    Handler.encoder, Handler.following = given.encoder, given.following
    serve(given.port, Handler)


if __name__ == "__main__":
    main()
