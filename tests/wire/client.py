# SPDX-License-Identifier: Apache-2.0
"""A session with the agent for tests, which may break every rule of the data protocol.

It has the names of the Python package where it does the same, so that a test can use either. Handles are the agent's own.
A session that ended stays closed.
"""

import array
import base64
import os
import select
import socket
import time
from collections import deque, namedtuple

from . import codec as s
from .errors import Error
from .ring import Arena, Ring

SNDBUF = 212992  # the kernel accounts this for a message of MESSAGE_MAX bytes
ACCESS = {"r": s.ACCESS_READ, "w": s.ACCESS_WRITE, "rw": s.ACCESS_READ | s.ACCESS_WRITE}
DIRECTION = {name: value for value, name in s.DIRECTION_NAMES.items()}
CLASS = {name: value for value, name in s.CLASS_NAMES.items()}

Done = namedtuple("Done", "status transport bytes duration_ns message")


def ms(seconds):
    """Milliseconds, rounded up, because 0 means the default on the wire."""
    return 0 if seconds is None else max(1, -int(-seconds * 1000 // 1))


def code(table, value):
    return table[value] if isinstance(value, str) else value


class Pending:
    """A request in flight. convert(message, descriptors) makes the result of the answer."""

    def __init__(self, client, convert=None):
        self.client, self.convert = client, convert
        self.request_id = 0
        self.ended, self.value, self.error = False, None, None

    def done(self):
        return self.ended

    def result(self, timeout=None):
        """Waits for the end; returns the answer or raises its error."""
        if not self.client.wait_until(self.done, timeout):
            raise Error("timeout", f"no answer to request {self.request_id}")
        if self.error:
            raise self.error
        return self.value

    def exception(self, timeout=None):
        """Waits for the end; returns the error, or None."""
        try:
            self.result(timeout)
        except Error as e:
            if not self.ended:
                raise
            return e
        return None

    def end(self, value=None, error=None, fds=()):
        if self.convert and not error:
            try:
                value = self.convert(value, fds)
            except Error as e:
                error = e
        self.value, self.error, self.ended = value, error, True


class Transfer(Pending):
    """A transfer in flight, which ends with a Done."""

    def __init__(self, client):
        super().__init__(client)
        self.pieces = ()  # pieces of the arena, held until the end

    def cancel(self, *, wait=True):
        return self.client.request(s.pack_transfer_cancel, wait=wait, request=self.request_id)

    def release(self):
        for piece in self.pieces:
            if self.client.arena:
                self.client.arena.give_back(piece)
        self.pieces = ()

    def end(self, value=None, error=None, fds=()):
        self.release()
        if value is not None and value.status:
            error = Error(value.status, value.message)
            error.done = value
        super().end(value, error)


class Token(namedtuple("Token", "token_id data")):
    """An exported range. str() is the text form."""

    def __str__(self):
        return "dray1:" + base64.urlsafe_b64encode(self.data).rstrip(b"=").decode()


def token_bytes(token):
    """Binary form of a token, of its text form, or of a Token."""
    if isinstance(token, (bytes, Token)):
        return getattr(token, "data", token)
    digits = str(token).removeprefix("dray1:")
    return base64.urlsafe_b64decode(digits + "=" * (-len(digits) % 4))


class Region:
    """A region by the agent's handle, which may be that of another session."""

    def __init__(self, client, handle, length, access="rw", memory=None):
        self.client, self.handle, self.length = client, handle, length
        self.access, self.memory = code(ACCESS, access), memory

    def export(self, offset=0, length=None, *, access=None, ttl=None, audience=None, single_use=False, wait=True):
        return self.client.request(
            s.pack_region_export, wait=wait, convert=lambda m, fds: Token(m.token_id, m.token),
            region=self.handle, offset=offset, length=self.length - offset if length is None else length,
            access=self.access if access is None else code(ACCESS, access),
            flags=s.EXPORT_FLAG_SINGLE_USE if single_use else 0, ttl_ms=ms(ttl), audience=audience or bytes(16))

    def revoke(self, token=None, *, wait=True):
        """Revokes a token, or all tokens of the region; returns how many."""
        return self.client.request(s.pack_region_revoke, wait=wait, convert=lambda m, fds: m.count, region=self.handle,
                                   token_id=token.token_id if token else 0)

    def remove(self, *, wait=True):
        return self.client.request(s.pack_region_remove, wait=wait, region=self.handle)


class Remote:
    """An imported range by the agent's handle."""

    def __init__(self, client, reply):
        self.client, self.handle, self.length, self.access = client, reply.remote, reply.length, reply.access
        self.transport = s.TRANSPORT_NAMES.get(reply.transport, str(reply.transport))

    def notify(self, tag, payload=b"", *, wait=True):
        return self.client.request(s.pack_notify, wait=wait, remote=self.handle, tag=tag, payload=payload)

    def release(self, *, wait=True):
        return self.client.request(s.pack_remote_release, wait=wait, remote=self.handle)


class Client:
    """A session. timeout: limit in seconds of waits that name none.

    hello: the agent's answer to HELLO. events: messages that answer no request. pending: requests in flight by id. ring, arena:
    after open_ring(). error: why the session ended.
    """

    def __init__(self, path, *, group="", name="", notifications=False, timeout=30.0, ring_entries=256, arena_bytes=4 << 20,
                 device="", features=0):
        self.timeout, self.ring_entries, self.arena_bytes = timeout, ring_entries, arena_bytes
        self.events, self.pending, self.last_id = deque(), {}, 0
        self.hello = self.error = self.ring = self.arena = None
        self.buffer = memoryview(bytearray(s.MESSAGE_MAX))
        self.epoll = select.epoll()
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pidfd = os.pidfd_open(os.getpid())
        try:
            if self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < SNDBUF:
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SNDBUF // 2)  # the kernel doubles the value
            self.sock.connect(os.fspath(path))
            self.sock.setblocking(False)
            self.epoll.register(self.sock, select.EPOLLIN)
            flags = s.HELLO_FLAG_PIDFD | (s.HELLO_FLAG_NOTIFICATIONS if notifications else 0)
            self.hello = self.request(s.pack_hello, fds=[pidfd], flags=flags, major_min=s.MAJOR, major_max=s.MAJOR,
                                      group=group, name=name, device=device, features=features)
        except BaseException:
            self.close(0)
            raise
        finally:
            os.close(pidfd)

    @property
    def connected(self):
        return self.sock is not None

    @property
    def agent_id(self):
        return self.hello.agent_id

    def lost(self, error=None):
        """Closes the connection, and ends every request in flight."""
        sock, self.sock = self.sock, None
        self.completions()
        sock.close()
        if self.ring:
            self.ring.close()
        if self.arena:
            self.arena.close()
        self.ring = self.arena = None
        self.error = error or self.error or Error("session_closed", "the agent closed the session")
        ended, self.pending = self.pending, {}
        for pending in ended.values():
            pending.end(error=error or Error("agent_restarted", "the session ended"))

    def close(self, timeout=5.0):
        """Ends the session, and waits until the agent has released everything of it."""
        if self.sock:
            try:
                self.sock.shutdown(socket.SHUT_WR)
                ends = time.monotonic() + timeout
                data = b"."
                while data:
                    self.sock.settimeout(max(ends - time.monotonic(), 0.001))
                    data, fds, _ = self.receive()
                    for fd in fds:
                        os.close(fd)
            except OSError:
                pass
            self.lost(Error("session_closed", "the test closed the session"))
        self.epoll.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    # --- requests ---------------------------------------------------------------------------------

    def request(self, pack, *, fds=(), convert=None, wait=True, **fields):
        """Sends a request; `pack` is a function of the codec. Returns the answer, or a Pending."""
        pending = self.submit(Pending(self, convert), pack, fds, **fields)
        return pending.result(self.timeout) if wait else pending

    def number(self, pending):
        """Gives a request its id, and keeps it for the answer."""
        self.last_id += 1
        pending.request_id = self.last_id
        self.pending[pending.request_id] = pending
        return pending.request_id

    def submit(self, pending, pack, fds=(), **fields):
        if not self.sock:
            raise self.error
        packet = pack(self.number(pending), **fields)
        try:
            self.send(packet, fds)
        except BaseException:
            self.pending.pop(pending.request_id, None)
            raise
        return pending

    def send(self, packet, fds=()):
        """Sends a message; handles messages of the agent while the socket is full."""
        while self.sock:
            try:
                socket.send_fds(self.sock, [packet], list(fds), socket.MSG_NOSIGNAL)
                return
            except BlockingIOError:
                poll = select.poll()
                poll.register(self.sock, select.POLLIN | select.POLLOUT)
                poll.poll(self.timeout * 1000)
                self.receive_all()
            except (BrokenPipeError, ConnectionResetError):
                return  # reading returns the agent's last messages, and then the end of the connection

    # --- messages of the agent --------------------------------------------------------------------

    def process(self, timeout=0):
        """Waits up to `timeout` seconds for messages of the agent, and handles all that have come."""
        if self.epoll.closed:
            return
        for fd, _ in self.epoll.poll(timeout):
            if self.ring and fd == self.ring.completion:
                self.completions()
            elif self.sock and fd == self.sock.fileno():
                self.receive_all()

    def wait_until(self, condition, timeout=None):
        """Processes until condition() holds. False: timeout, or the session ended."""
        ends = time.monotonic() + (self.timeout if timeout is None else timeout)
        while not condition():
            left = ends - time.monotonic()
            if not self.sock or left <= 0:
                self.process()
                return condition()
            self.process(left)
        return True

    def next_event(self, kind=object, timeout=None):
        """Waits for the next event of a kind (codec.Notification, ...) and takes it. None: timeout, or the session ended."""
        def first():
            return next((e for e in self.events if isinstance(e, kind)), None)

        self.wait_until(lambda: first() is not None, timeout)
        event = first()
        if event is not None:
            self.events.remove(event)
        return event

    def next_notification(self, timeout=None):
        return self.next_event(s.Notification, timeout)

    def receive(self):
        """Returns (packet, descriptors, flags)."""
        fds = array.array("i")
        n, control, flags, _ = self.sock.recvmsg_into(
            [self.buffer], socket.CMSG_SPACE(s.FDS_MAX * fds.itemsize), socket.MSG_CMSG_CLOEXEC)
        for level, kind, data in control:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(data[:len(data) - len(data) % fds.itemsize])
        return bytes(self.buffer[:n]), list(fds), flags

    def receive_all(self):
        while self.sock:
            try:
                packet, fds, flags = self.receive()
            except BlockingIOError:
                return
            except ConnectionResetError:
                # the kernel reports once, before the queued messages, that the agent closed with ours unread
                continue
            if not packet:
                self.lost(self.error)
                return
            assert not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC), "a message of the agent was cut short"
            self.handle(*s.unpack(packet), fds)

    def handle(self, header, message, fds):
        if header.type == s.MSG_ERROR and not header.request_id:
            self.error = Error(message.code, message.message)
        elif not header.request_id:
            self.events.append(message)
        else:
            self.completions()  # completions in the ring precede this answer
            pending = self.pending.pop(header.request_id, None)
            assert pending, f"answer to request {header.request_id}, which was not sent"
            if header.type == s.MSG_ERROR:
                pending.end(error=Error(message.code, message.message))
            else:
                pending.end(message, fds=fds)

    def completions(self):
        """Takes the completions that are in the ring. Those of unknown requests are dropped."""
        if not self.ring:
            return
        entries = list(self.ring.completions())
        if entries:
            self.ring.nudge()
        for e in entries:
            pending = self.pending.pop(e.user_data, None)
            if pending:
                pending.end(Done(e.status, e.transport, e.bytes, e.duration_ns, ""))

    # --- regions and remotes ----------------------------------------------------------------------

    def region(self, extents, *, access="rw", name="", wait=True):
        """Adds a region of a Memory, or of extents (Memory or memfd, offset, length)."""
        if not isinstance(extents, list):
            extents = [(extents, 0, extents.size)]
        fds, records = {}, []
        for what, offset, length in extents:
            fd = getattr(what, "fd", what)
            records.append((s.KIND_MEMFD, fds.setdefault(fd, len(fds)), 0, offset, length))
        return self.request(s.pack_region_add, wait=wait, fds=fds, access=code(ACCESS, access), name=name, extents=records,
                            convert=lambda m, _: Region(self, m.region, m.length, access))

    def pool(self, size):
        """Adds a region of the agent's memory, and does not map it."""
        def adopt(m, fds):
            for fd in fds:
                os.close(fd)
            return Region(self, m.region, m.length)

        return self.request(s.pack_region_add, convert=adopt, access=s.ACCESS_ALL,
                            extents=[(s.KIND_POOL, 65535, 0, 0, size)])

    def import_token(self, token, *, timeout=None, wait=True):
        return self.request(s.pack_remote_import, wait=wait, convert=lambda m, fds: Remote(self, m),
                            token=token_bytes(token), timeout_ms=ms(timeout))

    # --- transfers --------------------------------------------------------------------------------

    def open_ring(self, entries=None, arena_bytes=None):
        """Opens the arena and, with entries, the ring. transfer() calls this when it first needs them."""
        def adopt(m, fds):
            self.arena = Arena(fds[0], m.arena_bytes)
            if m.sq_entries:
                self.ring = Ring(m, *fds[1:4])
                self.epoll.register(self.ring.completion, select.EPOLLIN | select.EPOLLET)

        self.request(s.pack_ring_open, convert=adopt, sq_entries=self.ring_entries if entries is None else entries,
                     arena_bytes=self.arena_bytes if arena_bytes is None else arena_bytes)

    def read(self, local, remote, ops, **how):
        return self.transfer(s.DIRECTION_READ, local, remote, ops, **how)

    def write(self, local, remote, ops, **how):
        return self.transfer(s.DIRECTION_WRITE, local, remote, ops, **how)

    def transfer(self, direction, local, remote, ops, *, notify=None, wait_word=None, set_word=None, deadline=None,
                 klass="bulk", via="inline", doorbell=True):
        """Starts a transfer. via: "inline" in the message, "arena", or "ring". The other arguments are those of the package."""
        ops = b"".join([s.OP.pack(*op) for op in ops])
        n_ops = len(ops) // s.OP.size
        if via != "inline" and not self.arena:
            self.open_ring()
        fields = {"direction": code(DIRECTION, direction), "class_": code(CLASS, klass), "deadline_ms": ms(deadline),
                  "local": local.handle, "remote": remote.handle}
        flags, payload = 0, b""
        if notify is not None:
            flags |= s.TRANSFER_FLAG_NOTIFY
            fields["notify_tag"], payload = notify
        if wait_word is not None:
            flags |= s.TRANSFER_FLAG_WAIT
            region, fields["wait_offset"], fields["wait_value"] = wait_word
            fields["wait_region"] = region.handle
        if set_word is not None:
            flags |= s.TRANSFER_FLAG_SET
            region, fields["set_offset"], fields["set_value"] = set_word
            fields["set_region"] = region.handle
        transfer = Transfer(self)
        try:
            if via == "inline":
                return self.submit(transfer, s.pack_transfer, flags=flags, notify=payload, ops=ops, **fields)
            if via == "arena":
                transfer.pieces = (self.arena.put(ops),)
                return self.submit(transfer, s.pack_transfer, flags=flags | s.TRANSFER_FLAG_ARENA, notify=payload,
                                   arena_offset=transfer.pieces[0][0], arena_ops=n_ops, **fields)
            return self.push(transfer, flags, ops, n_ops, payload, fields, doorbell)
        except BaseException:
            transfer.release()
            raise

    def push(self, transfer, flags, ops, n_ops, payload, fields, doorbell):
        """Submits a transfer by the ring. doorbell False: the caller rings it."""
        if n_ops == 1:
            fields["op_local"], fields["op_remote"], fields["op_length"] = s.OP.unpack(ops)
        else:
            flags |= s.TRANSFER_FLAG_ARENA
            transfer.pieces = (self.arena.put(ops),)
            fields["arena_offset"] = transfer.pieces[0][0]
        if payload:
            transfer.pieces += (self.arena.put(payload),)
            fields["notify_offset"] = transfer.pieces[-1][0]
        try:
            self.ring.push(user_data=self.number(transfer), flags=flags, op_count=n_ops, notify_length=len(payload), **fields)
        except BaseException:
            del self.pending[transfer.request_id]
            raise
        if doorbell:
            self.ring.ring_doorbell()
        return transfer
