#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One engine of the demo: the part of an inference server that holds a KV cache, with nothing but the Python client.

It carries out commands, lines of JSON on standard input, and answers each with a line. Data that one engine needs from the other
(a token, the numbers of blocks) passes through the program that sends the commands, as it would travel in request metadata.
"""

import hashlib
import json
import os
import pathlib
import sys
import time
from array import array

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "client/python"))

import dray  # noqa: E402

# Llama 3.1 8B in bf16. A block holds K and V of 16 tokens in one layer.
LAYERS, KV_HEADS, HEAD_SIZE, TOKENS, BF16 = 32, 8, 128, 16, 2
BLOCK = 2 * KV_HEADS * HEAD_SIZE * TOKENS * BF16
BLOCKS = 512  # of each layer
LAYER = BLOCKS * BLOCK


def offset(layer, block):
    """Offset of a block in the region, whose extents are the layers, in order."""
    return layer * LAYER + block * BLOCK


def operations(here, there):
    """Operations between the blocks `here` and `there` of every layer, packed in the protocol's form."""
    return array("Q", [word for layer in range(LAYERS) for a, b in zip(here, there)
                       for word in (offset(layer, a), offset(layer, b), BLOCK)]).tobytes()


class Engine:
    def __init__(self, socket, name):
        self.client = dray.Client(socket, group=name, name=name, notifications=True, timeout=30)
        self.layers = [dray.Memory(LAYER, name=f"kv-layer-{n}") for n in range(LAYERS)]
        self.region = self.client.region([(memory, 0, LAYER) for memory in self.layers], name="kv")
        self.remotes = {}

    def memory(self):
        return {"pid": os.getpid(), "fds": [memory.fd for memory in self.layers]}

    def fill(self):
        """Stands for the forward pass: gives every block different bytes."""
        with open("/dev/urandom", "rb", buffering=0) as source:
            for memory in self.layers:
                at = 0
                while at < LAYER:
                    at += source.readinto(memory.view[at:])

    def export(self, access):
        return str(self.region.export(access=access, ttl=60))

    def digest(self, blocks):
        """Digest of these blocks of every layer in this engine's own memory."""
        total = hashlib.blake2b(digest_size=16)
        for memory in self.layers:
            for block in blocks:
                total.update(memory.view[block * BLOCK:(block + 1) * BLOCK])
        return total.hexdigest()

    def remote(self, token):
        if token not in self.remotes:
            self.remotes[token] = self.client.import_token(token)
        return self.remotes[token]

    def _told(self, transfer, begun):
        done = transfer.result(60)
        return {"seconds": time.monotonic() - begun, "bytes": done.bytes,
                "path": dray.TRANSPORT_NAMES.get(done.transport, str(done.transport))}

    def pull(self, token, here, there):
        """Reads the other engine's blocks `there` into the blocks `here` of this engine."""
        remote, ops = self.remote(token), operations(here, there)
        begun = time.monotonic()
        return self._told(self.client.read(self.region, remote, ops), begun)

    def push(self, token, here, there, tag, text):
        """Writes the blocks `here` of this engine to the other engine's blocks `there`, and notifies it when all bytes are in place."""
        remote, ops = self.remote(token), operations(here, there)
        begun = time.monotonic()
        return self._told(self.client.write(self.region, remote, ops, notify=(tag, text.encode())), begun)

    def notified(self):
        """Waits for the notification of a push."""
        event = self.client.next_notification(30)
        return event and {"tag": event.tag, "text": bytes(event.payload).decode()}

    def close(self):
        self.client.close()


def main():
    engine = Engine(*sys.argv[1:])
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        verb, args = json.loads(line)
        print(json.dumps(getattr(engine, verb)(*args)), flush=True)


if __name__ == "__main__":
    main()
