# SPDX-License-Identifier: Apache-2.0
"""A session with the agent: regions, tokens, remotes, transfers, notifications.

Every request gives a handle at once where `wait=False` is passed (transfers always do), so requests can be pipelined; the
answers arrive in any order. A program with a loop of its own watches fileno() and calls process(). One
thread at a time may use a client.
"""

import errno
import os
import select
import socket
import struct
import time
from collections import deque, namedtuple

from . import _schema as s
from . import errors
from .memory import Memory
from .ring import TSO, Arena, Ring
from .token import to_bytes, to_text

DEFAULT_SOCKET = "/run/dray/dray.sock"
_REPLY_MAX = 16384  # no message to a client is longer than a notification
_SNDBUF = 212992  # what the kernel must account for a message of MESSAGE_MAX bytes
_ACCESS = {"r": s.ACCESS_READ, "w": s.ACCESS_WRITE, "rw": s.ACCESS_READ | s.ACCESS_WRITE}
_DIRECTION = {name: code for code, name in s.DIRECTION_NAMES.items()}
_CLASS = {name: code for code, name in s.CLASS_NAMES.items()}

# Events beside those of the protocol: the agent went away (in flight was `lost` requests), and is back.
Disconnected = namedtuple("Disconnected", "error lost")
Reconnected = namedtuple("Reconnected", "incarnation regions failed")
Done = namedtuple("Done", "status transport bytes duration_ns message")


def _ms(seconds):
    """Milliseconds, rounded up: 0 on the wire means something else than no time."""
    return 0 if seconds is None else max(1, -int(-seconds * 1000 // 1))


def _code(table, value):
    return table[value] if isinstance(value, str) else value


class Pending:
    """A request under way. `done` tells whether it has ended, result() how."""

    def __init__(self, client, request_id=0, convert=None):
        self.client = client
        self.request_id = request_id
        self.done = False
        self._convert = convert
        self._value = self._error = None
        self._callbacks = []

    def result(self, timeout=None):
        """Waits for the end; gives the answer or raises its error. errors.Timeout leaves the request as it is."""
        if not self.client.wait_until(lambda: self.done, timeout):
            raise errors.Timeout(f"no answer to request {self.request_id} in {timeout} s")
        if self._error:
            raise self._error
        return self._value

    def exception(self, timeout=None):
        """Waits for the end; gives its error, or None."""
        try:
            self.result(timeout)
        except errors.DrayError as e:
            if not self.done:
                raise
            return e
        return None

    def add_done_callback(self, fn):
        """fn(self) runs from process() when the request ends, or now if it has."""
        if self.done:
            fn(self)
        else:
            self._callbacks.append(fn)

    def _end(self, value=None, error=None, fds=()):
        if self._convert and not error:
            try:
                value = self._convert(value, fds)
            except (OSError, ValueError, errors.DrayError) as e:
                error = e
        self._value, self._error, self.done = value, error, True
        callbacks, self._callbacks = self._callbacks, []
        for fn in callbacks:
            fn(self)


class Transfer(Pending):
    """A transfer under way; result() gives Done."""

    def __init__(self, client, request_id):
        super().__init__(client, request_id)
        self.pieces = ()  # of the arena
        self.in_ring = False

    def cancel(self, *, wait=True):
        """Stops it. When that is answered the transfer has ended, as cancelled or otherwise; NotFound if it had before."""
        return self.client.request(s.pack_transfer_cancel, wait=wait, request=self.request_id)

    def _end(self, value=None, error=None, fds=()):
        for piece in self.pieces:
            if self.client.arena:
                self.client.arena.give_back(piece)
        self.pieces = ()
        if value is not None and value.status:
            error = errors.make(value.status, value.message)
            error.done = value
        super()._end(value, error)


class Token(namedtuple("Token", "token_id data generation")):
    """An exported range. str() is the text form for an engine's request metadata."""

    def __str__(self):
        return to_text(self.data)


class Region:
    """Memory contributed to the agent: extents one after the other, addressed by offset."""

    def __init__(self, client, access, name):
        self.client = client
        self.access, self.name = access, name
        self.handle = self.length = self.generation = 0
        self.memory = None  # of a pool
        self.error = None  # why it could not be registered again
        self._fds = []  # our own descriptors, to register it again after an agent restart
        self._extents = []

    def use(self):
        """Its handle, if it can be used; connects again first where need be."""
        self.client.ready()
        if self.error:
            raise self.error
        if self.generation != self.client.generation:
            raise errors.NotFound("the region was removed, or its client is closed")
        return self.handle

    def export(self, offset=0, length=None, *, access=None, ttl=None, audience=None, single_use=False, wait=True):
        """A token for a range. ttl in seconds; audience: the agent_id of the only importer."""
        return self.client.request(
            s.pack_region_export, wait=wait, region=self.use(),
            convert=lambda m, fds: Token(m.token_id, m.token, self.client.generation), offset=offset, length=self.length - offset if length is None else length,
            access=self.access if access is None else _code(_ACCESS, access),
            flags=s.EXPORT_FLAG_SINGLE_USE if single_use else 0, ttl_ms=_ms(ttl), audience=audience or bytes(16))

    def revoke(self, token=None, *, wait=True):
        """Takes a token back, or all of them; gives how many. Then no importer touches the range any more."""
        handle = self.use()
        if token and token.generation != self.client.generation:
            raise errors.NotFound("the token ended with the agent that made it")
        return self.client.request(s.pack_region_revoke, wait=wait, convert=lambda m, fds: m.count,
                                   region=handle, token_id=token.token_id if token else 0)

    def remove(self, *, wait=True):
        """Ends the region. When that is answered the memory is the client's alone."""
        handle = self.use()
        self.generation = 0
        self.client.forget(self)
        return self.client.request(s.pack_region_remove, wait=wait, region=handle)

    def _add(self, convert, wait):
        return self.client.request(s.pack_region_add, wait=wait, fds=self._fds, convert=convert,
                                   access=self.access, name=self.name, extents=self._extents)

    def _release(self):
        while self._fds:
            os.close(self._fds.pop())


class Remote:
    """An imported range of another engine's memory."""

    def __init__(self, client, reply):
        self.client, self.generation = client, client.generation
        self.handle, self.length, self.access = reply.remote, reply.length, reply.access
        self.transport = s.TRANSPORT_NAMES.get(reply.transport, str(reply.transport))
        self.lost = None  # the error, once the agent has said that it is gone

    def use(self):
        self.client.ready()
        if self.generation != self.client.generation:
            raise errors.AgentRestarted("the remote belongs to an earlier connection: import its token again")
        return self.handle

    def notify(self, tag, payload=b"", *, wait=True):
        """Delivers a notification to the group that owns the range."""
        return self.client.request(s.pack_notify, wait=wait, remote=self.use(), tag=tag, payload=payload)

    def release(self, *, wait=True):
        """Forgets the remote; its transfers are cancelled first."""
        self.client.remotes.pop(self.use(), None)
        return self.client.request(s.pack_remote_release, wait=wait, remote=self.handle)


class Client:
    """A session with the agent behind `socket` (default: DRAY_SOCKET, then /run/dray/dray.sock).

    group: sessions of one uid that name the same group share regions, transfers and notifications. notifications: read
    those of the group, as events. When the agent is restarted, what was in flight ends with errors.AgentRestarted; the next
    request (or reconnect()) connects again and registers the regions again, waiting up to `patience` seconds for
    the agent. ring_entries, arena_bytes: as for open_ring(), opened when first needed.
    """

    def __init__(self, socket=None, *, group="", name="", notifications=False, pidfd=True, timeout=None, patience=10.0,
                 ring_entries=256, arena_bytes=4 << 20):
        self.path = os.fspath(socket or os.environ.get("DRAY_SOCKET") or DEFAULT_SOCKET)
        self.group, self.name, self.notifications, self.pidfd = group, name, notifications, pidfd
        self.timeout, self.patience = timeout, patience
        self.ring_entries, self.arena_bytes = ring_entries, arena_bytes
        self.events = deque()  # Notification, RemoteLost, Draining, Disconnected, Reconnected
        self.remotes = {}
        self.generation = 0  # counts connections
        self.ring = self.arena = self.hello = None
        self.error = None  # why the session ended for good
        self._ring_wanted = None
        self._sock = self._hangup = None
        self._epoll = select.epoll()
        self._pending, self._outbox, self._regions = {}, deque(), []
        self._next_id, self._batching, self._doorbell_due = 1, 0, False
        try:
            self._connect(self.patience if timeout is None else timeout)
        except BaseException:
            self._epoll.close()
            raise

    # --- connection ---------------------------------------------------------------------------

    @property
    def connected(self):
        return self._sock is not None

    @property
    def agent_id(self):
        return self.hello.agent_id

    @property
    def segment(self):
        return self.hello.segment

    def _connect(self, limit):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        pidfd = []
        try:
            if sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < _SNDBUF:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SNDBUF // 2)  # the kernel doubles it
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", int(limit) + 1, 0))
            sock.connect(self.path)
            sock.setblocking(False)
            if self.pidfd:
                try:
                    pidfd = [os.pidfd_open(os.getpid())]
                except OSError:
                    pass  # an old kernel or a strict sandbox: the socket's end must do
            self._sock, self.error = sock, None
            self._epoll.register(sock, select.EPOLLIN)
            self._hangup = select.poll()
            self._hangup.register(sock, 0)  # tells of the other end's death alone
            hello = self._submit(
                Pending(self), s.pack_hello, pidfd, major_min=s.MAJOR, major_max=s.MAJOR, group=self.group, name=self.name,
                flags=(s.HELLO_FLAG_PIDFD if pidfd else 0) | (s.HELLO_FLAG_NOTIFICATIONS if self.notifications else 0))
            self.hello = hello.result(limit)
            self.generation += 1
        except BaseException as e:
            if self._sock:
                self._lost(e, quiet=True)
            else:
                sock.close()
            raise
        finally:
            for fd in pidfd:
                os.close(fd)

    def reconnect(self, timeout=None):
        """Connects again after the agent went away, and registers every region and the ring again.

        Tries for `timeout` seconds (default: patience), at least once. What the caller imported must be imported
        again, what it exported exported again: tokens of the old agent are void. A region that the new agent refuses
        raises its error when used.
        """
        while self._sock:
            if not self._hangup.poll(0):
                return
            self.process()
        ends = time.monotonic() + (self.patience if timeout is None else timeout)
        pause = 0.005
        while True:
            try:
                self._connect(max(ends - time.monotonic(), 1.0))
                break
            except (OSError, errors.Draining, errors.AgentRestarted, errors.SessionClosed) as e:
                if time.monotonic() + pause > ends:
                    if isinstance(e, OSError):
                        raise errors.SessionClosed(f"{self.path}: {e.strerror}") from e
                    raise
            time.sleep(pause)
            pause = min(pause * 2, 0.2)
        failed = []
        adding = [(region, region._add(None, False)) for region in self._regions]
        for region, pending in adding:
            region.error = pending.exception()
            if region.error:
                failed.append(region)
            else:
                region.handle, region.generation = pending.result().region, self.generation
        if self._ring_wanted:
            self.open_ring(*self._ring_wanted)
        self.events.append(Reconnected(self.hello.incarnation, len(adding) - len(failed), failed))

    def _lost(self, error=None, quiet=False):
        """The connection is gone: everything in flight has ended, one way or another."""
        sock, self._sock = self._sock, None
        self._completions()
        self._epoll.unregister(sock)
        sock.close()
        self._outbox.clear()
        if self.ring:
            if not self.ring.unwatched:
                self._epoll.unregister(self.ring.completion)
            self.ring.close()
        if self.arena:
            self.arena.close()
        self.ring = self.arena = None
        self.remotes.clear()
        lost, self._pending = self._pending, {}
        why = error if isinstance(error, errors.DrayError) else errors.AgentRestarted(
            "the agent went away with this in flight; it may have been carried out")
        if not quiet:
            self.events.append(Disconnected(error, len(lost)))
        for pending in lost.values():
            pending._end(error=why)

    def close(self, timeout=5.0):
        """Ends the session and waits until the agent has let go of all of it: then memory is the caller's alone."""
        if self._sock:
            sock = self._sock
            try:
                sock.shutdown(socket.SHUT_WR)
                ends = time.monotonic() + timeout
                while True:
                    sock.settimeout(max(ends - time.monotonic(), 0.001))
                    data, fds, _, _ = socket.recv_fds(sock, _REPLY_MAX, s.FDS_MAX, socket.MSG_CMSG_CLOEXEC)
                    for fd in fds:
                        os.close(fd)
                    if not data:
                        break
            except OSError:
                pass
            self._lost(errors.SessionClosed("the client was closed"), quiet=True)
        self.error = self.error or errors.SessionClosed("the client was closed")
        for region in self._regions:
            region.generation = 0
            region._release()
        self._regions.clear()
        if not self._epoll.closed:
            self._epoll.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    # --- requests -------------------------------------------------------------------------------

    def request(self, pack, *, fds=(), convert=None, wait=True, **fields):
        """Sends one request of the schema: `pack` is one of _schema's pack_ functions. Gives its answer, or its handle."""
        self.ready()
        pending = self._submit(Pending(self, convert=convert), pack, fds, **fields)
        return pending.result(self.timeout) if wait else pending

    def ready(self):
        """Connects again if the agent went away."""
        while self._sock and self._hangup.poll(0):
            self.process()
        if not self._sock:
            if self.error:
                raise self.error
            self.reconnect()

    def _number(self, pending):
        pending.request_id = self._next_id
        self._next_id += 1
        self._pending[pending.request_id] = pending
        return pending.request_id

    def _submit(self, pending, pack, fds=(), **fields):
        packet = pack(self._number(pending), **fields)
        try:
            self._send(packet, list(fds))
        except BaseException:
            self._pending.pop(pending.request_id, None)
            raise
        return pending

    def _send(self, packet, fds=()):
        if self._outbox or not self._send_now(packet, fds):
            if not self._outbox:
                self._epoll.modify(self._sock, select.EPOLLIN | select.EPOLLOUT)
            self._outbox.append((packet, fds))

    def _send_now(self, packet, fds):
        """False when the socket is full."""
        try:
            if fds:
                socket.send_fds(self._sock, [packet], fds, socket.MSG_NOSIGNAL)
            else:
                self._sock.send(packet, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        except OSError as e:
            if e.errno == errno.EMSGSIZE:
                raise errors.TooLarge(f"{len(packet)} bytes do not fit a message; use the arena") from e
            if e.errno == errno.ETOOMANYREFS:
                raise errors.FdLimit("too many descriptors are on their way") from e
            if e.errno not in (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN):
                raise
            # What the agent still had to say comes by reading; reading then also finds the end.
        return True

    # --- events ---------------------------------------------------------------------------------

    def fileno(self):
        """A descriptor that is readable when process() has something to do."""
        return self._epoll.fileno()

    def process(self, timeout=0):
        """Handles what the agent has sent, waiting up to `timeout` seconds (None: for ever) for the first of it."""
        if self._epoll.closed:
            return
        for fd, events in self._epoll.poll(timeout):
            if self.ring and fd == self.ring.completion.fileno():
                self._completions()
            elif self._sock and fd == self._sock.fileno():
                if events & select.EPOLLOUT:
                    self._flush()
                if events & ~select.EPOLLOUT:
                    self._receive()

    def wait_until(self, condition, timeout=None):
        """Processes until condition() holds; False when it does not in time, or the agent is gone."""
        ends = None if timeout is None else time.monotonic() + timeout
        while not condition():
            left = None if ends is None else ends - time.monotonic()
            if not self._sock or left is not None and left <= 0:
                self.process()
                return condition()
            self.process(left)
        return True

    def next_event(self, kind=object, timeout=None):
        """Waits for the next event of a kind (Notification, RemoteLost, ...); takes and gives it. None: not in time."""
        def first():
            return next((e for e in self.events if isinstance(e, kind)), None)
        self.wait_until(lambda: first() is not None, timeout)
        event = first()
        if event is not None:
            self.events.remove(event)
        return event

    def next_notification(self, timeout=None):
        return self.next_event(s.Notification, timeout)

    def _flush(self):
        while self._outbox:
            packet, fds = self._outbox[0]
            try:
                if not self._send_now(packet, fds):
                    return
            except errors.DrayError as e:
                request_id = s.HEADER.unpack_from(packet)[-1]
                self._pending.pop(request_id)._end(error=e)
            self._outbox.popleft()
        self._epoll.modify(self._sock, select.EPOLLIN)

    def _receive(self):
        for _ in range(256):
            if not self._sock:
                return
            try:
                packet, fds, flags, _ = socket.recv_fds(self._sock, _REPLY_MAX, s.FDS_MAX, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            except OSError as e:
                self._lost(e)
                return
            if not packet:
                self._lost(self.error)
                return
            try:
                if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                    raise s.WireError(s.E_PROTOCOL, "a message of the agent was cut short")
                self._handle(*s.unpack(packet), fds)
            except s.WireError as e:
                for fd in fds:
                    os.close(fd)
                if e.code != s.E_UNKNOWN_TYPE:  # a newer agent may have more to say
                    self.error = errors.Protocol(str(e))
                    self._lost(self.error)

    def _handle(self, header, message, fds):
        if header.type == s.MSG_ERROR and not header.request_id:
            self.error = errors.make(message.code, message.message)
        elif header.type in (s.MSG_NOTIFICATION, s.MSG_REMOTE_LOST, s.MSG_DRAINING):
            if header.type == s.MSG_REMOTE_LOST and message.remote in self.remotes:
                self.remotes[message.remote].lost = errors.make(message.code, message.message)
            self.events.append(message)
        else:
            self._completions()  # what ended in the ring ended before this answer
            pending = self._pending.pop(header.request_id, None)
            if not pending:
                raise s.WireError(s.E_PROTOCOL, f"answer to {header.request_id}, which was not asked")
            if header.type == s.MSG_ERROR:
                pending._end(error=errors.make(message.code, message.message))
            else:
                pending._end(message, fds=fds)

    def _completions(self):
        if self.ring:
            try:
                entries = list(self.ring.completions())
            except errors.Protocol as e:
                self.error, entries = e, []
                if self._sock:
                    self._lost(e)
                return
            if entries:
                self.ring.nudge()
            if self.ring.ended and not self.ring.unwatched:
                self.ring.unwatched = True
                self._epoll.unregister(self.ring.completion)
            for entry in entries:
                pending = self._pending.pop(entry.user_data, None)
                if pending:
                    pending._end(Done(entry.status, entry.transport, entry.bytes, entry.duration_ns, ""))

    # --- regions --------------------------------------------------------------------------------

    def region(self, extents, *, access="rw", name="", wait=True):
        """Contributes memory: a Memory, or a list of (Memory or memfd, offset, length) in the order of the region's offsets."""
        if isinstance(extents, Memory):
            extents = [(extents, 0, extents.size)]
        region = Region(self, _code(_ACCESS, access), name)
        index = {}
        for what, offset, length in extents:
            fd = what.fd if isinstance(what, Memory) else what
            if fd not in index:
                index[fd] = len(index)
            region._extents.append((s.KIND_MEMFD, index[fd], 0, offset, length))
        if len(index) > s.FDS_MAX:
            raise errors.FdLimit(f"{len(index)} descriptors, the limit is {s.FDS_MAX}: lay the region out in fewer memfds")
        for fd in index:
            region._fds.append(os.dup(fd))
        return self._region(region, lambda m, fds: self._adopt(region, m), wait)

    def pool(self, size, *, huge=False, access="rw", name="", wait=True):
        """Memory owned by the agent and mapped here as region.memory. After an agent restart it is the client's own."""
        region = Region(self, _code(_ACCESS, access), name)

        def adopt(m, fds):
            region.memory = Memory(m.length, fd=fds[0])
            region._fds = [os.dup(fds[0])]
            region._extents = [(s.KIND_MEMFD, 0, 0, 0, m.length)]
            return self._adopt(region, m)

        return self.request(s.pack_region_add, wait=wait, convert=adopt, access=region.access, name=name,
                            flags=s.REGION_FLAG_HUGE if huge else 0, extents=[(s.KIND_POOL, 65535, 0, 0, size)])

    def _region(self, region, convert, wait):
        try:
            pending = region._add(convert, False)
        except BaseException:
            region._release()
            raise
        pending.add_done_callback(lambda p: region._release() if p._error else None)
        return pending.result(self.timeout) if wait else pending

    def _adopt(self, region, message):
        region.handle, region.length, region.generation = message.region, message.length, self.generation
        self._regions.append(region)
        return region

    def forget(self, region):
        """Not to be registered again."""
        self._regions.remove(region)
        region._release()

    def import_token(self, token, *, timeout=None, wait=True):
        """Makes the exported range behind a token (bytes, or its text form) usable here, as a Remote."""
        data = token.data if isinstance(token, Token) else to_bytes(token)

        def adopt(m, fds):
            self.remotes[m.remote] = Remote(self, m)
            return self.remotes[m.remote]

        return self.request(s.pack_remote_import, wait=wait, convert=adopt, token=data, timeout_ms=_ms(timeout))

    # --- transfers ------------------------------------------------------------------------------

    def open_ring(self, entries=None, arena_bytes=None):
        """Gives the session its arena and, with entries, its ring; done once, by itself when first needed."""
        entries = self.ring_entries if entries is None else entries
        arena_bytes = self.arena_bytes if arena_bytes is None else arena_bytes
        if entries and not TSO:
            raise errors.Unsupported("rings need the memory order of x86-64: open an arena alone (0 entries)")

        def adopt(m, fds):
            self.arena = Arena(fds[0], m.arena_bytes)
            if m.sq_entries:
                self.ring = Ring(m, *fds[1:4])
                self._epoll.register(self.ring.completion, select.EPOLLIN)
            self._ring_wanted = entries, arena_bytes

        self.request(s.pack_ring_open, convert=adopt, sq_entries=entries, arena_bytes=arena_bytes)

    def read(self, local, remote, ops, **how):
        """Remote to local region. See transfer()."""
        return self.transfer(s.DIRECTION_READ, local, remote, ops, **how)

    def write(self, local, remote, ops, **how):
        """Local region to remote. See transfer()."""
        return self.transfer(s.DIRECTION_WRITE, local, remote, ops, **how)

    def transfer(self, direction, local, remote, ops, *, notify=None, wait_word=None, set_word=None, deadline=None,
                 klass="bulk", via=None):
        """Starts a transfer; its handle's result() comes when it has ended and memory may be used again.

        ops: (local offset, remote offset, length) in a list, or those packed as three little-endian 64-bit words each.
        notify: (tag, payload). wait_word, set_word: (region, offset, value). deadline in seconds. via: "inline" in the message,
        "arena", or "ring"; by default the first where the operations fit it, the ring inside batch().
        """
        self.ready()
        ops = ops if isinstance(ops, (bytes, bytearray, memoryview)) else b"".join([s.OP.pack(*op) for op in ops])
        n_ops = len(ops) // s.OP.size
        if via is None:
            via = "ring" if self._batching else "inline" if n_ops <= self.hello.ops_inline_max else "arena"
        if n_ops > s.OPS_MAX:
            raise errors.TooLarge(f"{n_ops} operations, the limit is {s.OPS_MAX}")
        if via != "inline" and not (self.arena and (self.ring or via == "arena")):
            self.open_ring(*(() if TSO or via == "ring" else (0,)))
        flags = 0
        fields = {"direction": _code(_DIRECTION, direction), "class_": _code(_CLASS, klass), "deadline_ms": _ms(deadline),
                  "local": local.use(), "remote": remote.use()}
        payload = b""
        if notify is not None:
            flags |= s.TRANSFER_FLAG_NOTIFY
            fields["notify_tag"], payload = notify
        for word, flag, name in ((wait_word, s.TRANSFER_FLAG_WAIT, "wait"), (set_word, s.TRANSFER_FLAG_SET, "set")):
            if word is not None:
                flags |= flag
                fields[name + "_region"] = word[0].use()
                fields[name + "_offset"], fields[name + "_value"] = word[1:]
        if len(payload) > s.NOTIFY_MAX:
            raise errors.TooLarge(f"the notification has {len(payload)} bytes, the limit is {s.NOTIFY_MAX}")
        transfer = Transfer(self, 0)
        if via == "inline":
            return self._submit(transfer, s.pack_transfer, flags=flags, notify=payload, ops=ops, **fields)
        try:
            if via == "arena":
                flags |= s.TRANSFER_FLAG_ARENA
                piece = self.arena.put(ops)
                transfer.pieces = (piece,)
                return self._submit(transfer, s.pack_transfer, flags=flags, notify=payload,
                                    arena_offset=piece[0], arena_ops=n_ops, **fields)
            return self._submit_ring(transfer, flags, ops, n_ops, payload, fields)
        except BaseException:
            for piece in transfer.pieces:
                self.arena.give_back(piece)
            transfer.pieces = ()
            raise

    def _submit_ring(self, transfer, flags, ops, n_ops, payload, fields):
        if n_ops == 1:
            fields["op_local"], fields["op_remote"], fields["op_length"] = s.OP.unpack(ops)
        else:
            flags |= s.TRANSFER_FLAG_ARENA
            transfer.pieces = (self.arena.put(ops),)
            fields["arena_offset"] = transfer.pieces[0][0]
        if payload:
            transfer.pieces += (self.arena.put(payload),)
            fields["notify_offset"] = transfer.pieces[-1][0]
        self._number(transfer)
        try:
            self.ring.push(user_data=transfer.request_id, flags=flags, op_count=n_ops, notify_length=len(payload), **fields)
        except BaseException:
            del self._pending[transfer.request_id]
            raise
        if self._batching:
            self._doorbell_due = True
        else:
            self.ring.ring_doorbell()
        return transfer

    def batch(self):
        """Transfers started inside `with client.batch():` go through the ring and share one doorbell."""
        return _Batch(self)


class _Batch:
    def __init__(self, client):
        self.client = client

    def __enter__(self):
        self.client._batching += 1
        return self.client

    def __exit__(self, *exc):
        c = self.client
        c._batching -= 1
        if not c._batching and c._doorbell_due:
            c._doorbell_due = False
            if c.ring:
                c.ring.ring_doorbell()
