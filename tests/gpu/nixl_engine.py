# SPDX-License-Identifier: Apache-2.0
"""One side of a transfer by NIXL over UCX between two GPUs: nixl_engine.py GPU BYTES. Driven by lines of JSON; each has an answer:

  {"do": "describe"}              {"metadata": of this agent, "base": address, "gpu": index}
  {"do": "reach", "other": answer of describe, "pieces": [[offset here, offset there], ...], "size": bytes}
                                  {}: reads these pieces once, and compares them
  {"do": "run", "n": transfers}   {"seconds": ..., "bytes": ...}; 0: until the next line, which gets no answer of its own
"""

import base64
import json
import os
import select
import sys
import time

import numpy
import torch
from nixl_cu13._api import nixl_agent, nixl_agent_config


class Side:
    def __init__(self, gpu, size):
        self.gpu, self.transfer, self.lines = gpu, None, b""
        torch.cuda.set_device(gpu)
        # the content tells the place
        self.memory = torch.arange(size // 8, dtype=torch.int64, device=f"cuda:{gpu}")
        self.agent = nixl_agent(f"side-{os.getpid()}", nixl_agent_config(backends=["UCX"]))
        self.agent.register_memory([self.memory])
        torch.cuda.synchronize()

    def describe(self):
        return {"metadata": base64.b64encode(self.agent.get_agent_metadata()).decode(), "base": self.memory.data_ptr(), "gpu": self.gpu}

    def pieces(self, name, base, gpu, offsets, size):
        rows = numpy.array([(base + offset, size, gpu) for offset in offsets], dtype=numpy.uint64)
        return self.agent.prep_xfer_dlist(name, rows, "VRAM")

    def reach(self, other, pieces, size):
        name = self.agent.add_remote_agent(base64.b64decode(other["metadata"]))
        here, there = ([piece[i] for piece in pieces] for i in (0, 1))
        order = numpy.arange(len(pieces), dtype=numpy.int32)
        self.transfer = self.agent.make_prepped_xfer(
            "READ", self.pieces("NIXL_INIT_AGENT", self.memory.data_ptr(), self.gpu, here, size), order,
            self.pieces(name, other["base"], other["gpu"], there, size), order)
        self.bytes = len(pieces) * size
        self.memory.zero_()
        torch.cuda.synchronize()
        self.move()
        torch.cuda.synchronize()
        first = torch.tensor(there, device=self.memory.device)[:, None] // 8
        got = self.memory.view(-1, size // 8)[torch.tensor(here, device=self.memory.device) // size]
        if not torch.equal(got, first + torch.arange(size // 8, device=self.memory.device)):
            raise RuntimeError("the bytes differ")
        return {}

    def move(self):
        state = self.agent.transfer(self.transfer)
        while state != "DONE":
            if state == "ERR":
                raise RuntimeError("the transfer failed")
            state = self.agent.check_xfer_state(self.transfer)

    def run(self, n):
        began, moved = time.monotonic(), 0
        while moved < n or not n and not self.told():
            self.move()
            moved += 1
        return {"seconds": time.monotonic() - began, "bytes": moved * self.bytes}

    def told(self):
        return bool(select.select([0], [], [], 0)[0])

    def line(self):
        while b"\n" not in self.lines:
            more = os.read(0, 1 << 20)
            if not more:
                return None
            self.lines += more
        line, self.lines = self.lines.split(b"\n", 1)
        return json.loads(line)


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # NIXL prints what it does
    side = Side(int(sys.argv[1]), int(sys.argv[2]))
    while (asked := side.line()) is not None:
        do = asked.pop("do")
        answer = getattr(side, do)(**asked)
        if do == "run" and not asked["n"]:
            side.line()
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
