#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What DrayEncoderCacheManager saves on traces: ec_sim.py [--tuning] [--requests N] [--sizes]. Writes build/bench/ec-sim.md.

The real manager and host tier decide about requests of ec_traces.py, of which some are in flight at a time. Workers are played: they
save what they are told to. Loading an output from the host tier is counted with 20 GB/s and 50 us, at 8 KiB for each embedding.
"""

import argparse
import collections
import os
import pathlib
import sys
from types import SimpleNamespace

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "client/python"), str(ROOT / "tests/bench")]

import ec_traces  # noqa: E402
from dray.vllm.ec.cache_stats import Stats  # noqa: E402
from dray.vllm.ec.host import HostTier  # noqa: E402
from dray.vllm.ec.manager import DrayEncoderCacheManager  # noqa: E402
from dray.vllm.ec.manager_options import Options  # noqa: E402

ROW, LARGEST, IN_FLIGHT = 8192, 4096, 4
HEAD = """\
Time of the encoder that each configuration saves, as a share of what a cache without limit would save, mean of the seeds. The device
has {device} embeddings, the host tier {host}; an output has 64 to {largest}. LRU: what vLLM's own manager does. score: the policy of
vLLM's pull request 38330, with its threshold and watermark, over a host tier by LRU.
"""
# Name, options, host tier or not. None: the defaults.
CONFIGURATIONS = (
    ("LRU", {"policy": "lru"}, False),
    ("score", {"policy": "score"}, False),
    ("value", None, False),
    ("two tiers: LRU", {"policy": "lru", "host_policy": "lru", "promote_percentile": 0.0}, True),
    ("two tiers: score", {"policy": "score", "host_policy": "lru", "watermark": 0.2, "promote_percentile": 0.2}, True),
    ("two tiers: value", None, True),
)


class Request:
    """With one item. It is its own feature."""

    def __init__(self, number, identifier, rows):
        self.request_id, self.identifier, self.rows, self.mm_features = str(number), identifier, rows, [self]

    def get_num_encoder_embeds(self, index):
        return self.rows


class Costs:
    """What the trace says an output costs."""

    def __init__(self):
        self.by_rows = {}

    def seconds(self, rows):
        return self.by_rows[rows]


class Engine:
    """options, host: of a configuration. loading: seconds that outputs were loaded from the host tier."""

    def __init__(self, device, host, options):
        options, costs = Options.parse(options or {}), Costs()
        self.stats, self.costs, self.step, self.loading, self.encoded = Stats(), costs, 0, 0.0, 0.0
        self.host = HostTier(host * ROW, ROW, options.make(options.host_policy), costs, lambda item: True, self.stats) if host else None
        self.manager = DrayEncoderCacheManager(device, options, costs, self.host, self.stats)
        self.running = collections.deque()

    def request(self, number, identifier, rows, cost):
        self.costs.by_rows[rows] = cost
        one = Request(number, identifier, rows)
        if len(self.running) == IN_FLIGHT:
            self.manager.free(self.running.popleft())
        if not self.manager.check_and_update_cache(one, 0):
            while not self.manager.can_allocate(one, 0, LARGEST, 0):
                self.manager.free(self.running.popleft())
            found = self.host is not None and self.host.find(identifier, rows) is not None
            if found:
                assert self.host.promise(identifier)
                self.loading += 5e-5 + rows * ROW / 20e9
            else:
                self.encoded += cost
            self.manager.allocate(one, 0)
            if found:
                self.host.load(identifier)
            elif self.host is not None:
                self.host.save(identifier, rows, ROW // 2, 2)
        self.running.append(one)
        self.manager.get_freed_mm_hashes()
        if self.host is not None:
            self.host.take_step(self.step)
            self.host.done(self.step)
        self.step += 1


def run(trace, device, host, options):
    """(seconds saved, seconds of loads, counts)."""
    engine, total = Engine(device, host, options), 0.0
    for number, (identifier, rows, cost) in enumerate(trace):
        total += cost
        engine.request(number, identifier, rows, cost)
    return total - engine.encoded, engine.loading, engine.stats.take()


def most(trace):
    """Seconds that a cache without limit saves."""
    seen = set()
    return sum(cost for identifier, _, cost in trace if identifier in seen or seen.add(identifier))


def table(seeds, requests, device, host, configurations=CONFIGURATIONS):
    yield HEAD.format(device=f"{device:,}", host=f"{host:,}", largest=f"{LARGEST:,}")
    names = [name for name, *_ in configurations]
    yield "| trace | " + " | ".join(names) + " | least value / LRU | least of two tiers: value / score |"
    yield "| --- |" + " ---: |" * (len(names) + 2)
    for name in ec_traces.RECIPES:
        shares, loading = collections.defaultdict(list), collections.defaultdict(list)
        for seed in seeds:
            trace = ec_traces.trace(name, seed, requests, LARGEST)
            limit = most(trace)
            for what, options, two in configurations:
                saved, loads, _ = run(trace, device, host if two else 0, options)
                shares[what].append(saved / limit)
                loading[what].append(loads / limit)
        cells = [f"{sum(shares[what]) / len(seeds):.3f}" + (f" (loads {sum(loading[what]) / len(seeds):.4f})" if two else "")
                 for what, _, two in configurations]
        ratios = [min(a / b for a, b in zip(shares[ours], shares[other]) if b) if ours in shares and other in shares else float("nan")
                  for ours, other in (("value", "LRU"), ("two tiers: value", "two tiers: score"))]
        yield f"| {name} | " + " | ".join(cells) + " | " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tuning", action="store_true")
    parser.add_argument("--requests", type=int, default=20000)
    parser.add_argument("--device", type=int, default=16384)
    parser.add_argument("--host", type=int, default=131072)
    args = parser.parse_args()
    lines = []
    for line in table(ec_traces.TUNING if args.tuning else ec_traces.CHECKING, args.requests, args.device, args.host):
        print(line, flush=True)
        lines.append(line)
    out = pathlib.Path(os.environ.get("DRAY_BENCH_OUT", ROOT / "build/bench"))
    out.mkdir(parents=True, exist_ok=True)
    (out / "ec-sim.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
