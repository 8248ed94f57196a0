# SPDX-License-Identifier: Apache-2.0
"""Copies between addresses of this process and memfds, by system calls: a bad address is an error and not a crash."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, cast

from .. import errors

__all__ = ["Piece", "address_of", "address_of_bytes", "copy_in", "copy_out", "peek", "poke"]

Piece = tuple[int, int]  # address, length

_IOV_MAX = 1024
_READ, _WRITE = 0x100, 0x200  # PyBUF_READ, PyBUF_WRITE
_view = ctypes.pythonapi.PyMemoryView_FromMemory
_view.argtypes, _view.restype = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int], ctypes.py_object


def copy_in(fd: int, offset: int, pieces: Sequence[Piece]) -> None:
    """Copies pieces of this process's memory to the file, one behind the other from `offset`."""
    for views in _groups(pieces, _READ):
        offset = _all(views, offset, lambda views, at: os.pwritev(fd, views, at), "read")


def copy_out(fd: int, offset: int, pieces: Sequence[Piece]) -> None:
    """Copies from the file at `offset` to pieces of this process's memory, one behind the other."""
    for views in _groups(pieces, _WRITE):
        offset = _all(views, offset, lambda views, at: os.preadv(fd, views, at), "written")


def _groups(pieces: Sequence[Piece], access: int) -> Iterator[list[memoryview]]:
    for i in range(0, len(pieces), _IOV_MAX):
        yield [_view(address, length, access) for address, length in pieces[i:i + _IOV_MAX]]


def _all(views: list[memoryview], offset: int, copy: Callable[[Any, int], int], what: str) -> int:
    """Repeats short copies until everything is done; returns the offset behind it."""
    while views:
        try:
            done = copy(views, offset)
        except OSError as e:
            raise errors.Range(f"memory of this process cannot be {what}: {e.strerror}",
                               fix="Pass addresses of host memory that is mapped, or register the memory if it is on a GPU.") from None
        if not done:
            raise errors.Internal("a file of this process ended early")
        offset += done
        while views and done >= len(views[0]):
            done -= len(views.pop(0))
        if done:
            views[0] = views[0][done:]
    return offset


def peek(address: int, length: int) -> bytes:
    """The bytes at an address. errors.Range: they are not mapped."""
    with _scratch() as file:
        copy_in(file.fileno(), 0, [(address, length)] if length else [])
        return os.pread(file.fileno(), length, 0)


def poke(address: int, data: bytes) -> None:
    """Stores bytes at an address. errors.Range: it is not mapped, or read-only."""
    with _scratch() as file:
        os.pwrite(file.fileno(), data, 0)
        copy_out(file.fileno(), 0, [(address, len(data))] if data else [])


def _scratch() -> BinaryIO:
    return cast(BinaryIO, open(os.memfd_create("dray-mooncake", os.MFD_CLOEXEC), "r+b", buffering=0))


def address_of(view: memoryview) -> int:
    """Where the bytes of a writable view begin."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def address_of_bytes(data: bytes | bytearray) -> int:
    """Where the bytes of an object begin, which must live as long as the address is used."""
    buffer = (ctypes.c_char * len(data)).from_buffer(data) if isinstance(data, bytearray) else ctypes.c_char_p(data)
    return ctypes.addressof(buffer) if isinstance(data, bytearray) else ctypes.cast(buffer, ctypes.c_void_p).value or 0
