# SPDX-License-Identifier: Apache-2.0
"""Keys of the store's objects: what a block holds, and nothing else.

A key has a digest of all that decides about the bytes (the model with its weights, the form of the object, the hash of tokens,
and the epoch), and then the engine's hash of the block, which stands for all tokens up to its end, with their images and salt.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

__all__ = ["Root", "key", "make_root", "prefix"]

_MAGIC = b"vk1"  # of this form of objects and keys
_DIGEST = 16  # bytes

Root = bytes


def make_root(fields: Mapping[str, str], epoch: str) -> Root:
    """The digest of what all keys of an engine have in common. fields: named values that decide about the bytes."""
    return hashlib.sha256(json.dumps([dict(fields), epoch], sort_keys=True).encode()).digest()


def key(root: Root, form: str, block_hash: bytes) -> bytes:
    """At most 255 bytes: block hashes have up to 64."""
    return prefix(root, form) + block_hash


_known: dict[tuple[Root, str], bytes] = {}


def prefix(root: Root, form: str) -> bytes:
    """What the keys of all blocks of a form begin with."""
    found = _known.get((root, form))
    if found is None:
        if len(_known) > 256:
            _known.clear()
        found = _known[root, form] = _MAGIC + hashlib.sha256(root + form.encode()).digest()[:_DIGEST]
    return found
