#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DrayECConnector's sides of two engines without their models: outputs of an encoder on one device, used on another one.

    check_ec.py SOCKET_E SOCKET_PD DEVICE_E DEVICE_PD TRANSPORT [ROUNDS]

SOCKET: of the agents. DEVICE: as PyTorch names it, such as cuda:1; or cpu. Prints a line for each check; exit status 1 if one failed.
With ROUNDS it also prints how fast outputs move beside transfers of as many bytes between the same pools, in turn, by the agent's
clock.
"""

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


def worker_of(engine, device):
    return WorkerSide(torch.bfloat16, device.partition(":")[0], True), (f"/proc/self/fd/{engine.memory.fd}", engine.memory.size)


class Pair:
    def __init__(self, sockets, devices, transport):
        self.devices, self.transport, self.number = devices, transport, 0
        self.control = pathlib.Path(sockets[1]).with_name("control.sock")
        self.e, self.pd = Encoder(sockets[0], POOL), Consumer(sockets[1], POOL, transport)
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
        with torch.cuda.device(self.devices[0]) if self.devices[0] != "cpu" else torch.no_grad():
            params = self.encode(name, output)
        with torch.cuda.device(self.devices[1]) if self.devices[1] != "cpu" else torch.no_grad():
            there = self.use(name, rows, params)
        return there.device == torch.device(self.devices[1]) and torch.equal(there.cpu(), output.cpu())

    def load(self, rows):
        """Seconds in which an output moves."""
        if not self.moves(rows):
            say(False, f"{rows * ROW >> 10} KiB, bytes equal")
        return self.seconds(rows * ROW + HEADER)

    def transfer(self, size):
        """Seconds of a transfer of as many bytes."""
        lease = self.e.region.lease([(0, size, size, 1)], access="r", expiry=LIMIT)
        remote = self.pd.client.acquire(lease.token, timeout=LIMIT)
        to = random.randrange(POOL - size + 1) // 1024 * 1024
        self.pd.client.read(self.pd.region, remote, [(to, 0, size)]).result(LIMIT)
        remote.release()
        return self.seconds(size)


def main():
    sockets, devices, transport = sys.argv[1:3], sys.argv[3:5], sys.argv[5]
    rounds = int(sys.argv[6]) if sys.argv[6:] else 0
    pair = Pair(sockets, devices, transport)
    pair.transfer(POOL)  # an agent's first touch of a page takes longer
    for rows in ROWS:
        say(all(pair.moves(rows) for _ in range(3)), f"{devices[0]} to {devices[1]}, {transport}: {rows * ROW >> 10} KiB, bytes equal")
    for rows in ROWS[3:] if rounds else ():
        got = [(pair.load(rows), pair.transfer(rows * ROW + HEADER)) for _ in range(rounds)]
        ours, bare = (statistics.median(seconds) for seconds in zip(*got))
        ratio = statistics.median(b / a for a, b in got)
        print(f"# {rows * ROW >> 10} KiB, {transport}: {rows * ROW / ours / 1e9:.2f} GB/s, a transfer {rows * ROW / bare / 1e9:.2f} GB/s, ratio {ratio:.2f}")
    pair.close()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
