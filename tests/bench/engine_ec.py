# SPDX-License-Identifier: Apache-2.0
"""The parts "ec", "ec-hooks", "ec-bytes" and "ec-text" of bench_vllm.py: what it costs to have an output of the encoder from another engine,
beside vLLM's own connectors, with engines and of the hooks alone; how fast its bytes move; and what requests of text notice of an encoder that
is busy or dead."""

import contextlib
import itertools
import math
import os
import pathlib
import pickle
import queue
import random
import secrets
import statistics
import subprocess
import sys
import threading
import time

import common as c
import ec_sides
import rig
import serving
import vision
from dray.vllm.ec.header import HEADER
from ec_bare import offered
from harness import LIMIT, ROOT, until
from timed import Timed
from vision_engine import VisionEngine

SIZES = {64: (224, 224), 256: (448, 448), 1024: (896, 896)}  # pixels, by embeddings
WANTED = [int(size) for size in os.environ.get("DRAY_BENCH_EMBEDDINGS", "").split(",") if size] or list(SIZES)  # sizes of the parts with engines
TURNS = 60  # of each pair of engines and each size, by round, if there is time
BURST = 5  # requests of a pair before the next one has its turn
PARTS = "", ", until PD's model has its inputs", ", from PD's scheduler to its model"  # of a request's time to its first token
POOL = 64 << 20
MOVED = {512 << 10: 40, 1 << 20: 40, 4 << 20: 20, 16 << 20: 12, 64 << 20: 5}  # loads by round, by bytes of an output
TEXT = 40  # tokens
CACHES = 48  # MiB, which are read to empty the caches of a processor
SCHEDULER = ("has_cache_item", "ensure_cache_available", "update_state_after_alloc", "update_state_after_free", "take_unavailable_requests",
             "build_connector_meta", "update_connector_output", "request_finished", "get_ec_connector_stats")
WORKER = ("bind_connector_metadata", "start_load_caches", "get_finished", "build_connector_worker_meta", "clear_connector_metadata")
numbers = itertools.count(1)
chance = random.Random(28)


def model():
    """The tiny model for images of up to 1,024 embeddings."""
    most = 28 * 28 * max(SIZES)
    vision.PROCESSOR.update(max_pixels=most, size={**vision.PROCESSOR["size"], "longest_edge": most})
    return str(vision.with_weights(ROOT / "build/engine-vision-wide"))


# At engines that use outputs, vLLM's cache of processed images is off: otherwise the second request with an image would save its processing,
# too, and the difference to the first one would not be that of the connectors. At E it is on, because E has no prefix cache: without
# either of them, vLLM's identifiers are unique to a request.
UNCACHED = {"mm_processor_cache_gb": 0}


def how(role):
    return {"skip_mm_profiling": True, **({} if role == "ec_producer" else UNCACHED)}  # six engines start sooner


def dray(lab, name, role, agent, kind=VisionEngine, **options):
    return kind(lab.tmp, name, model=model(), **how(role), ec_transfer_config={
        "ec_connector": "DrayECConnector", "ec_connector_module_path": "dray.vllm", "ec_role": role, "engine_id": name,
        "ec_buffer_size": POOL, "ec_connector_extra_config": {"socket": str(agent.socket), **options}})


def files(lab, name, role, kind=VisionEngine):
    folder = lab.tmp / "outputs"
    folder.mkdir(exist_ok=True)
    return kind(lab.tmp, name, model=model(), **how(role), ec_transfer_config={
        "ec_connector": "ECExampleConnector", "ec_role": role, "engine_id": name, "ec_connector_extra_config": {"shared_storage_path": str(folder)}})


def mooncake(lab, name, role, port, kind=VisionEngine):
    """With Mooncake's own transfer engine, and with what its connector needs on the CPU."""
    made = subprocess.run([ROOT / "scripts/mooncake-env"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    if made.returncode:
        raise c.CannotRun("Mooncake cannot be installed here")
    site = next(pathlib.Path(made.stdout.strip()).parents[1].glob("lib/python*/site-packages"))
    folder = lab.tmp / "mooncake"  # without the other packages of that environment
    if not folder.exists():
        folder.mkdir()
        for found in site.glob("mooncake*"):
            (folder / found.name).symlink_to(found)
    return kind(lab.tmp, name, model=model(), **how(role), variables={
        "PYTHONPATH": f"{folder}:{ROOT}/client/python:{ROOT}/tests/engine/mooncake_cpu", "LD_LIBRARY_PATH": str(site / "mooncake")},
        ec_transfer_config={"ec_connector": "ECMooncakeConnector", "ec_role": role, "engine_id": name, "ec_ip": "127.0.0.1", "ec_port": port,
                            "ec_buffer_size": POOL, "ec_buffer_device": "cpu",
                            "ec_connector_extra_config": {"mooncake_protocol": "tcp", "push_wait_timeout_s": LIMIT}})


def good(answer, engine):
    if "error" in answer or answer["reason"] == "error":
        raise c.CannotRun(f"a request of {engine.name} has failed: {answer}\n{engine.tail(15)}")
    return answer


class Pair:
    """An encoder, and an engine that uses its outputs. how: of "local", "tcp", "files", "mooncake". beside: name of the other pair that this one is compared
    with. stops: E's processes stand still while PD has a request, which needs nothing of them."""

    def __init__(self, name, how, e, pd, beside=None, stops=False, port=0):
        self.name, self.how, self.e, self.pd, self.beside, self.stops, self.port = name, how, e, pd, beside, stops, port
        self.ours = how in ("local", "tcp")

    def encode(self, size, wanted=True):
        """E's part of a request with a new image. Returns the image, and ec_transfer_params for PD. wanted: PD will ask for the output."""
        images = [[*SIZES[size], next(numbers)]]
        to_e = to_pd = None
        if self.how == "mooncake" and wanted:  # it would push what nobody takes
            items = [{"transfer_id": secrets.token_hex(8)}]
            to_e, to_pd = {"consumer_zmq": f"tcp://127.0.0.1:{self.port}", "ec_items": items}, {"ec_items": items}
        first = self.last = good(self.e.run(vision.prompt(chance), 1, images=images, ec=to_e), self.e)
        if self.ours:
            to_pd = first["ec"]
            if self.how == "tcp":
                with offered(to_pd) as offer:
                    del offer["pool"]  # by which an engine on the same host reads in place
        return images, to_pd

    def first(self, images, ec=None):
        """Seconds from now to PD's first token; those until PD's model has its inputs, behind which no connector does anything for the token; and, of
        these, those from the time at which PD's scheduler has the request."""
        with self.e.stopped() if self.stops else contextlib.nullcontext():
            answer = good(self.pd.run(vision.prompt(chance), 1, images=images, ec=ec), self.pd)
        inputs = self.pd.inputs
        return answer["first"], inputs - answer["began"], inputs - answer["queued"]

    def cost(self, size):
        """Seconds from E's answer to PD's first token, minus the same with the output in PD's own cache: as first() returns them.

        E has encoded just before in either case.
        """
        images, ec = self.encode(size)
        remote = self.first(images, ec)
        self.encode(size, wanted=False)
        return [a - b for a, b in zip(remote, self.first(images))]

    def burst(self, size, engines):
        """cost() of some requests one after the other, while all other engines stand still: their workers would look for messages."""
        with contextlib.ExitStack() as stack:
            for engine in engines - {self.e, self.pd}:
                stack.enter_context(engine.stopped())
            self.cost(size)  # brings both engines back
            return [self.cost(size) for _ in range(BURST)]


@contextlib.contextmanager
def running(*engines):
    try:
        for engine in engines:
            engine.ready()
        yield
    finally:
        for engine in engines:
            engine.stop()


def as_far(pair, values, records):
    """values(), or None when ECMooncakeConnector does not serve a request, which is recorded."""
    began = time.monotonic()
    try:
        return values()
    except (c.CannotRun, queue.Empty) as e:
        if pair.how != "mooncake":
            raise
        records.add(f"{pair.name} fails: {' '.join(str(e).split())[:200] or 'no answer'}", time.monotonic() - began, "s")
        return None


def drawn(value, turns):
    """The interval of value(turns) of 95 %, by bootstrap. Turns are drawn, and not what was measured in one turn, because the machine may be slower
    in some turns."""
    values = sorted(value(chance.choices(turns, k=len(turns))) for _ in range(2000))
    return values[50], values[-51]


def median_of(turns):
    return statistics.median(itertools.chain(*turns))


def ratio_of(turns):
    """The ratio of the medians of turns of two connectors. Infinite if the second one may be nothing."""
    ours, others = map(median_of, zip(*turns))
    return ours / others if others > 0 else math.inf


def compared(ours, others, target=("<=", 0.5)):
    """The columns of a record of one connector beside something else, in the turns that both have."""
    turns = list(zip(ours, others))
    return {"ratio": ratio_of(turns), "interval": drawn(ratio_of, turns), "ceiling": median_of(other for _, other in turns), "target": target}


def ec(lab, records, rounds, beside_mooncake=True):
    """beside_mooncake: with the pairs that are compared with ECMooncakeConnector."""
    agents = c.agents(lab, 2)
    with contextlib.ExitStack() as stack:
        with c.under("DRAY_BENCH_BUSY"):
            e, pd = dray(lab, "e", "ec_producer", agents[0], lease=10), dray(lab, "pd", "ec_consumer", agents[1])  # every second output is not claimed
            pairs = [Pair("local", "local", e, pd, "ECExampleConnector", stops=True),
                     Pair("ECExampleConnector", "files", files(lab, "e-files", "ec_producer"), files(lab, "pd-files", "ec_consumer"), stops=True)]
            if beside_mooncake:
                port = serving.free_port()
                pairs += [Pair("local, E runs", "local", e, pd, "ECMooncakeConnector"), Pair("tcp", "tcp", e, pd, "ECMooncakeConnector"),
                          Pair("ECMooncakeConnector", "mooncake", mooncake(lab, "e-mooncake", "ec_producer", port),
                               mooncake(lab, "pd-mooncake", "ec_consumer", port), port=port)]
            engines = {engine for pair in pairs for engine in (pair.e, pair.pd)}
            stack.enter_context(running(*engines))
            # The engines' first steps of a size take longer.
            pairs = [pair for pair in pairs if as_far(pair, lambda pair=pair: [pair.cost(size) for size in WANTED for _ in range(2)], records)]
        stack.enter_context(c.under("DRAY_BENCH_QUIET"))
        found, moved, loads = {(pair.name, size): [] for pair in pairs for size in WANTED}, rig.transfers(agents[1]), 0
        for _ in c.turns(rounds * TURNS, c.now()):  # after the start of the engines
            for size in WANTED:
                for pair in chance.sample(pairs, len(pairs)):
                    values = as_far(pair, lambda pair=pair, size=size: pair.burst(size, engines), records)
                    if values is None:
                        pairs.remove(pair)
                        continue
                    found[pair.name, size].append([[1e3 * seconds for seconds in value] for value in values])
                    loads += (BURST + 1) * (pair.how == "tcp")
        if (n := rig.transfers(agents[1]) - moved) != loads:
            raise c.CannotRun(f"the agent has moved {n} outputs, and {loads} are those of tcp")
        for pair in pairs:
            if pair.how != "mooncake" and pair.pd.encoded:
                raise c.CannotRun(f"{pair.pd.name} has encoded {len(pair.pd.encoded)} images itself")
    for agent in agents:
        agent.stop()
    records.add(f"turns of {BURST} requests", min(len(found[pair.name, size]) for pair in pairs for size in WANTED), "")
    for (at, what), size, pair in itertools.product(enumerate(PARTS), WANTED, pairs):
        turns = {name: [[value[at] for value in burst] for burst in found.get((name, size), ())] for name in (pair.name, pair.beside)}
        ours, others = turns[pair.name], turns[pair.beside]
        beside = {"ceiling_name": pair.beside, **compared(ours, others)} if others else {"interval": drawn(median_of, ours)}
        records.add(f"{size} embeddings, {pair.name}{what}", median_of(ours), "ms", **beside)


# --- hooks ----------------------------------------------------------------------------------------

def sent(connector, name):
    """What a hook returns goes through pickle, as between the processes of an engine."""
    hook = getattr(connector, name)
    setattr(connector, name, lambda *args: pickle.loads(pickle.dumps(hook(*args), pickle.HIGHEST_PROTOCOL)))


class Emptied:
    """Reads memory, so that the caches of the processor have nothing else, as after a step of a model."""

    def __init__(self):
        self.parts = [random.Random(at).randbytes(c.MIB) for at in range(CACHES)]

    def __call__(self):
        for part in self.parts:
            part.translate(None)


class Consumer:
    """An engine with vLLM's scheduler and without a model. offers(name, rows): ec_transfer_params for a new output of that identifier."""

    def __init__(self, pd, offers):
        self.pd, self.offers = pd, offers
        for connector, hook in ((pd.scheduler.ec_connector, "build_connector_meta"), (pd.worker, "build_connector_worker_meta")):
            sent(connector, hook)
        self.timed = Timed(pd, (pd.scheduler.ec_connector, SCHEDULER), (pd.worker, WORKER), (pd, ("_gather",)))

    def first_token(self, rows, before=lambda: None):
        """Microseconds that hooks and the model's reading of the output take until a request with a new image of so many embeddings has its
        first token, minus the same with its output in the engine's cache, where a request has read it before."""
        image = f"image {next(numbers)}"
        remote, _, cached = [self._until_token(image, rows, params, before) for params in (self.offers(image, rows), None, None)]
        return remote - cached

    def _until_token(self, image, rows, params, before):
        name, taken = f"request {next(numbers)}", 0.0
        self.pd.add(name, [(image, rows)], params)
        before()
        while name not in self.pd.answers:
            taken += self.timed.step()
        if self.pd.answers[name][0] != "LENGTH" or self.pd.encoded:
            raise c.CannotRun(f"a request of {self.pd.name} has ended with {self.pd.answers[name][0]}, after {len(self.pd.encoded)} images were encoded")
        until(lambda: self.pd.step() or self.pd.side is None or self.pd.side.idle and self.pd.worker._worker.idle, "nothing left of the request")
        self.timed.spent = 0.0
        self.pd.scheduler.reset_prefix_cache()  # otherwise the output would not be needed
        return taken


def ec_hooks(lab, records, rounds):
    import ec_bare
    import torch

    torch.set_num_threads(1)  # more threads of PyTorch would spin for milliseconds after E's part, on processors that the agents need
    inputs = memoryview(bytearray(2 * ec_bare.WIDTH * max(SIZES)))

    class Quick(ec_bare.Bare):
        """The content of embeddings does not matter, but the model reads them: an output that was mapped is only read there."""

        def _gather(self, output, requests):
            # not by PyTorch, whose threads wait for each other on busy processors
            for name in output.num_scheduled_tokens:
                for feature in requests[name][0].mm_features:
                    embeddings = memoryview(self.cache[feature.identifier].view(torch.uint8).numpy()).cast("B")
                    inputs[:len(embeddings)] = embeddings

    class Files(Quick):
        connector, options = "ECExampleConnector", {"shared_storage_path": str(lab.tmp / "outputs")}

    agents = c.agents(lab, 2)
    with contextlib.ExitStack() as stack:
        def engine(made):
            return stack.enter_context(contextlib.closing(made))

        e, writes = engine(Quick("e", agents[0].socket, "ec_producer", POOL)), engine(Files("e-files", "", "ec_producer"))

        def offers(name, rows):
            return ec_bare.encode(e, name, [(name, rows)])

        def files(name, rows):
            writes.worker.save_caches({name: ec_bare.embeddings(name, rows)}, name)

        def consumer(kind, name, at, offers, **options):
            return Consumer(engine(kind(name, at and at.socket, "ec_consumer", POOL, 2048, **options)), offers)

        sides = {"local": consumer(Quick, "pd-local", agents[0], offers, transport="local"),
                 "tcp": consumer(Quick, "pd-tcp", agents[1], offers, transport="tcp"),
                 "files": consumer(Files, "pd-files", None, files)}
        ways = {"": lambda: None, ", caches emptied before": Emptied()}
        found = {(name, rows, way): [] for way in ways for rows in SIZES for name in sides}
        for turn in range(20 * rounds):
            way = list(ways)[turn % 4 > 1]
            for rows in SIZES:
                for name in list(sides)[::1 if turn % 2 else -1]:
                    found[name, rows, way].append([sides[name].first_token(rows, ways[way])])
    for agent in agents:
        agent.stop()
    for way, rows in itertools.product(ways, SIZES):
        theirs = found["files", rows, way]
        for name in ("local", "tcp"):
            ours = found[name, rows, way]
            records.add(f"hooks until the first token, {rows} embeddings, {name}{way}", median_of(ours), "us", ceiling_name="ECExampleConnector",
                        **compared(ours, theirs))


# --- bytes ----------------------------------------------------------------------------------------

def faults(agents):
    """Page faults of agents so far that needed no disk."""
    return sum(int(pathlib.Path(f"/proc/{agent.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[7]) for agent in agents)


def ec_bytes(lab, records, rounds):
    """Loads of outputs by the scheduler sides of the connector, beside transfers of as many bytes between the same pools."""
    agents = c.agents(lab, 2)
    size = 3 * max(MOVED) + POOL
    with contextlib.ExitStack() as stack:
        e = stack.enter_context(contextlib.closing(ec_sides.Encoder(agents[0].socket, size)))
        for transport, agent in ("tcp", agents[1]), ("local", agents[0]):
            pd = stack.enter_context(contextlib.closing(ec_sides.Consumer(agent.socket, size, transport)))
            pd.side.in_place = False  # nothing is moved there
            lease = e.region.lease([(0, size, size, 1)], access="r", expiry=LIMIT)
            remote = pd.client.acquire(lease.token, timeout=LIMIT)
            # An agent's first touch of a page takes longer, and loads use new places while transfers come back to old ones.
            pd.client.read(pd.region, remote, [(0, 0, size)]).result(LIMIT)
            remote.release()
            for moved, often in MOVED.items():
                output, seen, faulted = memoryview(bytearray(chance.randbytes(moved))), [], {}

                def counted(function, faulted=faulted):
                    """The same, with the page faults of the agents."""
                    def one():
                        before = faults(agents)
                        value = function()
                        faulted.setdefault(function.__name__, []).append(faults(agents) - before)
                        return value
                    return one

                def rate(agent=agent, moved=moved):
                    """Of the last transfer, by the agent's clock."""
                    last = agent.ctl("transfers", "--recent", "--json")["ended_transfers"][-1]
                    if last["bytes"] < moved or last["status"] != "ok":
                        raise c.CannotRun(f"the last transfer is another one: {last}")
                    return moved / last["duration_ns"]

                def load(pd=pd, moved=moved, output=output, rate=rate, seen=seen):
                    name = f"output {next(numbers)}"
                    outputs = {name: moved // ec_sides.ROW}
                    _, seconds = pd.load(name, outputs, e.encode(name, outputs, lambda n: output))
                    seen.append(moved / seconds / 1e9)
                    pd.ends()
                    e.ends()
                    return rate()

                def transfer(pd=pd, moved=moved, output=output, rate=rate):
                    """Of bytes that were just written, by a new right, between other places each time, as a load is. With as many more as a header
                    has, which may make another slice of a transfer."""
                    length = HEADER + moved
                    at, to = (chance.randrange(size - length) // c.KIB * c.KIB for _ in range(2))
                    e.memory.memory.view[at + HEADER:at + length] = output
                    lease = e.region.lease([(at, length, length, 1)], access="r", expiry=LIMIT)
                    remote = pd.client.acquire(lease.token, timeout=LIMIT)
                    pd.client.read(pd.region, remote, [(to, at, length)]).result(LIMIT)
                    remote.release()
                    return rate()

                for _ in range(3):
                    load()
                    transfer()
                found = {counted(load): [], counted(transfer): []}
                for turn in range(often * rounds):
                    for one in list(found)[::1 if turn % 2 else -1]:
                        found[one].append([one()])
                ours, others = found.values()
                records.add(f"{moved >> 10} KiB, {transport}", median_of(ours), "GB/s", ceiling_name="a transfer", **compared(ours, others, target=(">=", 0.9)))
                loads, transfers = (statistics.mean(faulted[name]) for name in ("load", "transfer"))
                records.add(f"{moved >> 10} KiB, {transport}, page faults of the agents", loads, "", ceiling_name="a transfer", ceiling=transfers)
                records.add(f"{moved >> 10} KiB, {transport}, as PD sees it", statistics.median(seen), "GB/s", spread=statistics.quantiles(seen, n=10))
    for agent in agents:
        agent.stop()


# --- requests of text -----------------------------------------------------------------------------

def first_token(engine):
    """Seconds to the first token of a new request of text."""
    return good(engine.run([chance.randrange(1, 400) for _ in range(TEXT)], 1), engine)["first"]


class Busy:
    """Two images at a time at E, as long as it lasts."""

    def __init__(self, e):
        self.e, self.over, self.encoded = e, threading.Event(), len(e.encoded)
        self.threads = [threading.Thread(target=self._work, daemon=True) for _ in range(2)]

    def _work(self):
        while not self.over.is_set():
            good(self.e.run(vision.prompt(random.Random(next(numbers))), 1, images=[[*SIZES[1024], next(numbers)]]), self.e)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        until(lambda: len(self.e.encoded) > self.encoded, "E encodes")
        return self

    def __exit__(self, *exc):
        self.over.set()
        for thread in self.threads:
            thread.join()


def compare(records, what, rounds, at_pd, at_one):
    ours, ceiling, ratio, ratios = c.pairs(at_one, at_pd, 8 * rounds)
    records.add(f"text, {what}", ours * 1e3, "ms", ceiling_name="one engine", ceiling=ceiling * 1e3, ratio=ratio, target=("<=", 1.1),
                spread=statistics.quantiles(ratios, n=10))


def ec_text(lab, records, rounds):
    agent, = c.agents(lab, 1)
    e, pd = dray(lab, "e", "ec_producer", agent, lease=600), dray(lab, "pd", "ec_consumer", agent)
    one = VisionEngine(lab.tmp, "one", model=model(), **UNCACHED)
    with contextlib.ExitStack() as stack:
        with c.under("DRAY_BENCH_BUSY"):
            stack.enter_context(running(e, pd, one))
            for engine in (pd, one):
                for _ in range(3):
                    first_token(engine)
        stack.enter_context(c.under("DRAY_BENCH_QUIET"))
        text = [lambda engine=engine: first_token(engine) for engine in (pd, one)]
        compare(records, "E is idle", rounds, *text)
        with Busy(e):
            compare(records, "E is busy", rounds, *text)
        asked = [(vision.prompt(chance), [[*SIZES[64], next(numbers)]]) for _ in range(8 * rounds)]
        offers = [good(e.run(prompt, 1, images=images), e)["ec"] for prompt, images in asked]
        e.kill()
        until(lambda: not agent.ctl("leases", "--json")["leases"], "the agent sees that E is dead")
        left = {pd: iter(zip(asked, offers)), one: iter(zip(asked, [None] * len(asked)))}
        encoded = len(pd.encoded)

        def beside(engine):
            """The same beside a request for an output of the dead encoder, which is encoded here."""
            (prompt, images), offer = next(left[engine])
            waits = engine.start(prompt, 1, images=images, ec=offer)
            first = first_token(engine)
            good(waits.get(timeout=4 * LIMIT), engine)
            return first

        compare(records, "E is dead", rounds, lambda: first_token(pd), lambda: first_token(one))
        compare(records, "E is dead, beside images", rounds, lambda: beside(pd), lambda: beside(one))
        if len(pd.encoded) - encoded != len(asked):
            raise c.CannotRun(f"PD has encoded {len(pd.encoded) - encoded} images of {len(asked)}")
    agent.stop()
