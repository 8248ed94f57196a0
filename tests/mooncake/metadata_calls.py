# SPDX-License-Identifier: Apache-2.0
"""A program for mooncake.engine whose engines find each other by a metadata server, whose URL is its argument or in METADATA_URL.

It runs unmodified with Mooncake and with `python -m dray.mooncake`.
"""

import ctypes
import mmap
import os
import sys

from mooncake.engine import TransferEngine

SIZE = 1 << 20
URL = (sys.argv[1:] or [os.environ["METADATA_URL"]])[0]


def show(what, *values):
    print(what, *values, flush=True)


def private(engine):
    memory = mmap.mmap(-1, SIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert engine.register_memory(address, SIZE) == 0
    return address, memory


show("no server", TransferEngine().initialize("127.0.0.1:7", "http://127.0.0.1:1/metadata", "tcp", ""))
a, b = TransferEngine(), TransferEngine()
show("initialize", a.initialize("127.0.0.1:17001", URL, "tcp", ""), b.initialize("some-engine", URL, "tcp", ""))
show("ports", 15000 <= a.get_rpc_port() <= 17000, a.get_rpc_port() != b.get_rpc_port())
(here, local), (there, remote) = private(a), private(b)
local[:] = bytes(i % 251 for i in range(4096)) * (SIZE // 4096)
show("write", a.transfer_sync_write("some-engine", here, there, SIZE), remote[:] == local[:])
local[:4096] = bytes(4096)
show("read", a.transfer_sync_read("some-engine", here, there, SIZE), remote[:] == local[:])
show("back", b.transfer_sync_write("127.0.0.1:17001", there, here, 4096), remote[:4096] == local[:4096])
show("probe", a.send_probe("some-engine"))
show("unknown", a.transfer_sync_write("nobody", here, there, 16), a.send_probe("nobody"), a.batch_transfer_async_read("nobody", [here], [there], [16]),
     a.get_first_buffer_address("some-engine") == there)
