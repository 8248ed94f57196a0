# SPDX-License-Identifier: Apache-2.0
"""Checks every byte: kinds of memory, paths, sizes, alignments, directions, page lists and extents."""

import random

from suite import GIB, KIB, MIB, EngineError, Side, Skip, in_a_row, scattered

SIZES = (1, 3, 16, 4 * KIB - 1, 4 * KIB, 64 * KIB + 5, MIB)
SKEWS = (0, 1, 3, 8)
GUARD = 64  # least number of unused bytes between two operations

# Kind and GPU of the importing side, and of the other; whether 1 GiB is moved, too.
PAIRS = (
    (("cuda_ipc", 0), ("cuda_ipc", 0), True),
    (("cuda_vmm", 0), ("cuda_vmm", 0), True),
    (("cuda_ipc", 0), ("cuda_vmm", 0), False),
    (("cuda_vmm", 0), ("cuda_ipc", 0), False),
    (("cuda_ipc", 0), ("memfd", 0), True),
    (("memfd", 0), ("cuda_ipc", 0), False),
    (("cuda_vmm", 0), ("memfd", 0), False),
    (("memfd", 0), ("cuda_vmm", 0), False),
    (("cuda_ipc", 0), ("pool", 0), False),
    (("pool", 0), ("cuda_vmm", 0), True),
    (("cuda_ipc", 0), ("cuda_ipc", 1), True),
    (("cuda_vmm", 0), ("cuda_vmm", 1), False),
    (("cuda_vmm", 1), ("cuda_ipc", 0), False),
    (("memfd", 0), ("cuda_vmm", 1), False),
)


def name(end):
    kind, device = end
    return kind if kind in ("memfd", "pool") else f"{kind} on GPU {device}"


def small_ops():
    """Operations of every size with every pair of alignments, at separate places: (operations, bytes of a side)."""
    places = [(size, a, b) for size in SIZES for a in SKEWS for b in SKEWS]
    rooms = [-(-(size + 8 + GUARD) // 16) * 16 for size, _, _ in places]
    here, at = [], GUARD
    for room in rooms:
        here.append(at)
        at += room
    end, there, at = at, [], GUARD
    for room in reversed(rooms):  # in reverse order on the other side
        there.append(at)
        at += room
    there.reverse()
    return [(x + a, y + b, size) for x, y, (size, a, b) in zip(here, there, places)], end + GUARD


def move_both(t, here, there, remote, ops, **how):
    for direction in ("read", "write"):
        t.move(here, there, remote, direction, ops, **how)


def pair(t, agents, ends, transport, large, huge):
    """All sizes and alignments between two kinds of memory, each way."""
    for _, device in ends:
        t.device(device)
    ops, size = small_ops()
    engines = [t.engine(agent) for agent in agents]
    try:
        sides = [Side(e, kind, size, device) for e, (kind, device) in zip(engines, ends)]
        remote, _ = sides[0].reach(sides[1])
        # first one transfer for each operation, many at a time; then all operations in one transfer
        move_both(t, *sides, remote, ops, batch=1, depth=16, transport=transport)
        move_both(t, *sides, remote, ops, latency=True, transport=transport)
        for side in sides:
            side.close()
        for size, skews in ((large, ((0, 0), (1, 3))), (huge, ((0, 0),))):
            if not size:
                continue
            sides = [Side(e, kind, size + 16, device) for e, (kind, device) in zip(engines, ends)]
            remote, _ = sides[0].reach(sides[1])
            for a, b in skews:
                move_both(t, *sides, remote, [(a, b, size)], transport=transport)
            for side in sides:
                side.close()
    finally:
        t.close_engines()


def pairs(t):
    agent = t.agent()
    for here, there, huge in PAIRS:
        label = f"pairs: {name(here)} and {name(there)}"
        if t.wanted(label):
            with t.case(label):
                pair(t, (agent, agent), (here, there), "gpu", MIB if t.fake else 64 * MIB, huge and not t.fake and GIB)
    t.drop(agent)


def pages(t):
    """Page lists as in a KV cache."""
    agent = t.agent()
    for kind in ("cuda_ipc", "cuda_vmm"):
        for far, device in ((kind, 0), ("memfd", 0), (kind, 1)):
            for size in (16 * KIB, 4 * KIB):
                label = f"pages: {size // KIB} KiB at random, {kind} and {name((far, device))}"
                if not t.wanted(label):
                    continue
                with t.case(label):
                    t.device(device)
                    total = (8 if t.fake else 256) * MIB
                    here, there = Side(t.engine(agent), kind, total), Side(t.engine(agent), far, total, device)
                    remote, _ = here.reach(there)
                    move_both(t, here, there, remote, scattered(size, total), transport="gpu")
                    # only some pages: the others must not change
                    move_both(t, here, there, remote, scattered(size, total, 2)[::3], batch=65536, depth=1)
                t.close_engines()
    t.drop(agent)


def ways(t):
    """Each fixed way of copying, pages and odd pieces. Staged copies begin when their memory is there."""
    for setting in ("kernel", "copy_engine", "staged"):
        agent = t.agent(**{"gpu.copy": setting, "gpu.copy_memory": (16 if t.fake else 512) * MIB})
        for near, far in ((("cuda_vmm", 0), ("cuda_vmm", 1)), (("cuda_ipc", 1), ("cuda_ipc", 0)), (("memfd", 0), ("cuda_vmm", 0)),
                          (("cuda_ipc", 0), ("memfd", 0))):
            label = f"ways: {setting}, {name(near)} and {name(far)}"
            if not t.wanted(label):
                continue
            with t.case(label):
                for _, device in (near, far):
                    t.device(device)
                total = (8 if t.fake else 512) * MIB
                here, there = Side(t.engine(agent), near[0], total, near[1]), Side(t.engine(agent), far[0], total, far[1])
                remote, _ = here.reach(there)
                for size in (16 * KIB, 16 * KIB, 4 * KIB + 5):
                    move_both(t, here, there, remote, scattered(size, total), batch=65536, depth=2, transport="gpu")
                for side in (0, 1):
                    move_both(t, here, there, remote, in_a_row(scattered(16 * KIB, total)[::3], side), batch=65536, depth=1)
                # half of the pages: runs with gaps between them, in host memory
                for size in (16 * KIB, 8 * KIB):
                    move_both(t, here, there, remote, scattered(size, total)[::2], batch=65536, depth=1)
                got = {row["gpu_way"] for row in agent.ctl("transfers", "--recent", "--json")["ended_transfers"][-4:]}
                assert setting in got, f"copied by {got}"
            t.close_engines()
        t.drop(agent)


def odd_extents(engine, kind, n, each, rng, device=0):
    """A region of n allocations with four extents each, of odd offsets and lengths: (region, bytes)."""
    extents = []
    for _ in range(n):
        memory, at = engine.alloc(kind, each, device), 0
        for _ in range(4):
            at += rng.randrange(1, 40)
            length = rng.randrange(each // 8, each // 5) | 1
            extents.append((memory, at, length))
            at += length
    return engine.region(*extents), sum(length for _, _, length in extents)


class Extents(Side):
    def __init__(self, engine, kind, n, each, rng, device=0):
        self.engine, self.memory = engine, None
        self.region, self.size = odd_extents(engine, kind, n, each, rng, device)


def extents(t):
    """Regions of many extents, and operations that cross their borders."""
    agent = t.agent()
    for kind, far in (("cuda_ipc", "cuda_ipc"), ("cuda_vmm", "cuda_vmm"), ("cuda_vmm", "memfd"), ("memfd", "cuda_ipc")):
        label = f"extents: 256 of {kind} and of {far}"
        if not t.wanted(label):
            continue
        with t.case(label):
            rng = random.Random(7)
            here, there = (Extents(t.engine(agent), k, 64, 256 * KIB, rng) for k in (kind, far))
            remote, _ = here.reach(there)
            size, ops, at = min(here.size, there.size), [], 0
            while at < size - 70000:
                length = rng.randrange(1, 70000)
                ops.append((at, at + rng.randrange(0, 16), length))
                at += length + 16
            move_both(t, here, there, remote, ops, transport="gpu")
            move_both(t, here, there, remote, [(3, 1, size - 8)], transport="gpu")
        t.close_engines()
    t.drop(agent)


class Described(Side):
    """Two ranges of two allocations, passed to libdray as device pointers."""

    def __init__(self, engine, kind, size):
        self.engine, self.memory, self.size = engine, None, size
        parts = [(engine.alloc(kind, size), 4099, size // 2), (engine.alloc(kind, size), 1, size - size // 2)]
        self.region = engine.ask("describe", *(":".join(map(str, part)) for part in parts))["region"]


def described(t):
    agent = t.agent()
    for kind in ("cuda_ipc", "cuda_vmm"):
        label = f"described: device pointers into {kind} memory"
        if not t.wanted(label):
            continue
        with t.case(label):
            if t.fake:
                raise Skip("the simulated driver has only the functions that the engine uses")
            here, there = Described(t.engine(agent), kind, 4 * MIB), Side(t.engine(agent), kind, 4 * MIB)
            remote, _ = here.reach(there)
            move_both(t, here, there, remote, scattered(64 * KIB, 4 * MIB), transport="gpu")
        t.close_engines()
    t.drop(agent)


def tcp(t):
    """Between two agents: staged in host memory."""
    a, b = t.agent("a"), t.agent("b")
    total = (4 if t.fake else 128) * MIB
    for near, far in (("cuda_ipc", "cuda_ipc"), ("cuda_vmm", "cuda_vmm"), ("cuda_ipc", "memfd"), ("memfd", "cuda_vmm")):
        label = f"tcp: {near} and {far}"
        if not t.wanted(label):
            continue
        with t.case(label):
            pair(t, (a, b), ((near, 0), (far, 0)), "tcp", MIB if t.fake else 64 * MIB, 0)
        with t.case(f"{label}, pages"):
            here, there = Side(t.engine(a), near, total), Side(t.engine(b), far, total)
            remote, _ = here.reach(there)
            for size in (16 * KIB, 4 * KIB):
                move_both(t, here, there, remote, scattered(size, total), transport="tcp")
        t.close_engines()
    for agent in (a, b):
        t.drop(agent)


def dmabuf(t):
    """Without RDMA devices a dmabuf region is refused with that reason."""
    label = "dmabuf: refused with the reason"
    if not t.wanted(label):
        return
    agent = t.agent()
    with t.case(label):
        engine = t.engine(agent)
        try:
            memory = engine.alloc("dmabuf", MIB)
        except EngineError as e:
            raise Skip(f"the driver exports none: {e}") from None
        try:
            engine.region((memory, 0, MIB))
        except EngineError as e:
            t.say(str(e))
            assert e.code == "unsupported", f"{e.code} instead of unsupported"
        else:
            raise AssertionError("it was taken")
    t.close_engines()
    t.drop(agent)


PARTS = (pairs, pages, ways, extents, described, tcp, dmabuf)
