# SPDX-License-Identifier: Apache-2.0
"""mooncake.engine.TransferEngine, carried out by the agent of this node.

Arguments, return codes and blocking are Mooncake's: 0 or a number of an object for success, otherwise a negative
number, or 0 where a number of an object is expected. The log "dray.mooncake" has the error of each failed call.
docs/mooncake.md lists what differs.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence

from .. import errors
from ..handles import Region
from ..memory import Memory
from ._batch import Batch, Column, words
from ._copy import peek, poke
from ._core import Core
from ._handshake import probe
from ._letters import LETTER_MAX, Notify, write
from ._metadata import Metadata, is_url
from ._options import Options
from ._registered import Taken
from ._transfer import move
from ._workers import Workers

__all__ = ["Read", "SUPPORT_CUDA", "SUPPORT_EFA", "SUPPORT_HIP", "SUPPORT_INTRA_NVLINK", "SUPPORT_MNNVL", "SUPPORT_MUSA",
           "TransferEngine", "TransferNotify", "TransferOpcode", "Write"]

SUPPORT_CUDA = os.path.exists("/dev/nvidiactl")
SUPPORT_EFA = SUPPORT_HIP = SUPPORT_INTRA_NVLINK = SUPPORT_MNNVL = SUPPORT_MUSA = False

_logger = logging.getLogger("dray.mooncake")

_FAILED, _NOT_REGISTERED, _OVERLAPPED, _UNREACHABLE, _NOT_FOUND = -1, -3, -7, -102, -200
_ASYNC_THREADS, _ASYNC_OF_PEER, _ASYNC_MAX = 16, 4, 4096  # transfers that run, run with one peer, and wait for it
_WORD = 1 << 64


class TransferOpcode(enum.Enum):
    """Direction of transfer_sync() and batch_transfer_sync()."""

    Read = 0
    Write = 1

    def __int__(self) -> int:
        return int(self.value)

    __index__ = __int__

    def __str__(self) -> str:
        return f"TransferOpcode.{self.name}"


Read, Write = TransferOpcode.Read, TransferOpcode.Write


class TransferNotify:
    """A message for get_notifies() of the peer."""

    def __init__(self, name: str = "", msg: str = "") -> None:
        self.name, self.msg = name, msg


class _Async:
    """A transfer that was started and not asked for yet. code: None while it runs."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.code: int | None = None

    def run(self, work: Callable[[], int]) -> None:
        self.code = _FAILED
        try:
            self.code = work()
        finally:
            self.ended.set()


class TransferEngine:
    """Moves memory between engines that know each other's HOST:PORT (initialize(), get_rpc_port())."""

    def __init__(self) -> None:
        self._core: Core | None = None
        self._asyncs: dict[int, _Async] = {}
        self._ids = itertools.count(1)
        self._workers = Workers("dray-mooncake-async", _ASYNC_THREADS, _ASYNC_MAX, _ASYNC_OF_PEER)

    # --- the engine ---------------------------------------------------------------------------------

    def initialize(self, local_hostname: str, metadata_server: str, protocol: str, device_name: str) -> int:
        """Connects to the agent ($DRAY_SOCKET), and opens the port of this session on the host.

        metadata_server: "P2PHANDSHAKE", or the URL of one over HTTP, by which peers find this engine as local_hostname.
        The agent chooses transport and devices, whatever protocol and device_name say.
        """
        def work() -> int:
            if self._core is not None:
                raise errors.OutOfOrder("the engine was initialized before", fix="Make another TransferEngine.")
            options = Options.of_environment()
            core = Core(local_hostname, options, _metadata_of(metadata_server, local_hostname, options))
            self._core = core
            weakref.finalize(self, core.leave)  # also at exit
            weakref.finalize(self, _close, core, self._workers).atexit = False  # the client ends at exit by itself
            if device_name:
                _logger.info("the device name %r has no effect: rdma.devices of the agent has it", device_name)
            return 0

        return _code("initialize()", work)

    def initialize_ext(self, local_hostname: str, metadata_server: str, protocol: str, device_name: str,
                       metadata_type: str) -> int:
        """initialize() with the kind of the metadata server, which does not matter."""
        return self.initialize(local_hostname, metadata_server, protocol, device_name)

    def get_rpc_port(self) -> int:
        """The port of this session; 0 before initialize()."""
        return self._core.port if self._core is not None else 0

    def get_local_topology(self, device_name: str | None = None) -> str:
        """A topology without devices: the agent chooses the paths."""
        return '{\n\t"cpu:0" : \n\t[\n\t\t[],\n\t\t[]\n\t]\n}\n'

    def send_probe(self, peer_server_name: str) -> int:
        """0 if the port of the session answers; -102 if it does not, -200 if the metadata server does not have it."""
        where = ""

        def find() -> int:
            nonlocal where
            where = self._use().find(peer_server_name)
            return 0

        def work() -> int:
            probe(where, self._use().options)
            return 0

        return _code("send_probe()", find, _NOT_FOUND) or _code("send_probe()", work, _UNREACHABLE)

    def _use(self) -> Core:
        if self._core is None:
            raise errors.OutOfOrder("the engine is not initialized", fix="Call initialize() first.")
        if self._core.pid != os.getpid():
            raise errors.OutOfOrder("the engine belongs to the process from which this one was forked",
                                    fix="Make a TransferEngine in this process.")
        return self._core

    # --- memory -------------------------------------------------------------------------------------

    def register_memory(self, buffer_addr: int, capacity: int, location: str = "*") -> int:
        """Lets peers read and write memory of this process. -7: it overlaps with registered memory.

        It stays the caller's. Host memory stays private, too: its bytes go by way of shared buffers, so memory of
        allocate_managed_buffer() is faster, and needs no registration. Memory of a GPU is moved by the agent, which opens
        the allocation until unregister_memory(). -1: it cannot be shared. Call unregister_memory() before you free the memory.
        """
        return self.batch_register_memory([buffer_addr], [capacity], location)

    def batch_register_memory(self, buffer_addresses: Sequence[int], capacities: Sequence[int], location: str = "*") -> int:
        """register_memory() for each; after an error none of them is registered."""
        addresses, lengths = words(buffer_addresses), words(capacities)

        def work() -> int:
            registered, done = self._use().registered, []
            if len(addresses) != len(lengths):
                raise errors.Invalid(f"{len(addresses)} addresses have {len(lengths)} lengths",
                                     fix="Pass one length for each address.")
            try:
                for address, length in zip(addresses, lengths):
                    if not address or not length or address + length > _WORD:
                        raise errors.Invalid(f"{length} bytes at {address:#x} are no memory",
                                             fix="Pass the address of a buffer, and its length.")
                    registered.register(address, length)
                    done.append(address)
            except errors.Error:
                for address in done:
                    with contextlib.suppress(errors.Error):
                        registered.unregister(address)
                raise
            return 0

        return _code("register_memory()", work)

    def unregister_memory(self, buffer_addr: int) -> int:
        """Ends a registration. Waits for transfers that use the memory, of this engine and of peers.

        With memory of a GPU, transfers of peers fail instead. Transfers that still wait for a thread fail, too. Call it before you free
        memory of a GPU. -3: nothing is registered at this address.
        """
        return self.batch_unregister_memory([buffer_addr])

    def batch_unregister_memory(self, buffer_addresses: Sequence[int]) -> int:
        """unregister_memory() for each; returns the last error, when all others are unregistered."""
        addresses, code = words(buffer_addresses), 0
        for address in addresses:
            code = _code("unregister_memory()", lambda: self._unregister(address, managed=False)) or code
        return code

    def _unregister(self, address: int, managed: bool) -> int:
        registered = self._use().registered
        buffer = registered.find(address, 1)
        if buffer is not None and (buffer.memory is not None) != managed:
            raise errors.NotFound(f"the memory at {address:#x} was {'registered' if managed else 'allocated'} otherwise",
                                  fix="Call " + ("unregister_memory()." if managed else "free_managed_buffer()."))
        registered.unregister(address)
        return 0

    def allocate_managed_buffer(self, size: int) -> int:
        """Memory that the agent can reach itself, registered, and full of zeros; returns its address, 0: no memory."""
        size, = words([size])

        def work() -> int:
            core, memory = self._use(), Memory(max(size, 1), name="dray-mooncake")
            region: Region | None = None
            try:
                region = core.client.region(memory, name="mooncake")
                buffer = core.buffer(memory, region)
                core.registered.add(buffer)
            except BaseException:
                if region is not None:
                    region.remove()
                memory.close()
                raise
            return buffer.address

        return _code("allocate_managed_buffer()", work, 0)

    def free_managed_buffer(self, buffer_addr: int, size: int) -> int:
        """Frees what allocate_managed_buffer() returned, after transfers of this engine that use it; those of peers fail."""
        return _code("free_managed_buffer()", lambda: self._unregister(buffer_addr, managed=True))

    def write_bytes_to_buffer(self, dest_address: int, src: str | bytes, length: int) -> int:
        """Copies the first `length` bytes of `src` to memory of this process."""
        def work() -> int:
            data = src.encode() if isinstance(src, str) else bytes(src)
            if not 0 <= length <= len(data):
                raise errors.Range(f"{length} bytes are not in a text of {len(data)}", fix="Pass a longer text.")
            poke(dest_address, data[:length])
            return 0

        return _code("write_bytes_to_buffer()", work)

    def read_bytes_from_buffer(self, source_address: int, length: int) -> bytes:
        """The bytes at an address of this process. errors.Range: it is not mapped."""
        address, length = words([source_address, length])
        return peek(address, length)

    def get_first_buffer_address(self, segment_name: str) -> int:
        """The address of the memory that the engine of this session has registered first; 0: none."""
        def work() -> int:
            core = self._use()
            ends = time.monotonic() + core.options.seconds
            with core.peers.use(segment_name, ends) as peer:
                return peer.first(core, ends)

        return _code("get_first_buffer_address()", work, 0)

    # --- transfers that block -----------------------------------------------------------------------

    def transfer_sync_write(self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int,
                            transport_hint: str = "") -> int:
        """Copies local memory to registered memory of a peer. Returns 0 when the bytes are in place."""
        return self.batch_transfer_sync_write(target_hostname, [buffer], [peer_buffer_address], [length])

    def transfer_sync_read(self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int,
                           transport_hint: str = "") -> int:
        """Copies registered memory of a peer to local memory. Returns 0 when the bytes are in place."""
        return self.batch_transfer_sync_read(target_hostname, [buffer], [peer_buffer_address], [length])

    def transfer_sync(self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int,
                      opcode: TransferOpcode, notify: TransferNotify | None = None, transport_hint: str = "") -> int:
        """transfer_sync_read() or _write(); the peer gets the notification when the bytes are in place."""
        return self.batch_transfer_sync(target_hostname, [buffer], [peer_buffer_address], [length], opcode, notify)

    def batch_transfer_sync_write(self, target_hostname: str, buffers: Sequence[int], peer_buffer_addresses: Sequence[int],
                                  lengths: Sequence[int], transport_hint: str = "") -> int:
        """transfer_sync_write() for each. After an error some of them may be done, and none is in flight."""
        return self.batch_transfer_sync(target_hostname, buffers, peer_buffer_addresses, lengths, Write)

    def batch_transfer_sync_read(self, target_hostname: str, buffers: Sequence[int], peer_buffer_addresses: Sequence[int],
                                 lengths: Sequence[int], transport_hint: str = "") -> int:
        """transfer_sync_read() for each. After an error some of them may be done, and none is in flight."""
        return self.batch_transfer_sync(target_hostname, buffers, peer_buffer_addresses, lengths, Read)

    def batch_transfer_sync(self, target_hostname: str, buffers: Sequence[int], peer_buffer_addresses: Sequence[int],
                            lengths: Sequence[int], opcode: TransferOpcode, notify: TransferNotify | None = None,
                            transport_hint: str = "") -> int:
        """transfer_sync() for each, with one notification after all."""
        columns = Column(buffers), Column(peer_buffer_addresses), Column(lengths)
        _expect_opcode(opcode)
        return _code(f"a transfer with {target_hostname}", lambda: self._transfer(target_hostname, Batch(*columns), opcode, notify))

    def _transfer(self, session: str, batch: Batch, opcode: TransferOpcode, notify: TransferNotify | None) -> int:
        core = self._use()
        ends = time.monotonic() + core.options.seconds
        letter = Notify(notify.name, notify.msg) if notify is not None else None
        if letter is not None and len(write(letter)) > LETTER_MAX:
            raise errors.TooLarge("the notification does not fit a letter", fix="Pass less than 4,000 bytes.")
        taken = _take(core, batch)
        try:
            move(core, session, opcode is Write, batch, taken, ends)
        finally:
            core.registered.give(taken)
        if letter is not None:
            with core.peers.use(session, ends) as peer:
                core.post(peer, letter, ends)
        return 0

    def get_notifies(self) -> list[TransferNotify]:
        """Takes the notifications of peers that have come."""
        taken: list[TransferNotify] = []
        with contextlib.suppress(IndexError):  # none is left; other threads may take them, too
            while self._core is not None:
                letter = self._core.notifies.popleft()
                taken.append(TransferNotify(letter.name, letter.msg))
        return taken

    # --- transfers in the background ----------------------------------------------------------------

    def batch_transfer_async_write(self, target_hostname: str, buffers: Sequence[int], peer_buffer_addresses: Sequence[int],
                                   lengths: Sequence[int], transport_hint: str = "") -> int:
        """Starts batch_transfer_sync_write(); returns its number for get_batch_transfer_status(), 0 after an error."""
        return self.batch_transfer_async(target_hostname, buffers, peer_buffer_addresses, lengths, Write)

    def batch_transfer_async_read(self, target_hostname: str, buffers: Sequence[int], peer_buffer_addresses: Sequence[int],
                                  lengths: Sequence[int], transport_hint: str = "") -> int:
        """Starts batch_transfer_sync_read(); returns its number for get_batch_transfer_status(), 0 after an error."""
        return self.batch_transfer_async(target_hostname, buffers, peer_buffer_addresses, lengths, Read)

    def batch_transfer_async(self, target_hostname: str, buffers: Sequence[int], peer_buffer_addresses: Sequence[int],
                             lengths: Sequence[int], opcode: TransferOpcode, transport_hint: str = "") -> int:
        """Starts batch_transfer_sync(); returns its number for get_batch_transfer_status(), 0 after an error."""
        columns = Column(buffers), Column(peer_buffer_addresses), Column(lengths)
        _expect_opcode(opcode)

        def work() -> int:
            core, task, number, batch = self._use(), _Async(), next(self._ids), Batch(*columns)
            ends = time.monotonic() + core.options.seconds  # with the time in the queue
            with core.peers.use(target_hostname, ends):  # whose absence is an error of this call
                pass
            what = f"transfer {number} with {target_hostname}"
            engine = weakref.ref(self)
            taken = _take(core, batch)  # until the end

            def transfer() -> int:
                try:
                    alive = engine()  # stays so until the end
                    if alive is None:
                        raise errors.Cancelled("the engine was deleted")
                    if any(buffer.removed for buffer in taken.buffers):
                        raise errors.Range("its local memory was unregistered before it began", fix="Wait for it first.")
                    move(core, target_hostname, opcode is Write, batch, taken, ends)
                    return 0
                finally:
                    core.registered.give(taken)

            if not self._workers.start(lambda: task.run(lambda: _code(what, transfer)), target_hostname):
                core.registered.give(taken)
                raise errors.Busy("too many transfers were started", fix="Wait for some of them first.")
            self._asyncs[number] = task
            return number

        return _code(f"a transfer with {target_hostname}", work, 0)

    def get_batch_transfer_status(self, batch_ids: Sequence[int]) -> int:
        """Waits until these transfers have ended; 0 if all have succeeded. Their numbers are void afterwards."""
        code = 0
        for number in words(batch_ids):
            task = self._asyncs.pop(number, None)
            if task is not None:
                self._await(task)
            code = code or (_FAILED if task is None or task.code or not task.ended.is_set() else 0)
        return code

    def _await(self, task: _Async) -> None:
        """Until its end, which only the process that has started it sees."""
        if self._core is not None and self._core.pid == os.getpid():
            task.ended.wait()

    def transfer_submit_write(self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int,
                              transport_hint: str = "") -> int:
        """Starts transfer_sync_write(); returns its number for transfer_check_status(), 0 after an error."""
        return self.batch_transfer_async_write(target_hostname, [buffer], [peer_buffer_address], [length])

    def transfer_check_status(self, batch_id: int) -> int:
        """0: it runs. 1: it has ended with success. -1: with an error. Does not wait; an end is told once."""
        task = self._asyncs.get(batch_id)
        if task is not None and not task.ended.is_set() and self._core is not None and self._core.pid == os.getpid():
            return 0
        self._asyncs.pop(batch_id, None)
        return _FAILED if task is None or task.code or not task.ended.is_set() else 1


TransferEngine.TransferOpcode = TransferOpcode  # type: ignore[attr-defined]


def _code(what: str, work: Callable[[], int], failed: int = _FAILED) -> int:
    """The result of a call, or the code of its error, which the log has."""
    try:
        return work()
    except errors.Error as e:
        _logger.warning("%s failed: %s", what, e)
        if isinstance(e, errors.Exists) and failed:
            return _OVERLAPPED
        return _NOT_REGISTERED if isinstance(e, errors.NotFound) and what.startswith("unregister") else failed


def _metadata_of(server: str, name: str, options: Options) -> Metadata | None:
    """None: engines find each other by their ports."""
    if server == "P2PHANDSHAKE":
        return None
    if not is_url(server):
        raise errors.Unsupported(f"the metadata server {server!r:.200} is not used",
                                 fix='Pass "P2PHANDSHAKE", or the URL of a server such as http://10.0.0.9:8080/metadata.')
    if options.segment:
        raise errors.Unsupported("with a metadata server, managed buffers are not served to engines that have Mooncake linked in",
                                 fix='Pass "P2PHANDSHAKE", or leave DRAY_MOONCAKE_SEGMENT out.')
    if not name:
        raise errors.Invalid("an engine at a metadata server needs a name", fix="Pass the host, or HOST:PORT.")
    return Metadata(server, options.cluster)


def _expect_opcode(opcode: TransferOpcode) -> None:
    """TypeError: something else, as with Mooncake."""
    if not isinstance(opcode, TransferOpcode):
        raise TypeError(f"the opcode {opcode!r:.100} is neither TransferOpcode.Read nor TransferOpcode.Write")


def _take(core: Core, batch: Batch) -> Taken:
    """Keeps registered memory of a batch until Registered.give()."""
    if not len(batch):
        return core.registered.take([])
    together = core.registered.find(*batch.span) is not None
    return core.registered.take([batch.span] if together else batch.local())


def _close(core: Core, workers: Workers) -> None:
    if core.pid == os.getpid():
        workers.close()
        core.close()
