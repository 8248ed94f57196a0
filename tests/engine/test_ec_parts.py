# SPDX-License-Identifier: Apache-2.0
"""The parts of DrayECConnector that need no engine: places in a pool, headers, the order of those that wait, offers, sizes."""

import contextlib
import json
import os
import random
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from asked import Asked
from dray import Memory, checksum, errors
from dray._checksums import Checksums
from dray.store import Status, StoreItem, StoreResult
from dray.vllm.ec import budget
from dray.vllm.ec.allocator import GRANULE, Allocator
from dray.vllm.ec.gpu_pool import GpuPool
from dray.vllm.ec.header import HEADER, digest, seal, verify
from dray.vllm.ec.inplace import PoolFile
from dray.vllm.ec.line import Line
from dray.vllm.ec.pool import Item, Pool, Shape
from dray.vllm.ec.pool_memory import Seal
from dray.vllm.ec.protocol import VERSION, Offer, Offered, Place, PoolName, consumers, offer_params, offered_tokens, read_offers
from dray.vllm.ec.secret import Secret
from dray.vllm.ec.total import total, total_of_bytes
from dray.vllm.ecstore.batch import Batch
from dray.vllm.ecstore.keys import Keys
from dray.vllm.free_memory import free_memory
from dray.vllm.store.weights import Weights
from ec_gpu import HostBytes

SIZES = 1_000_000 if "DRAY_LONG" in os.environ else 5000


def check_places(places):
    """The free ranges and the used ones tile the memory, and no two free ranges touch."""
    ranges = sorted([(at, n, True) for at, n in places._free.items()] + [(at, n, False) for at, n in places._used.items()])
    end, free_before = 0, False
    for at, n, free in ranges:
        assert at == end and n > 0 and not (free and free_before)
        end, free_before = at + n, free
    assert end == places.size
    assert sorted((n, at) for at, n in places._free.items()) == places._by_size
    assert places.free == sum(places._free.values())


@pytest.mark.parametrize("most", [64, 1024])
def test_fragmentation_is_bounded(most):
    """Random sizes of up to a 16th of the pool: when one does not fit, most of the pool is in use."""
    chance, places, used, worst, total, times = random.Random(most), Allocator(16 * most * GRANULE), [], 1.0, 0.0, 0
    for i in range(SIZES):
        size = chance.randrange(1, most * GRANULE)
        while (offset := places.take(size)) is None:
            full = 1 - places.free / places.size
            worst, total, times = min(worst, full), total + full, times + 1
            places.give(used.pop(chance.randrange(len(used))))
        assert offset % GRANULE == 0
        used.append(offset)
        if SIZES < 10_000 and i % 100 == 0:
            check_places(places)
    print(f"largest size {most}: {times} times full, {total / times:.3f} used on average, {worst:.3f} at the least")
    assert total / times > 0.8 and worst > 0.4
    for offset in used:
        places.give(offset)
    check_places(places)
    assert places.largest == places.free == places.size


def shape(name, size):
    return Shape(digest(name, None), 1, 1, size - HEADER)


def enter(pool, user, *shapes):
    return pool.enter(shapes, user, [b"n" * 16] * len(shapes))


def test_pool_evicts_what_nobody_uses_the_least_recently_used_first():
    pool = Pool(4 * 1024)
    a, b, c, d = (enter(pool, "u", shape(name, 1024))[0] for name in "abcd")
    assert enter(pool, "u", shape("e", 1024)) is None and not pool.evicted
    for item in (b, a, c):
        pool.leave(item, "u")
    pool.use(b, "v")
    assert pool.find(a.shape) is a and pool.used == 2048
    assert enter(pool, "w", shape("f", 2048), shape("g", 1024)) is None  # not all of it
    assert pool.find(a.shape) is a
    assert enter(pool, "w", shape("e", 1024)) and pool.find(a.shape) is None and pool.find(c.shape) is c
    assert pool.evicted == 1 and pool.find(d.shape) is d


def test_pool_keeps_the_place_of_a_forgotten_output_as_long_as_it_has_users():
    pool = Pool(2048)
    (a,) = enter(pool, "u", shape("a", 2048))
    pool.forget(a)
    assert pool.find(a.shape) is None and enter(pool, "v", shape("b", 256)) is None
    pool.leave(a, "u")
    pool.leave(a, "u")
    (b,) = enter(pool, "v", shape("a", 2048))
    assert b.offset == a.offset and pool.find(a.shape) is b
    pool.forget(a)
    assert pool.find(b.shape) is b  # it is another one


def test_pool_under_random_use():
    chance, pool, live = random.Random(3), Pool(256 * GRANULE), []
    for i in range(SIZES // 2):
        user = i
        wanted = [shape(str(chance.randrange(40)), HEADER + chance.randrange(1, 20) * GRANULE) for _ in range(chance.randrange(1, 4))]
        wanted = [one for n, one in enumerate(wanted) if one.digest not in [w.digest for w in wanted[:n]]]
        found = [item for one in wanted if (item := pool.find(one))]
        for item in found:
            pool.use(item, user)
        made = enter(pool, user, *[one for one in wanted if not pool.find(one)]) or []
        live.append((user, found + made))
        while live and (not made or chance.random() < 0.5):
            who, items = live.pop(chance.randrange(len(live)))
            for item in items:
                if chance.random() < 0.1:
                    pool.forget(item)
                pool.leave(item, who)
            made = True
        taken = sorted({(item.offset, pool.room(item.shape)) for _, items in live for item in items})
        assert all(a + n <= b for (a, n), (b, _) in zip(taken, taken[1:])), "two outputs in one place"
        assert pool.used == sum(n for _, n in taken)
    for who, items in live:
        for item in items:
            pool.leave(item, who)
    assert pool.used == 0
    check_places(pool._places)


@pytest.mark.parametrize("there", ["own", "another engine's"])
def test_header_proves_the_bytes_and_whose_they_are(there):
    with Memory(1 << 20) as pool:
        memory = pool.view
        memory[:] = bytes(range(256)) * 4096
        view = memory if there == "own" else PoolFile(os.dup(pool.fd)).view
        prove = partial(verify, view, checksums=Checksums(view))
        for size in (1, 2047, 2048, 9000, 262144, 262145, 600000):
            one = Item(Shape(digest("a", None), 1, size, size), 512, b"n" * 16)
            with pytest.raises(errors.NotFound):
                prove(one)
            seal(memory, 512, one.nonce, one.shape.digest, size)
            prove(one)
            for at in (0, size // 2, size - 1):
                memory[512 + HEADER + at] ^= 1
                with pytest.raises(errors.Io):
                    prove(one)
                memory[512 + HEADER + at] ^= 1
            for other in (Shape(digest("b", None), 1, size, size), Shape(digest("a", "t"), 1, size, size)):
                with pytest.raises(errors.Denied):
                    prove(Item(other, 512, one.nonce))
            with pytest.raises(errors.NotFound):
                prove(Item(one.shape, 512, b"o" * 16))
            with pytest.raises(errors.Io):
                prove(Item(Shape(one.shape.digest, 1, size + 1, size + 1), 512, one.nonce))
            memory[512] ^= 1


def test_total_finds_every_change():
    """Of any size: a bit, two numbers, rows or columns that change places, and what is behind the last whole row."""
    chance = torch.Generator().manual_seed(7)
    for size in (1, 8, 2047, 16383, 16384, 16386, 5 * 16384, 5 * 16384 + 4098):
        data = torch.randint(0, 256, (size,), generator=chance, dtype=torch.uint8)
        whole = int(total(data))
        assert total_of_bytes(memoryview(data.clone().numpy())) == whole
        for at in {0, size // 2, size - 1}:
            changed = data.clone()
            changed[at] ^= 0x80
            assert int(total(changed)) != whole
    rows = data[:5 * 16384].view(5, 16384)
    for swapped in (rows[[1, 0, 2, 3, 4]], rows[:, torch.arange(16384).view(-1, 2, 8)[:, [1, 0]].reshape(-1)], rows.flip(0)):
        assert int(total(swapped.contiguous().view(-1))) != int(total(rows.reshape(-1)))
    assert int(total(torch.zeros(100, dtype=torch.uint8))) == 0


def test_a_gpu_pool_seals_what_is_complete():
    """At the end of the step, with the nonce of the place; and no longer than the output has its place."""
    pool = GpuPool("gpu of this test", budget.Budget(1 << 20, 512, 8), HostBytes(1 << 20))
    try:
        assert GpuPool.find("gpu of this test") is pool
        places = Pool(1 << 20, pool.vacate, before=pool.before)
        (item,) = places.enter([Shape(digest("a", None), 4, 64, 512)], "u", [b"n" * 16])
        output, place = torch.randn(4, 64).to(torch.bfloat16), Place.of(item)
        pool.store(place, output)
        pool.store(place, output)  # of another request in the same step
        assert not pool.sealed(item)
        pool.complete()
        pool.complete()
        assert pool.sealed(item) and not pool.sealed(Item(item.shape, item.offset, b"o" * 16))
        assert torch.equal(pool.load(place, torch.bfloat16), output)
        for seal, error in ((Seal("cuda", item.shape.digest, pool.number(item)), None), (Seal("cuda", item.shape.digest, 5), errors.Io),
                            (Seal("cuda", b"d" * 32, pool.number(item)), errors.Denied), (Seal("cpu", item.shape.digest, 5), errors.Io),
                            (Seal("cpu", item.shape.digest, checksum(output.view(torch.uint8).numpy())), None)):
            item.seal = seal
            with pytest.raises(error) if error else contextlib.nullcontext():
                pool.verify(item)
        places.forget(item)
        assert pool.sealed(item), "it has a user"
        places.leave(item, "u")
        assert not pool.sealed(item)
    finally:
        pool.close()
    assert GpuPool.find("gpu of this test") is None


def test_nobody_waits_for_ever():
    line = Line()
    assert line.may_enter("large", 0)
    line.wait("large", 0)
    assert line.may_enter("small", 0.4) and not line.may_enter("small", 0.6) and line.may_enter("large", 0.6)
    line.wait("small", 0.6)
    line.wait("large", 0.7)
    line.leave("large")
    assert line.may_enter("small", 9) and line.may_enter("other", 1)


def test_offers_survive_a_router_and_refuse_what_is_damaged():
    offer = Offer("e", "token", {"dtype": "bfloat16"}, {"image": Offered(512, 3, 64, b"x" * 16, b"d" * 32, 9)})
    here = offer._replace(pool=PoolName(7, 5, "0a" * 32), exports={"0a": "pool"})
    params = offer_params([offer, here], "host:1")
    assert read_offers(params) == [offer, here] and offered_tokens(params) == ["token"] * 2
    with pytest.raises(errors.Version):
        read_offers({"dray": {**params["dray"], "version": 9}})
    good, text = [0, 2, 3, "00" * 16, "00" * 32, 7, 0], params["dray"]["offers"][0]
    lines = list(map(json.loads, text.splitlines()))

    def read(**changed):
        return read_offers({"dray": {"version": VERSION, "offers": [
            "\n".join(json.dumps({**line, **{name: value for name, value in changed.items() if name in line or line is lines[0] and name not in lines[1]}})
                      for line in lines)]}})

    read(items={"image": good})
    read(pool=[7, 5], exports={"0a": "pool"})
    wrong = ((3, "xx"), (3, "00"), (0, -1), (2, 1 << 41), (1, True), (4, "00"), (5, "7"), (5, 1 << 63), (5, None), (6, -1), (6, True), (6, 1001), (0, 8))
    for damage in ([], None, {"image": [1, 2, 3]}, {"image": 5}, *({"image": [*good[:at], one, *good[at + 1:]]} for at, one in wrong)):
        with pytest.raises(errors.Invalid):
            read(items=damage)
    for name in ("token", "proof", "engine_id"):
        with pytest.raises(errors.Invalid):
            read(**{name: 5})
    for device in ("gpu", None, 1, []):
        with pytest.raises(errors.Invalid):
            read(device=device)
    for pool in (5, [], [7], [-1, 5], [7, True], [7, 5, 1], [7, 5, "0a"], [7, 5, "0A" * 32], [7, 5, "0a" * 32, 1]):
        with pytest.raises(errors.Invalid):
            read(pool=pool)
    for exports in (5, [1], {"0a": 5}, {f"{n}": "pool" for n in range(65)}):
        with pytest.raises(errors.Invalid):
            read(exports=exports)
    for other in ({}, {"dray": 1}, {"dray": {"version": VERSION}}, {"dray": {"version": VERSION, "offers": params["dray"]["offers"] * 40}},
                  *({"dray": {"version": VERSION, "offers": [one]}} for one in (1, {**lines[0], **lines[1]}, None, *text.splitlines(), f"{text}\n", f"\n{text}", text.replace("\n", " ", 1), text + " ",
                                                                               text.replace("host:1", "h" * (8 << 10)), "", "{", "5", "[]", "{}", "{} ", "[" * 100_000, '{"token": ' + "1" * 5000 + "}"))):
        with pytest.raises(errors.Error):
            read_offers(other)
        assert len(offered_tokens(other)) <= 64
    assert [consumers(p) for p in (None, {}, {"consumers": 3}, {"consumers": 0}, {"consumers": True}, {"consumers": "2"}, [1])] == \
        [1, 1, 3, 1, 1, 1, 1]


@pytest.mark.parametrize("version", [4, 5])
def test_older_offers_name_their_rights(version):
    """They are mappings in version 4, and texts of one line in version 5."""
    offers = [{"token": "first"}, {"token": 5}, {}, {"token": "second"}]
    older = {"dray": {"version": version, "offers": offers if version == 4 else list(map(json.dumps, offers))}}
    with pytest.raises(errors.Version):
        read_offers(older)
    assert offered_tokens(older) == ["first", "second"]


def test_what_offers_of_an_encoder_have_in_common_is_decoded_once():
    first, second = (Offer("e", token, {"dtype": "bfloat16"}, {"image": Offered(512, 3, 64, b"x" * 16, b"d" * 32, 9)}) for token in ("first", "second"))
    read = read_offers(offer_params([first, second], "host:1"))
    assert read == [first, second] and read[0].model is read[1].model


def test_size_of_offers_is_bounded_before_they_are_decoded():
    most, exports = (1 << 40) - 512, {f"{n:032x}": "t" * 344 for n in range(16)}
    offers = [Offer("e" * 200, "t" * 344, {"model": "m" * 200}, {f"{n:032x}{i:032x}": Offered(most, most, most, b"x" * 16, b"d" * 32, -1 << 63, most) for i in range(64)},
                    "p" * 64, pool=PoolName((1 << 31) - 1, 5, "0a" * 32), exports=exports) for n in range(64)]
    params = offer_params(offers, "h" * 300)
    assert read_offers(params) == offers
    texts = params["dray"]["offers"]
    texts[0] += " " * ((2 << 20) - sum(map(len, texts)))
    assert len(offered_tokens(params)) == 63, "the first one is damaged"
    texts[0] += " "
    with pytest.raises(errors.Invalid, match="2097152 characters"):
        read_offers(params)
    assert offered_tokens(params) == []


def test_proof_covers_all_that_an_offer_says():
    offer, secret = Offer("e", "token", {"dtype": "bfloat16"}, {"image": Offered(512, 3, 64, b"x" * 16, b"d" * 32, 9)}, pool=PoolName(7, 5, "0a" * 32),
                          exports={"0a": "pool"}), Secret(b"k" * 16)
    offer = offer._replace(proof=secret.sign(offer, "salt"))
    (read,) = read_offers(offer_params([offer], "host:1"))
    secret.check(read, "salt")
    one = offer.items["image"]
    for changed, salt in (
            ({"engine_id": "f"}, "salt"), ({"token": "other"}, "salt"), ({"model": {"dtype": "float16"}}, "salt"), ({"proof": "\ud800"}, "salt"),
            *(({"pool": offer.pool._replace(**field)}, "salt") for field in ({"process": 8}, {"fd": 6}, {"door": "0b" * 32})),
            ({"items": {"other": one}}, "salt"), ({"items": {**offer.items, "other": one}}, "salt"), ({}, None), ({}, "other"),
            *(({"items": {"image": one._replace(**field)}}, "salt")
              for field in ({"offset": 0}, {"rows": 4}, {"width": 65}, {"nonce": b"y" * 16}, {"digest": b"e" * 32}, {"number": 8}, {"piece": 512})),
            ({"device": "cuda"}, "salt"), ({"exports": {}}, "salt"), ({"exports": {"0a": "other"}}, "salt")):
        with pytest.raises(errors.Denied, match="changed on its way"):
            secret.check(offer._replace(**changed), salt)
    with pytest.raises(errors.Denied, match="no proof"):
        secret.check(offer._replace(proof=""), "salt")
    with pytest.raises(errors.Denied):
        Secret(b"l" * 16).check(offer, "salt")


def test_file_of_a_secret_is_checked(tmp_path):
    file = tmp_path / "secret"
    for content, mode, error, text in (
            (b"short\n", 0o400, errors.Invalid, "has 5 bytes"), (b"x" * 5000, 0o400, errors.Invalid, "has too many bytes"),
            (b"x" * 32, 0o604, errors.Denied, "mode 604")):
        file.unlink(missing_ok=True)
        file.write_bytes(content)
        file.chmod(mode)
        with pytest.raises(error, match=text):
            Secret.read(str(file))
    file.chmod(0o400)
    Secret.read(str(file))


def test_scheduler_sides_need_no_pytorch():
    """Tests in the virtual machine use them, where there is none."""
    program = """import sys
sys.modules["torch"] = None
import dray.vllm.ec.consumer, dray.vllm.ec.producer, dray.vllm.ecstore.batch"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_size_of_a_pool_is_raised_or_refused(caplog, monkeypatch):
    monkeypatch.setattr(budget._logger, "propagate", True)
    assert budget.size_of(1e9, 512, 256).size == 1_000_001_536 and not caplog.text
    made = budget.size_of(1000, 512, 256)
    assert made.size >= 512 * 256 + HEADER and made.size % 4096 == 0
    assert "1000" in caplog.text and str(made.size) in caplog.text
    assert str(budget.size_of(1 << 30, 4096, 1024)) == "262144 embeddings of 4096 bytes (1.00 GiB); the largest output of the model has 1024"
    for wrong in (0, -1, float("nan"), "1e9", True, 1e15):
        with pytest.raises(errors.Invalid, match="ec_buffer_size is"):
            budget.size_of(wrong, 512, 256)
    with pytest.raises(errors.Invalid, match=f"{1 << 42}"):
        budget.size_of(1e9, 1 << 30, 1 << 13)


def files(root, **texts):
    for path, text in texts.items():
        path = root / path.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_size_of_a_pool_is_compared_with_free_memory(tmp_path):
    files(tmp_path, proc__meminfo="MemTotal: 99 kB\nMemAvailable:      40 kB\nSwapFree: 20 kB\nDirectMap4k: no kB\n")
    budget.check_memory(60 << 10, tmp_path)
    with pytest.raises(errors.NoMemory, match="takes 61441 bytes of memory, and 61440 are available"):
        budget.check_memory((60 << 10) + 1, tmp_path)
    budget.check_memory(4096)


@pytest.mark.parametrize("version", [1, 2])
def test_memory_of_control_groups(tmp_path, version):
    """The limit of each group above a process counts, and its page cache does not."""
    assert free_memory(tmp_path) is None
    files(tmp_path, proc__meminfo="MemAvailable: 1000 kB\n", proc__self__cgroup=f"9:name=systemd:/\n{'3:cpu,memory' if version == 1 else '0:'}:/pod/engine\n")
    assert free_memory(tmp_path) == 1000 << 10, "no group can be read, as where /sys is not mounted"
    base = tmp_path / ("sys/fs/cgroup/memory" if version == 1 else "sys/fs/cgroup")
    limit, use, cache = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_") if version == 1 else ("memory.max", "memory.current", "")
    files(base, **{f"pod__engine__{limit}": "9223372036854771712" if version == 1 else "max", f"pod__engine__{use}": "70000"})
    assert free_memory(tmp_path) == 1000 << 10
    files(base, **{f"pod__{limit}": "200000\n", f"pod__{use}": "150000\n", "pod__memory.stat": f"{cache}inactive_file 3000\n{cache}active_file 400\nanon 9\n"})
    assert free_memory(tmp_path) == 53400
    files(base, **{f"pod__engine__{limit}": "80000\n"})
    assert free_memory(tmp_path) == 10000
    files(base, **{limit: "60000\n", use: "70000\n"})
    assert free_memory(tmp_path) == 0, "in a container, the base is its group"


def test_budgets_of_a_step_are_raised_or_refused(caplog, monkeypatch):
    monkeypatch.setattr(budget._logger, "propagate", True)

    def config(step, cache):
        return SimpleNamespace(scheduler_config=SimpleNamespace(max_num_encoder_input_tokens=step, encoder_cache_size=cache))

    for step, cache, largest in ((100, 100, 100), (100, 200, 50), (0, 0, 0)):
        budget.check_steps(config(step, cache), largest)
    assert not caplog.text
    budget.check_steps(config(90, 100), 256)
    assert "encodes 90 embeddings" in caplog.text and "holds 100" in caplog.text and "has 256" in caplog.text
    for step, cache, largest, text in ((300, 100, 50, "may encode 300 embeddings, and .* holds 100"), (300, 100, 256, "300 .* 256")):
        with pytest.raises(errors.Invalid, match=text):
            budget.check_steps(config(step, cache), largest)


def batch_of(count):
    """(batch that has to end at 10, what it asks the store, its items)"""
    asked, items = [], [Item(shape(str(i), 1024), 1024 * i, b"") for i in range(count)]

    def copy(what, seconds):
        if not asked:
            asked.append(None)
            raise errors.Busy("the agent has no room for a request")
        asked.append(Asked(what))
        return asked[-1]

    return Batch([(item, item.shape.digest, 0.5) for item in items], copy, 10.0), asked, items


def test_batch_asks_again_for_what_there_is_no_room_for():
    batch, asked, items = batch_of(1500)
    batch.advance(0.0)
    batch.advance(1.0)
    assert len(asked[1].what) == 1024 and asked[1].what[3] == StoreItem(items[3].shape.digest, [(3072, 1024)], 0.5)
    asked[1].value = [StoreResult(Status.BUSY if i == 7 else Status.OK, 1024, 0.5) for i in range(1024)]
    batch.advance(2.0)
    batch.advance(2.1)  # too early
    assert len(asked) == 2 and not batch.over and not batch.lent()
    batch.advance(2.6)
    assert [one.key for one in asked[2].what] == [item.shape.digest for item in (items[7], *items[1024:])]
    asked[2].value = [StoreResult(Status.NOT_FOUND, 0, 0.0)] * len(asked[2].what)
    batch.advance(2.7)
    assert batch.over and not batch.errors and len(batch.results) == 1500 and len(asked) == 3


def test_batch_that_is_late_lends_its_places_until_the_agent_answers():
    batch, asked, items = batch_of(2)
    batch.advance(0.0)
    batch.advance(1.0)
    batch.advance(10.0)
    assert batch.over and batch.lent() and all(isinstance(batch.errors[item], errors.Deadline) for item in items)
    asked[1].value = [StoreResult(Status.BUSY, 0, 0.1)] * 2
    batch.advance(11.0)
    batch.advance(12.0)
    assert batch.over and not batch.lent() and len(asked) == 2  # and nothing is asked again


def test_key_of_an_output_stands_for_all_that_decides_about_its_bytes():
    def key(fields=(), weights="w", name="a", salt=None, rows=3, width=64):
        return Keys(dict(fields), Weights(weights, None, list)).of(Shape(digest(name, salt), rows, width, rows * width * 2))

    made = [key(), key({"dtype": "float16"}), key(weights="x"), key(name="b"), key(salt="s"), key(rows=4), key(width=128)]
    assert len(set(made)) == len(made) and key() == key() and max(map(len, made)) <= 255
    unknown = Weights("w", None, list)
    unknown.text = None
    keys = Keys({}, unknown)
    assert not keys.known and "not known yet" in str(keys.error)
    unknown.error = "the weights in x cannot be read"
    assert keys.known and "in x cannot be read" in str(keys.error)
