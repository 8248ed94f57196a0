# SPDX-License-Identifier: Apache-2.0
"""The agent of an engine: one that is configured, or a private one from the package dray-agent.

All processes of an engine that call find() with the same engine id get the same socket. The first of
them that takes the lock starts the private agent, supervises it in a thread, and ends it with itself.
If that process is killed, the kernel ends the agent. A forked child of that process has no part in this.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import hashlib
import importlib
import itertools
import logging
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import threading
import weakref
from dataclasses import dataclass

from .. import errors
from ..session import DEFAULT_SOCKET
from .options import Options

__all__ = ["Found", "PrivateAgent", "find"]

_logger = logging.getLogger("vllm.dray")
_STOP_SECONDS = 5.0  # that the agent gets to end by itself
_PAUSES = (0.05, 0.2, 1.0, 5.0)  # seconds between an unexpected end and the next start
_LOOK = 0.01  # seconds between looks for the socket of an agent that starts
_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl  # resolved here, because a child between fork and exec must not load anything


@dataclass
class Found:
    """Where the agent listens. private: the one that this process supervises; None: there is none, or another process does."""

    socket: str
    private: PrivateAgent | None = None

    def close(self) -> None:
        """Ends the private agent, if this process has started it."""
        if self.private is not None:
            self.private.stop()


def find(options: Options, engine_id: str) -> Found:
    """The socket of the engine's agent; starts a private agent if none is configured and none is there.

    errors.PeerUnreachable: there is no agent, and the package dray-agent is not installed.
    """
    configured = options.socket or os.environ.get("DRAY_SOCKET")
    if configured or options.agent == "external" or options.agent == "auto" and os.path.exists(DEFAULT_SOCKET):
        if options.key_file or options.devices:
            names = " and ".join(repr(name) for name in ("key_file", "devices") if getattr(options, name))
            raise errors.Invalid(f"the agent at {configured or DEFAULT_SOCKET} has its own configuration, "
                                 f"and {names} are for a private one",
                                 fix="Set peer.key_file and rdma.devices of that agent, or leave these options out.")
        return Found(configured or DEFAULT_SOCKET)
    program = _program()
    if program is None:
        raise errors.PeerUnreachable(
            f"there is no agent: no socket is configured, none is at {DEFAULT_SOCKET}, and the package dray-agent is not "
            "installed",
            fix="Install dray-agent beside dray-client, or start drayd and set the option 'socket'.")
    if options.mode == "push" and not options.key_file:
        raise errors.Invalid("mode 'push' needs a key: an agent without one takes no announcements of other agents",
                             fix="Set the option 'key_file' to the same file at both engines, or let both use one agent (option 'socket').")
    folder = _folder(engine_id)
    socket = str(folder / "dray.sock")
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return Found(socket)  # another process of this engine has it
    return Found(socket, PrivateAgent(program, folder, options, lock))


def _program() -> str | None:
    """drayd of the package dray-agent; never one from PATH."""
    try:
        package = importlib.import_module("dray_agent")
    except ImportError:
        return None
    program = os.path.join(package.BIN, "drayd")
    return program if os.access(program, os.X_OK) else None


def _folder(engine_id: str) -> pathlib.Path:
    """A folder of this user for this engine. A socket's path is limited to 107 bytes, so that the name is short."""
    base = pathlib.Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    folder = base / f"dray-vllm-{os.getuid()}-{hashlib.sha256(engine_id.encode()).hexdigest()[:16]}"
    try:
        folder.mkdir(0o700, exist_ok=True)
        info = folder.lstat()
    except OSError as e:
        raise errors.Io(f"the folder {folder} for the private agent cannot be made: {e.strerror}",
                        fix="Set XDG_RUNTIME_DIR to a folder of this user.") from None
    if not folder.is_dir() or folder.is_symlink() or info.st_uid != os.getuid() or info.st_mode & 0o077:
        raise errors.Denied(f"the folder {folder} for the private agent belongs to somebody else, or others may use it",
                            fix="Remove it, or set XDG_RUNTIME_DIR to a folder of this user.")
    return folder


def _everywhere() -> str:
    """Free ports on all addresses of the families that this host has."""
    try:
        socket.socket(socket.AF_INET6, socket.SOCK_STREAM).close()
    except OSError:
        return "0.0.0.0:0"
    return "0.0.0.0:0,[::]:0"


class PrivateAgent:
    """A drayd that runs as long as this process needs it."""

    def __init__(self, program: str, folder: pathlib.Path, options: Options, lock: int) -> None:
        self._folder, self._lock = folder, lock
        _agents.add(self)
        (folder / "dray.sock").unlink(missing_ok=True)  # of an agent that was killed
        self._argv = [program, "--state-dir", str(folder / "state"), "--socket", str(folder / "dray.sock"),
                      "--control", str(folder / "control.sock"), "--set", "http.listen=none", "--set", "env.file=none",
                      "--listen", _everywhere() if options.key_file else "127.0.0.1:0"]
        if options.key_file:
            self._argv += ["--key-file", options.key_file]
        if options.devices:
            self._argv += ["--set", f"rdma.devices={','.join(options.devices)}"]
        if options.transport in ("tcp", "local"):
            self._argv += ["--set", "rdma.enable=false"]
        self._process: subprocess.Popen[bytes] | None = None
        self._failure = ""  # why the last start failed
        self._starting = threading.Lock()  # held by stop() and around each start
        self._stopping = threading.Event()
        self._serves = threading.Event()  # its socket is there, or it has ended at once
        self._thread = threading.Thread(target=self._supervise, name="dray-agent", daemon=True)
        self._thread.start()
        self._serves.wait(options.deadline)
        if self._process is None or self._process.poll() is not None:
            why = self._failure or self._last_line()
            self.stop()
            raise errors.Io(f"the private agent {program} cannot be started: {why}",
                            fix="Correct the options of the connector, or install the package dray-agent again.")
        atexit.register(self.stop)
        _logger.info("dray: no agent is configured; started a private one (process %d, log %s). %s", self._process.pid,
                     folder / "log", "It is reachable from other hosts with the same key." if options.key_file else
                     "Without the option 'key_file' it serves engines on this host only.")

    @property
    def pid(self) -> int:
        """The process id of the agent that runs now; 0: none does."""
        return self._process.pid if self._process is not None and self._process.poll() is None else 0

    def _supervise(self) -> None:
        """Runs the agent until stop(), and starts it again whenever it ends or could not be started. One that never served is left."""
        for pause in itertools.chain(_PAUSES, itertools.repeat(_PAUSES[-1])):
            what = self._run()
            if self._stopping.is_set():
                return
            if not self._serves.is_set():
                self._serves.set()
                return
            _logger.error("dray: the private agent %s (log %s); starting it again in %g s", what, self._folder / "log", pause)
            self._stopping.wait(pause)

    def _run(self) -> str:
        """Runs it once. Returns what became of it."""
        process = self._start()
        if process is None:
            return f"cannot be started: {self._failure}"
        while not self._serves.is_set() and process.poll() is None:  # at the first start
            if (self._folder / "dray.sock").exists():
                self._serves.set()
            else:
                self._stopping.wait(_LOOK)
        return f"has ended with status {process.wait()}"

    def _last_line(self) -> str:
        try:
            lines = (self._folder / "log").read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        return lines[-1] if lines else "it has written no log"

    def _start(self) -> subprocess.Popen[bytes] | None:
        with self._starting:
            if self._stopping.is_set():
                return None
            try:
                with open(self._folder / "log", "ab") as log:
                    # The kernel ends the agent when this thread ends, which is with the process.
                    self._process = subprocess.Popen(
                        self._argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", preexec_fn=_die_with_parent,
                        env={name: value for name, value in os.environ.items() if not name.startswith("DRAY_")})
            except (OSError, MemoryError, subprocess.SubprocessError) as e:  # such as no descriptors or no memory: both may come back
                self._failure = str(e) or type(e).__name__
                return None
            return self._process

    def stop(self) -> None:
        """Ends the agent, and gives the lock back. May be called twice."""
        with self._starting:
            if self._stopping.is_set():
                return
            self._stopping.set()
        atexit.unregister(self.stop)
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            self._thread.join(_STOP_SECONDS)
            if self._thread.is_alive():
                process.kill()
        self._thread.join()
        self._unlock()

    def _unlock(self) -> None:
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def _forked(self) -> None:
        """In a forked child: leaves the agent to the parent. The old lock and event may have been held by a thread of the parent."""
        self._starting, self._stopping = threading.Lock(), threading.Event()
        self._stopping.set()
        self._unlock()


_agents: weakref.WeakSet[PrivateAgent] = weakref.WeakSet()


def _in_child() -> None:
    for agent in list(_agents):
        agent._forked()


os.register_at_fork(after_in_child=_in_child)


def _die_with_parent() -> None:
    """In the child, before the program starts."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
