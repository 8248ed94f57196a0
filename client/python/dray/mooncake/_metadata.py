# SPDX-License-Identifier: Apache-2.0
"""Mooncake's metadata server over HTTP: where the port of an engine is found by the name that it gave to initialize().

An engine's address is the value of mooncake/rpc_meta/NAME, as Mooncake's own engines have it. What else is to know of it,
its port answers. The agents of a cluster have their own segments there (mooncake.metadata).
"""

from __future__ import annotations

import http.client
import io
import json
import socket
import time
import urllib.parse
from collections.abc import Callable
from typing import Any

from .. import errors

__all__ = ["Metadata", "is_url"]

_SECONDS, _CONNECT_SECONDS = 3.0, 1.5  # as Mooncake's
_ANSWER_MAX = 1 << 20
_ABSENT = 404


def is_url(server: str) -> bool:
    return server.startswith("http://")


class _Until:
    """A connected socket for http.client whose calls end at a moment, however slowly the server sends."""

    def __init__(self, sock: socket.socket, ends: float) -> None:
        self._sock, self._ends = sock, ends
        self.close = sock.close

    def _limit(self) -> None:
        left = self._ends - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(left)

    def sendall(self, data: Any) -> None:
        self._limit()
        self._sock.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Reader(self._sock.makefile("rb", buffering=0), self._limit))


class _Reader(io.RawIOBase):
    def __init__(self, raw: io.RawIOBase, limit: Callable[[], None]) -> None:
        self._raw, self._limit = raw, limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._limit()
        n: int | None = self._raw.readinto(buffer)
        return n

    def close(self) -> None:
        super().close()
        self._raw.close()


class Metadata:
    """The keys of one server. cluster: MC_METADATA_CLUSTER_ID, or "". Any thread may use it."""

    def __init__(self, url: str, cluster: str = "") -> None:
        self.url = url
        try:
            parts = urllib.parse.urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if not is_url(url) or not host or not url.isascii() or not url.isprintable() or " " in url or parts.query or parts.fragment:
            raise errors.Invalid(f"{url!r:.200} is no URL of a metadata server", fix="Pass one such as http://10.0.0.9:8080/metadata.")
        self._host, self._port, self._path = host, port or 80, parts.path or "/"
        self._prefix = f"mooncake/{cluster}/" if cluster else "mooncake/"

    def find(self, name: str) -> str:
        """HOST:PORT of the engine of this name. errors.PeerUnreachable: the server does not have it, or does not answer."""
        status, body = self._ask("GET", name)
        if status == _ABSENT:
            raise errors.PeerUnreachable(f"the metadata server has no engine {name!r:.200}", fix="Look whether it runs, and which name it has.")
        try:
            form = json.loads(body)
            host, port = form["ip_or_host_name"], form["rpc_port"]
            if not isinstance(host, str) or not host or not isinstance(port, int) or not 0 < port < 65536:
                raise ValueError
        except (ValueError, TypeError, KeyError, RecursionError):
            raise errors.Protocol(f"the metadata server has no address for the engine {name!r:.200}", fix="Start that engine again.") from None
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def put(self, name: str, host: str, port: int) -> None:
        """The engine of this name is there from now on, also if an earlier one has left its address."""
        value = json.dumps({"ip_or_host_name": host, "rpc_port": port}, separators=(",", ":")).encode()
        self._ask("DELETE", name)  # servers do not replace an address
        self._ask("PUT", name, value)

    def remove(self, name: str, host: str, port: int) -> None:
        """Removes the address of this engine, unless another one has taken the name."""
        try:
            mine = self.find(name) == (f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        except (errors.PeerUnreachable, errors.Protocol):
            return
        if mine:
            self._ask("DELETE", name)

    def _ask(self, method: str, name: str, value: bytes | None = None) -> tuple[int, bytes]:
        """(status, answer); the status is that of success, or for a GET or DELETE _ABSENT."""
        key = urllib.parse.quote(f"{self._prefix}rpc_meta/{name}", safe="-._~")
        ends = time.monotonic() + _SECONDS
        call = http.client.HTTPConnection(self._host, self._port, timeout=_CONNECT_SECONDS)
        try:
            call.connect()
            call.sock = _Until(call.sock, ends)
            call.request(method, f"{self._path}?key={key}", value)
            answer = call.getresponse()
            body = answer.read(_ANSWER_MAX + 1)
        except (OSError, http.client.HTTPException, UnicodeError) as e:
            raise errors.PeerUnreachable(f"the metadata server {self.url:.200} does not answer: {e or type(e).__name__}",
                                         fix="Look whether it runs, and whether its address is right.") from None
        finally:
            call.close()
        if len(body) > _ANSWER_MAX or (answer.status != 200 and (answer.status != _ABSENT or method == "PUT")):
            raise errors.PeerUnreachable(f"the metadata server {self.url:.200} answers with status {answer.status}",
                                         fix="Look whether this is the URL of Mooncake's metadata server.")
        return answer.status, body
