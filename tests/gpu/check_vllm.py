#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DrayConnector's worker sides of two engines without their models: blocks of PyTorch's tensors, by pull and by push.

    check_vllm.py SOCKET_P SOCKET_D DEVICE_P DEVICE_D POOL

SOCKET: of the agents. DEVICE: of the KV caches as PyTorch names it, such as cuda:1; or cpu. POOL: "pool" for memory of the wheel's
allocator, "none" for that of PyTorch. Prints a line for each check; exit status 1 if one failed.
"""

import contextlib
import hashlib
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / p) for p in ("tests/integration", "tests", "client/python")]

import torch  # noqa: E402
from harness import until  # noqa: E402
from worker_sides import WorkerEngine, load, push  # noqa: E402
from dray.vllm import layout as layouts, memory  # noqa: E402
from dray.vllm.grants import USED  # noqa: E402

LAYERS, BLOCKS, BLOCK, HEADS, CONTENT = 32, 96, 32, 8, 256  # 4 MiB a block
GROUPS = (layouts.Group("attention", BLOCK),)
OURS, THEIRS = tuple(range(1, 65)), tuple(range(90, 26, -1))  # blocks of the request at D and at P
TOKENS = len(OURS) * BLOCK
failed = 0


def say(ok, what):
    global failed
    failed += not ok
    print(f"{'ok' if ok else 'not ok'} - {what}", flush=True)


class Engine(WorkerEngine):
    """With a KV cache on a device, in one allocation."""

    def __init__(self, socket, name, device, pool):
        kind = device.partition(":")[0]
        self.device = device
        with torch.cuda.device(device) if kind == "cuda" else contextlib.nullcontext():
            self.pool = memory.make_pool(kind) if pool or kind == "cpu" else None
            with self.pool or contextlib.nullcontext():
                raw = torch.zeros(LAYERS * BLOCKS * HEADS * BLOCK * CONTENT * 2, dtype=torch.int8, device=device)
            self.caches = {f"layers.{i}": one for i, one in enumerate(
                raw.view(torch.bfloat16).view(LAYERS, BLOCKS, HEADS, BLOCK, CONTENT))}
            shared = memory.share(self.caches, self.pool)
            rank = layouts.describe([layouts.Tensor(layer, 0, shared.offsets[layer], tuple(t.shape), tuple(t.stride()), 2, HEADS, 0, HEADS)
                                     for layer, t in self.caches.items()], GROUPS, rank=0, blocks=BLOCKS, length=shared.length)
            super().__init__(socket, name, shared.add, rank, GROUPS, memory.marker(kind))

    def step(self, **what):
        with torch.cuda.device(self.device) if self.device != "cpu" else contextlib.nullcontext():
            super().step(**what)

    def compute(self, blocks):
        """Starts to fill blocks with noise; on a GPU behind work that takes some time."""
        if self.device != "cpu":
            factor = torch.rand(4096, 4096, device=self.device)
            for _ in range(20):
                factor = factor @ factor / 1e4
        for layer in self.caches.values():
            layer[list(blocks)] = torch.randint(0, 255, (len(blocks), HEADS, BLOCK, CONTENT), device=self.device).to(torch.bfloat16)

    def digest(self, blocks):
        found = hashlib.sha256()
        for layer in self.caches.values():
            found.update(layer[list(blocks)].cpu().view(torch.uint8).numpy().tobytes())
        return found.hexdigest()

    def clear(self):
        for layer in self.caches.values():
            layer.zero_()

    def others(self):
        """True if the blocks of no request were touched."""
        rest = [block for block in range(BLOCKS) if block not in OURS]
        return not any(bool(layer[rest].any()) for layer in self.caches.values())


def synchronize():
    if torch.cuda.is_available():
        for device in range(torch.cuda.device_count()):
            torch.cuda.synchronize(device)


def pull(p, d, transport):
    p.compute(THEIRS)
    synchronize()
    grant = p.lend(THEIRS, "r")
    hold = d.acquire(grant, transport)
    d.step(loads=[load(p, hold, OURS, THEIRS)])
    until(lambda: d.poll() or d.received, "the load")
    say(d.received == ["r"] and not d.failed and d.digest(OURS) == p.digest(THEIRS) and d.others(),
        f"pull, {p.device} to {d.device}, {transport}: {TOKENS} tokens, digests equal")
    hold.release()
    p.ends(grant, USED)
    say(d.worker.idle, "nothing left")


def pushed(p, d, transport):
    d.clear()
    synchronize()
    grant = d.lend(OURS, "w")
    hold = p.acquire(grant, transport)
    half = len(OURS) // 2
    waited = 0
    for number in (0, 1):
        p.compute(THEIRS[number * half:(number + 1) * half])  # not computed when the step hands it over
        p.step(pushes=[push(p, d, hold, OURS, THEIRS, number, number * half * BLOCK, (number + 1) * half * BLOCK, number == 1)])
        waited += not p.worker._pushes._targets[1].chunks[-1].started if 1 in p.worker._pushes._targets else 0
    until(lambda: p.poll() or d.poll() or len(d.arrived) == 2 and p.pushed == 2, "the chunks")
    synchronize()
    say(not p.errors and d.digest(OURS) == p.digest(THEIRS) and d.others() and sum(one.last for one in d.arrived) == 1,
        f"push, {p.device} to {d.device}, {transport}: {TOKENS} tokens in 2 chunks, {waited} of which had to be computed, digests equal")
    hold.release()
    d.ends(grant, USED)
    say(p.worker.idle, "nothing left")


def main():
    socket_p, socket_d, device_p, device_d, pool = sys.argv[1:]
    p, d = Engine(socket_p, "p", device_p, pool == "pool"), Engine(socket_d, "d", device_d, pool == "pool")
    transport = "local" if socket_p == socket_d else "tcp"
    for check in (pull, pushed):
        check(p, d, transport)
    p.close()
    d.close()
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
