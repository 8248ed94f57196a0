# SPDX-License-Identifier: Apache-2.0
"""Matrix products on GPU 0 by PyTorch, as load. First prints {"products": the number that takes about a fifth of a second}.
Each line of input is a number of products; the answer is {"seconds": their duration}."""

import json
import sys
import time

import torch

SIDE = 8192


def main():
    a, b = (torch.randn(SIDE, SIDE, device="cuda:0", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)

    def run(n):
        torch.cuda.synchronize()
        began = time.monotonic()
        for _ in range(n):
            torch.mm(a, b, out=out)
        torch.cuda.synchronize()
        return time.monotonic() - began

    run(20)
    n = max(1, int(0.2 / (run(50) / 50)))
    print(json.dumps({"products": n, "side": SIDE}), flush=True)
    for line in sys.stdin:
        print(json.dumps({"seconds": run(int(line))}), flush=True)


if __name__ == "__main__":
    main()
