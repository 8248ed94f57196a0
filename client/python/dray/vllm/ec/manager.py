# SPDX-License-Identifier: Apache-2.0
"""DrayEncoderCacheManager: which outputs of encoders stay in the device's cache, and which ones come back from the host tier.

vLLM's scheduler asks it about each item that a step needs, and the workers drop what it has evicted. Capacity is counted in
embeddings. An output that a request uses is never evicted. The host tier (host.py) exists with DrayECCacheConnector: vLLM has no
other way by which an output gets back into the workers' cache. An output that comes from there is promoted if it is worth as much
as what it displaces; otherwise it passes: it is the first to be evicted when its requests do not need it any more.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from ... import errors
from . import tiers
from .cache_stats import Stats, sentence
from .cost import EncoderCost
from .host import HostTier
from .manager_options import Options
from .policy import Entry, Policy

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.request import Request

__all__ = ["DrayEncoderCacheManager"]

_logger = logging.getLogger("vllm.dray")


class _Output:
    """An output in the device's cache. step: the schedule() in which it was allocated. last: the request that used it last."""

    __slots__ = ("entry", "last", "passes", "step", "users")

    def __init__(self, entry: Entry, step: int, passes: bool) -> None:
        self.entry, self.step, self.passes = entry, step, passes
        self.users: set[str] = set()
        self.last = ""


class DrayEncoderCacheManager:
    """vLLM makes one for each engine, in the process of the scheduler."""

    @classmethod
    def create_manager(cls, *, cache_size: int, vllm_config: VllmConfig) -> DrayEncoderCacheManager:
        """errors.Invalid: an option is unknown or wrong. errors.Unsupported: the model has no such cache."""
        config = vllm_config.ec_manager_config.manager_config
        options = Options.parse(config)
        model = vllm_config.model_config
        if getattr(model, "is_encoder_decoder", False):
            raise errors.Unsupported("the model is an encoder-decoder model, whose outputs vLLM does not cache",
                                     fix="Leave encoder_cache_manager_cls out.")
        tier = tiers.take(vllm_config)
        if tier is None:
            Options.refuse_host_tier(config)
        stats = Stats(lambda data: _logger.info("dray: encoder cache, last minute: %s", sentence(data)))
        cost = EncoderCost(model.hf_config)
        host = tier(options.make(options.host_policy), cost, stats) if tier is not None else None
        _logger.info("dray: the encoder cache has %d embeddings on the device (%s)%s", cache_size, options.policy,
                     f", and {host.embeddings} in host memory ({options.host_policy})" if host is not None else "")
        return cls(cache_size, options, cost, host, stats, waits=getattr(vllm_config.scheduler_config, "policy", "") == "priority")

    def __init__(self, cache_size: int, options: Options, cost: EncoderCost, host: HostTier | None = None,
                 stats: Stats | None = None, waits: bool = False) -> None:
        """waits: a request waits a step for an output that another one has allocated in this step. By priority vLLM may still
        preempt the other one in this step, and then nobody computes the output."""
        self.cache_size, self._waits = cache_size, waits
        self.stats = stats or Stats()
        self._options, self._cost, self._host = options, cost, host
        self._watermark = int(options.watermark * cache_size)
        self._step = 0
        self._begin()

    def _begin(self) -> None:
        self._policy: Policy = self._options.make(self._options.policy)(self.cache_size)
        self._outputs: dict[str, _Output] = {}
        self._inputs: dict[str, set[int]] = {}  # that a request uses, by request
        self._passing: OrderedDict[Entry, None] = OrderedDict()  # without users, the oldest first
        self._evicted: list[str] = []
        self._promoted: set[str] = set()  # decided in this step, and not allocated yet
        self.num_free_slots = self.num_freeable_slots = self.cache_size

    def reset(self) -> None:
        """Forgets all outputs, because the weights have changed."""
        self._begin()
        if self._host is not None:
            self._host.reset()

    # --- a request needs an item ----------------------------------------------------------------------

    def check_and_update_cache(self, request: Request, input_id: int) -> bool:
        """True if the device has the output; then the request uses it."""
        output = self._outputs.get(request.mm_features[input_id].identifier)
        if output is None or self._is_too_new(output, request):
            return False
        request_id = request.request_id
        if not output.users:
            self._leave_idle(output)
        if request_id not in output.users:
            output.users.add(request_id)
            if output.last != request_id:  # a request for which there are no KV blocks asks again in each step
                output.last = request_id
                self._count_use(output.entry)
                self.stats.count(device_hits=1, saved_seconds=output.entry.cost)
        self._inputs.setdefault(request_id, set()).add(input_id)
        return True

    def _is_too_new(self, output: _Output, request: Request) -> bool:
        return self._waits and output.step == self._step and request.request_id not in output.users

    def _count_use(self, entry: Entry) -> None:
        self._policy.used(entry)
        if self._host is not None:
            self._host.used_by_request(entry.identifier)

    def get_cached_num_encoder_embeds(self, request: Request, input_id: int) -> int | None:
        """Embeddings of the output on the device; None if it is not there."""
        output = self._outputs.get(request.mm_features[input_id].identifier)
        return None if output is None else output.entry.rows

    def can_allocate(self, request: Request, input_id: int, encoder_compute_budget: int, num_embeds_to_schedule: int) -> bool:
        """True if there is room for the output, and for those that were found to have room before it. Evicts what has to go.

        The workers hear of it with the next step.
        """
        rows = request.get_num_encoder_embeds(input_id)
        if rows > encoder_compute_budget:
            return False
        need = rows + num_embeds_to_schedule
        if need > self.num_freeable_slots:
            return False
        identifier = request.mm_features[input_id].identifier
        output = self._outputs.get(identifier)
        if output is not None and self._is_too_new(output, request):
            return False
        self._promoted.discard(identifier)
        found = self._host.find(identifier, rows) if self._host is not None else None
        if found is not None and self._is_worth(found, need):
            self._promoted.add(identifier)
            if need > self.num_free_slots:
                need = min(self.num_freeable_slots, need + self._watermark)
        while self.num_free_slots < need:
            self._evict()
        return True

    def _is_worth(self, found: Entry, need: int) -> bool:
        """Whether an output of the host tier is worth what has to be evicted for it."""
        if need <= self.num_free_slots:
            return True
        scores = sorted(self._policy.scores())
        if not scores:
            return True
        at = min(len(scores) - 1, int(len(scores) * self._options.promote_percentile))
        wanted = Entry(found.identifier, found.rows, found.cost)
        wanted.uses = found.uses + 1
        return self._policy.score(wanted) >= scores[at]

    def _evict(self) -> None:
        entry = next(iter(self._passing), None)
        passes = entry is not None
        if entry is not None:
            del self._passing[entry]
            self._policy.enter(entry)
        else:
            entry = self._policy.victim()
            assert entry is not None, "outputs without users take less room than was counted"
        self._policy.remove(entry, not passes)  # the policy has not chosen one that passes, so that others do not age by it
        del self._outputs[entry.identifier]
        self._evicted.append(entry.identifier)
        self.num_free_slots += entry.rows
        self.stats.count(device_evictions=1)

    def allocate(self, request: Request, input_id: int) -> None:
        """The output comes to the device in this step: from the host tier, or the encoder computes it."""
        identifier, rows = request.mm_features[input_id].identifier, request.get_num_encoder_embeds(input_id)
        assert identifier not in self._outputs and rows <= self.num_free_slots, "can_allocate() has not been asked"
        found = self._host.find(identifier, rows) if self._host is not None else None
        promoted = identifier in self._promoted
        self._promoted.discard(identifier)
        entry = Entry(identifier, rows, self._cost.seconds(rows))
        output = self._outputs[identifier] = _Output(entry, self._step, found is not None and not promoted)
        output.users.add(request.request_id)
        output.last = request.request_id
        self._inputs.setdefault(request.request_id, set()).add(input_id)
        self.num_free_slots -= rows
        self.num_freeable_slots -= rows
        self._policy.add(entry)
        self._policy.used(entry)
        if found is None or self._host is None:
            self.stats.count(encoded=1, encoded_seconds=entry.cost)
            return
        entry.uses = max(entry.uses, found.uses + 1)
        self._host.used_by_request(identifier)
        self.stats.count(saved_seconds=entry.cost, **{"promoted" if promoted else "passed": 1})

    # --- a request does not need it any more ----------------------------------------------------------

    def get_cached_input_ids(self, request: Request) -> set[int]:
        """The items of a request whose outputs it uses."""
        return self._inputs.get(request.request_id, set())

    def free_encoder_input(self, request: Request, input_id: int) -> None:
        """The request has passed an item. An output that it uses at several places is used until it has passed all of them."""
        request_id, identifier = request.request_id, request.mm_features[input_id].identifier
        inputs = self._inputs.get(request_id)
        if inputs is not None:
            inputs.discard(input_id)
            if not inputs:
                del self._inputs[request_id]
        output = self._outputs.get(identifier)
        if output is None or request_id not in output.users or \
                any(request.mm_features[other].identifier == identifier for other in inputs or ()):
            return
        output.users.discard(request_id)
        if not output.users:
            self._enter_idle(output)

    def free(self, request: Request) -> None:
        """The request has ended, was preempted, or is not scheduled after all."""
        identifiers = {request.mm_features[input_id].identifier for input_id in self.get_cached_input_ids(request)}
        for input_id in list(self.get_cached_input_ids(request)):
            self.free_encoder_input(request, input_id)
        for identifier in identifiers:
            output = self._outputs.get(identifier)
            if output is not None and not output.users and output.step == self._step:
                self._drop(output)

    def _drop(self, output: _Output) -> None:
        """The request was preempted in the step in which the output was to come to the device, so that it is not there."""
        identifier = output.entry.identifier
        self._leave_idle(output)
        self._policy.enter(output.entry)
        self._policy.remove(output.entry, False)
        del self._outputs[identifier]
        self.num_free_slots += output.entry.rows
        self.num_freeable_slots += output.entry.rows
        if self._host is not None:
            self._host.retract(identifier)

    def _enter_idle(self, output: _Output) -> None:
        if output.passes:
            self._passing[output.entry] = None
        else:
            self._policy.enter(output.entry)
        self.num_freeable_slots += output.entry.rows

    def _leave_idle(self, output: _Output) -> None:
        if output.passes:
            del self._passing[output.entry]
            output.passes = False  # it is used again before it was evicted
        else:
            self._policy.leave(output.entry)
        self.num_freeable_slots -= output.entry.rows

    # --- the end of schedule() ------------------------------------------------------------------------

    def get_freed_mm_hashes(self) -> list[str]:
        """Outputs that the workers drop with this step. One that was allocated again meanwhile is not among them."""
        evicted, self._evicted = self._evicted, []
        self._step += 1
        self._promoted.clear()
        self.stats.look()
        return [identifier for identifier in evicted if identifier not in self._outputs]

    def get_manager_metadata(self) -> Any:
        """Nothing: vLLM's workers have no use for it, and what the host tier needs goes with the connector."""
        return None
