# SPDX-License-Identifier: Apache-2.0
"""What engines of mode 'push' write to each other's mailboxes: announcements, withdrawals and refusals.

A message is JSON, compressed, and cut into letters, because a letter is short and a long prompt has many
blocks. The letters of a message may arrive in any order.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import errors
from . import layout as layouts

__all__ = ["Announcement", "Box", "Message", "Refusal", "Withdrawal", "mailbox_name", "read", "write"]

VERSION = 1
LETTER_MAX = 4096
_HEADER = struct.Struct("<4sQHH")  # magic, number of the message, place of the letter, letters of the message
_MAGIC = b"DrP1"
_PART = LETTER_MAX - _HEADER.size
_LETTERS_MAX = 128  # of a message
_JSON_MAX = 8 << 20
_BLOCKS_MAX = 1 << 20
_BLOCK_MAX = 1 << 40  # above all numbers of blocks
_OPEN_MAX = 64  # messages of which letters are missing
_NAME_MAX = 128


@dataclass(frozen=True)
class Announcement:
    """D has allocated blocks for tokens [first, end) of a request, and lends them to P for writing.

    transfer_id: which the router gave to both. segment, mailbox: for an answer. tag: of P's notifications.
    tokens: a right for each rank of D, in the order of its layout. layout: D's EngineLayout as JSON.
    blocks: of the whole request, for each group. seconds: until D gives up. transport: D's option.
    """

    transfer_id: str
    segment: str
    mailbox: str
    tag: int
    tokens: tuple[str, ...]
    layout: Any
    blocks: tuple[tuple[int, ...], ...]
    first: int
    end: int
    seconds: float
    transport: str


@dataclass(frozen=True)
class Withdrawal:
    """D does not want the blocks of a transfer, or no longer. tag: of its announcement; 0: there was none."""

    transfer_id: str
    tag: int


@dataclass(frozen=True)
class Refusal:
    """P does not write the blocks of an announcement. error: name of the error; message: for D's log."""

    tag: int
    error: str
    message: str


Message = Announcement | Withdrawal | Refusal


def mailbox_name(engine_id: str) -> str:
    """The mailbox of an engine at its agent."""
    name = f"vllm {engine_id}"
    if len(name.encode()) > _NAME_MAX or not name.isprintable():
        name = f"vllm {hashlib.sha256(engine_id.encode()).hexdigest()}"
    return name


def write(message: Message) -> list[bytes]:
    """The letters of a message. errors.TooLarge: the request has too many blocks."""
    form: dict[str, Any] = {"version": VERSION, "kind": type(message).__name__, **vars(message)}
    if isinstance(message, Announcement):
        form["blocks"] = [layouts.runs(group) for group in message.blocks]
    data = zlib.compress(json.dumps(form, separators=(",", ":")).encode())
    parts = [data[i:i + _PART] for i in range(0, len(data), _PART)]
    if len(parts) > _LETTERS_MAX:
        raise errors.TooLarge(f"the announcement of a request has {len(data)} bytes, the limit is {_LETTERS_MAX * _PART}",
                              fix="Use larger blocks (--block-size), or the mode 'pull'.")
    number = secrets.randbits(64)
    return [_HEADER.pack(_MAGIC, number, place, len(parts)) + part for place, part in enumerate(parts)]


def read(data: bytes) -> Message:
    """What write() was given. errors.Version: of another version. ValueError: anything else is wrong."""
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(data, _JSON_MAX)
        if not unpacker.eof:
            raise ValueError("the text is cut, or too long")
        form = json.loads(text)
        version, kind = form.pop("version"), form.pop("kind")
        if version != VERSION:
            raise errors.Version(f"the other engine announces blocks in version {version!r}, this one reads {VERSION}",
                                 fix="Use the same version of dray-client at both engines.")
        if kind == "Announcement":
            return _announcement(form)
        if kind == "Withdrawal":
            return Withdrawal(_text(form["transfer_id"]), _tag(form["tag"]))
        if kind == "Refusal":
            return Refusal(_tag(form["tag"]), _text(form["error"]), _text(form["message"]))
        raise ValueError(f"a message of the kind {kind!r}")
    except (zlib.error, KeyError, TypeError, AttributeError, UnicodeDecodeError, RecursionError) as e:
        raise ValueError(f"not a message: {e!r}") from None


def _announcement(form: dict[str, Any]) -> Announcement:
    blocks = tuple(_blocks(group) for group in form["blocks"])
    first, end, seconds = form["first"], form["end"], form["seconds"]
    if type(first) is not int or type(end) is not int or not 0 <= first < end < 1 << 40:
        raise ValueError(f"tokens {first!r} to {end!r}")
    if not isinstance(seconds, (int, float)) or not 0 < seconds < 1e6:
        raise ValueError(f"{seconds!r} seconds")
    texts = {name: _text(form[name]) for name in ("transfer_id", "segment", "mailbox", "transport")}
    return Announcement(**texts, tag=_tag(form["tag"]), tokens=tuple(_text(token) for token in form["tokens"]), layout=form["layout"],
                        blocks=blocks, first=first, end=end, seconds=float(seconds))


def _tag(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise ValueError(f"{value!r:.40} is not a tag")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.40} is not a text")
    return value


def _blocks(runs: Any) -> tuple[int, ...]:
    out: list[int] = []
    for start, step, count in runs:
        if not all(type(number) is int for number in (start, step, count)) or not 0 < count <= _BLOCKS_MAX - len(out):
            raise ValueError("too many blocks, or none")
        last = start + step * (count - 1)
        if min(start, last) < 0 or max(start, last) >= _BLOCK_MAX:
            raise ValueError("a number that no block has")
        out += [start + step * i for i in range(count)]
    return tuple(out)


class Box:
    """Joins letters to messages. sender: of a letter; letters of different ones are never joined."""

    def __init__(self) -> None:
        self._open: dict[tuple[bytes, int], list[bytes | None]] = {}

    def take(self, sender: bytes, letter: bytes) -> bytes | None:
        """The message that a letter completes, for read(); None if others are missing, or it is no such letter."""
        if len(letter) <= _HEADER.size:
            return None
        magic, number, place, count = _HEADER.unpack_from(letter)
        if magic != _MAGIC or not place < count <= _LETTERS_MAX:
            return None
        key = sender, number
        parts = self._open.get(key)
        if parts is None:
            while len(self._open) >= _OPEN_MAX:
                self._open.pop(next(iter(self._open)))
            parts = self._open[key] = [None] * count
        if len(parts) != count:
            return None
        parts[place] = letter[_HEADER.size:]
        whole: Sequence[bytes] = [part for part in parts if part is not None]
        if len(whole) < count:
            return None
        del self._open[key]
        return b"".join(whole)
