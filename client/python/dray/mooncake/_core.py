# SPDX-License-Identifier: Apache-2.0
"""An engine: its session with the agent, mailbox and port, and the answers to other engines."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from .. import errors, events
from ..client import Client
from ..handles import Region
from ..memory import PAGE, Memory
from ..pending import Pending
from ._carry import Carrier
from ._copy import address_of
from ._exported import Exported
from ._gpu import GpuRegions
from ._handshake import Contact, Served, SessionPort, host_of, is_host, segment_of
from ._letters import FIND_MAX, Carried, Carry, Find, Found, Letter, Notify, read, write
from ._local import Local
from ._metadata import Metadata
from ._options import Options
from ._peer import Peer
from ._peers import Peers
from ._placed import Placed
from ._registered import Buffer, Registered
from ._running import left
from ._slots import Slots
from ._workers import Workers

__all__ = ["Core"]

_logger = logging.getLogger("dray.mooncake")

_OWN_SLOTS, _CARRY_SLOTS = 16, 2  # apart, so that engines that wait for each other go on
_CARRIES_MAX = 256  # requests of others that wait
_NOTIFIES_MAX = 4096
_PLACES = 8  # that are tried for a buffer
_PAUSE, _PAUSE_MAX = 1.0, 10.0  # seconds before buffers are served again to engines that have Mooncake linked in


class _Wait:
    """A request to another engine, and its answer."""

    def __init__(self, peer: Peer) -> None:
        self.peer, self.ended = peer, threading.Event()
        self.answer: Letter | None = None


class Core:
    """What a TransferEngine has after initialize()."""

    def __init__(self, name: str, options: Options, metadata: Metadata | None = None) -> None:
        """name: of the engine, at a metadata server; without one its host counts."""
        host = host_of(name)
        self.options, self.pid = options, os.getpid()
        self._name, self._metadata, self._address = name, metadata, ""
        self.notifies = deque[Notify]()
        self._waits: dict[int, _Wait] = {}
        self._closed = False
        self._again: threading.Timer | None = None
        self.peers = Peers(options, self.find)
        self._at: Served | None = segment_of(options.segment, options) if options.segment else None
        self._life = Memory(PAGE, name="dray-mooncake-life")
        self.client = Client(name="mooncake", timeout=options.seconds)
        self.registered = Registered(GpuRegions(self.client))
        self.local = Local(self.client)
        try:
            self._life_exported = Exported(self.client.region(self._life, access="r", name="mooncake life"))
            self.mailbox = f"mooncake {secrets.token_hex(16)}"
            self.client.open_mailbox(self.mailbox)
            self._owner = self._own_uid()
            self._port = SessionPort(host, options, lambda: Contact(self.segment, self.mailbox), self._served)
        except BaseException:
            self.client.close(0)
            raise
        self.port = self._port.port
        if metadata is not None:
            self._enter(host)
        self.slots, self.carry_slots = Slots(self.client, _OWN_SLOTS), Slots(self.client, _CARRY_SLOTS)
        self._carrier = Carrier(self)
        self._workers = Workers("dray-mooncake-carry", _CARRY_SLOTS, _CARRIES_MAX)
        self._finders = Workers("dray-mooncake-find", 1, _CARRIES_MAX)
        threading.Thread(target=self._run, name="dray-mooncake", daemon=True).start()

    def find(self, session: str) -> str:
        """HOST:PORT of the session."""
        return session if self._metadata is None else self._metadata.find(session)

    def _enter(self, host: str) -> None:
        """Others find the port by the name from now on."""
        assert self._metadata is not None
        agent = host_of(self.segment)
        self._address = self.options.bind or (host if is_host(host, self.options) else agent)
        try:
            self._metadata.put(self._name, self._address, self.port)
        except BaseException:
            self._port.close()
            self.client.close(0)
            raise

    def leave(self) -> None:
        """Nobody finds the port by the name any more. In a forked child, nothing is to do."""
        if self._metadata is None or os.getpid() != self.pid:
            return
        metadata, self._metadata = self._metadata, None
        try:
            metadata.remove(self._name, self._address, self.port)
        except errors.Error as e:
            _logger.warning("the address of this engine stays at the metadata server: %s", e)

    def _own_uid(self) -> int:
        """This process's uid as the agent sees it, which may be in another user namespace: the sender of a letter to itself."""
        self.client.post("", self.mailbox, timeout=self.options.seconds)
        letter = self.client.next_event(events.Letter, self.options.seconds)
        if letter is None:
            raise errors.Timeout("the agent did not deliver a letter to this engine itself", fix="Look whether it is overloaded.")
        return letter.owner

    def close(self) -> None:
        """Ends the session. After that only this process uses its memory. In a forked child, nothing is to end."""
        if os.getpid() != self.pid:
            return
        self._closed = True
        self.leave()
        self._port.close()
        self._workers.close()
        self._finders.close()
        self.client.close()
        self._life.close()

    @property
    def segment(self) -> str:
        """Of the agent, which has another one after a restart if it takes a free port."""
        return self.client.segment

    # --- engines that have Mooncake linked in --------------------------------------------------------

    def _served(self) -> Served | None:
        at = self._at
        if at is None:
            return None
        buffers = [(b.address, b.length) for b in self.registered.shared() if b.served is not None and b.served.is_valid]
        return dataclasses.replace(at, buffers=tuple(buffers))

    def buffer(self, memory: Memory, region: Region) -> Buffer:
        """Of shared memory. These engines reach it, if the environment says so."""
        if not self.options.segment:
            return Buffer(address_of(memory.view), memory.size, region, memory)
        for last in (False,) * _PLACES + (True,):
            placed = Placed(memory)
            buffer = Buffer(placed.address, memory.size, region, memory, placed)
            try:
                self._serve(buffer)
                return buffer
            except errors.Invalid:  # another engine of this agent has some of these addresses
                placed.close()
                if last:
                    raise
            except BaseException:
                placed.close()
                raise
        raise AssertionError

    def _serve(self, buffer: Buffer) -> None:
        if buffer.served is not None:
            buffer.served.token()

    def _serve_again(self, pause: float = _PAUSE) -> None:
        """After the loss of the session, with which the agent has forgotten the buffers. Its data port may be another one, too.

        An error of one buffer leaves the others alone. What fails is tried again, because nobody else does it: the agent may be
        busy at its start, or another client may have the addresses meanwhile. In the thread of finders alone.
        """
        if self._closed:
            return
        failed: list[errors.Error] = []
        try:
            self._at = segment_of(self.options.segment, self.options)
            for buffer in self.registered.shared():
                try:
                    self._serve(buffer)
                except errors.Error as e:
                    if not buffer.removed:
                        failed.append(e)
        except errors.Error as e:
            failed.append(e)
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if not failed or self._closed:
            return
        _logger.warning("engines that have Mooncake linked in do not reach all managed buffers, which is tried again in %g s: %s", pause, failed[0])
        again = functools.partial(self._serve_again, min(2 * pause, _PAUSE_MAX))
        self._again = threading.Timer(pause, self._finders.start, (again,))
        self._again.daemon = True
        self._again.start()

    def left(self, ends: float) -> float:
        """Seconds until a deadline; at least a millisecond, because 0 means a default."""
        return left(ends)

    # --- requests to other engines ------------------------------------------------------------------

    def post(self, peer: Peer, letter: Letter, ends: float) -> None:
        self.client.post(peer.contact.segment, peer.contact.mailbox, write(letter), timeout=self.left(ends))

    def request(self, peer: Peer, make: Callable[[int], Letter], ends: float) -> Letter:
        """Posts a letter with a new number, and waits for its answer. errors.PeerLost: the engine has ended."""
        number, wait = secrets.randbits(63), _Wait(peer)
        self._waits[number] = wait
        try:
            self.post(peer, make(number), ends)
            while not wait.ended.wait(min(1.0, self.left(ends))) and time.monotonic() < ends and peer.lost() is None:
                pass
        finally:
            del self._waits[number]
        if wait.answer is None:
            if peer.lost() is not None:
                raise errors.PeerLost(f"the engine of {peer.session} has ended", fix="Start it again.")
            raise errors.Deadline(f"the engine of {peer.session} did not answer in time",
                                  fix="Look whether that engine still runs.")
        if isinstance(wait.answer, Carried) and wait.answer.code:
            raise errors.make(-wait.answer.code, f"the engine of {peer.session} refused: {wait.answer.message}")
        return wait.answer

    # --- events -------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (event := self._next()) is not None:
            try:
                self._handle(event)
            except errors.Error as e:
                _logger.warning("an event of the agent could not be handled: %s", e)
            except Exception:
                _logger.exception("an event of the agent could not be handled")

    def _next(self) -> Any:
        try:
            return self.client.next_event()
        except errors.Error:
            return None  # closed

    def _handle(self, event: Any) -> None:
        if isinstance(event, events.Letter):
            try:
                letter = read(event.payload)
            except (ValueError, TypeError) as e:
                _logger.warning("a letter of uid %d was dropped: %s", event.owner, e)
                return
            if self._is_stranger(event) and not isinstance(letter, (Found, Carried)):
                _logger.warning("a letter of uid %d was refused: the uid of this engine is %d", event.owner, self._owner)
                if not isinstance(letter, Notify):
                    self._refuse(letter, errors.Denied(f"uid {event.owner} may not use memory of uid {self._owner}: set "
                                                       "DRAY_MOONCAKE_ANY_UID to 1 at that engine"))
                return
            self._on_letter(letter)
        elif isinstance(event, events.Reconnected) and self.options.segment:
            self._finders.start(self._serve_again)  # which waits
        elif isinstance(event, (events.RemoteLost, events.Disconnected)):
            for wait in list(self._waits.values()):
                if wait.peer.lost() is not None:
                    wait.ended.set()

    def _is_stranger(self, letter: events.Letter) -> bool:
        """Uids mean the same at this agent alone. Answers need none: they are known by the number of the request."""
        return not self.options.any_uid and letter.owner != self._owner and letter.agent == self.client.agent_id

    def _on_letter(self, letter: Letter) -> None:
        if isinstance(letter, (Found, Carried)):
            wait = self._waits.get(letter.id)
            if wait is not None:
                wait.answer = letter
                wait.ended.set()
        elif isinstance(letter, Find):
            self._on_find(letter)
        elif isinstance(letter, Carry):
            self._on_carry(letter)
        elif len(self.notifies) < _NOTIFIES_MAX:
            self.notifies.append(letter)
        else:
            _logger.warning("a notification was dropped: %d wait for get_notifies()", _NOTIFIES_MAX)

    def _reply(self, to: Find | Carry, answer: Letter) -> None:
        """Does not wait: an engine that has ended meanwhile must not hold others up."""
        try:
            self.client.post(to.segment, to.mailbox, write(answer), wait=False).add_done_callback(_report)
        except errors.Error as e:
            _logger.warning("an answer to another engine was not posted: %s", e)

    def _found(self, letter: Find) -> Found:
        found: dict[int, list[Any]] = {}
        for address, length in letter.ranges[:FIND_MAX]:
            buffer = self.registered.find(address, length) if address or length else self.registered.first()
            if buffer is not None:
                found[buffer.address] = [buffer.address, buffer.length, _token(buffer)]
        return Found(letter.id, self._life_exported.token(), list(found.values()))

    def _on_find(self, letter: Find) -> None:
        self._work(self._finders, letter, lambda: self._found(letter))

    def _on_carry(self, letter: Carry) -> None:
        ends = time.monotonic() + min(letter.seconds, self.options.seconds)

        def carry() -> Letter:
            self._carrier.carry(letter, ends)
            return Carried(letter.id, 0, "")

        self._work(self._workers, letter, carry)

    def _work(self, workers: Workers, letter: Find | Carry, answer: Callable[[], Letter]) -> None:
        """Answers by a thread that may wait, whatever happens there."""
        def work() -> None:
            try:
                done = answer()
            except errors.Error as e:
                self._refuse(letter, e)
            except Exception as e:
                _logger.exception("a request of another engine failed")
                self._refuse(letter, errors.Internal(f"{type(e).__name__}: {e}"))
            else:
                self._reply(letter, done)

        if not workers.start(work):
            self._refuse(letter, errors.Busy("too many requests wait for this engine"))

    def _refuse(self, letter: Find | Carry, error: errors.Error) -> None:
        self._reply(letter, Carried(letter.id, error.code or errors.Internal.code, str(error)[:1000]))


def _report(answer: Pending[None]) -> None:
    if (error := answer.error()) is not None:
        _logger.warning("an answer did not reach another engine: %s", error)


def _token(buffer: Buffer) -> str:
    """For a peer; "" also if the agent gives none: then this process moves the bytes."""
    try:
        return buffer.token()
    except errors.Error as e:
        _logger.warning("a token of memory that the agent reaches could not be made, so its bytes take a copy more: %s", e)
        return ""
