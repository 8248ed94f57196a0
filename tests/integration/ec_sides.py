# SPDX-License-Identifier: Apache-2.0
"""Scheduler sides of DrayECConnector over real agents, without vLLM: an engine that encodes, and one that uses its outputs."""

import hashlib
import time
from types import SimpleNamespace

import dray
from dray.vllm.ec.consumer import ConsumerSide
from dray.vllm.ec.header import HEADER, seal
from dray.vllm.ec.pool import Pool
from dray.vllm.ec.pool_memory import HostPool
from dray.vllm.ec.producer import ProducerSide
from dray.vllm.ec.protocol import StepMetadata
from dray.vllm.options import Options
from dray.vllm.rest import Rest
from harness import LIMIT, until

WIDTH, ITEMSIZE = 512, 2
ROW = WIDTH * ITEMSIZE
MODEL = {"dtype": "bfloat16"}
NO_STEP = SimpleNamespace(total_num_scheduled_tokens=0, num_scheduled_tokens={})


def request(name, outputs, params=None):
    """What the sides use of a request of vLLM. outputs: identifiers, and embeddings of each."""
    features, at = [], 0
    for identifier, rows in outputs.items():
        features.append(SimpleNamespace(identifier=identifier, modality="image", mm_position=SimpleNamespace(offset=at, length=rows)))
        at += rows
    rows = list(outputs.values())
    return SimpleNamespace(request_id=name, mm_features=features, cache_salt=None, ec_transfer_params=params, get_num_encoder_embeds=rows.__getitem__,
                           status=SimpleNamespace(name="FINISHED_STOPPED"))


class _Engine:
    """pool: its memory; None: host memory of `size` bytes."""

    def __init__(self, socket, name, size, options, pool):
        self.client, self.memory = dray.Client(socket, name=name, timeout=LIMIT), pool or HostPool(dray.Memory(size, name="dray-ec"))
        self.region, self.pool = self.memory.region(self.client), Pool(size, before=self.memory.before)
        self.parts = Options.parse(options), self.client, self.region, self.memory, self.pool

    def close(self):
        self.client.close()
        self.memory.close()


class Encoder(_Engine):
    def __init__(self, socket, size, pool=None):
        super().__init__(socket, "e", size, {"lease": LIMIT}, pool)
        self.side = ProducerSide(*self.parts, "e", MODEL, Rest(False), width=lambda modality: WIDTH, itemsize=ITEMSIZE, secret=None)

    def encode(self, name, outputs, fill):
        """ec_transfer_params of a request. fill(n): the bytes that its encoder computes."""
        asked = request(name, outputs)
        until(lambda: self.side.available(asked, 0) or self.step(), "a place at E")
        metadata = self.step({name: sum(outputs.values())})
        for places in metadata.saves.values():
            for place in places:
                start = place.offset + HEADER
                view = self.memory.memory.view
                view[start:start + place.size] = fill(place.size)
                seal(view, place.offset, place.nonce, place.digest, place.size)
        return self.side.finished(asked)

    def step(self, scheduled=None):
        metadata = StepMetadata(0, ("", 0))
        self.side.build(SimpleNamespace(total_num_scheduled_tokens=0, num_scheduled_tokens=scheduled or {}), metadata)
        return metadata if scheduled else None

    def ends(self):
        until(lambda: self.step() or self.side.idle, "the ends of all rights")


class Consumer(_Engine):
    def __init__(self, socket, size, transport, pool=None):
        super().__init__(socket, "pd", size, {"transport": transport}, pool)
        self.side = ConsumerSide(*self.parts, MODEL, Rest(True), widths=[WIDTH], itemsize=ITEMSIZE, can_encode=lambda feature: False, secret=None)
        self.side.stats._report = lambda counts: None  # a sentence of it needs vLLM
        self.steps = 0

    def load(self, name, outputs, params):
        """Loads the outputs of a request: digests of their bytes, and seconds from the start of the load to its end."""
        asked, seconds, counted = request(name, outputs, params), [], self.side.stats.loaded
        self.side.stats.loaded = lambda *counts: (seconds.append(counts[-1]), counted(*counts))
        ends = time.monotonic() + LIMIT
        while not self.side.available(asked, 0):  # as an engine that has nothing else to do
            self.step()
            time.sleep(0.001)
            assert not self.side.take_unavailable() and time.monotonic() < ends, "the outputs at PD"
        assert all(map(self.side.has, outputs)), "an output was not loaded"
        items = self.side._wants[name].items
        digests = [self.digest(items[identifier]) for identifier in outputs]
        self.side.finished(asked)
        self.side.stats.loaded = counted
        return digests, sum(seconds)

    def digest(self, item):
        start = item.offset + HEADER
        return hashlib.sha256(self.memory.memory.view[start:start + item.shape.size]).hexdigest()

    def step(self):
        self.side.build(NO_STEP, StepMetadata(self.steps, ("", 0)))
        self.steps += 1

    def ends(self):
        until(lambda: self.step() or self.side.idle, "nothing left at PD")
