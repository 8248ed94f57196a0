# SPDX-License-Identifier: Apache-2.0
"""Mailboxes: letters within an agent and between two, their senders, and what happens when somebody dies, stops or floods."""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys

import dray
import pytest
from conftest import PAIR_SETTINGS
from dray import errors
from harness import LIMIT, Raw, counters, nothing_leaked, until
from wire import codec as s

NOBODY = 65534


def letter(client):
    got = client.next_event(dray.Letter, LIMIT)
    assert got is not None, "no letter"
    return got


def mailboxes(agent):
    return {row["name"]: row for row in agent.ctl("mailboxes", "--json")["mailboxes"]}


def uid_of(agent):
    return 0 if agent.lab.userns else os.getuid()


# --- within an agent ------------------------------------------------------------------------------

def test_letter_within_an_agent(agent):
    with agent.client(name="prefill") as owner, agent.client() as sender:
        box = owner.open_mailbox("engine-0", capacity=9)
        assert repr(box).startswith("<Mailbox 'engine-0', handle 0x")
        for segment in ("", sender.segment):
            sender.post(segment, "engine-0", b"blocks")
            assert letter(owner) == dray.Letter(box, b"blocks", sender.agent_id, uid_of(agent),
                                                0 if agent.lab.userns else os.getgid(), sender.incarnation)
        row = mailboxes(agent)["engine-0"]
        assert row["state"] == "open" and row["capacity"] == 9 and row["delivered"] == 2 and row["uid"] == uid_of(agent)
        with pytest.raises(errors.NotFound, match="no mailbox engine-1 is open at this agent"):
            sender.post("", "engine-1")
        with pytest.raises(errors.Exists, match="is open in session .*prefill.* of uid"):
            sender.open_mailbox("engine-0")
        box.close()
        assert "closed" in repr(box)
        with pytest.raises(errors.NotFound):
            box.close()
        with pytest.raises(errors.NotFound):
            sender.post("", "engine-0")
        sender.open_mailbox("engine-0").close()
    assert "engine-0" not in mailboxes(agent)


def test_arguments(agent):
    with agent.client() as client:
        for name, error in (("", errors.Invalid), ("x" * 129, errors.TooLarge), ("a\nb", errors.Invalid), (b"x", errors.Invalid)):
            with pytest.raises(error):
                client.open_mailbox(name)
            with pytest.raises(error):
                client.post("", name)
        with pytest.raises(errors.Invalid, match="HOST:PORT"):
            client.post("nowhere", "x")
        with pytest.raises(errors.TooLarge):
            client.post("", "x", bytes(4097))
        with pytest.raises(errors.Invalid, match="not bytes"):
            client.post("", "x", "text")
        with pytest.raises(errors.Quota, match=r"limits\.letters_per_mailbox"):
            client.open_mailbox("x", capacity=1 << 20)
        box = client.open_mailbox("\u00e9" * 64, capacity=1)
        client.post("", box.name, bytes(4096))
        assert letter(client).payload == bytes(4096)


def test_asyncio(agent):
    async def main():
        async with agent.client(wait=False) as owner, agent.client(wait=False) as sender:
            box = await owner.open_mailbox("engine", wait=False)
            await asyncio.gather(*(sender.post("", "engine", bytes([i]), wait=False) for i in range(40)))
            got = [(await owner.event(dray.Letter)).payload[0] for _ in range(40)]
            assert got == list(range(40))
            with pytest.raises(errors.NotFound):
                await sender.post("", "other", wait=False)
            await box.close(wait=False)

    asyncio.run(main())


def test_close_delivers_what_was_taken(agent):
    with agent.client() as owner, agent.client() as sender:
        box = owner.open_mailbox("x", capacity=1000)
        for i in range(100):
            sender.post("", "x", str(i).encode())
        box.close()
        assert [int(letter(owner).payload) for _ in range(100)] == list(range(100))


CHILD = """
import sys, dray
client = dray.Client(sys.argv[1])
client.open_mailbox("engine")
print("open", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def child(agent, code=CHILD, *argv, **how):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", code, str(agent.socket), *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          env=environment, text=True, **how) as process:
        try:
            yield process
        finally:
            process.kill()


def test_owner_dies_and_returns(agent):
    """The death of the owner ends its mailboxes at once; its user takes the name over."""
    with agent.client() as sender:
        with child(agent) as process:
            assert process.stdout.readline() == "open\n"
            sender.post("", "engine", b"one")
            with pytest.raises(errors.Exists, match=f"session .* of uid {uid_of(agent)}"):
                sender.open_mailbox("engine")
            process.kill()
            until(lambda: mailboxes(agent)["engine"]["state"] == "reserved", "the end of the mailbox")
        with pytest.raises(errors.NotFound, match="its session has ended"):
            sender.post("", "engine", b"two")
        box = sender.open_mailbox("engine")
        sender.post("", "engine", b"three")
        assert letter(sender).payload == b"three"
        box.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_name_is_reserved_for_its_user(new_agent):
    agent = new_agent(settings={"data.mode": "0666", "mailbox.reserve": "1h"})
    agent.directory.chmod(0o755)
    with child(agent, user=NOBODY, group=NOBODY, extra_groups=[]) as process:
        if process.stdout.readline() != "open\n":
            pytest.skip("the other user cannot read the package")
        with agent.client() as client:
            client.post("", "engine", b"x")
            with pytest.raises(errors.Exists, match=f"of uid {NOBODY}"):
                client.open_mailbox("engine")
            process.kill()
            until(lambda: mailboxes(agent)["engine"]["state"] == "reserved", "the end of the mailbox")
            with pytest.raises(errors.Exists, match=f"reserved for uid {NOBODY}"):
                client.open_mailbox("engine")
    with child(agent, user=NOBODY, group=NOBODY, extra_groups=[]) as process:
        assert process.stdout.readline() == "open\n"


# --- between agents -------------------------------------------------------------------------------

def test_letter_between_agents(pair):
    a, b = pair
    with a.client() as decode, b.client() as prefill:
        box = prefill.open_mailbox("engine-0")
        here = decode.open_mailbox("engine-0")  # names belong to an agent
        segment = prefill.segment
        decode.post(segment, "engine-0", b"blocks")
        got = letter(prefill)
        assert got[:4] == (box, b"blocks", decode.agent_id, uid_of(a)) and got.incarnation == decode.incarnation
        # the other way round, where this agent did not connect
        prefill.post(decode.segment, "engine-0", b"answer")
        assert letter(decode)[:3] == (here, b"answer", prefill.agent_id)
        # another address of the same agent, and one of the own agent
        host, port = segment.rsplit(":", 1)
        with pytest.raises(errors.NotFound, match=f"the agent at {host}:{port}: no mailbox"):
            decode.post(segment, "engine-1")
        assert len(a.ctl("peers", "--json")["peers"]) == 1
        assert counters(b)["dray_letters_delivered_total"] >= 1 and counters(b)["dray_letters_refused_total"] >= 1
        box.close()
        here.close()


def test_many_letters_in_order(pair):
    a, b = pair
    with a.client() as sender, b.client() as owner, nothing_leaked(a, b, streams=4):
        box = owner.open_mailbox("x")
        posts = [sender.post(owner.segment, "x", i.to_bytes(4, "big") * 500, wait=False) for i in range(200)]
        for post in posts:
            post.result(LIMIT)
        assert [int.from_bytes(letter(owner).payload[:4], "big") for _ in range(200)] == list(range(200))
        box.close()


def test_own_address(new_agent, lab):
    """An address of the sender's own agent that is not its segment."""
    host = lab.hosts[0]
    agent = new_agent(key=lab.key, listen=[host.v4, "127.0.0.1"])
    with agent.client() as client:
        client.open_mailbox("x")
        other = next(segment for segment in agent.listen if segment != client.segment)
        client.post(other, "x", b"home")
        assert letter(client)[1:3] == (b"home", client.agent_id)


def test_without_a_key(new_agent, lab):
    a, b = (new_agent(name, settings=PAIR_SETTINGS) for name in "ab")
    with a.client() as sender, b.client() as owner:
        owner.open_mailbox("x")
        with pytest.raises(errors.Denied, match=r"has no key.*peer\.key_file"):
            sender.post(owner.segment, "x", b"forged")
        owner.post("", "x", b"own")
        assert letter(owner).payload == b"own"


def test_another_key(new_agent, lab):
    settings = {**PAIR_SETTINGS}
    a = new_agent("a", key=lab.write("key", "ab" * 32, 0o600), settings=settings)
    b = new_agent("b", key=lab.key, settings=settings)
    with a.client() as sender, b.client() as owner:
        owner.open_mailbox("x")
        with pytest.raises(errors.PeerUnreachable):  # the cause is for the operator
            sender.post(owner.segment, "x", b"forged", timeout=LIMIT)
        assert "key" in a.text()


def test_nobody_there(pair):
    a, b = pair
    with a.client() as sender:
        with sender_closed_port(a) as segment, pytest.raises(errors.PeerUnreachable):
            sender.post(segment, "x")


@contextlib.contextmanager
def sender_closed_port(agent):
    """A segment of the agent's host where nothing listens."""
    with agent.host.socket() as probe:
        probe.bind((agent.host.v4, 0))
        yield f"{agent.host.v4}:{probe.getsockname()[1]}"


# --- death, stop, drain ---------------------------------------------------------------------------

def test_agent_killed(new_pair):
    """Posts end with an error; the owner's library opens the mailbox again, and letters arrive."""
    a, b = new_pair()
    with a.client() as sender, b.client(patience=LIMIT) as owner:
        segment = owner.segment
        box = owner.open_mailbox("x")
        sender.post(segment, "x", b"before")
        assert letter(owner).payload == b"before"
        b.signal(signal.SIGSTOP)
        post = sender.post(segment, "x", b"in flight", wait=False)
        b.kill()
        assert isinstance(post.exception(LIMIT), (errors.PeerLost, errors.PeerUnreachable))
        b.start()
        owner.reconnect(LIMIT)
        assert box.error is None
        sender.post(segment, "x", b"after", timeout=LIMIT)
        assert letter(owner)[:2] == (box, b"after")


def test_agent_stopped(short_limits_pair):
    """A stopped agent ends no wait for ever: by the post's limit, or by the loss of the peer."""
    a, b = short_limits_pair()
    with a.client() as sender, b.client() as owner:
        segment = owner.segment
        owner.open_mailbox("x")
        sender.post(segment, "x")
        b.signal(signal.SIGSTOP)
        try:
            with pytest.raises(errors.Timeout, match="may have been delivered"):
                sender.post(segment, "x", b"late", timeout=0.2)
            with pytest.raises((errors.PeerLost, errors.PeerUnreachable, errors.Timeout)):
                sender.post(segment, "x", b"late", timeout=LIMIT / 2)
        finally:
            b.signal(signal.SIGCONT)
        sender.post(segment, "x", b"again", timeout=LIMIT)
        until(lambda: letter(owner).payload == b"again", "the last letter")


def test_agent_drains(new_pair):
    a, b = new_pair()
    with a.client() as sender, b.client() as owner:
        segment = owner.segment
        owner.open_mailbox("x")
        sender.post(segment, "x", b"1")
        b.ctl("drain", "--stay")
        with pytest.raises(errors.Draining):
            sender.post(segment, "x", b"2")
        with pytest.raises(errors.Draining):
            owner.post("", "x", b"3")
        with pytest.raises(errors.Draining):
            owner.open_mailbox("y")
        b.ctl("resume")
        sender.post(segment, "x", b"4")
        assert [letter(owner).payload for _ in range(2)] == [b"1", b"4"]


def test_own_agent_killed(new_pair):
    """The sender's agent dies with a post in flight: the client hears that it may have been carried out."""
    a, b = new_pair()
    with a.client(patience=LIMIT) as sender, b.client() as owner:
        segment = owner.segment
        owner.open_mailbox("x")
        sender.post(segment, "x")
        b.signal(signal.SIGSTOP)
        post = sender.post(segment, "x", wait=False)
        until(lambda: post.done() or sender.info().in_flight == 1, "the post")
        a.restart()
        b.signal(signal.SIGCONT)
        assert isinstance(post.exception(LIMIT), (errors.AgentRestarted, errors.SessionClosed))
        sender.reconnect(LIMIT)
        sender.post(segment, "x", b"after", timeout=LIMIT)
        until(lambda: letter(owner).payload == b"after", "the letter")


SENDER = """
import sys, dray
client = dray.Client(sys.argv[1])
posts = [client.post(sys.argv[2], "x", bytes([i]), wait=False) for i in range(50)]
client.process(0)
print("posted", flush=True)
sys.stdin.readline()
for post in posts:
    post.result(60)
print("ended", flush=True)
"""


def test_sender_killed(pair):
    """A sender dies with posts in flight: whatever was delivered is whole, and both agents hold nothing of it."""
    a, b = pair
    with b.client() as owner, nothing_leaked(a, b, streams=4):
        box = owner.open_mailbox("x")
        with child(a, SENDER, owner.segment) as process:
            assert process.stdout.readline() == "posted\n"
        until(lambda: not a.ctl("sessions", "--json")["sessions"], "the end of the session")
        owner.post("", "x", b"last")
        got = []
        while not got or got[-1] != b"last":
            got.append(letter(owner).payload)
        assert all(len(payload) == 1 for payload in got[:-1]) and len(set(got)) == len(got)
        box.close()


def test_sender_stopped(pair):
    """A sender that is stopped with posts in flight delays nobody, and hears of each when it is continued."""
    a, b = pair
    with b.client() as owner, a.client() as other:
        box = owner.open_mailbox("x")
        with child(a, SENDER, owner.segment) as process:
            assert process.stdout.readline() == "posted\n"
            process.send_signal(signal.SIGSTOP)
            assert sorted(letter(owner).payload[0] for _ in range(50)) == list(range(50))
            other.post(owner.segment, "x", b"meanwhile")
            assert letter(owner).payload == b"meanwhile"
            process.send_signal(signal.SIGCONT)
            print(file=process.stdin, flush=True)
            assert process.stdout.readline() == "ended\n"
        box.close()


# --- limits and hostile clients -------------------------------------------------------------------

def flood(sender, segment, name, payload, full):
    """Posts until the mailbox refuses and full() holds, because the owner's socket takes no more; returns how many were taken."""
    taken = 0

    def post():
        nonlocal taken
        ended = [post.exception(LIMIT) for post in [sender.post(segment, name, payload, wait=False) for _ in range(50)]]
        taken += ended.count(None)
        assert all(error is None or isinstance(error, errors.MailboxFull) for error in ended), ended
        return any(ended) and full()

    until(post, "a full mailbox")
    return taken


def test_flood(new_pair):
    """An owner that does not read fills its own mailbox only; one sender leaves room for the others; nothing taken is lost."""
    a, b = new_pair()
    with a.client() as flooder, b.client() as other:
        segment = other.segment
        raw = Raw(b)
        box = raw.ask(s.pack_mailbox_open, capacity=90, name="x").mailbox
        quiet = other.open_mailbox("quiet")
        # those in the socket's buffer count no more
        taken = flood(flooder, segment, "x", bytes(4096), lambda: mailboxes(b)["x"]["letters"] == 30)
        assert mailboxes(b)["x"]["refused"] >= 1 and taken > 30
        with pytest.raises(errors.MailboxFull, match="mailbox x has 30 of 90 letters"):
            flooder.post(segment, "x", b"")
        # another agent still gets through, and other mailboxes are not affected
        other.post("", "x", b"from here")
        flooder.post(segment, "quiet", b"fine")
        assert letter(other)[:2] == (quiet, b"fine")
        got = []
        while not got or got[-1] != b"from here":
            header, message, _ = raw.receive()
            assert message.mailbox == box
            got.append(bytes(message.payload))
        assert len(got) == taken + 1
        until(lambda: mailboxes(b)["x"]["letters"] == 0, "an empty mailbox")
        flooder.post(segment, "x", b"again")
        assert counters(b)["dray_letters_waiting_bytes"] < 1 << 16
        raw.sock.close()


def test_memory_of_letters(new_agent):
    agent = new_agent(settings={"limits.letter_bytes": "256KiB"})
    with agent.client() as sender:
        raws = [Raw(agent) for _ in range(4)]
        for i, raw in enumerate(raws):
            raw.ask(s.pack_mailbox_open, capacity=0, name=f"x{i}")
        for i in range(4):
            flood(sender, "", f"x{i}", bytes(4096), lambda: True)
        flood(sender, "", "x0", bytes(4096), lambda: counters(agent)["dray_letters_waiting_bytes"] > 127 << 10)
        with pytest.raises(errors.MailboxFull, match=r"limits\.letter_bytes"):
            sender.post("", "x0", bytes(4096))
        # the mailboxes of one user fill half of it
        assert counters(agent)["dray_letters_waiting_bytes"] <= (128 << 10) + 4500
        for raw in raws:
            raw.sock.close()
        until(lambda: counters(agent)["dray_letters_waiting_bytes"] == 0, "the end of the letters")
        assert counters(agent)["dray_letters_waiting"] == 0 and counters(agent)["dray_mailboxes"] == 0


def test_limits_on_names(new_agent):
    agent = new_agent(settings={"limits.mailboxes": "3", "limits.mailboxes_per_owner": "2"})
    with agent.client() as client:
        boxes = [client.open_mailbox(name) for name in "ab"]
        with pytest.raises(errors.Quota, match=r"limits\.mailboxes_per_owner"):
            client.open_mailbox("c")
        boxes[0].close()
        client.open_mailbox("c")


def test_malformed_requests(agent):
    """Messages that no library sends are refused one by one; the session and the others live on."""
    raw = Raw(agent)
    box = raw.ask(s.pack_mailbox_open, capacity=1, name="x").mailbox

    def refused(pack, code, **fields):
        answer = raw.ask(pack, **fields)
        assert answer.code == code, answer

    refused(s.pack_mailbox_open, s.E_EXISTS, capacity=1, name="x")
    refused(s.pack_mailbox_open, s.E_INVALID, capacity=1, name="")
    refused(s.pack_mailbox_close, s.E_NOT_FOUND, mailbox=box + 1)
    refused(s.pack_mailbox_close, s.E_INVALID, mailbox=raw.hello.session)
    refused(s.pack_mailbox_close, s.E_NOT_FOUND, mailbox=0)
    refused(s.pack_post, s.E_NOT_FOUND, timeout_ms=0, segment="", name="", payload=b"")
    refused(s.pack_post, s.E_INVALID, timeout_ms=0, segment="no segment", name="x", payload=b"")
    with agent.client() as client, pytest.raises(errors.Exists):
        client.open_mailbox("x")
    raw.sock.close()


# --- every post ends once ---------------------------------------------------------------------------

UNSURE = (errors.Timeout, errors.PeerLost, errors.AgentRestarted)  # the letter may have been delivered


class Owners:
    """Sessions that own a mailbox each, by agent and name, and the letters that arrived."""

    def __init__(self):
        self.open, self.got = {}, []

    def take(self, client):
        with contextlib.suppress(errors.Error):
            client.process(0)
        while client.events:
            event = client.events.popleft()
            if isinstance(event, dray.Letter):
                self.got.append(event.payload)

    def take_all(self):
        for client, _ in self.open.values():
            self.take(client)

    def close(self, key, gently):
        client, box = self.open.pop(key)
        if gently:
            with contextlib.suppress(errors.Error):
                box.close()
        self.take(client)
        client.close(0)


@pytest.mark.parametrize("seed", range(4))
def test_random_order(new_pair, seed):
    """Posts, mailboxes that come and go, agents that are killed or stopped, in random order: each post ends exactly once. A letter
    whose post failed for certain never arrives, none arrives twice, and those of a mailbox that was closed in good order all do."""
    rng = random.Random(seed)
    agents = new_pair(peer__heartbeat_limit="1s", mailbox__reserve="0s")
    owners, posts, ends, lost, number = Owners(), {}, {}, [], 0
    with contextlib.ExitStack() as stack:
        senders = [stack.enter_context(agent.client(patience=LIMIT)) for agent in agents]
        segments = [sender.segment for sender in senders]
        for _ in range(250):
            what = rng.random()
            where, name = rng.randrange(2), rng.choice("xyz")
            if what < 0.3 and (where, name) not in owners.open:
                client = agents[where].client()
                try:
                    owners.open[where, name] = client, client.open_mailbox(name, capacity=rng.choice((2, 40, 400)))
                except errors.Exists:  # of a session whose end the agent has not seen yet
                    client.close(0)
                else:
                    for loss in lost:
                        if loss[:2] == [where, name]:
                            loss[2] = min(loss[2], number)
            elif what < 0.06 and (where, name) in owners.open:
                gently = rng.random() < 0.5
                if not gently:  # until the agent sees it, which is certain when the name is opened again
                    lost.append([where, name, sys.maxsize])
                owners.close((where, name), gently)
            elif 0.3 <= what < 0.315:
                for key in [key for key in owners.open if key[0] == where]:
                    owners.close(key, False)
                agents[where].restart()
                lost.append([where, None, number])
                for sender in senders:
                    sender.reconnect(LIMIT)
            elif 0.315 <= what < 0.33:
                agents[where].signal(signal.SIGSTOP)
                agents[where].signal(signal.SIGCONT)
            else:
                sender = rng.choice(senders)
                segment = rng.choice((segments[where], segments[where] if sender is not senders[where] else ""))
                for number in range(number, number + rng.choice((1, 1, 12))):
                    payload = f"{where} {name} {number}".encode()
                    ends[payload] = 0
                    posts[payload] = post = sender.post(segment, name, payload, timeout=rng.choice((None, 5.0)), wait=False)
                    post.add_done_callback(lambda _, payload=payload: ends.update({payload: ends[payload] + 1}))
                number += 1
            for sender in senders:
                with contextlib.suppress(errors.Error):
                    sender.process(0)
            owners.take_all()
        results = {payload: post.exception(LIMIT) for payload, post in posts.items()}
        for key in list(owners.open):
            owners.close(key, True)
        for sender in senders:
            sender.reconnect(LIMIT)
    assert set(ends.values()) == {1}, [payload for payload, n in ends.items() if n != 1]
    assert len(owners.got) == len(set(owners.got)), "a letter came twice"
    for payload in owners.got:
        assert results[payload] is None or isinstance(results[payload], UNSURE), (payload, results[payload])
    # letters that were delivered are lost only with the session that had them in its queue
    for payload in {payload for payload, error in results.items() if error is None} - set(owners.got):
        where, name, n = payload.decode().split()
        assert any(int(where) == w and which in (name, None) and int(n) < at for w, which, at in lost), payload
    for agent in agents:
        until(lambda agent=agent: counters(agent)["dray_letters_waiting"] == 0, "the end of the letters")
        assert counters(agent)["dray_mailboxes"] == 0
    assert sum(error is None for error in results.values()) > 10
