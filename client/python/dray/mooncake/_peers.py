# SPDX-License-Identifier: Apache-2.0
"""The engines that this one knows, by session."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from .. import errors
from ._handshake import ask
from ._options import Options
from ._peer import Peer

__all__ = ["Peers"]


class _Asked:
    """A question at the port of a session, for which several threads may wait."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.error: errors.Error | None = None


class Peers:
    """Any thread may use it. A peer that was forgotten, or has ended, gives its remotes back when nobody uses it any more."""

    def __init__(self, options: Options, find: Callable[[str], str]) -> None:
        """find: from a session to HOST:PORT."""
        self._options, self._find = options, find
        self._peers: dict[str, Peer] = {}
        self._asked: dict[str, _Asked] = {}  # sessions whose port is being asked
        self._lock = threading.Lock()

    def knows(self, session: str) -> bool:
        with self._lock:
            return (peer := self._peers.get(session)) is not None and peer.is_valid()

    @contextlib.contextmanager
    def use(self, session: str, ends: float) -> Iterator[Peer]:
        """The peer of a session for the block. Asks its port the first time, and after the engine has ended or was forgotten."""
        peer = self._take(session, ends)
        try:
            yield peer
        finally:
            with self._lock:
                peer.users -= 1
                unused = not peer.users and not peer.is_valid()
            if unused:
                peer.release()

    def forget(self, peer: Peer) -> None:
        """The next use() asks the port again."""
        peer.forgotten = True

    def _take(self, session: str, ends: float) -> Peer:
        while True:
            with self._lock:
                peer = self._peers.get(session)
                if peer is not None and peer.is_valid():
                    peer.users += 1
                    return peer
                asked = self._asked.get(session)
                if asked is None:
                    mine = self._asked[session] = _Asked()
            if asked is None:
                return self._ask(session, mine)
            if not asked.ended.wait(max(0.0, ends - time.monotonic())):  # another thread asks
                raise errors.Deadline(f"the port of {session} did not answer in time",
                                      fix="Look whether that engine still runs.")
            if asked.error is not None:
                raise asked.error

    def _ask(self, session: str, asked: _Asked) -> Peer:
        try:
            peer = Peer(session, ask(self._find(session), self._options))
            peer.users = 1
            with self._lock:
                old = self._peers.get(session)
                if old is not None:
                    peer.turns = old.turns  # whose users may still have some
                self._peers[session] = peer
                unused = self._sweep() + ([old] if old is not None and not old.users else [])
        except errors.Error as e:
            asked.error = e
            raise
        finally:
            with self._lock:
                del self._asked[session]
            asked.ended.set()
        for p in unused:
            p.release()
        return peer

    def _sweep(self) -> list[Peer]:
        """Takes out those that are of no use, so that engines that come and go leave nothing."""
        unused = [p for p in self._peers.values() if not p.users and not p.is_valid()]
        for p in unused:
            del self._peers[p.session]
        return unused
