# SPDX-License-Identifier: Apache-2.0
"""A proxy between two agents that has their key: it ends TLS on both sides, so it can change every message and frame of an
authenticated connection. To each agent it is the other one.

A connection between the agents is two connections here, an End at each agent. Data streams are bound to the connection of
one End by a MAC; the proxy checks and replaces it.
"""

import contextlib
import hashlib
import hmac
import inspect
import queue
import select
import socket
import threading

from tls_psk import Closed, Connection, Key
from wire import codec as s

LABEL = b"EXPORTER-dray-stream"
MAC = 32
SMALL = (0, 1, 2, 3, 7, 8, 255, 256, 4095, 4096, 65535, 65536)
LARGE = ((1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
PACKS = {name: (fn, list(inspect.signature(fn).parameters.values())[1:])
         for name, fn in inspect.getmembers(s, inspect.isfunction) if name.startswith("peer_pack_")}
TYPES = [value for name, value in vars(s).items() if name.startswith("PEER_MSG_") and isinstance(value, int)]
KEPT = 200  # messages that may be repeated, and values that were seen


def mac(key, *parts):
    return hmac.new(key, b"".join(parts), hashlib.sha256).digest()


class Mutator:
    """Changes messages and frames, with values that it has seen in others. rate: of changed ones."""

    def __init__(self, rng):
        self.rng, self.rate = rng, 0.0
        self.values, self.messages = [], []
        self.changed = self.passed = 0

    def _changes(self):
        change = self.rng.random() < self.rate
        self.changed += change
        self.passed += not change
        return change

    def number(self):
        rng = self.rng
        if self.values and rng.random() < 0.6:
            return rng.choice(self.values)
        return rng.choice(SMALL + LARGE) if rng.random() < 0.7 else rng.getrandbits(64)

    def _see(self, body):
        for at in range(0, min(len(body) - 7, 64), 4):
            value = int.from_bytes(body[at:at + 8], "little")
            if 1 << 16 < value < 1 << 60:
                self.values.append(value)
        del self.values[:-KEPT]

    def _field(self, data, first=0):
        """Overwrites one number, or flips a bit."""
        if len(data) <= first:
            return
        at, width = self.rng.randrange(first, len(data)), self.rng.choice((1, 2, 4, 8))
        if self.rng.random() < 0.3:
            data[at] ^= 1 << self.rng.randrange(8)
        else:
            at -= (at - first) % width
            data[at:at + width] = (self.number() & (1 << 8 * width) - 1).to_bytes(width, "little")[:len(data) - at]

    def _invented(self):
        """A message of any type with known values."""
        pack, parameters = PACKS[self.rng.choice(list(PACKS))]
        fields = {}
        for p in parameters:
            if isinstance(p.default, int):
                fields[p.name] = self.number() if self.rng.random() < 0.7 else 0
            elif p.name in ("ports", "rails", "segs", "leases", "results", "ranges"):
                fields[p.name] = b""
            elif isinstance(p.default, bytes) and len(p.default) in (16, 32):
                fields[p.name] = self.rng.randbytes(len(p.default))
            else:
                fields[p.name] = self.rng.choice((b"", b"x", b"x" * 40)) if isinstance(p.default, bytes) else self.rng.choice(("", "g"))
        for mask in (~0, 0xffffffff, 0xffff, 0xff, 1):
            with contextlib.suppress(Exception):
                return bytearray(pack(self.rng.randrange(1000), **{k: v & mask if isinstance(v, int) else v for k, v in fields.items()}))
        return bytearray(s.build(self.rng.choice(TYPES), 1))

    def _message(self, data):
        rng, body = self.rng, s.PEER_HEADER.size
        how = rng.randrange(12)
        if how < 4:
            self._field(data, body)
        elif how == 4:
            self._field(data)
        elif how == 5:  # another type
            data[6:8] = rng.choice(TYPES).to_bytes(2, "little")
        elif how == 6:  # another length, consistent or not
            del data[rng.randrange(body, len(data) + 1):]
            data += rng.randbytes(rng.choice((0, 0, 1, 8, 300)))
            if rng.random() < 0.8:
                data[12:16] = (len(data) - body).to_bytes(4, "little")
        elif how == 7:
            return b""
        elif how == 8:
            return data * 2
        elif how == 9:
            return data + self._invented()
        elif how == 10:
            return self._invented() + data
        else:
            return data + rng.choice(self.messages)
        return data

    def message(self, data):
        self._see(data[s.PEER_HEADER.size:])
        self.messages.append(bytes(data))
        del self.messages[:-KEPT]
        return bytes(self._message(bytearray(data))) if self._changes() else data

    def head(self, data):
        """The head of a frame."""
        self._see(data)
        if not self._changes():
            return data
        how, data = self.rng.randrange(8), bytearray(data)
        if how < 5:
            self._field(data)
        elif how == 5:
            return b""
        elif how == 6:
            return bytes(data) * 2
        else:
            del data[self.rng.randrange(len(data)):]
        return bytes(data)


class Side:
    """A socket with what has to be sent to it, and what arrived and was not yet handled."""

    def __init__(self, sock):
        self.sock, self.out, self.input = sock, bytearray(), bytearray()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def receive(self):
        with contextlib.suppress(BlockingIOError):
            data = self.sock.recv(1 << 16)
            if not data:
                raise Closed
            self.input += data

    def flush(self):
        while self.out:
            with contextlib.suppress(BlockingIOError):
                del self.out[:self.sock.send(self.out)]
                continue
            return

    def close(self):
        self.sock.close()


class End(Side):
    """One agent's control connection."""

    def __init__(self, sock, key, server):
        super().__init__(sock)
        self.tls, self.hello = Connection(key, sock, server), None

    def receive(self):
        if self.tls.handshake():
            while data := self.tls.receive():
                self.input += data

    def flush(self):
        if self.tls.handshake():
            while self.out and (n := self.tls.send(bytes(self.out[:16384]))):
                del self.out[:n]

    def close(self):
        self.tls.close()


class Pair:
    """Two sides, between which whatever arrives is passed on."""

    def __init__(self, proxy, first, second):
        self.proxy, self.sides = proxy, (first, second)

    def work(self):
        for k in (0, 1):
            self.sides[k].receive()
            self.sides[1 - k].out += self.take(self.sides[k].input, k)
        for side in self.sides:
            side.flush()

    def close(self):
        for side in self.sides:
            side.close()


class Control(Pair):
    """A control connection; side 0 has connected."""

    def take(self, data, k):
        out = bytearray()
        while len(data) >= s.PEER_HEADER.size:
            size = s.PEER_HEADER.size + int.from_bytes(data[12:16], "little")
            if len(data) < size:
                break
            message = bytes(data[:size])
            del data[:size]
            if int.from_bytes(message[6:8], "little") == s.PEER_MSG_HELLO:
                self.sides[k].hello = s.peer_unpack(message)[1]
            out += self.proxy.mutator.message(message)
        return out

    def key(self, k):
        """The key of data streams on side k's connection."""
        context = b"".join(bytes(h.nonce) + bytes(h.agent_id) + h.incarnation.to_bytes(8, "little") for h in (side.hello for side in self.sides))
        return self.sides[k].tls.export(LABEL, context, MAC)

    def is_between(self, one, other):
        """The number of the side with agent id `one`, or None."""
        ids = [side.hello and bytes(side.hello.agent_id) for side in self.sides]
        return ids.index(one) if one in ids and other in ids else None


class Stream(Pair):
    """A data stream; side 0 has connected."""

    def __init__(self, proxy, first, second):
        super().__init__(proxy, first, second)
        self.greeted, self.left = [False, False], [0, 0]  # left: bytes of payload
        self.control = self.side = self.mac = None

    def greeting(self, data):
        h = s.PeerStreamHello(*s.PEER_STREAM_HELLO.unpack(data))
        # the newest connection between the two
        for control in reversed([p for p in self.proxy.pairs if isinstance(p, Control)]):
            side = control.is_between(bytes(h.agent_id), bytes(h.to_agent_id))
            if side is not None and mac(control.key(side), data[:-MAC]) == data[-MAC:]:
                self.control, self.side, self.mac = control, side, data[-MAC:]
                self.new_mac = mac(control.key(1 - side), data[:-MAC])
                return data[:-MAC] + self.new_mac
        return data

    def welcome(self, data):
        if self.control not in self.proxy.pairs or mac(self.control.key(1 - self.side), data[:-MAC], self.new_mac) != data[-MAC:]:
            return data
        return data[:-MAC] + mac(self.control.key(self.side), data[:-MAC], self.mac)

    def frames(self, data, k):
        out = bytearray()
        while data:
            if self.left[k]:
                n = min(self.left[k], len(data))
                out += data[:n]
                self.left[k] -= n
                del data[:n]
                continue
            if len(data) < s.PEER_FRAME.size:
                break
            f = s.PeerFrame(*s.PEER_FRAME.unpack(bytes(data[:s.PEER_FRAME.size])))
            size = s.PEER_FRAME.size + f.segs * s.PEER_SEG.size
            if len(data) < size:
                break
            out += self.proxy.mutator.head(bytes(data[:size]))
            del data[:size]
            self.left[k] = f.length if f.kind in (s.PEER_FRAME_KIND_WRITE, s.PEER_FRAME_KIND_READ_DATA) else 0
        return out

    def take(self, data, k):
        if self.greeted[k]:
            return self.frames(data, k)
        size = (s.PEER_STREAM_WELCOME if k else s.PEER_STREAM_HELLO).size
        if len(data) < size:
            return b""
        self.greeted[k] = True
        first = bytes(data[:size])
        del data[:size]
        return (self.welcome if k else self.greeting)(first) + self.frames(data, k)


class Proxy:
    """Listens for each agent at an address of its own, on a thread of its own. route(address) first, then start()."""

    def __init__(self, key_file, rng):
        self.key, self.mutator = Key(key_file), Mutator(rng)
        self.listeners, self.pairs = {}, []
        self.asked, self.answered, self.error = queue.SimpleQueue(), threading.Semaphore(0), None
        self.wake = socket.socketpair()

    def listen(self):
        """Returns a new address; connections to it go to what route() says."""
        sock = socket.create_server(("127.0.0.1", 0), backlog=64)
        sock.setblocking(False)
        self.listeners[sock] = None
        return "127.0.0.1:{}".format(sock.getsockname()[1])

    def route(self, address, segment):
        for sock in self.listeners:
            if sock.getsockname()[1] == int(address.rsplit(":", 1)[1]):
                self.listeners[sock] = segment

    def start(self):
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        return self

    def change(self, rate):
        """Changes that rate of messages and frames from now on."""
        self._ask(rate)

    def calm(self):
        """Ends all connections, and changes nothing from now on."""
        self._ask(0)

    def close(self):
        self._ask(None)
        self.thread.join()
        for sock in (*self.listeners, *self.wake):
            sock.close()

    def _ask(self, what):
        if self.error:
            raise self.error
        self.asked.put(what)
        self.wake[0].send(b".")
        self.answered.acquire()

    def _end_all(self):
        while self.pairs:
            self.pairs.pop().close()

    def _accept(self, listener):
        with contextlib.suppress(OSError):
            sock, _ = listener.accept()
            host, port = self.listeners[listener].rsplit(":", 1)
            other = socket.create_connection((host, int(port)))
            # the agent has sent its first byte, or sends it soon
            sock.settimeout(1)
            first = sock.recv(1, socket.MSG_PEEK)
            if first == b"\x16":
                self.pairs.append(Control(self, End(sock, self.key, True), End(other, self.key, False)))
            else:
                self.pairs.append(Stream(self, Side(sock), Side(other)))

    def _work(self, pair):
        try:
            pair.work()
        except (Closed, OSError, s.WireError):
            # what is left for the other side must arrive
            for side in pair.sides:
                with contextlib.suppress(Closed, OSError):
                    side.flush()
            self.pairs.remove(pair)
            pair.close()

    def _turn(self):
        wanted = {side.sock: pair for pair in self.pairs for side in pair.sides}
        writers = [side.sock for pair in self.pairs for side in pair.sides if side.out]
        readable, writable, _ = select.select([*self.listeners, *wanted, self.wake[1]], writers, [])
        for pair in {wanted[sock] for sock in (*readable, *writable) if sock in wanted}:
            self._work(pair)
        for listener in self.listeners:
            if listener in readable:
                self._accept(listener)
        if self.wake[1] not in readable:
            return True
        self.wake[1].recv(1)
        self.mutator.rate = self.asked.get()
        if not self.mutator.rate:
            self._end_all()
        self.answered.release()
        return self.mutator.rate is not None

    def _run(self):
        try:
            while self._turn():
                pass
        except Exception as error:  # the next call reports it
            self.error = error
            self.answered.release()
