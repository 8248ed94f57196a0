# SPDX-License-Identifier: Apache-2.0
"""Gives remotes back that are of no use any more, without waiting."""

from __future__ import annotations

import contextlib

from .. import errors
from ..handles import Remote
from ..pending import Pending

__all__ = ["give_back", "give_back_later"]


def give_back(remote: Remote | None) -> None:
    """Releases a remote, unless it is lost or released."""
    if remote is not None:
        with contextlib.suppress(errors.Error):
            remote.release(wait=False)


def give_back_later(pending: Pending[Remote]) -> None:
    """Releases the remote of an import, when that has ended."""
    pending.add_done_callback(_give_back)


def _give_back(pending: Pending[Remote]) -> None:
    with contextlib.suppress(errors.Error):
        give_back(pending.result())
