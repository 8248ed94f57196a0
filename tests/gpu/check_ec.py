#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DrayECConnector's sides of two engines without their models: outputs of an encoder on one device, used on another one.

    check_ec.py SOCKET_E SOCKET_PD DEVICE_E DEVICE_PD TRANSPORT POOL_E POOL_PD [ROUNDS]

SOCKET: of the agents. DEVICE: as PyTorch names it, such as cuda:1; or cpu. POOL: "cuda" for one in the memory of that GPU, or "cpu". Prints a line for each check; exit status 1 if one failed.
With ROUNDS it also prints how fast outputs move beside transfers of as many bytes between the same pools, in turn, by the agent's
clock.
"""

import contextlib
import json
import pathlib
import random
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / p) for p in ("tests/integration", "tests", "client/python")]

import torch  # noqa: E402
from ec_sides import LIMIT, MODEL, ROW, WIDTH, Consumer, Encoder, request  # noqa: E402
from harness import DRAYCTL, until  # noqa: E402
from dray.vllm.ec.budget import Budget  # noqa: E402
from dray.vllm.ec.gpu_pool import GpuPool, TorchBytes  # noqa: E402
from dray.vllm.ec.header import HEADER  # noqa: E402
from dray.vllm.ec.protocol import Place, StepMetadata  # noqa: E402
from dray.vllm.ec.worker import WorkerSide  # noqa: E402

ROWS = (1, 7, 256, 4096, 16384, 65536)  # embeddings of an output: 1 KiB to 64 MiB
POOL = 256 << 20
failed = 0


def say(ok, what):
    global failed
    failed += not ok
    print(f"{'ok' if ok else 'not ok'} - {what}", flush=True)


def on(device):
    """The GPU is the current one inside."""
    return torch.cuda.device(device) if device != "cpu" else contextlib.nullcontext()


def pool_of(name, device, pool):
    """None: host memory."""
    if pool == "cpu":
        return None
    with on(device):
        return GpuPool(name, Budget(POOL, ROW, ROWS[-1]), TorchBytes(POOL))


def worker_of(engine, device):
    return WorkerSide(torch.bfloat16, device.partition(":")[0], True), engine.memory.name


class Pair:
    def __init__(self, sockets, devices, transport, pools):
        self.devices, self.transport, self.number = devices, transport, 0
        self.control = pathlib.Path(sockets[1]).with_name("control.sock")
        of_e, of_pd = (pool_of(*one) for one in zip(("gpu e", "gpu pd"), devices, pools))
        self.e, self.pd = Encoder(sockets[0], POOL, of_e), Consumer(sockets[1], POOL, transport, of_pd)
        self.header = HEADER if pools == ["cpu", "cpu"] else 0  # bytes that move with each output
        self.pd.side.in_place = False  # outputs are moved
        (self.saves, self.saves_pool), (self.loads, self.loads_pool) = (worker_of(engine, device) for engine, device in zip((self.e, self.pd), devices))

    def close(self):
        self.e.close()
        self.pd.close()

    def encode(self, name, output):
        """E's request: its output is computed on E's device. ec_transfer_params."""
        asked = request(name, {name: output.shape[0]})
        until(lambda: self.e.side.available(asked, 0) or self.e.step(), "a place at E")
        metadata = self.e.step({name: output.shape[0]})
        self.saves.step(StepMetadata(metadata.number, self.saves_pool, metadata.saves))
        self.saves.save({name: output}, name)
        self.saves.end()
        return self.e.side.finished(asked)

    def seconds(self, size):
        """Of the last transfer."""
        done = subprocess.run([DRAYCTL, "--control", self.control, "transfers", "--recent", "--json"], stdout=subprocess.PIPE, check=True)
        last = json.loads(done.stdout)["ended_transfers"][-1]
        assert last["bytes"] == size and last["status"] == "ok", last
        return last["duration_ns"] / 1e9

    def use(self, name, rows, params):
        """PD's request: its output on PD's device."""
        found = {}

        def gather(item):  # while the request holds it
            step = StepMetadata(self.number, self.loads_pool, loads={name: Place.of(item)})
            self.loads.step(step)
            self.loads.load(found)
            self.loads.end()
            return ""

        self.number += 1
        self.pd.digest = gather
        self.pd.load(name, {name: rows}, params)
        self.pd.ends()
        self.e.ends()
        return found[name]

    def moves(self, rows):
        """An output, from one device to the other: whether it is the same there."""
        name = f"output {random.getrandbits(64):x}"
        output = torch.randint(-100, 100, (rows, WIDTH), device=self.devices[0]).to(torch.bfloat16)
        with on(self.devices[0]):
            params = self.encode(name, output)
        with on(self.devices[1]):
            there = self.use(name, rows, params)
        return there.device == torch.device(self.devices[1]) and torch.equal(there.cpu(), output.cpu())

    def load(self, rows):
        """Seconds in which an output moves."""
        if not self.moves(rows):
            say(False, f"{rows * ROW >> 10} KiB, bytes equal")
        return self.seconds(rows * ROW + self.header)

    def wrong(self):
        """A bit of an output changes in E's pool, on its GPU: whether PD refuses it."""
        name, rows = "wrong", 4096
        with on(self.devices[0]):
            params = self.encode(name, torch.ones(rows, WIDTH, device=self.devices[0], dtype=torch.bfloat16))
            (offset, *_), = json.loads(params["dray"]["offers"][0].splitlines()[1])["items"].values()
            self.e.memory._data._tensor[offset + rows * ROW - 3] ^= 4
            torch.cuda.synchronize()
        with on(self.devices[1]):
            asked, counted = request(name, {name: rows}, params), []
            self.pd.side.stats.failed = counted.append
            until(lambda: self.pd.side.available(asked, 0) or self.pd.step() or self.pd.side.take_unavailable(), "the refusal")
            self.pd.side.finished(asked)
        self.pd.ends()
        self.e.ends()
        return counted == ["io"]

    def transfer(self, size):
        """Seconds of a transfer of as many bytes."""
        lease = self.e.region.lease([(0, size, size, 1)], access="r", expiry=LIMIT)
        remote = self.pd.client.acquire(lease.token, timeout=LIMIT)
        to = random.randrange(POOL - size + 1) // 1024 * 1024
        self.pd.client.read(self.pd.region, remote, [(to, 0, size)]).result(LIMIT)
        remote.release()
        return self.seconds(size)


def main():
    sockets, devices, transport, pools = sys.argv[1:3], sys.argv[3:5], sys.argv[5], sys.argv[6:8]
    rounds = int(sys.argv[8]) if sys.argv[8:] else 0
    pair = Pair(sockets, devices, transport, pools)
    pair.transfer(POOL)  # an agent's first touch of a page takes longer
    for rows in ROWS:
        say(all(pair.moves(rows) for _ in range(3)),
            f"{devices[0]} to {devices[1]}, pools on {' and '.join(pools)}, {transport}: {rows * ROW >> 10} KiB, bytes equal")
    if "cuda" in pools[:1]:
        say(pair.wrong(), "a wrong bit in E's pool is found")
    for rows in ROWS[3:] if rounds else ():
        got = [(pair.load(rows), pair.transfer(rows * ROW + pair.header)) for _ in range(rounds)]
        ours, bare = (statistics.median(seconds) for seconds in zip(*got))
        ratio = statistics.median(b / a for a, b in got)
        say(ratio >= 0.9, f"{rows * ROW >> 10} KiB, {transport}: at least 0.9 of a transfer's rate")
        print(f"# {rows * ROW >> 10} KiB, pools on {' and '.join(pools)}, {transport}: {rows * ROW / ours / 1e9:.2f} GB/s, a transfer {rows * ROW / bare / 1e9:.2f} GB/s, ratio {ratio:.2f}")
    pair.close()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
