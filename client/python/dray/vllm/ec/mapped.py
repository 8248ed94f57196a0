# SPDX-License-Identifier: Apache-2.0
"""Outputs that the model runner reads in another engine's pool in the step that loads them, so that the first token does not wait for a copy.

The worker holds their places by its own descriptor of the pool. At the beginning of its next step, or in a thread after a moment if none has
begun, they are copied, and their places are released. From that step on the model runner has the copies. Until the step that loads them is over, the
scheduler's process holds their places, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import MutableMapping
from typing import Any

import torch

from .header import HEADER
from .inplace import PoolFile
from .protocol import Place

__all__ = ["MappedOutputs"]

_MOMENT, _NOW = (_Spec := ctypes.c_long * 4)(0, 0, 0, 50_000_000), _Spec(0, 0, 0, 1)  # struct itimerspec: once, after so many nanoseconds
_QUIET = 20  # moments without an output, after which the timer rests: to start it takes as long as a good part of a load
_libc = ctypes.PyDLL(None)  # what is called there does not block


class _Mapped:
    """An output in a pool, where its place is held until settle(). cache: of the model runner, which has it by its identifier as long as it needs it."""

    __slots__ = ("_cache", "_copy", "_identifier", "_output", "_pool", "_start", "held")

    def __init__(self, cache: MutableMapping[str, Any], identifier: str, pool: PoolFile, start: int, output: Any) -> None:
        self._cache, self._identifier, self._pool, self._start, self._output = cache, identifier, pool, start, output
        self._copy: Any = None
        self.held = True

    @property
    def _needed(self) -> bool:
        return self._cache.get(self._identifier) is self._output

    def settle(self) -> None:
        """Copies the output without the interpreter lock, if the model runner still has it, and releases its place. RuntimeError: there was no memory, and it keeps it."""
        if self.held:
            if self._needed:
                self._copy = torch.empty(self._output.shape, dtype=self._output.dtype)
                # PyTorch's own copies use all of its threads, which wait for each other on busy processors.
                ctypes.memmove(self._copy.data_ptr(), self._output.data_ptr(), self._output.nbytes)
            self._pool.release(self._start)
            self.held = False

    def replace(self) -> None:
        """The model runner has the copy from now on. In a thread this might bring back what the model runner gives up just now."""
        if self._needed:
            self._cache[self._identifier] = self._copy


class MappedOutputs:
    """Of one worker, which calls it in its steps."""

    def __init__(self, dtype: Any) -> None:
        self._dtype = dtype
        self._mapped: list[_Mapped] = []
        self._lock = threading.Lock()
        self._timer = -1  # of the kernel: to start it wakes no thread, which would take the interpreter lock from this one
        self._runs = self._closed = False

    def step(self) -> None:
        """A step begins. RuntimeError: there was no memory for a copy."""
        if self._mapped:
            with self._lock:
                for one in self._mapped:
                    one.settle()
                    one.replace()
                self._mapped = []

    def load(self, cache: MutableMapping[str, Any], identifier: str, pool: PoolFile, place: Place) -> bool:
        """Gives the model runner an output that the scheduler's process holds. False: it is to be copied, because the pool was given up just now, or
        the system has no timer."""
        if self._timer < 0 and not self._begin() or not pool.hold(place.offset, HEADER + place.size):
            return False
        output = pool.tensor(self._dtype, (place.rows, place.width), place.offset + HEADER)
        cache[identifier] = output
        self._mapped.append(_Mapped(cache, identifier, pool, place.offset, output))
        return True

    @property
    def idle(self) -> bool:
        """True if no place is held."""
        return not any(one.held for one in self._mapped)

    def end(self) -> None:
        """The model runner has all outputs of the step, and reads them until it is over."""
        if self._mapped and not self._runs:
            self._start(_MOMENT)

    def _begin(self) -> bool:
        self._timer = _libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_CLOEXEC)
        if self._timer >= 0:
            threading.Thread(target=self._serve, name="dray-ec-copy", daemon=True).start()
        return self._timer >= 0

    def _start(self, after: Any) -> None:
        self._runs = True
        _libc.timerfd_settime(self._timer, 0, after, None)

    def _serve(self) -> None:
        """Copies what no step has copied within a moment."""
        quiet = 0
        while os.read(self._timer, 8) and not self._closed:
            with self._lock:
                quiet = quiet + 1 if self.idle else 0
                with contextlib.suppress(RuntimeError):  # no memory; the next step says so
                    for one in self._mapped:
                        one.settle()
            self._runs = quiet < _QUIET
            if self._runs or not self.idle:  # loaded just now, when the timer seemed to run
                self._start(_MOMENT)
        os.close(self._timer)

    def close(self) -> None:
        """Ends the thread."""
        self.step()
        self._closed = True
        if self._timer >= 0:
            self._start(_NOW)
