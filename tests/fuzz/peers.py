#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Two real agents with one key, and between them a proxy that has the key too and changes messages and frames in both directions:
what a peer can do that has authenticated. The clients on both sides are the random sessions of sessions.py.

    make VARIANT=asan all && DRAY_BUILD=build/asan PYTHONPATH=client/python tests/fuzz/peers.py SECONDS [SEED]

After each round memory that may only be read must be unchanged; from time to time, without changes by the proxy, a client of each
agent must reach the other agent. In the end both agents must have released everything. The last line has the numbers of rounds,
messages of clients, and what the proxy passed on and changed.
"""

import contextlib
import random
import select
import sys
import time

import sessions
from peer_proxy import Proxy

from harness import LIMIT, Lab, dray, nothing_leaked, until

# The honest clients have the uid of the others, whose wrong addresses must not use up their attempts.
SETTINGS = sessions.SETTINGS | {"limits.unproved_segments_per_owner": 65536, "peer.connect_timeout": "1s", "peer.heartbeat": "300ms",
                                "peer.heartbeat_limit": "1s", "peer.fence_timeout": "500ms"}
RATES = (0.002, 0.01, 0.03, 0.1)
WARM = 6
PAUSE = 0.02
PATTERN = bytes(range(256)) * (sessions.SIZE // 256)


class Reader:
    """Memory of an honest client that the other agent's clients may read, but not write."""

    def __init__(self, agent):
        self.client = agent.client(timeout=LIMIT)
        self.area = dray.Memory(sessions.SIZE)
        self.area.view[:] = PATTERN
        self.region = self.client.region(self.area)
        self.token = bytes(self.region.export(access="r"))

    def check(self):
        assert bytes(self.area.view) == PATTERN, "memory was written that may only be read"

    def close(self):
        self.client.close()
        self.area.close()


class Crossing(sessions.Session):
    """A session whose tokens are those of the other agent's clients, and which waits for some answers."""

    def __init__(self, rng, world, here):
        self.tokens_here, self.tokens_there = world.tokens[here], world.tokens[1 - here]
        self.segments = [agent.settings["peer.advertise"] for agent in world.agents]
        super().__init__(rng, world.agents[here], world.descriptors, self.tokens_there["exports"])

    def learn(self, message, fds):
        # the tokens of this agent are for sessions of the other one
        there, self.tokens = self.tokens, self.tokens_here["leases" if isinstance(message, sessions.s.LeaseReply) else "exports"]
        super().learn(message, fds)
        self.tokens = there

    def value(self, name, default):
        return self.rng.choice(self.segments) if name == "segment" and self.rng.random() < 0.9 else super().value(name, default)

    def message(self):
        rng, regions, leases = self.rng, self.handles["region"], self.tokens_there["leases"]
        how = rng.randrange(12)
        if how == 0 and regions:
            return self.send("pack_lease", region=rng.choice(regions), access=3, holders=rng.choice((1, 3)), expiry_ms=rng.choice((1, 5000)),
                             ranges=[(64 * i, 64, 4096, 8) for i in range(rng.choice((1, 1, 5)))])
        if how == 1 and leases:
            return self.send("pack_lease_acquire", token=rng.choice(leases), timeout_ms=rng.choice((0, 100)))
        if how == 2:
            return self.send("pack_post", segment=rng.choice(self.segments), name="g", payload=b"letter", timeout_ms=rng.choice((0, 100)))
        if how == 3:
            return self.send("pack_mailbox_open", name="g", capacity=16)
        return self.likely() if how < 9 else super().message()

    def step(self):
        super().step()
        if self.rng.random() < 0.5:
            select.select([self.raw.sock], [], [], PAUSE)
            self.answers()


class World:
    def __init__(self, lab, seed):
        self.proxy = Proxy(lab.key, random.Random(f"proxy {seed}"))
        ways = [self.proxy.listen() for _ in range(2)]
        self.agents = [lab.agent(name, key=lab.key, settings=SETTINGS | {"peer.advertise": way}) for name, way in zip("ab", ways)]
        for agent, way in zip(self.agents, ways):
            self.proxy.route(way, agent.listen[0])
        self.proxy.start()
        for agent in self.agents:
            agent.start()
        self.seed, self.descriptors = seed, sessions.Descriptors()
        self.sent = 0

    def round(self, name):
        rng = random.Random(f"{self.seed} {name}")
        self.proxy.change(rng.choice(RATES))
        self.tokens = [{"exports": [reader.token], "leases": []} for reader in self.readers]
        self.sent += sessions.play(rng, lambda: Crossing(rng, self, rng.randrange(2)))
        for agent, reader in zip(self.agents, self.readers):
            assert agent.running, f"{agent.name} died in round {name} of seed {self.seed}:\n{agent.tail(120)}"
            reader.check()

    def serve(self):
        """Each agent's client reads from the other agent."""
        self.proxy.calm()
        for agent, reader in zip(self.agents, reversed(self.readers)):
            with agent.client(timeout=LIMIT) as client, dray.Memory(sessions.SIZE) as area:
                region = client.region(area)

                def reads(client=client, region=region, token=reader.token):
                    with contextlib.suppress(dray.Error):
                        client.read(region, client.import_token(token), [(0, 0, sessions.SIZE)]).result(LIMIT)
                        return True

                until(reads, f"a read by a client of {agent.name}")
                assert bytes(area.view) == PATTERN

    @contextlib.contextmanager
    def read(self):
        with contextlib.ExitStack() as stack:
            self.readers = [stack.enter_context(contextlib.closing(Reader(agent))) for agent in self.agents]
            yield

    def calm(self):
        """Nothing of clients and peers is left, but what nobody waits for."""
        self.proxy.calm()
        until(lambda: all(agent.resources().mappings == 0 for agent in self.agents), "the unmapping of the clients' memory")

    def close(self):
        self.proxy.close()


def run(world, more):
    """Plays while more() is true. Returns the number of rounds."""
    n = 0
    # the first use of some requests starts threads that stay
    with world.read():
        for i in range(WARM):
            world.round(f"warm {i}")
        world.serve()
    world.calm()
    with nothing_leaked(*world.agents):
        with world.read():
            while more():
                world.round(n)
                n += 1
                if n % 20 == 0:
                    world.serve()
            world.serve()
        world.calm()
    for agent in world.agents:
        agent.check_log()
    return n


def main():
    seconds, seed = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else str(time.time_ns())
    lab, ends = Lab(alone=True), time.monotonic() + seconds
    try:
        print(f"seed {seed}", flush=True)
        world = World(lab, seed)
        n = run(world, lambda: time.monotonic() < ends)
        m = world.proxy.mutator
        print(f"{n} rounds of sessions, {world.sent} messages of clients, {m.passed} of peers, {m.changed} of them changed")
        for agent in world.agents:
            agent.stop()
        world.close()
    finally:
        lab.close()


if __name__ == "__main__":
    main()
