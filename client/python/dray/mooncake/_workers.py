# SPDX-License-Identifier: Apache-2.0
"""Threads for work that blocks. They end with the process, whatever they do."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

__all__ = ["Workers"]

_logger = logging.getLogger("dray.mooncake")


class _Line:
    """The work of one kind, in the order of its start. running: threads that do some of it."""

    def __init__(self) -> None:
        self.work: deque[Callable[[], object]] = deque()
        self.running = 0


class Workers:
    """Up to `most` threads, started when there is work.

    of_kind: of them, that work of one kind may have at once, so that work that hangs leaves some to others. waiting:
    pieces of work of one kind that wait.
    """

    def __init__(self, name: str, most: int, waiting: int, of_kind: int | None = None) -> None:
        self._name, self._most, self._waiting, self._of_kind = name, most, waiting, of_kind or most
        self._lines: dict[str, _Line] = {}  # with work, or with a thread
        self._ready: deque[str] = deque()  # kinds with work that may begin, each once
        self._threads, self._closed = 0, False
        self._changed = threading.Condition()

    def start(self, work: Callable[[], object], kind: str = "") -> bool:
        """False: too much of this kind waits already."""
        with self._changed:
            line = self._lines.setdefault(kind, _Line())
            if len(line.work) >= self._waiting:
                return False
            line.work.append(work)
            if len(line.work) == 1 and line.running < self._of_kind:
                self._ready.append(kind)
            self._changed.notify()
            if self._threads < self._most:
                self._threads += 1
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
        return True

    def _run(self) -> None:
        while (taken := self._take()) is not None:
            kind, work = taken
            try:
                work()
            except Exception:
                _logger.exception("work of %s failed", self._name)
            finally:
                del work, taken  # which keep the caller's objects
                self._done(kind)

    def _take(self) -> tuple[str, Callable[[], object]] | None:
        """The next piece of work, of each kind in turn; None: closed, and nothing is left that may begin."""
        with self._changed:
            while not self._ready:
                if self._closed:
                    return None
                self._changed.wait()
            kind = self._ready.popleft()
            line = self._lines[kind]
            line.running += 1
            work = line.work.popleft()
            if line.work and line.running < self._of_kind:
                self._ready.append(kind)
                self._changed.notify()
            return kind, work

    def _done(self, kind: str) -> None:
        with self._changed:
            line = self._lines[kind]
            line.running -= 1
            if line.work and line.running == self._of_kind - 1:  # it was not ready before
                self._ready.append(kind)
                self._changed.notify()
            elif not line.work and not line.running:
                del self._lines[kind]

    def close(self) -> None:
        """The threads end after the work that has been started. Does not wait."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
