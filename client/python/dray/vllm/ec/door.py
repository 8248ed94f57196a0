# SPDX-License-Identifier: Apache-2.0
"""How an engine gets the descriptor of a pool on its host that it can keep, also of a process that it does not see in /proc, as in
another container.

An encoder has a door: an abstract Unix socket, which all processes of its network namespace see. It gives a descriptor that can only
be read to a process of the same user that says the door's key, which is in the encoder's offers. The connection stays open, so
that the other engine closes the descriptor, and so gives up the memory, when the encoder has ended.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import logging
import os
import secrets
import socket
import struct
import threading
import time

from ...memory import Memory
from .inplace import PoolFile

__all__ = ["Door", "Doors"]

_logger = logging.getLogger("vllm.dray")
_NAME = 16  # bytes, and as many of the key; both as hexadecimal digits
_PATIENCE = 1.0  # seconds that one side waits for the other one
_CREDENTIALS = struct.Struct("iII")  # struct ucred
_MOST = 256  # doors that an engine knows
_TRIES = 4  # at a door that gives nothing, because one side is too busy to answer in time, or because it is not for this engine


def _connected() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)


def _address(door: str) -> str:
    return "\0dray-ec-" + door[:2 * _NAME]


def _same_user(connection: socket.socket) -> bool:
    """True if the other process is of the same user as this one. Root of another user namespace is another user."""
    _, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return bool(uid == os.geteuid())


def _ended(connection: socket.socket) -> bool:
    """True if the other side has closed a connection that does not block."""
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


class Door:
    """Of one pool. name: for offers; empty if this host allows none."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.name = secrets.token_hex(2 * _NAME)
        self._socket = _connected()
        try:
            self._socket.bind(_address(self.name))
            self._socket.listen(16)
        except OSError as e:
            _logger.warning("dray: engines in other containers of this host cannot read encoder outputs in place: %s", e)
            self._socket.close()
            self.name = ""
            return
        threading.Thread(target=self._serve, name="dray-ec-door", daemon=True).start()

    def _serve(self) -> None:
        open_ones: list[socket.socket] = []
        with self._socket:
            while True:
                try:
                    connection, _ = self._socket.accept()
                except OSError as e:
                    if e.errno in (errno.EMFILE, errno.ENFILE, errno.ECONNABORTED, errno.ENOMEM, errno.ENOBUFS):
                        time.sleep(_PATIENCE)
                        continue
                    break  # closed
                for one in [one for one in open_ones if _ended(one)]:
                    open_ones.remove(one)
                    one.close()
                if len(open_ones) < _MOST and self._give(connection):
                    open_ones.append(connection)
                else:
                    connection.close()
        for one in open_ones:
            one.close()

    def _give(self, connection: socket.socket) -> bool:
        """True if the other process has got the pool."""
        try:
            if not _same_user(connection):
                return False
            connection.settimeout(_PATIENCE)
            said = connection.recv(2 * _NAME, socket.MSG_WAITALL)
            if not hmac.compare_digest(said, self.name[2 * _NAME:].encode()):
                return False
            fd = os.open(f"/proc/self/fd/{self._memory.fd}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                socket.send_fds(connection, [b"!"], [fd])
            finally:
                os.close(fd)
            connection.setblocking(False)
            return True
        except OSError:
            return False

    def close(self) -> None:
        """Others learn that this engine has ended."""
        if self.name:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


class Doors:
    """Pools that this engine has got from doors. Nothing here waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pools: dict[str, PoolFile | None] = {}  # by door; None: it has not come yet, or that encoder is not here, or has ended
        self._tries: dict[str, int] = {}  # by door, as long as it is to be tried again
        self._connections: set[socket.socket] = set()

    def find(self, door: str) -> PoolFile | None:
        """A pool that has come."""
        return self._pools.get(door)

    def knock(self, door: str) -> None:
        """Asks for a pool, unless that was done before, or was in vain too often. It comes later, or never."""
        with self._lock:
            if not door or door in self._pools:
                return
            if len(self._pools) >= _MOST:
                for old in [old for old, pool in self._pools.items() if pool is None]:
                    del self._pools[old]
            if len(self._pools) < _MOST:
                self._pools[door] = None
                threading.Thread(target=self._fetch, args=(door,), name="dray-ec-pool", daemon=True).start()

    def _fetch(self, door: str) -> None:
        connection = _connected()
        again = True
        try:
            with self._lock:
                self._connections.add(connection)
            connection.settimeout(_PATIENCE)
            connection.connect(_address(door))
            if _same_user(connection):
                connection.sendall(door[2 * _NAME:].encode())
                _, fds, _, _ = socket.recv_fds(connection, 1, 1, socket.MSG_CMSG_CLOEXEC)
                again = not fds
                if fds and (pool := self._keep(door, fds[0])) is not None:
                    pool.populate()
                    connection.settimeout(None)
                    connection.recv(1)  # until the encoder ends
        except (TimeoutError, BlockingIOError):
            pass  # it is stopped or busy
        except OSError:
            again = False  # there is no such door here
        finally:
            with self._lock:
                self._connections.discard(connection)
                pool = self._pools.pop(door, None)
                tries = self._tries.pop(door, 0) + 1
                if again and tries < _TRIES:
                    self._tries[door] = tries
                else:
                    self._pools[door] = None
            if pool is not None:
                pool.give_up()
            connection.close()

    def _keep(self, door: str, fd: int) -> PoolFile | None:
        """None if the descriptor is not that of a pool."""
        try:
            pool = PoolFile(fd, door)
        except OSError:
            return None
        with self._lock:
            self._pools[door] = pool
        return pool

    def close(self) -> None:
        """Gives all pools up."""
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
