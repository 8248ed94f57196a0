# SPDX-License-Identifier: Apache-2.0
"""An engine without a model: DrayConnector's worker side of one rank over a real agent, and the rights of its scheduler side."""

import dray
from dray.events import Notification
from dray.vllm import layout as layouts
from dray.vllm.grants import Grants
from dray.vllm.layout import EngineLayout
from dray.vllm.protocol import Arrival, Load, Push, PushTarget, StepMetadata
from dray.vllm.worker import WorkerSide
from harness import LIMIT, until


class WorkerEngine:
    """share: makes the region of its KV cache in a session. rank, groups: what lies there. mark: of WorkerSide."""

    def __init__(self, socket, name, share, rank, groups, mark=None):
        self.rank, self.groups = rank, groups
        self.layout = EngineLayout({"model": "m"}, groups, (rank,))
        self.client = dray.Client(socket, group=name, notifications=True, timeout=LIMIT)
        worker = dray.Client(socket, group=name, timeout=LIMIT)
        self.grants, self.arrived = Grants(self.client), []
        self.grants.on_event = self.take
        region = share(worker)
        self.worker = WorkerSide(worker, region, rank, groups, {"model": "m"}, mark=mark)
        self.region = self.client.borrow_region(region.agent_handle, rank.length)
        self.received, self.failed, self.pushed, self.errors = [], [], 0, []

    def take(self, event):
        if isinstance(event, Notification):
            self.arrived.append(Arrival.unpack(event.payload))

    def step(self, **what):
        self.worker.step(StepMetadata(**what))
        self.worker.computed()
        self.poll()

    def poll(self):
        """Of the worker side; and takes what the scheduler side would."""
        results = self.worker.poll()
        self.received += results.received
        self.failed += results.failed
        metadata = self.worker.take_metadata()
        if metadata is not None:
            self.pushed += len(metadata.pushed)
            self.errors += metadata.push_errors.values()
        self.grants.poll()

    def lend(self, blocks, access, audience=None):
        grant = self.grants.give("r", self.region, layouts.ranges(self.rank, self.groups, (blocks,)), LIMIT, access, audience)
        until(lambda: self.grants.poll() or grant.token or grant.error, "the lease")
        assert grant.token, grant.error
        return grant

    def acquire(self, grant, transport):
        hold = self.grants.acquire(grant.token, "a request")
        until(lambda: self.grants.poll() or hold.remote or hold.error, "the right")
        assert hold.error is None and hold.remote.transport == transport, hold.error or hold.remote.transport
        return hold

    def ends(self, grant, how):
        until(lambda: self.grants.poll() or grant.how, "the end of the lease")
        assert grant.how == how

    def close(self):
        self.worker.close()
        self.client.close()


def load(p, hold, ours, theirs, name="r"):
    """Of all tokens of a request: from P's blocks into D's."""
    return Load(name, p.layout, (ours,), (theirs,), 0, len(ours) * p.groups[0].tokens, {0: hold.remote.agent_handle}, float(LIMIT))


def push(p, d, hold, ours, theirs, number, first, end, last):
    """A chunk: tokens [first, end) from P's blocks into D's."""
    target = PushTarget("r", p.layout, d.layout, (ours,), {0: hold.remote.agent_handle}, 7, 1, float(LIMIT)) if number == 0 else None
    return Push(1, number, (theirs,), first, end, last, target)
