# SPDX-License-Identifier: Apache-2.0
"""What engines write to each other's mailboxes: JSON, one message in a letter."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

__all__ = ["Carried", "Carry", "FIND_MAX", "Find", "Found", "Letter", "Notify", "read", "write"]

VERSION = 1
LETTER_MAX = 4096
FIND_MAX = 12  # ranges of a Find, so that the tokens of the answer fit a letter
_WORD = 1 << 64


@dataclass(frozen=True)
class Find:
    """Asks for the registered buffers around ranges of addresses: [address, length] each.

    The range [0, 0] stands for the buffer that was registered first. segment, mailbox: for the answer.
    """

    id: int
    segment: str
    mailbox: str
    ranges: list[list[int]]


@dataclass(frozen=True)
class Found:
    """buffers: [address, length, token] each; an empty token: only its owner can move it (Carry).

    life: token of a page that is lost when the owner ends.
    """

    id: int
    life: str
    buffers: list[list[Any]]


@dataclass(frozen=True)
class Carry:
    """Asks the owner of private memory to move bytes between it and a slot of the sender, within `seconds`.

    token: of the slot, which begins with `count` operations: three words of 64 bits, the owner's address, the
    offset in the slot and the length. write: from the slot to the owner's memory.
    """

    id: int
    segment: str
    mailbox: str
    token: str
    count: int
    write: bool
    seconds: float


@dataclass(frozen=True)
class Carried:
    """code, message: of the error; 0: it is done."""

    id: int
    code: int
    message: str


@dataclass(frozen=True)
class Notify:
    """For get_notifies()."""

    name: str
    msg: str


Letter = Find | Found | Carry | Carried | Notify
_KINDS: dict[str, Any] = {kind.__name__: kind for kind in (Find, Found, Carry, Carried, Notify)}
_TYPES: dict[str, Any] = {"int": int, "str": str, "bool": bool, "float": (int, float)}


def write(letter: Letter) -> bytes:
    form = {"version": VERSION, "kind": type(letter).__name__, **vars(letter)}
    return json.dumps(form, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def read(data: bytes) -> Letter:
    """What write() was given. ValueError: something else."""
    try:
        form = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(form, dict) or form.pop("version", None) != VERSION:
        raise ValueError("another version")
    kind = _KINDS.get(form.pop("kind", None) if isinstance(form.get("kind"), str) else "")
    if kind is None or set(form) != set(kind.__dataclass_fields__):
        raise ValueError("an unknown kind, or other fields")
    for name, field in kind.__dataclass_fields__.items():
        if not _fits(field.type, form[name]):
            raise ValueError(f"a wrong field {name}")
    return kind(**form)  # type: ignore[no-any-return]


def _fits(kind: str, value: Any) -> bool:
    if kind == "list[list[int]]":
        return _is_list(value) and all(_is_list(v) and len(v) == 2 and all(map(_is_word, v)) for v in value)
    if kind == "list[list[Any]]":
        return _is_list(value) and all(_is_list(v) and len(v) == 3 and all(map(_is_word, v[:2])) and
                                       isinstance(v[2], str) for v in value)
    if kind in ("int", "float") and isinstance(value, bool):
        return False
    return isinstance(value, _TYPES[kind]) and (kind != "int" or abs(value) < _WORD) and \
        (kind != "float" or 0 < value < 1e6)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_word(value: Any) -> bool:
    return type(value) is int and 0 <= value < _WORD
