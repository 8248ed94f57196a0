# SPDX-License-Identifier: Apache-2.0
"""One transfer of outputs from another engine's pool into the own one."""

from __future__ import annotations

from ... import errors
from ...client import Client
from ...handles import Region
from ...pending import Transfer
from ..grants import Hold
from .pieces import Pieces
from .pool import Item
from .pool_rights import Early

__all__ = ["Load"]

_MARGIN = 0.25  # seconds that the agent gets to stop a transfer before the deadline


class Load:
    """Outputs that are read by one right, those that move in pieces behind the others. The right belongs to the load. over: nothing more will
    happen, apart from lent()."""

    def __init__(self, hold: Hold | Early, request_id: str, ends: float) -> None:
        self._hold, self._ends = hold, ends
        self._operations: list[tuple[int, int, int]] = []
        self._pieces: list[Pieces] = []
        self._transfer: Transfer | None = None
        self._stopped = False
        self._waits = False  # for the next piece
        self.request_id = request_id
        self.items: list[Item] = []
        self.began = 0.0
        self.error: errors.Error | None = None
        self.over = False

    def add(self, item: Item, operation: tuple[int, int, int]) -> None:
        """Another output. operation: offsets in the own pool and in the other engine's, and bytes."""
        self.items.append(item)
        self._operations.append(operation)

    def add_pieces(self, item: Item, pieces: Pieces) -> None:
        """An output that moves in pieces."""
        self.items.append(item)
        self._pieces.append(pieces)

    def start(self, client: Client, region: Region, now: float) -> None:
        """Starts the transfer, unless the agent has no room for it now."""
        self.began, self._transfer = self.began or now, None
        if self._stopped:
            self._end(errors.Cancelled("no request needs the outputs any more"))
        elif now >= self._ends:
            self._end(errors.Deadline("the other engine has not handed out the next piece of the output until the deadline" if self._waits else
                                      "there was no room for the transfer in the agent until the deadline"))
        elif self._hold.remote is None:
            self._end(self._hold.lost or errors.NotFound("the right has been released"))
        else:
            try:
                operations, said = self._operations, None
                if not operations:
                    operation, said = self._pieces[0].operation()
                    operations = [operation]
                self._transfer = client.read(region, self._hold.remote, operations, notify=said,
                                             deadline=max(0.001, self._ends - now - _MARGIN))
            except errors.Busy:
                pass  # tried again in the next step
            except errors.Error as e:
                self._end(e)

    def poll(self, client: Client, region: Region, now: float) -> None:
        """Looks whether the transfer has ended. Does not wait."""
        if self._transfer is None:
            self.start(client, region, now)
        elif self._transfer.done():
            self._go_on(client, region, now)
        if not self.over:
            self._hold.keep(now)

    def _go_on(self, client: Client, region: Region, now: float) -> None:
        """A transfer has ended: the next one starts, if there is another one."""
        assert self._transfer is not None
        error = self._transfer.error()
        told = not isinstance(error, errors.NotifyRefused)  # otherwise the bytes are in place, and the encoder is told with the next read
        if not told:
            error = None
        comes = True
        if error is None and self._operations:
            self._operations = []
        elif error is None:
            try:
                comes = self._pieces[0].take(told)
            except errors.Error as e:
                error = e
            if error is None and self._pieces[0].over:
                del self._pieces[0]
        self._waits = not comes
        if error is not None or not self._pieces:
            self._end(error)
        elif comes:
            self.start(client, region, now)
        else:
            self._transfer = None  # asked again in the next step

    def _end(self, error: errors.Error | None) -> None:
        self.over, self.error = True, error

    def error_of(self, item: Item) -> errors.Error | None:
        """Why an output has not come; None: it has. When the load is over."""
        return self.error

    @property
    def session_reports_end(self) -> bool:
        """True if a transfer runs, and no next piece is waited for."""
        return self._transfer is not None and not self._pieces and not self.over

    def stop(self) -> None:
        """No request needs the outputs any more."""
        if not self._stopped:
            self._stopped = True
            if self._transfer is not None and not self._transfer.done():
                try:
                    self._transfer.cancel(wait=False)
                except errors.Error:
                    pass  # it has ended

    def lent(self) -> bool:
        """True while the agent may still write the places of the outputs."""
        return self._transfer is not None and self._transfer.lent()

    def release(self) -> None:
        """Says to the other engine that its outputs are not read any more."""
        self._hold.release()
