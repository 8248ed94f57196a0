# SPDX-License-Identifier: Apache-2.0
"""A fake agent whose answers a test chooses, to test how clients handle them."""

import os
import socket
import threading

import dray
from harness import LIMIT
from wire import codec as s


# Flags of HELLO by the minor version that added them.
FLAGS = {s.HELLO_FLAG_SEGMENTS: 1, s.HELLO_FLAG_AGENT_PIDFD: 3}


class FakeAgent:
    """
    Serves one client after the other on a socket of its own; answer(request_id, type, message) returns the packets to send. It
    speaks data protocol 1.MINOR, and refuses flags of HELLO that are newer. It grants no ring, and passes no pidfd.
    """

    def __init__(self, path, answer, minor=s.MINOR):
        self.path, self.answer, self.minor = path, answer, minor
        self.flags = []  # of every HELLO, without those about pidfds
        self.n_fds = 0   # descriptors of the last request
        self.sock = None
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(path))
        self.listener.listen(8)
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self):
        while True:
            try:
                self.sock, _ = self.listener.accept()
            except OSError:
                return
            with self.sock:
                while self._request():
                    pass

    def _request(self):
        packet, fds, _, _ = socket.recv_fds(self.sock, s.MESSAGE_MAX, s.FDS_MAX)
        for fd in fds:
            os.close(fd)
        if not packet:
            return False
        header, message = s.unpack(packet)
        if header.type == s.MSG_HELLO:
            return self._hello(header.request_id, message.flags)
        if header.type == s.MSG_RING_OPEN:
            self.sock.send(s.pack_error(header.request_id, code=s.E_UNSUPPORTED, message="no ring here"))
            return True
        self.n_fds = len(fds)
        for reply in self.answer(header.request_id, header.type, message):
            self.sock.send(reply)
        return True

    def _hello(self, request_id, flags):
        self.flags.append(flags & ~(s.HELLO_FLAG_PIDFD | s.HELLO_FLAG_AGENT_PIDFD))
        unknown = sum(flag for flag, minor in FLAGS.items() if flags & flag and minor > self.minor)
        if unknown:
            refusal = bytearray(s.pack_error(request_id, code=s.E_UNSUPPORTED, message=f"unknown bits 0x{unknown:x}"))
            refusal[5] = self.minor  # in the header
            self.sock.send(refusal)
            return False
        self.sock.send(s.pack_hello_reply(request_id, major=1, minor=self.minor, session=1, ops_inline_max=16,
                                          agent_id=bytes(16), incarnation=1))
        return True

    def restart(self):
        """Closes the connection."""
        self.sock.shutdown(socket.SHUT_RDWR)

    def client(self, **how):
        return dray.Client(self.path, timeout=LIMIT, **how)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(LIMIT)
        assert not self.thread.is_alive()
