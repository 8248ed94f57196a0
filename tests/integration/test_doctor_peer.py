# SPDX-License-Identifier: Apache-2.0
"""drayctl doctor --peer: the ways between two agents, what is wrong with them, and the remedy."""

import contextlib
import json
import secrets
import select
import signal
import subprocess
import sys
import threading

import pytest
from harness import DRAYCTL, LIMIT, ROOT
from test_ctl import conform, schema_of
from wire import codec

sys.path.append(str(ROOT / "tests/fuzz"))
from tls_psk import Closed, Connection, Key  # noqa: E402

STEPS = ["name", "route", "mtu", "tcp", "tls", "key", "version", "features"]


@pytest.fixture(scope="module", autouse=True)
def answers(lab):
    """Kernels answer a burst of datagrams, and then one a second; here they answer all."""
    for host in lab.hosts if lab.namespaces else ():
        host.run("sh", "-c", "echo 0 >/proc/sys/net/ipv4/icmp_ratelimit")


def doctor(agent, segment, *options, status=0):
    done = subprocess.run([DRAYCTL, "--control", agent.control, "doctor", "--peer", segment, "--socket", agent.socket, *options],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=4 * LIMIT)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def findings(agent, segment, status=0):
    out = json.loads(doctor(agent, segment, "--json", status=status))
    conform(out, schema_of("doctor"))
    return out["findings"]


def wrong(found):
    """The findings that are not ok: (check, direction, severity, text and remedy)."""
    return [(f["check"], f["about"].split()[0], f["severity"], f"{f['text']}; {f['fix']}") for f in found if f["severity"] != "ok"]


def expect_error(agent, segment, check, *words):
    """The check ends with an error at this step."""
    *before, last = findings(agent, segment, status=2)
    assert wrong(before) == [] and [f["check"] for f in before] == STEPS[:STEPS.index(check)]
    assert last["check"] == check and last["severity"] == "error" and last["fix"]
    for word in words:
        assert word in last["text"] + last["fix"], last
    return last


def test_both_ways(new_pair):
    a, b = new_pair()
    found = findings(a, b.listen[0])
    assert wrong(found) == []
    assert [(f["about"], f["check"]) for f in found] == \
        [(f"{way} {b.listen[0]}", step) for way in ("to", "from") for step in STEPS] + [(f"to {b.listen[0]}", t) for t in ("write", "read")]
    assert all("/s over tcp" in f["text"] for f in found[-2:])
    assert "both hold the key" in found[5]["text"] and "mailbox" in found[7]["text"]
    assert doctor(a, b.listen[0]).splitlines()[-1] == "nothing is wrong"
    # memory is lent for half a minute
    assert "lent for a check" in b.ctl("regions")


def test_all_is_lent(new_pair):
    """An agent lends memory to four checks at once; the fifth says that it tried no bytes."""
    a, b = new_pair()
    for _ in range(4):
        assert wrong(findings(a, b.listen[0])) == []
    (found,) = wrong(findings(a, b.listen[0], status=1))
    assert found[:3] == ("write", "to", "warning") and "lends no memory now, so no bytes were tried" in found[3]
    assert "other checks have it" in b.log.read_text()


def test_another_address(lab, new_agent):
    """The trials name the agent's own segment, by which its paths are known, not what was typed."""
    a = new_agent("a", key=lab.key, listen=[lab.hosts[0].v4])
    b = new_agent("b", host=1, key=lab.key, listen=[lab.hosts[1].v4, lab.hosts[1].address(6)])
    own = b.ctl("status", "--json")["segment"]
    typed, = set(b.listen) - {own}
    found = findings(a, typed)
    assert wrong(found) == []
    assert [f["about"] for f in found if f["check"] in ("write", "read")] == [f"to {own}"] * 2


def test_busy(new_pair, lab):
    """An agent answers one check of each address at a time; the refusal names a step."""
    a, b = new_pair(peer__connect_timeout="20s")
    with a.host.socket() as silent, a.host.socket() as sock:
        silent.bind((a.host.v4, 0))
        silent.listen()
        sock.bind((a.host.v4, 0))
        host, port = b.listen[0].rsplit(":", 1)
        sock.connect((host, int(port)))
        sock.setblocking(False)
        held = Connection(Key(lab.key), sock, server=False)
        while not held.handshake():
            select.select([sock], [], [], LIMIT)
        # the way back to this address waits for TLS
        held.send(codec.peer_pack_check(agent_id=b"x" * 16, segment=f"{a.host.v4}:{silent.getsockname()[1]}"))
        silent.accept()[0].detach()
        (found,) = wrong(findings(a, b.listen[0], status=2))
        held.close()
    assert found[:3] == ("features", "to", "error") and "answers other checks" in found[3]


def test_no_such_name(new_pair):
    a, _ = new_pair()
    expect_error(a, "no-such-host.invalid:7411", "name", "has no address", "correct the name")


def test_no_route(new_pair, lab):
    lab.need_namespaces()
    a, _ = new_pair()
    expect_error(a, "192.0.2.9:7411", "route", "Network is unreachable", "add a route")


def test_small_packets(new_pair, lab):
    """A link that drops large packets without a report, as a wrong MTU in a network does."""
    lab.need_namespaces()
    a, b = new_pair()
    b.host.run("ip", "link", "set", "dray0", "mtu", "1400")
    try:
        (found,) = wrong(findings(a, b.listen[0], status=1))
    finally:
        b.host.run("ip", "link", "set", "dray0", "mtu", "1500")
    assert found[:3] == ("mtu", "to", "warning")
    assert "packets of 1400 bytes arrive, and larger ones are lost without a report; dray0 sends up to 1500" in found[3]
    assert "set that of dray0 to 1400" in found[3]


def test_closed_port(new_pair):
    a, b = new_pair()
    segment = b.listen[0]
    b.stop()
    last = expect_error(a, segment, "tcp", "Connection refused", "start drayd there")
    line = doctor(a, segment, status=2).splitlines()[-1]
    assert line.startswith(f"wrong: tcp to {segment}: ") and last["fix"] in line
    b.start()


def test_other_key(lab, new_pair):
    a, b = new_pair()
    b.stop()
    b.key = lab.write("key", secrets.token_hex(32), 0o600)
    b.start()
    expect_error(a, b.listen[0], "key", "different keys", "give both agents the same peer.key_file")


def test_stopped_agent(new_pair):
    a, b = new_pair(peer__connect_timeout="1s")
    b.signal(signal.SIGSTOP)
    try:
        expect_error(a, b.listen[0], "tls", "stopped or too busy", "drayctl health")
    finally:
        b.signal(signal.SIGCONT)


def test_draining_agent(new_pair):
    a, b = new_pair()
    b.ctl("drain", "--wait", "--stay")
    found = wrong(findings(a, b.listen[0], status=2))
    assert [f[:3] for f in found] == [("version", "to", "error")] and "draining" in found[0][3] and "drayctl resume" in found[0][3]
    b.ctl("resume")


@contextlib.contextmanager
def server(host, serve):
    """Serves each connection to a port of the host. The segment."""
    with host.socket() as listener:
        listener.bind((host.v4, 0))
        listener.listen()
        listener.settimeout(None)

        def run():
            with contextlib.suppress(OSError, Closed):
                while True:
                    serve(listener.accept()[0])

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield f"{host.v4}:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(2)
            thread.join(LIMIT)


def test_no_agent(lab, new_agent):
    agent = new_agent(key=lab.key, listen=[lab.hosts[0].v4])

    def serve(sock):
        with sock:
            sock.sendall(b"SSH-2.0-x\r\n")
            sock.recv(4096)

    with server(lab.hosts[1], serve) as segment:
        expect_error(agent, segment, "tls", "does not speak TLS", "drayctl status")


def test_other_version(lab, new_agent):
    """An agent of a later major version of the protocol, played by this test."""
    agent, key = new_agent(key=lab.key, listen=[lab.hosts[0].v4]), Key(lab.key)

    def serve(sock):
        sock.setblocking(False)
        connection = Connection(key, sock, server=True)
        while not connection.handshake():
            select.select([sock], [], [], LIMIT)
        connection.send(codec.peer_pack_hello(major_min=9, major_max=9, agent_id=b"x" * 16, incarnation=1, version="9.0"))
        select.select([sock], [], [], LIMIT)
        connection.close()

    with server(lab.hosts[1], serve) as segment:
        expect_error(agent, segment, "version", "versions 9 to 9", "same release")


def test_way_back(lab, new_pair):
    """The other agent cannot reach this one, at the segment that this one advertises."""
    a, b = new_pair()
    a.stop()
    a.settings["peer.advertise"] = f"{a.host.v4}:9"
    a.start()
    (found,) = wrong(findings(a, b.listen[0], status=2))
    assert found[:3] == ("tcp", "from", "error") and "no program listens there" in found[3]


def test_no_listener(lab, new_agent):
    a = new_agent("a", key=lab.key, listen=["none"])
    b = new_agent("b", host=1, key=lab.key, listen=[lab.hosts[1].v4])
    (found,) = wrong(findings(a, b.listen[0], status=1))
    assert found[:3] == ("name", "from", "warning") and "has no listener" in found[3]


def test_odd_segments(agent):
    for segment in ("nonsense", ":1", "0.0.0.0:7411", "a:99999"):
        done = subprocess.run([DRAYCTL, "--control", agent.control, "doctor", "--peer", segment], stderr=subprocess.PIPE, text=True,
                              timeout=LIMIT)
        assert done.returncode in (1, 2) and "give HOST:PORT" in done.stderr, done.stderr
