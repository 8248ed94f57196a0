# SPDX-License-Identifier: Apache-2.0
"""Options of DrayECStoreConnector: ec_connector_extra_config of the engine, read once into a typed object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .. import checks
from ..store.options import space, weights

__all__ = ["Options"]


@dataclass(frozen=True)
class Options:
    """What the user has chosen.

    socket: of the agent; None: $DRAY_SOCKET, then the default place. space: name space of the store; empty: the one of the
    engine's own user. weights: a name for the content of the weights, in place of a digest of their files. deadline: seconds that a
    request of a consumer waits for its outputs, and after which a start gives up waiting for the agent. save_wait: seconds for
    which the end of an encoder's request waits until its outputs are in the store.
    """

    socket: str | None = None
    space: str = ""
    weights: str | None = None
    deadline: float = 30.0
    save_wait: float = 1.0

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> Options:
        """Checks the options. errors.Invalid names the option, its value and what is allowed."""
        return cls(**checks.read(config, _CHECKS, "DrayECStoreConnector", "ec_connector_extra_config"))


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "socket": checks.path, "space": space, "weights": weights, "deadline": checks.seconds, "save_wait": checks.seconds}
