# SPDX-License-Identifier: Apache-2.0
"""The connector's scheduler side in mode 'push': the engine's hooks, and the letters between engines.

An engine may be P for some requests and D for others: push_sender.py is P's part, push_receiver.py D's.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .. import errors
from ..client import Client
from ..events import Disconnected, Letter, MailboxLost, Notification
from ..pending import Pending
from . import letters
from .grants import Grants
from .letters import Announcement, Refusal
from .options import Options
from .protocol import StepMetadata, WorkerMetadata, wants_decode, wants_prefill
from .push_receiver import Receiver
from .push_sender import Sender
from .ranks import Ranks
from .rest import Rest

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

__all__ = ["PushSide"]

_logger = logging.getLogger("vllm.dray")


class PushSide:
    """One for each engine. Its methods are the hooks that the engine's scheduler calls; none of them waits,
    except for the rest of a step without tokens (Rest)."""

    def __init__(self, options: Options, client: Client, engine_id: str, rest: Rest, *, tp_size: int, world_size: int) -> None:
        self._client, self._rest = client, rest
        self._grants = Grants(client)
        self._grants.on_event = self._on_event
        self._box = letters.Box()
        mailbox = letters.mailbox_name(engine_id)
        self.ranks = Ranks(client, world_size, self._forget_peers)
        self._receiver = Receiver(options, client, self._grants, self.ranks, mailbox, self._post)
        self._sender = Sender(options, client, self._grants, self.ranks, engine_id, tp_size, self._post)
        client.open_mailbox(mailbox)

    def _forget_peers(self) -> None:
        self._sender.forget_peers()

    def _post(self, segment: str, mailbox: str, letter: bytes) -> Pending[None]:
        return self._client.post(segment, mailbox, letter, wait=False)

    def bind(self, kv_cache_manager: Any) -> None:
        """Gives this side the engine's bookkeeping of blocks."""
        self._receiver.kept.kv_cache_manager = self._sender.kept.kv_cache_manager = kv_cache_manager

    # --- hooks --------------------------------------------------------------------------------------

    def expect(self, request: Request) -> None:
        """A new request."""
        if wants_decode(request.kv_transfer_params):
            self._sender.expect(request)

    def match(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """How many tokens behind the computed ones come from another engine; None: the engine asks again in the next step."""
        if wants_prefill(request.kv_transfer_params):
            return self._receiver.match(request, num_computed_tokens)
        return (None if self._sender.waits(request.request_id) else 0), False

    def allocated(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """The engine has decided how many tokens come from another engine, and into which blocks."""
        self._receiver.allocated(request, blocks, num_external_tokens)

    def finished(self, request: Request, blocks: Sequence[Sequence[int]]) -> tuple[bool, dict[str, Any] | None]:
        """The end of a request: (False, kv_transfer_params of the answer). Blocks are kept by references of the connector."""
        self._receiver.finished(request)
        return False, self._sender.finished(request, blocks)

    def build_metadata(self, output: SchedulerOutput) -> StepMetadata:
        """What the workers have to do in this step."""
        moved = self._receiver.waiting + self._sender.kept_requests
        rest = self._rest.seconds(output.total_num_scheduled_tokens, moved, session_reports_end=True)
        by_workers = rest > 0 and self._sender.writing
        self._poll(0.0 if by_workers else rest, moved > 0 or not self._sender.idle)
        metadata = StepMetadata(rest=rest if by_workers else 0.0)
        self._receiver.step(metadata)
        self._sender.step(output, metadata)
        return metadata

    def take_output(self, output: KVConnectorOutput) -> None:
        """What the workers have reported, before the engine acts on it."""
        metadata = output.kv_connector_worker_meta
        if isinstance(metadata, WorkerMetadata):
            if metadata.ranks:
                self.ranks.add(metadata.ranks.values())
            for key, reason in metadata.push_errors.items():
                self._sender.failed(key, reason)
            for (key, number), ranks in metadata.pushed.items():
                self._sender.reported(key, number, ranks)
        self._receiver.received(output.finished_recving or ())

    # --- events -------------------------------------------------------------------------------------

    def _poll(self, rest: float, awaited: bool) -> None:
        for grant in self._grants.poll(rest, awaited):
            self._receiver.ended(grant)

    def _on_event(self, event: Any) -> None:
        if isinstance(event, Notification):
            self._receiver.notified(event)
        elif isinstance(event, Letter):
            self._read(event)
        elif isinstance(event, Disconnected):
            self.ranks.lose()
            self._sender.lost()
            _logger.warning("dray: the session with the agent at %s was lost: %s", self._client.path, event.error)
        elif isinstance(event, MailboxLost):
            _logger.error("dray: other engines cannot announce blocks: the agent at %s does not open the mailbox: %s",
                          self._client.path, event.error)

    def _read(self, letter: Letter) -> None:
        data = self._box.take(letter.agent, letter.payload)
        if data is None:
            return
        try:
            message = letters.read(data)
        except (errors.Error, ValueError) as e:
            _logger.warning("dray: a message of a client of the agent %s is ignored: %s", letter.agent.hex(), e)
            return
        if isinstance(message, Announcement):
            self._sender.announced(message)
        elif isinstance(message, Refusal):
            self._receiver.refused(message)
        else:
            self._sender.withdrawn(message)

    @property
    def busy(self) -> bool:
        """True while the engine has to go on stepping, although no request needs it."""
        return self._receiver.busy or self._sender.busy or self._grants.busy or not self.ranks.complete

    @property
    def idle(self) -> bool:
        """True if nothing is kept for any request; for tests."""
        return self._receiver.idle and self._sender.idle and not len(self._grants)

    def close(self) -> None:
        """Ends the session, and with it all rights and the mailbox."""
        self._client.close()
