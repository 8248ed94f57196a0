# SPDX-License-Identifier: Apache-2.0
"""Lists of operations, and of ranges, as one array of 64-bit words that the library can read."""

from __future__ import annotations

import ctypes
import struct
from ctypes import (POINTER, addressof, byref, c_char, c_char_p, c_int, c_ssize_t, c_void_p,
                    py_object)
from itertools import starmap
from typing import Any, NamedTuple

from . import errors

_SIMPLE = 0  # PyBUF_SIMPLE: the address of contiguous memory, which may be read-only
_WORDS = frozenset(("Q", "q", "L", "l", "<Q", "<q", "=Q", "=q", "@Q", "@q", "@L", "@l"))
_BYTES = frozenset(("B", "b", "c", "<B", "<b", "=B", "@B"))


class Form(NamedTuple):
    """What a list consists of: entries of `width` words of 64 bits."""

    name: str
    entry: str
    width: int
    words: str
    numbers: str
    pack: Any
    fix: str

    @property
    def size(self) -> int:
        """Bytes of an entry."""
        return 8 * self.width


OPERATIONS = Form(
    "operations", "operation", 3, "triples", "three", struct.Struct("=3Q").pack,
    "Pass a list of (local offset, remote offset, length), or an array of shape (n, 3) of 64-bit "
    "integers, contiguous in memory.")
RANGES = Form(
    "ranges", "range", 4, "quadruples", "four", struct.Struct("=4Q").pack,
    "Pass a list of (offset, length, stride, count), or an array of shape (n, 4) of 64-bit integers, "
    "contiguous in memory.")

# (offset, length, step) as the library has them, of ranges without a step
PIECES = Form(
    "pieces", "piece", 2, "pairs", "two", struct.Struct("=2Q8x").pack, "Pass a list of (offset, length).")
PIECES_OF_BLOCKS = Form(
    "pieces", "piece", 3, "triples", "three", struct.Struct("=3Q").pack,
    "Pass a list of (offset, length, step), or an array of shape (n, 3) of 64-bit integers, contiguous in memory.")


class _Buffer(ctypes.Structure):
    """Py_buffer of CPython's stable ABI."""

    _fields_ = [
        ("buf", c_void_p), ("obj", c_void_p), ("len", c_ssize_t), ("itemsize", c_ssize_t),
        ("readonly", c_int), ("ndim", c_int), ("format", c_char_p), ("shape", POINTER(c_ssize_t)),
        ("strides", POINTER(c_ssize_t)), ("suboffsets", c_void_p), ("internal", c_void_p)]


_get: Any = ctypes.pythonapi.PyObject_GetBuffer
_get.argtypes, _get.restype = [py_object, POINTER(_Buffer), c_int], c_int
_release: Any = ctypes.pythonapi.PyBuffer_Release
_release.argtypes, _release.restype = [POINTER(_Buffer)], None


class View:
    """Read-only memory with the buffer protocol, which cannot move while this object lives."""

    __slots__ = ("buffer",)

    def __init__(self, what: object) -> None:
        self.buffer = _Buffer()
        _get(what, byref(self.buffer), _SIMPLE)

    def __del__(self) -> None:
        if self.buffer.obj:
            _release(byref(self.buffer))


def _invalid(form: Form, why: str) -> errors.Invalid:
    return errors.Invalid(f"the {form.name} are {why}", fix=form.fix)


def _tuples(ops: Any, kind: type, form: Form) -> tuple[bytes, int, None]:
    """ops: a list or tuple; kind: what the caller passed."""
    n = len(ops)
    try:
        # a single operation is worth a path of its own: a third of the time
        words = form.pack(*ops[0]) if n == 1 else b"".join(starmap(form.pack, ops))
    except TypeError:
        raise _invalid(form, f"a {kind.__name__} of other things than {form.words} of integers") from None
    except struct.error as e:
        raise _refused(ops, kind.__name__, form, e) from None
    return words, n, None


def packed(ops: list[Any], form: Form) -> bytes:
    """The words of a list."""
    return _tuples(ops, list, form)[0]


def _refused(ops: Any, name: str, form: Form, e: struct.error) -> errors.Error:
    """The error for a list that cannot be packed."""
    if isinstance(ops, (list, tuple)):
        for i, op in enumerate(ops):
            if not isinstance(op, (list, tuple)) or not all(hasattr(n, "__index__") for n in op):
                return _invalid(form, f"a {name} of other things than {form.words} of integers, such as {op!r:.60}")
            if len(op) != form.width:
                return _invalid(form, f"not all of {form.numbers} numbers: {form.entry} {i} is {op!r:.60}")
            if not all(0 <= n < 1 << 64 for n in op):
                return errors.Range(
                    f"{form.entry} {i}, {op!r:.90}, has a negative number, or one of more than 64 bits",
                    fix="Offsets and lengths are numbers of bytes.")
    return _invalid(form, f"a {name} of other things than {form.words} of integers ({e})")


def _shaped(type_name: str, address: int, shape: tuple[int, ...], strides: tuple[int, ...] | None,
            form: Form) -> tuple[int, int]:
    """(address, count) of 64-bit words of this shape; strides in bytes, None: contiguous."""
    if len(shape) == 1 and shape[0] % form.width == 0:
        good = strides is None or shape[0] <= 1 or strides == (8,)
        n = shape[0] // form.width
    elif len(shape) == 2 and shape[1] == form.width:
        n = shape[0]
        good = strides is None or n == 0 or strides[1] == 8 and (n == 1 or strides[0] == form.size)
    else:
        raise _invalid(form, f"a {type_name} of shape {shape}")
    if not good:
        raise _invalid(form, f"a {type_name} that is not contiguous, with strides of {strides} bytes")
    return address, n


def _buffer(ops: Any, form: Form) -> tuple[int, int, Any]:
    view, name = memoryview(ops), type(ops).__name__
    kind, shape = view.format, view.shape or ()
    if kind in _BYTES:
        if view.nbytes % form.size or not view.c_contiguous:
            raise _invalid(form, f"{view.nbytes} bytes, which is not a multiple of {form.size}, or not contiguous")
        n = view.nbytes // form.size
    elif kind not in _WORDS or view.itemsize != 8:
        raise _invalid(form, f"a {name} of items of {view.itemsize} bytes with format {kind!r}")
    elif view.c_contiguous and view.ndim == 2 and shape[1] == form.width:
        n = shape[0]
    else:
        n = _shaped(name, 0, shape, view.strides, form)[1]
    if view.readonly or not n:
        keep = View(view)
        return keep.buffer.buf or 0, n, keep
    first = c_char.from_buffer(view)
    return addressof(first), n, first


def _tensor(ops: Any, form: Form) -> tuple[int, int, Any]:
    name, dtype = type(ops).__name__, str(ops.dtype)
    device = getattr(ops.device, "type", "cpu")
    if device != "cpu":
        raise errors.Invalid(f"the {form.name} are a {name} on {ops.device}",
                             fix="Pass them in the memory of the CPU: ops.cpu().")
    if dtype not in ("torch.int64", "torch.uint64"):
        raise _invalid(form, f"a {name} of {dtype}")
    strides = tuple(8 * n for n in ops.stride())
    return (*_shaped(name, ops.data_ptr(), tuple(ops.shape), strides, form), ops)


def _interface(ops: Any, form: Form) -> tuple[int, int, Any]:
    a, name = ops.__array_interface__, type(ops).__name__
    if a["typestr"] not in ("<u8", "<i8"):
        raise _invalid(form, f"a {name} of type {a['typestr']}")
    return (*_shaped(name, a["data"][0], tuple(a["shape"]), a.get("strides"), form), ops)


def pointer(ops: Any, form: Form = OPERATIONS) -> tuple[int | bytes, int, Any]:
    """(address or bytes, number of entries, an object to keep until the library has copied them)."""
    kind = type(ops)
    if kind is list or kind is tuple:
        return _tuples(ops, kind, form)
    try:
        return _buffer(ops, form)
    except (TypeError, BufferError, NotImplementedError):
        pass  # no buffer protocol
    if hasattr(ops, "data_ptr") and hasattr(ops, "stride"):
        return _tensor(ops, form)
    if hasattr(ops, "__array_interface__"):
        return _interface(ops, form)
    if hasattr(ops, "__iter__"):
        return _tuples(list(ops), kind, form)
    raise _invalid(form, f"of type {kind.__name__}")
