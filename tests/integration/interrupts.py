# SPDX-License-Identifier: Apache-2.0
"""Raises an exception at a chosen one of the places of the Python package where CPython can run the handler of a signal."""

import asyncio
import ctypes
import itertools
import os
import selectors
import signal
import sys
import traceback

import dray

_SIGNAL = signal.SIGUSR2
_PACKAGE = os.path.dirname(dray.__file__) + os.sep
# Code of a collected object, whose exceptions CPython prints, and raises nowhere.
_OUTSIDE = {"__del__"}
# A loop of asyncio forgets a callback of a future if an exception comes while it is scheduled.
_LOOP = (os.path.dirname(asyncio.__file__) + os.sep, selectors.__file__)

_api = ctypes.PyDLL(None)
_trip = _api.PyErr_SetInterruptEx
_trip.argtypes = [ctypes.c_int, ctypes.py_object, ctypes.py_object]


class Interrupt(Exception):
    """Of a signal handler, which may raise one in each wait."""


class _Places:
    """
    The handler of a signal that is pending again as soon as the handler has returned. So CPython runs it wherever it looks for signals.
    It is a function in C, which calls Python code and then makes the signal pending: that code has no such place itself.
    """

    def __init__(self, n):
        self.left, self.place = n, None
        self.handler = _api["Py_IsInitialized"]
        self.handler.argtypes = [ctypes.c_int, ctypes.py_object]
        self.handler.restype = self._pass
        self.handler.errcheck = _trip

    def _pass(self, _):
        frame = sys._getframe(1)
        if not self.place and _in_package(frame):
            self.left -= 1
            if not self.left:
                self.place = "".join(traceback.format_stack(frame, 3))
                del self.handler.errcheck
                raise Interrupt
        return int(_SIGNAL)

    def __enter__(self):
        self.before = signal.signal(_SIGNAL, self.handler)
        _trip(_SIGNAL, None, None)
        return self

    def __exit__(self, kind, *_):
        if not self.place:
            del self.handler.errcheck
        signal.signal(_SIGNAL, self.before)
        return kind is Interrupt


def _in_package(frame):
    inside = False
    while frame:
        code = frame.f_code
        if code.co_name in _OUTSIDE or not inside and code.co_filename.startswith(_LOOP):
            return False
        inside = inside or code.co_filename.startswith(_PACKAGE)
        frame = frame.f_back
    return inside


def places(begin):
    """
    Runs begin(), which returns a function, and calls that with an Interrupt at the first place; then again with one at the second place,
    and so on. Yields each place.
    """
    for n in itertools.count(1):
        call = begin()
        with _Places(n) as at:
            call()
        if at.place is None:
            assert n > 10
            return
        yield at.place
