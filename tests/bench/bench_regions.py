#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The time of REGION_ADD and REGION_REMOVE, each from a client without a library: median and 95 % of N pairs, 4 KiB memfds.

DRAY_BUILD=build/gcc PYTHONPATH=client/python tests/bench/bench_regions.py [N]
"""

import pathlib
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/integration"), str(ROOT / "tests"), str(ROOT / "client/python")]

import dray  # noqa: E402
from harness import Lab, Raw  # noqa: E402
from wire import codec as s  # noqa: E402


def pair(raw, fd):
    began = time.perf_counter()
    region = raw.ask(s.pack_region_add, [fd], access=s.ACCESS_READ, extents=[(s.KIND_MEMFD, 0, 0, 0, 4096)]).region
    added = time.perf_counter()
    raw.ask(s.pack_region_remove, region=region)
    return added - began, time.perf_counter() - added


def main():
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    lab = Lab(alone=True)
    agent = lab.agent().start()
    with Raw(agent) as raw, dray.Memory(4096) as memory:
        times = [pair(raw, memory.fd) for _ in range(n)]
    for name, column in zip(("REGION_ADD", "REGION_REMOVE"), zip(*times)):
        print(f"{name}: median {statistics.median(column) * 1e6:.1f} us, 95 % {sorted(column)[n * 95 // 100] * 1e6:.1f} us")
    agent.stop()
    lab.close()


if __name__ == "__main__":
    main()
