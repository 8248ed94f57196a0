# SPDX-License-Identifier: Apache-2.0
"""Several DrayConnectors of one engine, as children of vLLM's MultiConnector.

All of them see the same requests, and MultiConnector joins their kv_transfer_params into one dictionary,
in which each key may come from one child only. So each child has a name and its own part under that name;
what all children would say alike is said by the first one that answers. The KV cache is allocated once,
so that the first child of a rank makes its memory, and the others share it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .. import errors
from .options import DEFAULT_NAME, Options

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.request import Request

__all__ = ["Member", "join", "shared_pool"]

_lock = threading.Lock()
_engines: dict[int, _Engine] = {}


class _Engine:
    """What the connectors of an engine have in common in this process.

    identity: MultiConnector copies the engine's configuration for each child, and all copies have the same
    object there. answered: the request for which one of the scheduler sides has answered last. pool: of
    this process's rank.
    """

    def __init__(self, identity: Any) -> None:
        self.identity = weakref.ref(identity)
        self.members: dict[str, Options] = {}
        self.answered: weakref.ref[Request] | None = None
        self.pool: weakref.ref[Any] | None = None


def _engine(config: VllmConfig) -> _Engine:
    identity = config.parallel_config
    engine = _engines.get(id(identity))
    if engine is None or engine.identity() is not identity:
        engine = _engines[id(identity)] = _Engine(identity)
    return engine


class Member:
    """One DrayConnector among those of its engine."""

    def __init__(self, engine: _Engine, name: str) -> None:
        self._engine, self._name = engine, name

    def own(self, params: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """kv_transfer_params with this connector's part under the key "dray"."""
        if params is None or self._name == DEFAULT_NAME:
            return params
        own = {key: value for key, value in params.items() if key != DEFAULT_NAME}
        if self._name in params:
            own[DEFAULT_NAME] = params[self._name]
        return own

    def others_have(self, params: Mapping[str, Any] | None) -> bool:
        """True if the request has a part for another DrayConnector of this engine."""
        return params is not None and any(name in params for name in self._engine.members if name != self._name)

    def answer(self, request: Request, params: dict[str, Any] | None) -> dict[str, Any] | None:
        """kv_transfer_params of an answer, without keys that another connector of this engine has set already."""
        if params is None:
            return None
        engine = self._engine
        first = engine.answered is None or engine.answered() is not request
        engine.answered = weakref.ref(request)
        out = {key: value for key, value in params.items() if key != DEFAULT_NAME} if first else {}
        if DEFAULT_NAME in params:
            out[self._name] = params[DEFAULT_NAME]
        return out

    def leave(self) -> None:
        """The connector is shut down. May be called twice."""
        self._engine.members.pop(self._name, None)


def join(config: VllmConfig, options: Options) -> Member:
    """The scheduler side of a connector enters. errors.Invalid: it cannot work beside another one of the engine."""
    with _lock:
        engine = _engine(config)
        for name, other in engine.members.items():
            _check(name, other, options)
        engine.members[options.name] = options
        return Member(engine, options.name)


def _check(name: str, other: Options, options: Options) -> None:
    if name == options.name:
        raise errors.Invalid(
            f"the engine has two DrayConnectors with the name {name!r}, which would answer for each other",
            fix="Set the option 'name' of each child of MultiConnector to another value, the same ones at P and D.")
    if "push" in (other.mode, options.mode):
        raise errors.Invalid(f"the engine has the DrayConnectors {name!r} and {options.name!r}, one of them in mode 'push'",
                             fix="Set 'mode' of each to 'pull', or use one DrayConnector.")
    if other.socket or options.socket:
        return
    for what in ("key_file", "devices", "transport"):
        ours, theirs = getattr(options, what), getattr(other, what)
        if ours != theirs:
            raise errors.Invalid(
                f"the DrayConnectors {name!r} and {options.name!r} of this engine use the same agent, and differ in {what!r}: "
                f"{theirs!r} and {ours!r}",
                fix="Set both to the same value, or name an agent for each by the option 'socket'.")


def shared_pool(config: VllmConfig, make: Callable[[], Any]) -> tuple[Any, bool]:
    """(memory of this process's KV cache, True if this call has made it). make: makes it."""
    with _lock:
        engine = _engine(config)
        pool = engine.pool() if engine.pool is not None else None
        if pool is not None:
            return pool, False
        pool = make()
        engine.pool = weakref.ref(pool)
        return pool, True
