# SPDX-License-Identifier: Apache-2.0
"""The scheduler side of an engine that encodes: each request gets places for its outputs in the pool, before it is scheduled.

What becomes of the outputs when the request has ended is the matter of subclasses. They stay in the pool until others need the
room, so that the next request with the same image needs no copy.
"""

from __future__ import annotations

import enum
import logging
import secrets
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ... import errors
from ...client import Client
from ...handles import Region
from ..rest import Rest
from .header import NONCE, digest
from .line import Line
from .pool import Item, Pool, Shape
from .pool_memory import PoolMemory
from .protocol import Place, StepMetadata

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

__all__ = ["Send", "State", "Writer"]

_logger = logging.getLogger("vllm.dray")


class State(enum.Enum):
    """Of a request. ROOM: the engine does not schedule it yet. OPEN: it may. The others: it has finished."""

    ROOM = enum.auto()
    OPEN = enum.auto()
    HELD = enum.auto()
    CLOSING = enum.auto()


class Send:
    """A request. shapes: of its outputs, by identifier. items: those that have places, in the same order."""

    __slots__ = ("error", "items", "request_id", "shapes", "since", "state")

    def __init__(self, request_id: str, shapes: dict[str, Shape], now: float) -> None:
        self.request_id, self.shapes = request_id, shapes
        self.state = State.ROOM
        self.items: list[Item] = []
        self.error: errors.Error | None = None
        self.since = now


Sent = TypeVar("Sent", bound=Send)


class Writer(ABC, Generic[Sent]):
    """width: of the outputs of a modality. itemsize: bytes of a number in them."""

    def __init__(self, client: Client, region: Region, memory: PoolMemory, pool: Pool, rest: Rest, *, width: Callable[[str], int],
                 itemsize: int) -> None:
        self._client, self._region, self._memory, self._pool = client, region, memory, pool
        self._rest, self._width, self._itemsize = rest, width, itemsize
        self._unmeasured: set[str] = set()  # modalities
        self._line: Line[Sent] = Line()
        self._sends: dict[str, Sent] = {}  # of requests that have not finished

    # --- requests -----------------------------------------------------------------------------------

    @property
    def _window(self) -> int:
        """Bytes of the pool for an output that is larger than it; 0: such outputs are not moved."""
        return 0

    def available(self, request: Request, num_computed_tokens: int) -> bool:
        """True if the request may be scheduled."""
        send = self._sends.get(request.request_id)
        if send is None:
            send = self._sends[request.request_id] = self._begin(request, self._shapes(request), time.monotonic())
        if send.state is State.ROOM:
            self._advance(send, time.monotonic())
        return send.state is State.OPEN

    @abstractmethod
    def _begin(self, request: Request, shapes: dict[str, Shape], now: float) -> Sent:
        """A request that is seen for the first time."""

    @abstractmethod
    def finished(self, request: Request) -> dict[str, Any] | None:
        """The end of a request: ec_transfer_params of the answer."""

    @property
    @abstractmethod
    def busy(self) -> bool:
        """True while the engine has to go on stepping, although no request needs it."""

    @abstractmethod
    def _advance(self, send: Sent, now: float) -> None:
        """Does what can be done for a request that waits."""

    def has(self, identifier: str) -> bool:
        """Outputs are not read back from the pool."""
        return False

    def allocated(self, request: Request, index: int) -> None:
        """The place of an output does not depend on the engine's cache."""

    def freed(self, request: Request, index: int) -> None:
        """As allocated()."""

    def take_unavailable(self) -> set[str]:
        """Requests of this engine never fail because of the pool."""
        return set()

    def _shapes(self, request: Request) -> dict[str, Shape]:
        shapes: dict[str, Shape] = {}
        for index, feature in enumerate(request.mm_features):
            try:
                rows, width = request.get_num_encoder_embeds(index), self._width(feature.modality)
            except ValueError as e:  # of vLLM: it measures only what has an encoder
                if feature.modality not in self._unmeasured:
                    self._unmeasured.add(feature.modality)
                    _logger.warning("dray: outputs of %s are not offered: %s", feature.modality, e)
                continue
            shape = Shape(digest(feature.identifier, request.cache_salt), rows, width, rows * width * self._itemsize)
            if feature.identifier in shapes or not rows:
                continue
            if self._pool.room(shape) > self._pool.size:
                shape = shape._replace(window=self._window)
            if not self._pool.fits([*shapes.values(), shape]):
                _logger.warning("dray: request %s: its output %d is not offered: the pool has %d bytes, and it would need %d with the "
                                "outputs before it", request.request_id, index, self._pool.size,
                                sum(map(self._pool.room, [*shapes.values(), shape])))
                continue
            shapes[feature.identifier] = shape
        return shapes

    def _enter(self, send: Sent, now: float) -> bool:
        """Gets places for all outputs, or none."""
        if self._pool.taken(send.shapes.values()):
            self._line.leave(send)  # until the other one has moved, and those that come later pass this request
            return False
        if not self._line.may_enter(send, now):
            self._line.wait(send, now)
            return False
        if not self._place(send):
            if self._pool.used:
                self._line.wait(send, now)
                return False
            self._pool.clear()  # an output of this request that is here divides the room for the others
            self._place(send)
        self._line.leave(send)
        return True

    def _place(self, send: Sent) -> bool:
        """Takes the outputs that are in the pool, and places for the others; all of them, or none."""
        found = {name: self._pool.find(shape) for name, shape in send.shapes.items()}
        for item in found.values():
            if item is not None:
                self._pool.use(item, send)
        missing = [send.shapes[name] for name, item in found.items() if item is None]
        made = self._pool.enter(missing, send, [secrets.token_bytes(NONCE) for _ in missing])
        if made is None:
            for item in found.values():
                if item is not None:
                    self._pool.leave(item, send)
            return False
        new = iter(made)
        send.items = [item or next(new) for item in found.values()]
        return True

    def _stored(self, send: Sent) -> bool:
        """True if the worker has stored all outputs that have places, which are ready then."""
        for item in send.items:
            item.ready = item.ready or self._memory.sealed(item)
        return all(item.ready for item in send.items)

    def _leave(self, send: Sent) -> None:
        """Nobody reads the outputs for this request any more."""
        for item in send.items:
            if not item.ready and item.users == {send}:
                self._pool.forget(item)
            self._pool.leave(item, send)
        send.items = []

    # --- steps --------------------------------------------------------------------------------------

    def build(self, output: SchedulerOutput, metadata: StepMetadata) -> None:
        """What the worker has to store in this step."""
        self._poll(output)
        for request_id in output.num_scheduled_tokens:
            send = self._sends.get(request_id)
            if send is None:
                continue
            for identifier, item in zip(send.shapes, send.items, strict=False):
                if not item.ready:
                    metadata.saves.setdefault(identifier, []).append(Place.of(item))

    @abstractmethod
    def _poll(self, output: SchedulerOutput) -> None:
        """Takes what the agent has sent. It may be waited for in a step in which nothing is computed."""

    def take_output(self, step: int) -> None:
        """A producer's workers report nothing."""

    def take_stats(self) -> dict[str, Any] | None:
        """Loads are counted, which a producer has none of."""
        return None

    def close(self) -> None:
        """Ends the session."""
        self._client.close()
