# SPDX-License-Identifier: Apache-2.0
"""What the scheduler side knows of ranks: this engine's, with their regions, and those of other engines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from .. import errors
from ..client import Client
from ..handles import Region
from .layout import EngineLayout
from .options import DEFAULT_NAME
from .protocol import RankInfo

__all__ = ["Peers", "Ranks"]

_PEERS_MAX = 64  # descriptions of other engines that are remembered

Judged = TypeVar("Judged")


class Peers(Generic[Judged]):
    """Descriptions of other engines, each read and judged once.

    judge: what this engine makes of a layout; it raises errors.Error for one that it refuses.
    """

    def __init__(self, judge: Callable[[EngineLayout], Judged]) -> None:
        self._judge = judge
        self._known: dict[str, tuple[EngineLayout, Judged] | errors.Error] = {}

    def forget(self) -> None:
        """After a change of this engine's own layout."""
        self._known.clear()

    def check(self, form: Any) -> tuple[EngineLayout, Judged]:
        """(layout, what judge() returned) of a description. errors.Error: refused."""
        key = repr(form)
        known = self._known.get(key)
        if known is None:
            while len(self._known) >= _PEERS_MAX:
                self._known.pop(next(iter(self._known)))
            try:
                layout = EngineLayout.from_json(form)
                known = layout, self._judge(layout)
            except errors.Error as e:
                known = e
            self._known[key] = known
        if isinstance(known, errors.Error):
            raise known.with_traceback(None)  # otherwise it keeps the frames of all who were refused
        return known


class Ranks:
    """The worker ranks of this engine, as far as they belong to the connector `name`.

    on_change: called when their common layout has changed.
    """

    def __init__(self, client: Client, world_size: int, on_change: Callable[[], None], name: str = DEFAULT_NAME) -> None:
        self._client, self._world_size, self._on_change, self._name = client, world_size, on_change, name
        self._infos: dict[int, RankInfo] = {}
        self._regions: dict[int, Region] = {}  # borrowed, by rank
        self._layout: EngineLayout | None = None
        self._absent: tuple[int, float] | None = None  # the loss for which requests wait, and since when

    def __len__(self) -> int:
        return self._world_size

    @property
    def complete(self) -> bool:
        """True when all ranks have said where their KV cache is."""
        return self._layout is not None

    @property
    def layout(self) -> EngineLayout:
        """errors.OutOfOrder: the workers have not registered their KV caches yet."""
        if self._layout is None:
            raise errors.OutOfOrder("the workers have not registered their KV caches yet")
        return self._layout

    @property
    def look_back_partly(self) -> bool:
        """True if the engine gives up blocks of some layers that a request has computed."""
        return self._layout is not None and any(group.looks_back_partly for group in self._layout.groups)

    def wanted(self, prompt: int) -> int:
        """How many tokens of a prompt D loads. It computes the last one once more in any case.

        For a prompt that is loaded as a whole, the engine would keep the blocks that the token behind it looks at, and the last one looks further back.
        """
        return prompt - self.look_back_partly

    @property
    def slots(self) -> int | None:
        """How many slots of a bounce buffer all ranks have for outgoing blocks; None: blocks are read in place."""
        counts = [info.slots for info in self._infos.values() if info.slots is not None]
        return min(counts) if counts else None

    def info(self, rank: int) -> RankInfo:
        return self._infos[rank]

    def add(self, infos: Iterable[RankInfo]) -> None:
        """Takes what the workers say about their regions: at the start, and after a restart of the agent.

        errors.Unsupported, at the start: the ranks do not use the agent of this side.
        """
        starting = not self.complete
        for info in infos:
            if info.name != self._name:  # MultiConnector passes what the workers of one child say to all children
                continue
            self._infos[info.layout.rank] = info
            self._regions.pop(info.layout.rank, None)
        if len(self._infos) < self._world_size:
            return
        ordered = [self._infos[rank] for rank in sorted(self._infos)]
        layout = EngineLayout(ordered[0].model, ordered[0].groups, tuple(info.layout for info in ordered))
        if starting:
            self._check()
        if layout != self._layout:
            self._layout = layout
            self._on_change()

    def _check(self) -> None:
        """errors.Unsupported, unless all ranks use the agent of this side, and share their KV cache in the same way."""
        own = self._client.agent_id
        for info in self._infos.values():
            if info.agent_id != own:
                raise errors.Unsupported(
                    f"rank {info.layout.rank} uses the agent {info.agent_id.hex()}, the scheduler the agent {own.hex()}",
                    fix="Run all ranks of an engine on one host, with one agent.")
            if (info.slots is None) != (self.slots is None):
                raise errors.Unsupported(
                    f"rank {info.layout.rank} shares its KV cache, and another rank copies blocks through a bounce buffer",
                    fix="Let all ranks allocate their KV cache in the same way.")

    @property
    def present(self) -> bool:
        """True if the agent has the KV caches of all ranks in the session that there is now."""
        own = self._client.info()
        return self.complete and own.connected and all(
            (info.agent_id, info.incarnation) == (own.agent_id, own.incarnation) for info in self._infos.values())

    def losses(self) -> int:
        """How often the session was lost, or could not be opened, up to now."""
        self._client.process()  # which notices a loss
        return self._client.info().losses

    def missing(self, losses: int) -> errors.Error | None:
        """Why a load cannot wait for the agent; None: it can wait, or it can start.

        losses: of losses(), when the load's request was seen first. An idle engine learns that its agent was restarted
        when it gets a request. That request waits for one attempt to open a session, and then for the workers.
        """
        info = self._client.info()
        if info.connected or info.losses <= losses:
            return None
        return errors.SessionClosed(f"there is no session with the agent at {self._client.path}")

    def awaited(self, losses: int, limit: float) -> bool:
        """True if a request has to wait because the session with the agent, or a region, is not back.

        losses: as for missing(). limit: seconds that requests wait after one of them has noticed this loss.
        """
        if self.present or not self.complete:
            self._absent = None
            return False
        now = time.monotonic()
        if self._absent is None or self._absent[0] < losses:
            self._absent = losses, now
        return now < self._absent[1] + limit and self.missing(losses) is None

    def region(self, rank: int) -> Region | None:
        """The region of a rank; None while the agent does not have it, as after a restart."""
        region = self._regions.get(rank)
        if region is None:
            info = self._infos.get(rank)
            try:
                if info is None or (info.agent_id, info.incarnation) != (self._client.agent_id, self._client.incarnation):
                    return None
                region = self._client.borrow_region(info.agent_region, info.layout.length)
            except errors.Error:  # the session was lost just now
                return None
            self._regions[rank] = region
        return region

    def lose(self) -> None:
        """The session with the agent was lost, and with it the borrowed regions."""
        self._regions.clear()
