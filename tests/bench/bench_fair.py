#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Transfers of one session that share its bandwidth: when each ends, beside fair sharing of the same bytes in the same time."""

import statistics

import common as c

MB = 245 * 4096  # whole pages
ROUNDS = 11
# name; sizes in the order of submission, the long one first; rows: what is shown, and which of the transfers
FIVE = ("five at once", [269 * MB, 67 * MB, 67 * MB, 67 * MB, 8 * MB],
        {"8 MB": slice(4, 5), "67 MB": slice(1, 4), "269 MB": slice(0, 1)})
BEHIND_MANY = ("one behind 40", [12 * MB] * 40 + [2 * MB], {"2 MB": slice(40, 41), "12 MB": slice(0, 40)})
TINY = ("many tiny ones beside a large one", [269 * MB] + [64 * c.KIB] * 48, {"64 KiB": slice(1, 49), "269 MB": slice(0, 1)})
MIXES = FIVE, BEHIND_MANY, TINY


def fair(sizes, seconds):
    """When each transfer would end if all that have not ended share the same bytes per second equally."""
    return [sum(min(other, size) for other in sizes) / sum(sizes) * seconds for size in sizes]


def measure(records, agents, owner, near, far, mix, *, write=False):
    name, sizes, rows = mix
    args = ["--write"] if write else []
    with c.Tool("bench_fair", "--socket", agents[0].socket, "--owner", owner.socket, "--local", c.name_memory(near),
                "--remote", c.name_memory(far), "--transfers", ",".join(map(str, sizes)), *args, fds=[near.fd, far.fd],
                first=True) as engine:
        what = f"{engine.first['transport']}, {'write' if write else 'read'}, {name}"
        rounds = []

        def together():
            rounds.append(engine.ask("together")["seconds"])
            return max(rounds[-1])

        def whole():
            return max(engine.ask("whole")["seconds"])

        whole(), together()
        rounds.clear()
        ours, ceiling, ratio, spread = c.pairs(whole, together, ROUNDS)
    for row, some in rows.items():
        took, shares = ([max(r[some]) for r in kind] for kind in (rounds, [fair(sizes, max(r)) for r in rounds]))
        ratios = [max(t / f for t, f in zip(r[some], fair(sizes, max(r))[some])) for r in rounds]
        records.add(f"{what}: {row}, the last", statistics.median(took) * 1e3, "ms", ceiling_name="fair sharing",
                    ceiling=statistics.median(shares) * 1e3, ratio=statistics.median(ratios), target=("<=", 1.5), spread=ratios)
    records.add(f"{what}: all", ours * 1e3, "ms", ceiling_name="one transfer of as many bytes", ceiling=ceiling * 1e3, ratio=ratio,
                spread=spread)


if __name__ == "__main__":
    with c.bench("fair") as (lab, records):
        c.need_memory(2 * c.GIB)
        near, far = (c.dray.Memory(512 * MB) for _ in range(2))
        agents = c.agents(lab)
        for mix in MIXES:
            measure(records, agents, agents[1], near, far, mix)
            measure(records, agents, agents[1], near, far, mix, write=True)
            measure(records, agents, agents[0], near, far, mix)
