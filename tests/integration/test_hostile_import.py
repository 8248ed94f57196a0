# SPDX-License-Identifier: Apache-2.0
"""What a client finds out about other hosts by importing forged tokens: nothing."""

import contextlib
import os
import socket
import threading

from harness import MIB, Side, expect, s, until
from test_owners import tenants
from test_tokens import parse


def forged(side, segment):
    """A token of an agent that does not exist, at this segment."""
    fields = parse(side.region.export())[1]
    name = segment.encode()
    return s.PEER_TOKEN.pack(*fields._replace(agent_id=os.urandom(16))) + len(name).to_bytes(4, "little") + name


@contextlib.contextmanager
def service(host, answer):
    """A service of another kind. It gets each connection with `answer`; None: it never accepts one."""
    with host.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        port = listener.getsockname()[1]

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    sock = listener.accept()[0]
                    answer(sock)
                    sock.close()

        if answer:
            threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{port}"
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)


def test_one_error_for_all_causes(new_agent):
    """A closed port, one that is silent, one that closes and one that speaks another protocol look the same."""
    agent = new_agent(settings={"peer.connect_timeout": "200ms"})
    with contextlib.ExitStack() as stack:
        side = stack.enter_context(Side(agent, MIB))
        with service(agent.host, None) as closed:
            pass
        ports = [closed, *(stack.enter_context(service(agent.host, answer)) for answer in (
            None, lambda sock: None, lambda sock: sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
            lambda sock: sock.sendall(b"\x15\x03\x03\x00\x02\x02\x28")))]
        told = {str(expect("peer_unreachable", side.client.import_token, forged(side, segment), timeout=1)).replace(segment, "SEGMENT")
                for segment in ports}
        assert len(told) == 1, told
        # the operator finds the cause
        until(lambda: all(f"the owner at {segment} cannot be reached: " in agent.text() for segment in ports), "the lines of the log")


def test_attempts_are_bounded(new_agent):
    """A uid has the agent connect to a number of segments that prove nothing; where an agent answers does not count."""
    agent = new_agent(settings={"limits.unproved_segments_per_owner": 5})
    other = new_agent("other")
    with Side(agent, MIB) as side, Side(other, MIB) as there:
        for port in range(1, 5):
            expect("peer_unreachable", side.client.import_token, forged(side, f"127.0.0.1:{port}"), timeout=0.2)
        for _ in range(3):
            side.client.import_token(there.region.export(), timeout=5).release()
        expect("peer_unreachable", side.client.import_token, forged(side, "127.0.0.1:5"), timeout=0.2)
        error = expect("busy", side.client.import_token, forged(side, "127.0.0.1:6"), timeout=0.2)
        assert "limits.unproved_segments_per_owner" in str(error)
        expect("peer_unreachable", side.client.import_token, forged(side, "127.0.0.1:3"), timeout=0.2)


def test_attempts_of_a_tenant(new_agent):
    """Clients of one tenant take no attempts of those of another one that have the same uid."""
    agent, connect = tenants(new_agent, "a", "b", settings={"limits.unproved_segments_per_owner": 2})
    with Side(agent, MIB) as side, connect("a") as a, connect("b") as b:
        for port in (1, 2):
            expect("peer_unreachable", a.import_token, forged(side, f"127.0.0.1:{port}"), timeout=0.2)
        error = expect("busy", a.import_token, forged(side, "127.0.0.1:3"), timeout=0.2)
        assert "tenant=a" in str(error)
        expect("peer_unreachable", b.import_token, forged(side, "127.0.0.1:3"), timeout=0.2)
        expect("busy", a.post, "127.0.0.1:4", "box", b"letter")
