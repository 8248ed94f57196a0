# SPDX-License-Identifier: Apache-2.0
"""The port of a session: how an engine that knows HOST:PORT learns the agent and the mailbox behind it.

It speaks the frames of Mooncake's P2P handshake: length of 64 bits, type of 8 bits, JSON. The descriptor that it
answers has a key "dray" with the contact, which is no secret: what counts travels in letters, which agents authenticate.
It has buffers only if the agent serves them to engines that have Mooncake linked in (DRAY_MOONCAKE_SEGMENT).
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import ipaddress
import json
import random
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .. import errors
from ._options import Options

__all__ = ["Contact", "Served", "SessionPort", "ask", "host_of", "is_host", "probe", "segment_of"]

_LENGTH = struct.Struct("<Q")
_METADATA, _NOTIFY, _PROBE = 1, 2, 3
_FRAME_MAX = 1 << 20  # with the type
_SECONDS = 5.0  # that a connection may take
_CONNECTIONS_MAX = 64
_TRIES = 500  # of ports
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE = 0.1  # seconds
VERSION = 1


@dataclass(frozen=True)
class Contact:
    """segment: of the agent. mailbox: of the engine there."""

    segment: str
    mailbox: str


@dataclass(frozen=True)
class Served:
    """Where engines that have Mooncake linked in reach memory. name: of the agent's segment for them. port: for data, at its host."""

    name: str
    port: int
    version: int
    buffers: tuple[tuple[int, int], ...] = ()  # address, length


class _Connection:
    """What a client of the port has sent so far, and what is left of the answer to it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock, self.ends = sock, time.monotonic() + _SECONDS
        self.data, self.answered = bytearray(), False
        self.answer = memoryview(b"")


class SessionPort:
    """Listens on a free port, and answers from a thread of its own until close(). port: the number. Neither function may wait."""

    def __init__(self, host: str, options: Options, contact: Callable[[], Contact], served: Callable[[], Served | None]) -> None:
        self._listener, self.port = _listen(host, options)
        self._name = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        self._contact, self._served = contact, served
        self._connections: dict[socket.socket, _Connection] = {}
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        for sock in (self._listener, self._woken):
            sock.setblocking(False)
            self._selector.register(sock, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="dray-mooncake-port", daemon=True)
        self._thread.start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._wake.send(b"\0")  # a forked child may have a copy of the socket, so that its end would not be seen
        self._wake.close()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                ends = min((c.ends for c in self._connections.values()), default=None)
                ready = self._selector.select(None if ends is None else max(0.0, ends - time.monotonic()))
                for key, _ in ready:
                    if key.fileobj is self._woken:
                        return
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.fileobj in self._connections:
                        c = self._connections[key.fileobj]  # type: ignore[index]
                        if c.answer:
                            self._send(c)
                        else:
                            self._receive(c)
                now = time.monotonic()
                for c in [c for c in self._connections.values() if c.ends <= now]:
                    self._drop(c)
        finally:
            for c in list(self._connections.values()):
                self._drop(c)
            self._selector.close()
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RD)  # which ends the listening of copies, too
            self._listener.close()
            self._woken.close()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as e:
            if e.errno in _EXHAUSTED:  # a connection of ours makes room; without one, wait for others of the process
                if not self._drop_oldest():
                    time.sleep(_PAUSE)
            return
        sock.setblocking(False)
        if len(self._connections) >= _CONNECTIONS_MAX:
            self._drop_oldest()
        self._connections[sock] = _Connection(sock)
        self._selector.register(sock, selectors.EVENT_READ)

    def _drop_oldest(self) -> bool:
        if not self._connections:
            return False
        self._drop(next(iter(self._connections.values())))
        return True

    def _drop(self, c: _Connection) -> None:
        del self._connections[c.sock]
        self._selector.unregister(c.sock)
        c.sock.close()

    def _receive(self, c: _Connection) -> None:
        try:
            got = c.sock.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            got = b""
        if not got or c.answered:
            self._drop(c)
            return
        c.data += got
        if len(c.data) < _LENGTH.size:
            return
        length, = _LENGTH.unpack_from(c.data)
        if not 0 < length <= _FRAME_MAX or len(c.data) > _LENGTH.size + length:
            self._drop(c)
        elif len(c.data) == _LENGTH.size + length:
            self._answer(c, c.data[_LENGTH.size])

    def _answer(self, c: _Connection, kind: int) -> None:
        """The contents of a request do not matter: a notification of a stranger is refused, like unknown types."""
        if kind == _METADATA:
            answer = self._descriptor()
        elif kind == _PROBE:
            answer = {"status": "success"}
        elif kind == _NOTIFY:
            answer = {"name": "", "notify_msg": ""}
        else:
            self._drop(c)
            return
        c.answer, c.answered = memoryview(_frame(kind, answer)), True
        c.data.clear()
        self._selector.modify(c.sock, selectors.EVENT_WRITE)
        self._send(c)

    def _send(self, c: _Connection) -> None:
        try:
            c.answer = c.answer[c.sock.send(c.answer):]
            if not c.answer:
                c.sock.shutdown(socket.SHUT_WR)
                self._selector.modify(c.sock, selectors.EVENT_READ)
        except BlockingIOError:
            pass
        except OSError:
            self._drop(c)

    def _descriptor(self) -> dict[str, Any]:
        contact, served = self._contact(), self._served()
        form = {"buffers": [], "dray": {"mailbox": contact.mailbox, "segment": contact.segment, "version": VERSION},
                "name": self._name, "protocol": "tcp", "tcp_data_port": 0}
        if served is not None:  # whoever reads the buffers goes to the agent for their bytes, and for later descriptors
            form |= {"buffers": [{"addr": address, "length": length, "name": served.name} for address, length in served.buffers],
                     "name": served.name, "tcp_data_port": served.port, "tcp_proto_version": served.version,
                     "timestamp": datetime.datetime.now().isoformat(" ", "microseconds")}
        return form


def _frame(kind: int, form: Any) -> bytes:
    body = json.dumps(form, separators=(",", ":"), sort_keys=True).encode() + b"\n"
    return _LENGTH.pack(1 + len(body)) + bytes([kind]) + body


def _listen(host: str, options: Options) -> tuple[socket.socket, int]:
    """A listener at the host's address. At all addresses if this machine does not have it, such as behind NAT, or if a name
    stands for the loopback here, as that of the machine itself often does: other hosts find another address by it.
    """
    family = socket.AF_INET6 if options.ipv6 else socket.AF_INET
    first, last = options.ports
    wildcard = "::" if options.ipv6 else "0.0.0.0"
    addresses = [wildcard]
    with contextlib.suppress(OSError, UnicodeError):
        address = str(socket.getaddrinfo(host, None, family, socket.SOCK_STREAM)[0][4][0])
        if address in (host, wildcard) or host == "localhost" or not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
            addresses.insert(0, address)
    chooser = random.SystemRandom()
    for address in addresses:
        for _ in range(_TRIES):
            port = chooser.randint(first, last)
            sock = socket.socket(family, socket.SOCK_STREAM)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # beside connections of an engine that has ended
            try:
                sock.bind((address, port))
                sock.listen(128)
                return sock, port
            except OSError as e:
                sock.close()
                error = e
                if e.errno == errno.EADDRNOTAVAIL:
                    break
    raise errors.Io(f"no port from {first} to {last} is free on {host}: {error.strerror}",
                    fix="Set MC_MIN_RPC_PORT and MC_MAX_RPC_PORT to other ports.")


def host_of(name: str) -> str:
    """The host in "host", "host:port", "[v6]:port" or "v6"."""
    if name.startswith("["):
        return name[1:].partition("]")[0]
    host, colon, _ = name.rpartition(":")
    return host if colon and ":" not in host else name


def is_host(name: str, options: Options) -> bool:
    """Whether the name stands for an address."""
    try:
        return bool(name and socket.getaddrinfo(name, None, socket.AF_INET6 if options.ipv6 else socket.AF_INET, socket.SOCK_STREAM))
    except (OSError, UnicodeError):
        return False


def _split(session: str) -> tuple[str, int]:
    host, _, port = session.rpartition(":")
    try:
        number = int(port)
        if not host or not 0 < number < 65536:
            raise ValueError
    except ValueError:
        raise errors.Invalid(f"the session {session!r:.200} is not HOST:PORT",
                             fix="Pass the peer's host name and its get_rpc_port().") from None
    return host.strip("[]"), number


def _call(session: str, kind: int, options: Options) -> Any:
    """One request to a port, without contents; returns the JSON of the answer. Every step has the same deadline."""
    host, port = _split(session)
    ends = time.monotonic() + options.connect_seconds
    try:
        with socket.create_connection((host, port), options.connect_seconds) as sock:
            sock.sendall(_frame(kind, {}))
            length, = _LENGTH.unpack(_receive(sock, _LENGTH.size, ends))
            if not 0 < length <= _FRAME_MAX:
                raise errors.Protocol(f"the port {session} answered with a frame of {length} bytes")
            body = _receive(sock, length, ends)
    except (OSError, UnicodeError) as e:
        raise errors.PeerUnreachable(f"the port of the session {session} does not answer: {e}",
                                     fix="Look whether the peer runs, and whether its port can be reached.") from None
    if body[0] != kind:
        raise errors.Protocol(f"the port {session} answered with type {body[0]} instead of {kind}")
    try:
        return json.loads(body[1:])
    except (ValueError, RecursionError):
        raise errors.Protocol(f"the port {session} answered with other text than JSON") from None


def _receive(sock: socket.socket, n: int, ends: float) -> bytes:
    data = bytearray()
    while len(data) < n:
        left = ends - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        sock.settimeout(left)
        got = sock.recv(min(65536, n - len(data)))
        if not got:
            raise ConnectionError("the connection was closed")
        data += got
    return bytes(data)


def ask(session: str, options: Options) -> Contact:
    """The contact behind a session. errors.Unsupported: an engine without dray."""
    form = _call(session, _METADATA, options)
    contact = form.get("dray") if isinstance(form, dict) else None
    if not isinstance(contact, dict):
        raise errors.Unsupported(f"the engine of the session {session} has Mooncake linked in, and no agent",
                                 fix="Run that engine with dray.mooncake, too.")
    segment, mailbox = contact.get("segment"), contact.get("mailbox")
    if contact.get("version") != VERSION or not isinstance(segment, str) or not isinstance(mailbox, str):
        raise errors.Version(f"the engine of the session {session} gives its contact in version "
                             f"{contact.get('version')!r:.20}, this one reads {VERSION}",
                             fix="Install the same version of dray at both engines.")
    return Contact(segment, mailbox)


def probe(session: str, options: Options) -> None:
    """Raises the error of a session whose port does not answer."""
    _call(session, _PROBE, options)


def segment_of(agent: str, options: Options) -> Served:
    """The agent's segment for engines that have Mooncake linked in, without buffers, from its HOST:PORT."""
    fix = "Set DRAY_MOONCAKE_SEGMENT to the agent's mooncake.listen, and let mooncake.allow have the address of this engine."
    try:
        form = _call(agent, _METADATA, options)
    except errors.PeerUnreachable as e:
        raise errors.PeerUnreachable(f"the agent's segment for Mooncake's engines does not answer: {e}", fix=fix) from None
    if isinstance(form, dict) and form.get("protocol") == "rdma":
        raise errors.Unsupported(f"the agent serves Mooncake's engines at {agent} over RDMA, where this engine's buffers are not offered",
                                 fix="Set mooncake.protocol of the agent to tcp, or leave DRAY_MOONCAKE_SEGMENT out.")
    name, port, version = (form.get(key) if isinstance(form, dict) else None for key in ("name", "tcp_data_port", "tcp_proto_version"))
    if not isinstance(name, str) or not isinstance(port, int) or not 0 < port < 65536 or not isinstance(version, int):
        raise errors.Protocol(f"the port {agent} does not answer as the agent's segment for Mooncake's engines", fix=fix)
    return Served(name, port, version)
