# SPDX-License-Identifier: Apache-2.0
"""Load on a GPU by PyTorch: matmul.py [GPU [decode]]. Large matrix products without a pause; decode: steps of a small batch, bound
by memory, with a gap after each. First prints {"products": the number that takes about a fifth of a second}. Each line of input
is a number of products or steps; the answer is {"seconds": their duration}."""

import json
import sys
import time

import torch

SIDE = 8192
LAYERS = 32  # of a step
GAP = 0.0005  # seconds, such as an engine takes for the next batch


def products(device):
    a, b = (torch.randn(SIDE, SIDE, device=device, dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


def steps(device):
    batch = torch.randn(16, SIDE, device=device, dtype=torch.bfloat16)
    weights = [torch.randn(SIDE, SIDE, device=device, dtype=torch.bfloat16) for _ in range(LAYERS)]
    out = torch.empty_like(batch)

    def step():
        for w in weights:
            torch.mm(batch, w, out=out)
        torch.cuda.synchronize(device)
        until = time.monotonic() + GAP
        while time.monotonic() < until:
            pass
    return step


def main():
    device = torch.device(f"cuda:{sys.argv[1] if len(sys.argv) > 1 else 0}")
    torch.cuda.set_device(device)
    once = (steps if sys.argv[2:] == ["decode"] else products)(device)

    def run(n):
        torch.cuda.synchronize()
        began = time.monotonic()
        for _ in range(n):
            once()
        torch.cuda.synchronize()
        return time.monotonic() - began

    run(20)
    n = max(1, int(0.2 / (run(50) / 50)))
    print(json.dumps({"products": n, "side": SIDE}), flush=True)
    for line in sys.stdin:
        print(json.dumps({"seconds": run(int(line))}), flush=True)


if __name__ == "__main__":
    main()
