# SPDX-License-Identifier: Apache-2.0
"""What a client hands out: requests under way, regions, tokens, remotes."""

import os
from collections import namedtuple

from . import _schema as s
from . import errors
from .token import to_text

ACCESS = {"r": s.ACCESS_READ, "w": s.ACCESS_WRITE, "rw": s.ACCESS_READ | s.ACCESS_WRITE}

_GPU_MINOR = 2  # of the data protocol, since which agents know memory on GPUs

Done = namedtuple("Done", "status transport bytes duration_ns message")


def ms(seconds):
    """Milliseconds, rounded up: 0 on the wire means something else than no time."""
    return 0 if seconds is None else max(1, -int(-seconds * 1000 // 1))


def code(table, value):
    return table[value] if isinstance(value, str) else value


class Pending:
    """A request under way. `done` tells whether it has ended, result() how."""

    def __init__(self, client, request_id=0, convert=None):
        self.client = client
        self.request_id = request_id
        self.done = False
        self._convert = convert
        self._value = self._error = None
        self._callbacks = []

    def result(self, timeout=None):
        """Waits for the end; gives the answer or raises its error.

        errors.Timeout leaves the request as it is: under way.
        """
        if not self.client.wait_until(lambda: self.done, timeout):
            raise errors.Timeout(f"no answer to request {self.request_id} in {timeout} s")
        if self._error:
            raise self._error
        return self._value

    def exception(self, timeout=None):
        """Waits for the end; gives its error, or None."""
        try:
            self.result(timeout)
        except errors.DrayError as e:
            if not self.done:
                raise
            return e
        return None

    def add_done_callback(self, fn):
        """fn(self) runs from process() when the request ends, or now if it has."""
        if self.done:
            fn(self)
        else:
            self._callbacks.append(fn)

    def end(self, value=None, error=None, fds=()):
        """For the client: the answer has come."""
        if self._convert and not error:
            try:
                value = self._convert(value, fds)
            except (OSError, ValueError, errors.DrayError) as e:
                error = e
        self._value, self._error, self.done = value, error, True
        callbacks, self._callbacks = self._callbacks, []
        for fn in callbacks:
            fn(self)


class Transfer(Pending):
    """A transfer under way; result() gives Done. An error has it as its attribute `done`."""

    def __init__(self, client, request_id=0):
        super().__init__(client, request_id)
        self.pieces = ()  # of the arena, held until the end

    def cancel(self, *, wait=True):
        """Stops it. When that is answered the transfer has ended, as cancelled or otherwise.

        NotFound: it had ended before.
        """
        return self.client.request(s.pack_transfer_cancel, wait=wait, request=self.request_id)

    def release(self):
        """For the client: the arena may use its pieces again."""
        for piece in self.pieces:
            if self.client.arena:
                self.client.arena.give_back(piece)
        self.pieces = ()

    def end(self, value=None, error=None, fds=()):
        self.release()
        if value is not None and value.status:
            error = errors.make(value.status, value.message)
            error.done = value
        super().end(value, error)


class Token(namedtuple("Token", "token_id data generation")):
    """An exported range. str() is the text form, for an engine's request metadata."""

    def __str__(self):
        return to_text(self.data)


class Region:
    """Memory contributed to the agent: extents one after the other, addressed by offset."""

    def __init__(self, client, access, name):
        self.client = client
        self.access, self.name = code(ACCESS, access), name
        self.handle = self.length = self.generation = 0
        self.memory = None  # of a pool
        self.error = None  # why it could not be registered again
        # what it takes to register it again after an agent restart; the descriptors are ours
        self.fds, self.extents = [], []
        self.device, self.gpu_handles, self.allocations = "", b"", []  # of memory on a GPU

    def use(self):
        """Its handle, if it can be used; connects again first where need be."""
        self.client.ready()
        if self.error:
            raise self.error
        if self.generation != self.client.generation:
            raise errors.NotFound("the region was removed, or its client is closed")
        return self.handle

    def export(self, offset=0, length=None, *, access=None, ttl=None, audience=None,
               single_use=False, wait=True):
        """A token for a range. ttl in seconds; audience: the agent_id of the only importer."""
        def adopt(m, fds):
            return Token(m.token_id, m.token, self.client.generation)

        return self.client.request(
            s.pack_region_export, wait=wait, convert=adopt, region=self.use(), offset=offset,
            length=self.length - offset if length is None else length,
            access=self.access if access is None else code(ACCESS, access),
            flags=s.EXPORT_FLAG_SINGLE_USE if single_use else 0,
            ttl_ms=ms(ttl), audience=audience or bytes(16))

    def revoke(self, token=None, *, wait=True):
        """Takes a token back, or all of them; gives how many.

        When that is answered no importer touches the range through them any more.
        """
        handle = self.use()
        if token and token.generation != self.client.generation:
            raise errors.NotFound("the token ended with the agent that made it")
        return self.client.request(s.pack_region_revoke, wait=wait, region=handle,
                                   convert=lambda m, fds: m.count,
                                   token_id=token.token_id if token else 0)

    def remove(self, *, wait=True):
        """Ends the region. When that is answered the memory is the client's alone."""
        handle = self.use()
        self.generation = 0
        self.client.forget(self)
        return self.client.request(s.pack_region_remove, wait=wait, region=handle)

    def describe_gpu(self, extents):
        """For the client: it is of this memory. Gives the descriptors."""
        self.device, self.gpu_handles = extents.device, b"".join(extents.handles)
        self.allocations = [(size,) for size in extents.allocations]
        self.extents = [(kind, index, 0, offset, length)
                        for kind, index, offset, length in extents.extents]
        return extents.fds

    def add(self, convert=None):
        """For the client: registers it."""
        self.client.ready()
        if self.client.hello.minor < _GPU_MINOR and any(
                extent[0] in (s.KIND_CUDA_IPC, s.KIND_CUDA_VMM) for extent in self.extents):
            refused = Pending(self.client)
            refused.end(error=errors.Unsupported(
                "the agent is too old for GPU memory (data protocol before 1.2); upgrade it"))
            return refused
        return self.client.request(s.pack_region_add, wait=False, fds=self.fds, convert=convert,
                                   access=self.access, name=self.name, extents=self.extents,
                                   device=self.device, handles=self.gpu_handles,
                                   allocations=self.allocations)

    def release(self):
        """For the client: it will not be registered again."""
        while self.fds:
            os.close(self.fds.pop())


class Remote:
    """An imported range of another engine's memory."""

    def __init__(self, client, reply):
        self.client, self.generation = client, client.generation
        self.handle, self.length, self.access = reply.remote, reply.length, reply.access
        self.transport = s.TRANSPORT_NAMES.get(reply.transport, str(reply.transport))
        self.lost = None  # the error, once the agent has said that it is gone

    def use(self):
        """Its handle, if it can be used."""
        self.client.ready()
        if self.generation != self.client.generation:
            raise errors.AgentRestarted(
                "the remote belongs to an earlier connection: import its token again")
        return self.handle

    def notify(self, tag, payload=b"", *, wait=True):
        """Delivers a notification to the group that owns the range."""
        return self.client.request(s.pack_notify, wait=wait, remote=self.use(), tag=tag,
                                   payload=payload)

    def release(self, *, wait=True):
        """Forgets the remote; its transfers are cancelled first."""
        self.client.remotes.pop(self.use(), None)
        return self.client.request(s.pack_remote_release, wait=wait, remote=self.handle)
