# SPDX-License-Identifier: Apache-2.0
"""Objects that a client returns: pending requests, regions, tokens, remotes."""

import os
from collections import namedtuple

from . import _schema as s
from . import errors
from .token import to_text

ACCESS = {"r": s.ACCESS_READ, "w": s.ACCESS_WRITE, "rw": s.ACCESS_READ | s.ACCESS_WRITE}

_GPU_MINOR = 2  # minor version of the data protocol since which agents accept GPU memory

Done = namedtuple("Done", "status transport bytes duration_ns message")


def ms(seconds):
    """Milliseconds, rounded up, because 0 means the default on the wire."""
    return 0 if seconds is None else max(1, -int(-seconds * 1000 // 1))


def code(table, value):
    return table[value] if isinstance(value, str) else value


class Pending:
    """A pending request. `done` is true when it has ended; result() returns its result."""

    def __init__(self, client, request_id=0, convert=None):
        self.client = client
        self.request_id = request_id
        self.done = False
        self._convert = convert
        self._value = self._error = None
        self._callbacks = []

    def result(self, timeout=None):
        """Waits for the end; returns the answer or raises the error.

        After errors.Timeout the request is still pending.
        """
        if not self.client.wait_until(lambda: self.done, timeout):
            raise errors.Timeout(f"no answer to request {self.request_id} in {timeout} s")
        if self._error:
            raise self._error
        return self._value

    def exception(self, timeout=None):
        """Waits for the end; returns the error, or None."""
        try:
            self.result(timeout)
        except errors.DrayError as e:
            if not self.done:
                raise
            return e
        return None

    def add_done_callback(self, fn):
        """Calls fn(self) from process() when the request ends, or now if it has ended."""
        if self.done:
            fn(self)
        else:
            self._callbacks.append(fn)

    def end(self, value=None, error=None, fds=()):
        """For the client: ends the request with an answer or an error."""
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
    """A transfer in flight; result() returns a Done. An error has a Done in its attribute `done`."""

    def __init__(self, client, request_id=0):
        super().__init__(client, request_id)
        self.pieces = ()  # pieces of the arena, held until the end

    def cancel(self, *, wait=True):
        """Stops the transfer. The answer comes when the transfer has ended, cancelled or otherwise.

        NotFound: the transfer ended before.
        """
        return self.client.request(s.pack_transfer_cancel, wait=wait, request=self.request_id)

    def release(self):
        """For the client: gives the pieces back to the arena."""
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
    """Memory contributed to the agent: a sequence of extents, addressed by offset."""

    def __init__(self, client, access, name):
        self.client = client
        self.access, self.name = code(ACCESS, access), name
        self.handle = self.length = self.generation = 0
        self.memory = None  # the memory of a pool
        self.error = None  # why it could not be registered again
        # for registering it again after an agent restart; this object owns the descriptors
        self.fds, self.extents = [], []
        self.device, self.gpu_handles, self.allocations = "", b"", []  # for memory on a GPU

    def use(self):
        """The handle, if the region can be used; connects again first if necessary."""
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
        """Revokes a token, or all tokens of the region; returns how many.

        After the answer no importer accesses the range through them any more.
        """
        handle = self.use()
        if token and token.generation != self.client.generation:
            raise errors.NotFound("the agent that made the token was restarted: export again")
        return self.client.request(s.pack_region_revoke, wait=wait, region=handle,
                                   convert=lambda m, fds: m.count,
                                   token_id=token.token_id if token else 0)

    def remove(self, *, wait=True):
        """Ends the region. After the answer only the client uses the memory."""
        handle = self.use()
        self.generation = 0
        self.client.forget(self)
        return self.client.request(s.pack_region_remove, wait=wait, region=handle)

    def describe_gpu(self, extents):
        """For the client: takes over the description of GPU memory; returns its descriptors."""
        self.device, self.gpu_handles = extents.device, b"".join(extents.handles)
        self.allocations = [(size,) for size in extents.allocations]
        self.extents = [(kind, index, 0, offset, length)
                        for kind, index, offset, length in extents.extents]
        return extents.fds

    def add(self, convert=None):
        """For the client: sends REGION_ADD; returns the pending request."""
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
        """For the client: closes the descriptors, which no later registration needs."""
        while self.fds:
            os.close(self.fds.pop())


class Remote:
    """An imported range of another engine's memory."""

    def __init__(self, client, reply):
        self.client, self.generation = client, client.generation
        self.handle, self.length, self.access = reply.remote, reply.length, reply.access
        self.transport = s.TRANSPORT_NAMES.get(reply.transport, str(reply.transport))
        self.lost = None  # the error, after the agent has reported the remote as lost

    def use(self):
        """The handle, if the remote can be used."""
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
        """Releases the remote; its transfers are cancelled first."""
        self.client.remotes.pop(self.use(), None)
        return self.client.request(s.pack_remote_release, wait=wait, remote=self.handle)
