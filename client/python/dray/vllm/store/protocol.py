# SPDX-License-Identifier: Apache-2.0
"""What the scheduler side and the workers of DrayStoreConnector tell each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from .keys import Root

__all__ = ["Block", "Load", "Save", "StepMetadata", "StoreRank", "WorkerMetadata"]


class Block(NamedTuple):
    """A block of the engine's KV cache, and the engine's hash of its tokens. cost: seconds; of saves."""

    group: int
    number: int
    hash: bytes
    cost: float = 0.0


class Load(NamedTuple):
    """For a worker: get the objects of blocks. tokens: that they hold. seconds: until the load has to have ended."""

    request_id: str
    root: Root
    blocks: tuple[Block, ...]
    tokens: int
    seconds: float


@dataclass(frozen=True)
class Save:
    """For a worker: put the objects of blocks, which stay allocated until all ranks have reported the number."""

    number: int
    root: Root
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class StoreRank:
    """A worker rank, for the scheduler side. forms, sizes: of the objects of a block, for each KV-cache group."""

    rank: int
    forms: tuple[tuple[str, ...], ...]
    sizes: tuple[int, ...]
    agent_id: bytes


@dataclass
class StepMetadata:
    """From the scheduler side to the workers, for one step. dropped: requests that ended before their load was started."""

    loads: list[Load] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)


@dataclass
class WorkerMetadata:
    """From the workers to the scheduler side.

    lent: failed loads whose blocks the agent may still write, with the number of ranks; returned: those that are free now.
    saved: numbers of saves that have ended, with the number of ranks; unsaved: numbers of those that were not complete.
    absent: (group, hash) of blocks that the store did not have for a load.
    """

    ranks: dict[int, StoreRank] = field(default_factory=dict)
    lent: dict[str, int] = field(default_factory=dict)
    returned: dict[str, int] = field(default_factory=dict)
    saved: dict[int, int] = field(default_factory=dict)
    unsaved: set[int] = field(default_factory=set)
    absent: dict[str, list[tuple[int, bytes]]] = field(default_factory=dict)

    def aggregate(self, other: WorkerMetadata) -> WorkerMetadata:
        """Joins what two workers report for the same step."""
        self.ranks.update(other.ranks)
        for request_id, n in other.lent.items():
            self.lent[request_id] = self.lent.get(request_id, 0) + n
        for request_id, n in other.returned.items():
            self.returned[request_id] = self.returned.get(request_id, 0) + n
        for number, n in other.saved.items():
            self.saved[number] = self.saved.get(number, 0) + n
        self.unsaved |= other.unsaved
        for request_id, blocks in other.absent.items():
            self.absent[request_id] = self.absent.get(request_id, []) + blocks
        return self

    def __bool__(self) -> bool:
        return bool(self.ranks or self.lent or self.returned or self.saved or self.absent)
