# SPDX-License-Identifier: Apache-2.0
"""How sessions share an agent. All transfers wait for the same word, so that they start together even if the client is slow.
The tests check the order in which they end."""

import os

import pytest

from harness import LIMIT, MIB, WORKERS, Side, counters, until

GO = 1
SEVERAL = WORKERS > 1 and len(os.sched_getaffinity(0)) > 1


def order_of_ends(clients, transfers):
    """Lists of indices of transfers that ended, in the order in which the client sees the ends."""
    order = [[]]
    for i, transfer in enumerate(transfers):
        transfer.add_done_callback(lambda _, i=i: order[-1].append(i))

    def look():
        for client in clients:
            client.process()
        if order[-1]:
            order.append([])
        return sum(map(len, order)) == len(transfers)

    until(look, "the end of all transfers")
    for transfer in transfers:
        transfer.result(0)
    return order


def release(side):
    side.view[:4] = GO.to_bytes(4, "little")


def overtakes(bulk_side, latency_side, there):
    """Queues 1 GiB of bulk in one session and then batches of the latency class; these must end first."""
    size = 64 * MIB
    to, also_to = bulk_side.reach(there), latency_side.reach(there)
    # the first transfer of each class opens its streams
    for klass in "bulk", "latency":
        latency_side.client.write(latency_side.region, also_to, [(4096, 4096, 4096)], klass=klass).result(LIMIT)
    batch = [(8192 * (1 + i), 8192 * (1 + i), 4096) for i in range(16)]
    bulk = [bulk_side.client.write(bulk_side.region, to, [(4096, 4096, size - 4096)], wait_word=(bulk_side.region, 0, GO))
            for _ in range(16)]
    latency = [latency_side.client.write(latency_side.region, also_to, batch, klass="latency",
                                         wait_word=(latency_side.region, 0, GO)) for _ in range(16)]
    # when a later request of each session is answered, all transfers have been accepted
    for side in (bulk_side, latency_side):
        side.client.write(side.region, to if side is bulk_side else also_to, [(4096, 4096, 8)], klass="latency").result(LIMIT)
    release(bulk_side)
    if latency_side is not bulk_side:
        release(latency_side)
    order = order_of_ends({bulk_side.client, latency_side.client}, bulk + latency)
    last = max(n for n, ended in enumerate(order) if any(i >= len(bulk) for i in ended))
    passed = sum(i < len(bulk) for ended in order[:last] for i in ended)
    assert passed <= len(bulk) // 4, f"{passed} of {len(bulk)} bulk transfers ended before the last of the latency class"


def test_latency_overtakes_in_its_own_session(sides):
    here, there = sides(64 * MIB)
    overtakes(here, here, there)


def test_latency_overtakes_another_session(sides):
    here, there = sides(64 * MIB)
    with Side(here.agent, 64 * MIB) as other:
        overtakes(here, other, there)


def test_sessions_of_one_shape_share(sides):
    """When the first of 64 sessions has finished, the others on its worker have almost finished, too."""
    size, count, each = 2 * MIB, 64, 12
    here, there = sides(size)
    clients, queued, ended = [], [], [0] * count
    token = there.export()

    def count_end(i):
        ended[i] += 1

    try:
        for i in range(count):
            client = here.agent.client()
            clients.append(client)
            # all sessions share the memory, and so the word
            region, remote = client.region(here.memory), client.import_token(token, timeout=LIMIT)
            client.write(region, remote, [(4096, 4096, 8)]).result(LIMIT)
            queued.append([client.write(region, remote, [(MIB, MIB, MIB)], wait_word=(region, 0, GO)) for _ in range(each)])
            for transfer in queued[-1]:
                transfer.add_done_callback(lambda _, i=i: count_end(i))
            client.write(region, remote, [(4096, 4096, 8)]).result(LIMIT)
        release(here)

        def first_to_end():
            for i, client in enumerate(clients):
                client.process()
                if ended[i] == each:
                    return i + 1

        # sessions are assigned to workers in turn; the kernel decides how fast each worker runs
        worker = (until(first_to_end, "the end of one session's work") - 1) % WORKERS
        for client in clients:
            client.process()
        mine = ended[worker::WORKERS]
        assert min(mine) >= each * 2 // 3, f"transfers ended of {each} in each session of one worker: {sorted(mine)}"
        for transfers in queued:
            for transfer in transfers:
                assert transfer.result(LIMIT).bytes == MIB
    finally:
        for client in clients:
            client.close()


@pytest.mark.skipif(not SEVERAL, reason="this agent has one worker, or one CPU")
@pytest.mark.parametrize("sides", ["tcp"], indirect=True)
def test_workers_receive_one_read(sides):
    """Also while others are stopped in the middle, after which the memory is the client's alone."""
    size = 32 * MIB
    here, there = sides(size, os.urandom(size))
    remote = here.reach(there)

    def helped():
        before = counters(here.agent)["dray_tcp_helped_slices_total"]
        here.view[:] = bytes(size)
        here.client.read(here.region, remote, [(0, 0, size)]).result(LIMIT)
        assert here.view == there.view
        return counters(here.agent)["dray_tcp_helped_slices_total"] > before

    until(helped, "a slice that the other worker has received")
    for _ in range(20):
        transfer = here.client.read(here.region, remote, [(0, 0, size)])
        transfer.cancel()
        transfer.exception(LIMIT)
        here.view[:] = bytes(size)
        # by the same streams, behind the answers that nobody wants any more
        here.client.read(here.region, remote, [(0, 0, 4096)]).result(LIMIT)
        assert not any(here.view[4096:])
    until(helped, "a slice that the other worker has received")
