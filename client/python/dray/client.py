# SPDX-License-Identifier: Apache-2.0
"""A session with the agent.

With `wait=False` a request returns a handle at once, so that requests can be pipelined; transfers
always do. Answers arrive in any order. A program with a loop of its own watches fileno() and calls
process(). One thread at a time may use a client.
"""

import array
import errno
import os
import select
import socket
import struct
import time
from collections import deque, namedtuple

from . import _schema as s
from . import errors
from .cuda import Extents as GpuExtents
from .handles import Done, Pending, Region, Remote, Token, Transfer, code, ms
from .memory import Memory
from .placement import Placement, to_event
from .ring import TSO, Arena, Ring
from .token import to_bytes

DEFAULT_SOCKET = "/run/dray/dray.sock"
_SNDBUF = 212992  # what the kernel must account for a message of MESSAGE_MAX bytes
_DIRECTION = {name: value for value, name in s.DIRECTION_NAMES.items()}
_CLASS = {name: value for value, name in s.CLASS_NAMES.items()}

# Events in addition to those of the protocol. Disconnected: the session ended, with `lost` requests in
# flight. Reconnected: a new session is open.
Disconnected = namedtuple("Disconnected", "error lost")
Reconnected = namedtuple("Reconnected", "incarnation regions failed")


def _receive(sock, buffer):
    """Returns (packet, descriptors, flags). The buffer is reused: few messages are long."""
    fds = array.array("i")
    n, control, flags, _ = sock.recvmsg_into(
        [buffer], socket.CMSG_SPACE(s.FDS_MAX * fds.itemsize), socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[:len(data) - len(data) % fds.itemsize])
    return bytes(buffer[:n]), list(fds), flags


class Client(Placement):
    """A session with the agent behind `socket` (default: DRAY_SOCKET, then /run/dray/dray.sock).

    group: sessions of one uid that name the same group share regions, transfers and notifications.
    notifications: this session gets the group's notifications, as events. segments: it gets changes
    of segments, as events SegmentChanged; if the agent is too old, it gets none and the attribute
    segments is False. timeout: limit of a request that waits, in seconds; None: no limit.
    ring_entries, arena_bytes: as for open_ring(); ring and arena are opened when first needed.

    When the agent restarts, requests in flight end with errors.AgentRestarted. The next request (or
    reconnect()) connects again, registers the regions again, and waits up to `patience` seconds for
    the agent.

    A client that waits sleeps at once, in epoll; only libdray reads DRAY_SPIN.
    """

    def __init__(self, socket=None, *, group="", name="", notifications=False, segments=False,
                 pidfd=True, timeout=None, patience=10.0, ring_entries=256, arena_bytes=4 << 20):
        self.path = os.fspath(socket or os.environ.get("DRAY_SOCKET") or DEFAULT_SOCKET)
        self.group, self.name = group, name
        self.notifications, self.pidfd = notifications, pidfd
        self.segments, self._segments_wanted = False, segments
        self.timeout, self.patience = timeout, patience
        self.ring_entries, self.arena_bytes = ring_entries, arena_bytes
        # Notification, RemoteLost, Draining, SegmentChanged, Disconnected, Reconnected
        self.events = deque()
        self.remotes = {}
        self.generation = 0  # number of the connection
        self.hello = None  # the agent's answer: agent_id, incarnation, segment, version
        self.error = None  # why the session ended, if no reconnect follows
        self.ring = self.arena = None
        self._ring_wanted = None
        self._sock = self._hangup = None
        self._greeted = False  # HELLO was answered on this connection
        self._epoll = select.epoll()
        self._pending, self._outbox, self._regions = {}, deque(), []
        self._buffer = memoryview(bytearray(s.MESSAGE_MAX))
        self._next_id, self._batching, self._doorbell_due = 1, 0, False
        try:
            self._connect(self.patience if timeout is None else timeout)
        except BaseException:
            self._epoll.close()
            raise

    # --- connection -------------------------------------------------------------------------------

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
        try:
            self._open(limit, self._segments_wanted)
        except errors.Unsupported:
            if not self._segments_wanted:
                raise
            self._open(limit, False)  # data protocol 1.0 does not know the flag

    def _open(self, limit, segments):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        pidfd = []
        try:
            if sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < _SNDBUF:
                # the kernel doubles the value
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SNDBUF // 2)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO,
                            struct.pack("@ll", int(limit) + 1, 0))
            sock.connect(self.path)
            sock.setblocking(False)
            if self.pidfd:
                try:
                    pidfd = [os.pidfd_open(os.getpid())]
                except OSError:
                    pass  # an old kernel or a strict sandbox: the agent relies on the end of the socket
            self._sock, self.error = sock, None
            self._epoll.register(sock, select.EPOLLIN)
            self._hangup = select.poll()
            self._hangup.register(sock, 0)  # reports only that the other end closed
            flags = s.HELLO_FLAG_PIDFD if pidfd else 0
            if self.notifications:
                flags |= s.HELLO_FLAG_NOTIFICATIONS
            if segments:
                flags |= s.HELLO_FLAG_SEGMENTS
            self.hello = self._submit(Pending(self), s.pack_hello, pidfd, flags=flags,
                                      major_min=s.MAJOR, major_max=s.MAJOR,
                                      group=self.group, name=self.name).result(limit)
            self.segments, self._greeted = segments, True
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
        """Connects again after the agent went away; registers every region and the ring again.

        Tries for `timeout` seconds (default: patience), at least once. Tokens and remotes ended with
        the old agent: export and import again. A region that the new agent refuses raises its error
        when it is used.
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
        adding = [(region, region.add()) for region in self._regions]
        for region, pending in adding:
            region.error = pending.exception()
            if region.error:
                failed.append(region)
            else:
                region.handle, region.generation = pending.result().region, self.generation
        if self._ring_wanted:
            self.open_ring(*self._ring_wanted)
        self.events.append(
            Reconnected(self.hello.incarnation, len(adding) - len(failed), failed))

    def ready(self):
        """Connects again if the agent went away."""
        while self._sock and self._hangup.poll(0):
            self.process()
        if not self._sock:
            if self.error:
                raise self.error
            self.reconnect()

    def _lost(self, error=None, quiet=False):
        """Closes a lost connection and ends every request in flight."""
        sock, self._sock = self._sock, None
        quiet, self._greeted = quiet or not self._greeted, False
        self._completions()
        self._epoll.unregister(sock)
        sock.close()
        self._outbox.clear()
        if self.ring:
            self._epoll.unregister(self.ring.completion)
            self.ring.close()
        if self.arena:
            self.arena.close()
        self.ring = self.arena = None
        self.remotes.clear()
        lost, self._pending = self._pending, {}
        if not quiet:
            self.events.append(Disconnected(error, len(lost)))
        if not isinstance(error, errors.DrayError):
            error = errors.AgentRestarted(
                "the agent ended while this request was in flight; it may have been carried out")
        for pending in lost.values():
            pending.end(error=error)

    def close(self, timeout=5.0):
        """Ends the session and waits until the agent has released everything of it.

        After that only the caller uses the memory that was registered.
        """
        closed = errors.SessionClosed("the client was closed")
        if self._sock:
            sock = self._sock
            try:
                sock.shutdown(socket.SHUT_WR)
                ends = time.monotonic() + timeout
                data = b"."
                while data:
                    sock.settimeout(max(ends - time.monotonic(), 0.001))
                    data, fds, _ = _receive(sock, self._buffer)
                    for fd in fds:
                        os.close(fd)
            except OSError:
                pass
            self._lost(closed, quiet=True)
        self.error = self.error or closed
        for region in self._regions:
            region.generation = 0
            region.release()
        self._regions.clear()
        self._epoll.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    # --- requests ---------------------------------------------------------------------------------

    def request(self, pack, *, fds=(), convert=None, wait=True, **fields):
        """Sends a request; `pack` is a function of _schema. Returns the answer, or a handle."""
        self.ready()
        pending = self._submit(Pending(self, convert=convert), pack, fds, **fields)
        return pending.result(self.timeout) if wait else pending

    def _number(self, pending):
        pending.request_id = self._next_id
        self._next_id += 1
        self._pending[pending.request_id] = pending
        return pending.request_id

    def _submit(self, pending, pack, fds=(), **fields):
        try:
            self._send(pack(self._number(pending), **fields), list(fds))
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
                raise errors.TooLarge(
                    f"{len(packet)} bytes do not fit a message; use the arena") from e
            if e.errno == errno.ETOOMANYREFS:
                raise errors.FdLimit("too many descriptors are in flight: pass fewer") from e
            if e.errno not in (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN):
                raise
            # Reading returns the agent's last messages, and then the end of the connection.
        return True

    # --- events -----------------------------------------------------------------------------------

    def fileno(self):
        """A descriptor that is readable when process() has something to do."""
        return self._epoll.fileno()

    def process(self, timeout=0):
        """Waits up to `timeout` seconds for messages of the agent, and handles all that have come.

        None: without limit.
        """
        if self._epoll.closed:
            return
        for fd, events in self._epoll.poll(timeout):
            if self.ring and fd == self.ring.completion:
                self._completions()
            elif self._sock and fd == self._sock.fileno():
                if events & select.EPOLLOUT:
                    self._flush()
                if events & ~select.EPOLLOUT:
                    self._receive()

    def wait_until(self, condition, timeout=None):
        """Processes until condition() holds. False: timeout, or the session ended."""
        ends = None if timeout is None else time.monotonic() + timeout
        while not condition():
            left = None if ends is None else ends - time.monotonic()
            if not self._sock or left is not None and left <= 0:
                self.process()
                return condition()
            self.process(left)
        return True

    def next_event(self, kind=object, timeout=None):
        """Waits for the next event of a kind (Notification, RemoteLost, ...) and takes it.

        None: timeout, or the session ended.
        """
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
                self._pending.pop(request_id).end(error=e)
            self._outbox.popleft()
        self._epoll.modify(self._sock, select.EPOLLIN)

    def _receive(self):
        for _ in range(256):
            if not self._sock:
                return
            try:
                packet, fds, flags = _receive(self._sock, self._buffer)
            except BlockingIOError:
                return
            except ConnectionResetError:
                # the kernel reports once, before the queued messages, that the agent closed with ours unread
                continue
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
                if e.code != s.E_UNKNOWN_TYPE:  # a newer agent may send events that this client does not know
                    self.error = errors.Protocol(str(e))
                    self._lost(self.error)

    def _handle(self, header, message, fds):
        if header.type == s.MSG_ERROR and not header.request_id:
            self.error = errors.make(message.code, message.message)
        elif header.type in (s.MSG_NOTIFICATION, s.MSG_REMOTE_LOST, s.MSG_DRAINING):
            if header.type == s.MSG_REMOTE_LOST and message.remote in self.remotes:
                self.remotes[message.remote].lost = errors.make(message.code, message.message)
            self.events.append(message)
        elif header.type == s.MSG_SEGMENT_CHANGED:
            self.events.append(to_event(message))
        else:
            self._completions()  # completions in the ring precede this answer
            pending = self._pending.pop(header.request_id, None)
            if not pending:
                raise s.WireError(s.E_PROTOCOL, f"answer to request {header.request_id}, which was not sent")
            if header.type == s.MSG_ERROR:
                pending.end(error=errors.make(message.code, message.message))
            else:
                pending.end(message, fds=fds)

    def _completions(self):
        if not self.ring:
            return
        try:
            entries = list(self.ring.completions())
        except errors.Protocol as e:
            self.error, entries = e, []
            if self._sock:
                self._lost(e)
            return
        if entries:
            self.ring.nudge()
        for e in entries:
            pending = self._pending.pop(e.user_data, None)
            if pending:
                pending.end(Done(e.status, e.transport, e.bytes, e.duration_ns, ""))

    # --- regions and remotes ----------------------------------------------------------------------

    def region(self, extents, *, access="rw", name="", wait=True):
        """Contributes memory, as a Region: a Memory, or extents in the order of their offsets.

        An extent is (Memory or memfd, offset, length). Memory of a GPU comes as cuda.Extents.
        """
        if isinstance(extents, Memory):
            extents = [(extents, 0, extents.size)]
        region = Region(self, access, name)
        if isinstance(extents, GpuExtents):
            fds = region.describe_gpu(extents)
        else:
            fds = {}
            for what, offset, length in extents:
                fd = what.fd if isinstance(what, Memory) else what
                region.extents.append(
                    (s.KIND_MEMFD, fds.setdefault(fd, len(fds)), 0, offset, length))
        if len(fds) > s.FDS_MAX:
            raise errors.FdLimit(f"{len(fds)} descriptors, the limit is {s.FDS_MAX}: use fewer")
        try:
            for fd in fds:
                region.fds.append(os.dup(fd))
            pending = region.add(lambda m, fds: self._adopt(region, m))
        except BaseException:
            region.release()
            raise
        pending.add_done_callback(lambda p: None if region.handle else region.release())
        return pending.result(self.timeout) if wait else pending

    def pool(self, size, *, huge=False, access="rw", name="", wait=True):
        """Memory owned by the agent and mapped here as region.memory.

        After a restart of the agent the memory belongs to the client, which registers it as a memfd.
        """
        region = Region(self, access, name)

        def adopt(m, fds):
            region.memory = Memory(m.length, fd=fds[0])
            region.fds = [os.dup(fds[0])]
            region.extents = [(s.KIND_MEMFD, 0, 0, 0, m.length)]
            return self._adopt(region, m)

        return self.request(s.pack_region_add, wait=wait, convert=adopt, access=region.access,
                            name=name, flags=s.REGION_FLAG_HUGE if huge else 0,
                            extents=[(s.KIND_POOL, 65535, 0, 0, size)])

    def _adopt(self, region, m):
        region.handle, region.length = m.region, m.length
        region.generation = self.generation
        self._regions.append(region)
        return region

    def forget(self, region):
        """For Region: the region is not registered again after a reconnect."""
        self._regions.remove(region)
        region.release()

    def import_token(self, token, *, timeout=None, wait=True):
        """Makes the range behind a token (bytes, or its text form) usable here, as a Remote."""
        data = token.data if isinstance(token, Token) else to_bytes(token)

        def adopt(m, fds):
            self.remotes[m.remote] = Remote(self, m)
            return self.remotes[m.remote]

        return self.request(s.pack_remote_import, wait=wait, convert=adopt, token=data,
                            timeout_ms=ms(timeout))

    # --- transfers --------------------------------------------------------------------------------

    def open_ring(self, entries=None, arena_bytes=None):
        """Gives the session its arena and, with entries, its ring; once for each session.

        The client calls it with the sizes of the constructor when a transfer first needs it.
        """
        entries = self.ring_entries if entries is None else entries
        arena_bytes = self.arena_bytes if arena_bytes is None else arena_bytes
        if entries and not TSO:
            raise errors.Unsupported(
                "rings need the memory order of x86-64: open only an arena (0 entries)")

        def adopt(m, fds):
            self.arena = Arena(fds[0], m.arena_bytes)
            if m.sq_entries:
                self.ring = Ring(m, *fds[1:4])
                self._epoll.register(self.ring.completion, select.EPOLLIN | select.EPOLLET)
            self._ring_wanted = entries, arena_bytes

        self.request(s.pack_ring_open, convert=adopt, sq_entries=entries, arena_bytes=arena_bytes)

    def read(self, local, remote, ops, **how):
        """Remote to local region. See transfer()."""
        return self.transfer(s.DIRECTION_READ, local, remote, ops, **how)

    def write(self, local, remote, ops, **how):
        """Local region to remote. See transfer()."""
        return self.transfer(s.DIRECTION_WRITE, local, remote, ops, **how)

    def transfer(self, direction, local, remote, ops, *, notify=None, wait_word=None,
                 set_word=None, deadline=None, klass="bulk", via=None):
        """Starts a transfer and returns its handle, which ends when the memory may be used again.

        ops: (local offset, remote offset, length) in a list, or those packed, each as three
        little-endian 64-bit words. notify: (tag, payload). wait_word, set_word: (region, offset,
        value). deadline in seconds. klass: "bulk" or "latency". via: "inline" in the message,
        "arena", or "ring"; by default the first of these with room for the operations, and inside
        batch() the ring.
        """
        self.ready()
        if not isinstance(ops, (bytes, bytearray, memoryview)):
            ops = b"".join([s.OP.pack(*op) for op in ops])
        n_ops = len(ops) // s.OP.size
        if n_ops > s.OPS_MAX:
            raise errors.TooLarge(f"{n_ops} operations, the limit is {s.OPS_MAX}")
        if via is None:
            fits = n_ops <= self.hello.ops_inline_max
            via = "ring" if self._batching else "inline" if fits else "arena"
        if via == "ring" and not self.ring or via == "arena" and not self.arena:
            self.open_ring(*(() if TSO or via == "ring" else (0,)))
        fields = {"direction": code(_DIRECTION, direction), "class_": code(_CLASS, klass),
                  "deadline_ms": ms(deadline), "local": local.use(), "remote": remote.use()}
        flags, payload = 0, b""
        if notify is not None:
            flags |= s.TRANSFER_FLAG_NOTIFY
            fields["notify_tag"], payload = notify
            if len(payload) > s.NOTIFY_MAX:
                raise errors.TooLarge(
                    f"the notification has {len(payload)} bytes, the limit is {s.NOTIFY_MAX}")
        if wait_word is not None:
            flags |= s.TRANSFER_FLAG_WAIT
            region, fields["wait_offset"], fields["wait_value"] = wait_word
            fields["wait_region"] = region.use()
        if set_word is not None:
            flags |= s.TRANSFER_FLAG_SET
            region, fields["set_offset"], fields["set_value"] = set_word
            fields["set_region"] = region.use()
        transfer = Transfer(self)
        if via == "inline":
            return self._submit(transfer, s.pack_transfer, flags=flags, notify=payload, ops=ops,
                                **fields)
        try:
            if via == "ring":
                return self._submit_ring(transfer, flags, ops, n_ops, payload, fields)
            transfer.pieces = (self.arena.put(ops),)
            return self._submit(transfer, s.pack_transfer, flags=flags | s.TRANSFER_FLAG_ARENA,
                                notify=payload, arena_offset=transfer.pieces[0][0],
                                arena_ops=n_ops, **fields)
        except BaseException:
            transfer.release()
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
            self.ring.push(user_data=transfer.request_id, flags=flags, op_count=n_ops,
                           notify_length=len(payload), **fields)
        except BaseException:
            del self._pending[transfer.request_id]
            raise
        if self._batching:
            self._doorbell_due = True
        else:
            self.ring.ring_doorbell()
        return transfer

    def batch(self):
        """Transfers inside `with client.batch():` go through the ring and share one doorbell."""
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
