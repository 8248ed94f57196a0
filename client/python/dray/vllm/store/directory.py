# SPDX-License-Identifier: Apache-2.0
"""What the scheduler side knows of the worker ranks: the forms of their objects, from which keys are made."""

from __future__ import annotations

from collections.abc import Iterable

from ... import errors
from .keys import Root, key
from .protocol import StoreRank

__all__ = ["Directory"]


class Directory:
    """The ranks of one engine."""

    def __init__(self, agent_id: bytes, world_size: int) -> None:
        self._agent_id, self._world_size = agent_id, world_size
        self._ranks: dict[int, StoreRank] = {}
        self._forms: list[dict[str, int]] = []  # of each group: the forms of all ranks, with the sizes of their objects

    @property
    def complete(self) -> bool:
        """True when all ranks have said what their objects are."""
        return len(self._ranks) == self._world_size

    def add(self, ranks: Iterable[StoreRank]) -> None:
        """errors.Unsupported: a rank does not use the agent of this side."""
        for rank in ranks:
            if rank.agent_id != self._agent_id and not self.complete:
                raise errors.Unsupported(f"rank {rank.rank} uses the agent {rank.agent_id.hex()}, the scheduler the agent {self._agent_id.hex()}",
                                         fix="Run all ranks of an engine on one host, with one agent.")
            self._ranks[rank.rank] = rank
        if self.complete:
            all_ranks = list(self._ranks.values())
            self._forms = [{form: one.sizes[group] for one in all_ranks for form in one.forms[group]}
                           for group in range(len(all_ranks[0].forms))]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of a block of each group, at all ranks together."""
        return tuple(sum(forms.values()) for forms in self._forms)

    def keys(self, root: Root, group: int, block_hash: bytes) -> dict[bytes, int]:
        """The keys of a block at all ranks, with the sizes of their objects. Ranks with equal objects share a key."""
        return {key(root, form, block_hash): size for form, size in self._forms[group].items()}
