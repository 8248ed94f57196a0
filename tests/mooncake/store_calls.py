# SPDX-License-Identifier: Apache-2.0
"""A program for mooncake.store: one client. It prints what the calls return and what the memory holds.

It runs unmodified with Mooncake, whose master it expects at $MOONCAKE_MASTER, and with `python -m dray.mooncake`.
"""

import ctypes
import mmap
import os

from mooncake.store import MooncakeDistributedStore, ObjectDataType, ReplicateConfig

SIZE = 16 << 20


def show(what, *values):
    print(what, *values, flush=True)


store = MooncakeDistributedStore()
show("health", store.health_check())
show("setup", store.setup("127.0.0.1", "P2PHANDSHAKE", 64 << 20, 32 << 20, "tcp", "", os.environ.get("MOONCAKE_MASTER", "")))
show("health", store.health_check())
config = ReplicateConfig()
config.replica_num, config.data_type, config.preferred_segment = 1, ObjectDataType.KVCACHE, ""

show("put", store.put("k", b"hello"), store.put("k", b"other"), store.get("k"))
show("kinds", store.put("k1", bytearray(b"abc"), config), store.put(key="k2", value=memoryview(b"def"), config=config), store.get("k1"), store.get("k2"))
show("empty", store.put("e", b""), store.put("", b"x"), store.is_exist("e"), store.is_exist(""), store.get("e"))
try:
    show("accepted", store.put("s", "text"))
except TypeError:
    show("TypeError")
show("long key", store.put("x" * 1000, b"long"), store.is_exist("x" * 1000), store.is_exist("x" * 999), store.get("x" * 1000))
show("absent", store.get("none"), store.get_size("none"), store.is_exist("none"), store.get_buffer("none"), store.remove("none"))
show("exists", store.get_size("k"), store.batch_is_exist(["k", "none", "k1"]), store.batch_is_exist([]))
show("batch", store.put_batch(["b1", "b2", "k"], [b"1", b"22", b"333"]), store.get_batch(["b1", "none", "b2", "k"]))
show("lengths", store.put_batch(["b1", "b2"], [b"1"]), store.put_batch([], []))
show("parts", store.put_parts("p", b"ab", b"", b"cd"), store.get("p"), store.put_parts("p0"), store.is_exist("p0"))
handle = store.get_buffer("k")
show("handle", handle.size(), bytes(memoryview(handle)), ctypes.string_at(handle.ptr(), handle.size()))
show("handles", [h and h.size() for h in store.batch_get_buffer(["k", "none"])])

memory = mmap.mmap(-1, SIZE)
at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
show("register", store.register_buffer(at, SIZE), store.register_buffer(at, SIZE), store.register_buffer(at, 0))
memory[:4096] = bytes(i % 251 for i in range(4096))
show("put_from", store.put_from("f", at, 1000), store.put_from("f", at + 1, 500), store.get_size("f"), store.put_from("f0", at, 0))
show("get_into", store.get_into("f", at + 5000, 1000), memory[5000:6000] == memory[:1000], memory[6000:6008])
show("sizes", store.get_into("f", at + 5000, 4000), store.get_into("f", at + 5000, 10), store.get_into("none", at, 10))
show("batch_put_from", store.batch_put_from(["bf1", "bf2", "f"], [at, at + 10, at], [10, 20, 5], config))
show("batch_get_into", store.batch_get_into(["bf1", "none", "bf2", "f"], [at + 5000, at + 6000, at + 7000, at + 8000], [10, 10, 30, 5]),
     memory[5000:5010] == memory[:10], memory[7000:7020] == memory[10:30])
show("lengths", store.batch_put_from(["q1", "q2"], [at], [10]), store.batch_get_into(["bf1"], [at, at], [10]), store.batch_put_from([], [], []))
show("multi put", store.batch_put_from_multi_buffers(["m1", "m2"], [[at, at + 100], [at + 200]], [[10, 20], [30]], config),
     store.get("m1") == memory[:10] + memory[100:120], store.batch_put_from_multi_buffers(["m1"], [[at]], [[10]]))
show("multi get", store.batch_get_into_multi_buffers(["m1", "none", "m2"], [[at + 9000, at + 9100], [at + 9200], [at + 9300]], [[10, 20], [10], [30]]),
     memory[9000:9010] == memory[:10], memory[9100:9120] == memory[100:120], memory[9300:9330] == memory[200:230])
show("another split", store.batch_get_into_multi_buffers(["m1"], [[at + 9000, at + 9500]], [[15, 15]]),
     memory[9000:9015] + memory[9500:9515] == memory[:10] + memory[100:120])
show("multi sizes", store.batch_get_into_multi_buffers(["m1"], [[at + 9000]], [[15]]), store.batch_put_from_multi_buffers(["m7"], [[at, at]], [[10]]))
show("same key twice", store.batch_put_from(["d", "d"], [at, at + 5], [5, 5]), store.get_size("d"))
memory[:6 << 20] = bytes(range(1, 252)) * ((6 << 20) // 251) + bytes((6 << 20) % 251)
show("large", store.put_from("large", at, 6 << 20), store.get_into("large", at + (8 << 20), 6 << 20), memory[8 << 20:14 << 20] == memory[:6 << 20])
keys = [f"many-{i}" for i in range(1500)]
show("many", set(store.batch_put_from(keys, [at + 64 * i for i in range(1500)], [64] * 1500)), sum(store.batch_is_exist(keys)),
     set(store.batch_get_into(keys, [at + (8 << 20) + 64 * i for i in range(1500)], [64] * 1500)), memory[8 << 20:][:96000] == memory[:96000])
show("replicas", len(store.get_replica_desc("k")), store.get_replica_desc("none"), {k: len(v) for k, v in store.batch_get_replica_desc(["k", "none"]).items()})
show("remove", store.remove("k", True), store.get("k"), store.remove("k"), store.batch_remove(["b1", "none"], force=True))
show("upsert", store.upsert("u", b"1"), store.upsert("u", b"22"), store.get("u"), store.upsert_from("u", at, 3), store.get_size("u"))
show("batch upsert", store.batch_upsert_from(["u", "u2"], [at, at + 10], [7, 20]), store.get("u") == memory[:7], store.get("u2") == memory[10:30],
     store.batch_upsert_from(["u", "u2", "", "u3"], [at + 5, at, at, at + 9], [9, 0, 4, 3], config), store.get("u") == memory[5:14], store.get_size("u2"), store.get_size("u3"))
show("lengths", store.batch_upsert_from(["u", "u2"], [at], [7]), store.batch_upsert_from(["u"], [at], [7, 8]), store.batch_upsert_from([], [], []))
show("upsert parts", store.upsert_parts("up", b"ab", b"", b"cd"), store.get("up"), store.upsert_parts("up", bytearray(b"12"), memoryview(b"34"), config=config), store.get("up"))
show("no parts", store.upsert_parts("up"), store.upsert_parts("up", b""), store.get("up"), store.upsert_parts("", b"x"), store.upsert_parts("", b""),
     store.put_parts("p0", b"", b""), store.is_exist("p0"), store.put_parts("", b"x"), store.put_parts("", b""))
try:
    show("accepted", store.upsert_parts("up", "text"))
except TypeError:
    show("TypeError", store.get("up"))
show("with metadata", store.put_from_with_metadata("w", at + 100, at, 20, 10), store.get("w") == memory[:10] + memory[100:120],
     store.put_from_with_metadata(key="w", buffer_ptr=at, metadata_buffer_ptr=at, size=5, metadata_size=5, config=config), store.get_size("w"))
show("without", store.put_from_with_metadata("w1", at + 100, 0, 20, 0), store.get("w1") == memory[100:120], store.put_from_with_metadata("w2", at, at, 0, 10), store.is_exist("w2"),
     store.put_from_with_metadata("", at, at, 0, 0))
show("cleared", store.put_batch(["c1", "c2", "c3", "c4"], [b"1"] * 4), store.batch_replica_clear(["c1", "none", "c2", "", "c1"]), store.batch_replica_clear([]),
     store.batch_replica_clear(["c3"], "10.0.0.1:1"), store.batch_replica_clear(keys=["c3"], segment_name=store.get_hostname()), store.batch_is_exist(["c1", "c2", "c3", "c4"]))
show("pool", store.alloc_from_mem_pool(4096), store.alloc_from_mem_pool(0))
show("init_all", store.init_all("tcp", "", 1 << 20), store.health_check(), store.get("c4"))
show("status", [str(replica.status) for replica in store.get_replica_desc("c4")])
show("unregister", store.unregister_buffer(at), store.unregister_buffer(at))
show("close", store.close(), store.close(), store.get("u"), store.health_check())
show("closed", store.batch_upsert_from(["k"], [at], [4]) != [0], store.upsert_parts("k", b"x") != 0, store.put_from_with_metadata("k", at, at, 4, 4) != 0, store.batch_replica_clear(["k"]))
