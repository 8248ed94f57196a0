# SPDX-License-Identifier: Apache-2.0
"""Memory that transfers use: regions of this engine, tokens for them, and remotes of other engines."""

from __future__ import annotations

import ctypes
from ctypes import byref
from typing import TYPE_CHECKING, Any, Literal, overload

from . import _arguments as arguments
from . import _library as lib
from . import _schema as s
from . import errors
from ._operations import RANGES, pointer
from .lease import Lease
from .pending import Pending

if TYPE_CHECKING:
    from .client import Client
    from .memory import Memory

ACCESS = {"r": s.ACCESS_READ, "w": s.ACCESS_WRITE, "rw": s.ACCESS_READ | s.ACCESS_WRITE}
_ACCESS_NAMES = {value: name for name, value in ACCESS.items()}


class Token:
    """An exported range. str() is the text form, for an engine's request metadata.

    Everybody who has the token can use the range, until it expires or is revoked. So repr() does not
    show it. `data` is the binary form. token_id: number at the exporting agent; 0 for a token that
    was made elsewhere.
    """

    __slots__ = ("_raw", "data", "token_id")

    def __init__(self, token: str | bytes | bytearray | memoryview) -> None:
        """Parses the text form or the binary form. errors.TokenInvalid: it is neither."""
        self._raw = _parse(token)
        self._take()

    def _take(self) -> None:
        self.token_id: int = self._raw.id
        self.data: bytes = bytes(self._raw.data[:self._raw.length])

    @classmethod
    def _of(cls, raw: Any) -> Token:
        token = cls.__new__(cls)
        token._raw = lib.Token()
        ctypes.pointer(token._raw)[0] = raw
        token._take()
        return token

    def __str__(self) -> str:
        return lib.text(self._raw.text)

    def __bytes__(self) -> bytes:
        return self.data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Token) and self.data == other.data

    def __hash__(self) -> int:
        return hash(self.data)

    def __repr__(self) -> str:
        return f"<Token {self.token_id} of {len(self.data)} bytes>"


def _parse(token: Any) -> Any:
    raw = lib.Token()
    if isinstance(token, Token):
        return token._raw
    if isinstance(token, str):
        form, code = "text", -errors.TokenInvalid.code
        if token.isascii() and "\0" not in token:
            code = lib.held.dray_token_parse(token.encode(), byref(raw))
    elif isinstance(token, (bytes, bytearray, memoryview)):
        form, data = "binary", bytes(token)
        code = lib.held.dray_token_from_bytes(data, len(data), byref(raw))
    else:
        raise errors.Invalid(f"the token is a {type(token).__name__}",
                             fix="Pass a Token, its text form (str) or its binary form (bytes).")
    if code:
        raise errors.TokenInvalid(f"the {form} form of {len(token)} characters or bytes is not a token",
                                  fix="Pass the text that begins with dray1:, or the token's bytes, unchanged.")
    return raw


class Region:
    """Memory contributed to the agent, addressed by offsets from 0 to length. Made by a Client.

    handle: number of the region at this client. length: in bytes. access: bits of ACCESS_READ and
    ACCESS_WRITE. memory: the Memory of a pool; None for memory of the engine's own, which stays the
    engine's. error: why it could not be registered again after a restart of the agent; or None.

    The region stays registered until remove() or the end of the client, whether or not this object
    lives on. Any thread may use it.
    """

    __slots__ = ("__weakref__", "_kept", "access", "client", "error", "handle", "length", "memory", "name")

    def __init__(self, client: Client, name: str, access: int, handle: int, length: int,
                 kept: object = None) -> None:
        self.client, self.name, self.access = client, name, access
        self.handle, self.length, self._kept = handle, length, kept
        self.memory: Memory | None = None
        self.error: errors.Error | None = None

    def _use(self) -> int:
        if self.error is not None:
            raise self.error
        if not self.handle:
            self.client._handle()
            raise errors.NotFound(f"{self!r} was removed", fix="Make a new region with client.region().")
        return self.handle

    @property
    def agent_handle(self) -> int:
        """The agent's number of the region, for borrow_region() of another session of the group."""
        info, handle = lib.RegionInfo(), self._use()
        self.client._check(lib.held.dray_region_get_info, handle, byref(info))
        return int(info.agent_region)

    @overload
    def export(self, offset: int = 0, length: int | None = None, *, access: str | int | None = None,
               ttl: float | None = None, audience: bytes | None = None, single_use: bool = False, mooncake: int | None = None,
               wait: Literal[True] = True) -> Token: ...

    @overload
    def export(self, offset: int = 0, length: int | None = None, *, access: str | int | None = None,
               ttl: float | None = None, audience: bytes | None = None, single_use: bool = False, mooncake: int | None = None,
               wait: Literal[False]) -> Pending[Token]: ...

    def export(self, offset: int = 0, length: int | None = None, *, access: str | int | None = None,
               ttl: float | None = None, audience: bytes | None = None, single_use: bool = False, mooncake: int | None = None,
               wait: bool = True) -> Token | Pending[Token]:
        """A token for `length` bytes from `offset` (None: to the end).

        access: "r", "w" or "rw" of the importers (default: that of the region). ttl: seconds until it
        expires; None: when it is revoked. audience: agent_id of the only agent that may import it.
        single_use: it can be imported once. mooncake: the address at which engines with Mooncake expect the
        range, which makes it a buffer of the agent's Mooncake segment until the token is revoked (not with
        ttl, audience or single_use). Waits for the agent's answer, or with wait=False returns a Pending.
        """
        handle = self._use()
        what = lib.Export(
            offset=arguments.number("offset", offset), single_use=bool(single_use),
            access=0 if access is None else arguments.choice("access", ACCESS, access),
            ttl_ms=arguments.milliseconds("ttl", ttl))
        if length is not None:
            what.length = arguments.number("length", length)
        if offset >= self.length or length is not None and not 0 < length <= self.length - offset:
            raise errors.Range(f"{length} bytes at offset {offset} are not a range of {self!r}",
                               fix=f"Export at least 1 byte that lies before {self.length}.", handle=handle)
        if audience:
            what.audience[:] = _audience(audience)
        pending: Pending[Token] = Pending(self.client, lambda c: Token._of(c.token.contents), self._take_back)
        if mooncake is None:
            return self.client._start(pending, wait, lib.held.dray_region_export_start, handle, byref(what))
        return self.client._start(pending, wait, lib.held.dray_region_export_mooncake_start, handle, byref(what),
                                  arguments.number("mooncake", mooncake))

    def _take_back(self, token: Token) -> None:
        """Revokes a token that nobody will see. Does not wait."""
        if self.handle:  # a removed region has no tokens
            self.revoke(token, wait=False)

    @overload
    def lease(self, ranges: Any, *, access: str | int | None = None, expiry: float = 30.0, holders: int = 1,
              audience: bytes | None = None, grant: bool = False, wait: Literal[True] = True) -> Lease: ...

    @overload
    def lease(self, ranges: Any, *, access: str | int | None = None, expiry: float = 30.0, holders: int = 1,
              audience: bytes | None = None, grant: bool = False, wait: Literal[False]) -> Pending[Lease]: ...

    def lease(self, ranges: Any, *, access: str | int | None = None, expiry: float = 30.0, holders: int = 1,
              audience: bytes | None = None, grant: bool = False, wait: bool = True) -> Lease | Pending[Lease]:
        """Lends ranges of the region to `holders` engines that acquire() the lease's token.

        ranges: up to 4096 of (offset, length, stride, count), each `count` pieces of `length` bytes whose
        starts are `stride` bytes apart: a list of tuples, or a contiguous array of 64-bit integers of shape
        (n, 4). They may overlap. access: "r", "w" or "rw" (default: that of the region). expiry: seconds
        until the lease ends, unless a holder renews it. audience: agent_id of the only agent whose clients
        may acquire it. grant: grant it to that agent now, so that no message is needed there.

        An event LeaseEnded says how the lease ended; until then the ranges must not be used for anything
        else. Waits for the agent's answer, or with wait=False returns a Pending.
        """
        handle, client = self._use(), self.client
        what = lib.LeaseSpec(
            access=0 if access is None else arguments.choice("access", ACCESS, access),
            holders=arguments.number("holders", holders, (1 << 32) - 1),
            expiry_ms=arguments.milliseconds("expiry", expiry), grant=bool(grant))
        if not holders:
            raise errors.Invalid("holders is 0", fix="Pass how many engines acquire the lease.", handle=handle)
        if audience:
            what.audience[:] = _audience(audience)
        what.ranges, what.ranges_n, keep = pointer(ranges, RANGES)

        def adopt(c: Any) -> Lease:
            lease = client._leases[c.lease] = Lease(client, c.lease, Token._of(c.token.contents), int(c.bytes))
            return lease

        pending: Pending[Lease] = Pending(client, adopt, lambda lease: lease.end(wait=False))
        what._keep = keep
        return client._start(pending, wait, lib.held.dray_region_lease_start, handle, byref(what))

    @overload
    def revoke(self, token: Token | None = None, *, wait: Literal[True] = True) -> int: ...

    @overload
    def revoke(self, token: Token | None = None, *, wait: Literal[False]) -> Pending[int]: ...

    def revoke(self, token: Token | None = None, *, wait: bool = True) -> int | Pending[int]:
        """Revokes a token that export() returned, or all tokens of the region; returns how many.

        After the answer no importer accesses the range through them any more. errors.NotFound: it is not one of the region's, or was parsed:
        its text does not say which one it is.
        """
        handle = self._use()
        if token is not None and not isinstance(token, Token):
            raise errors.Invalid(f"revoke(): {token!r:.40} is not a Token",
                                 fix="Pass what export() returned, or None for all tokens.", handle=handle)
        raw = byref(token._raw) if token is not None else None
        pending: Pending[int] = Pending(self.client, lambda c: int(c.bytes))
        return self.client._start(pending, wait, lib.held.dray_region_revoke_start, handle, raw)

    @overload
    def remove(self, *, wait: Literal[True] = True) -> None: ...

    @overload
    def remove(self, *, wait: Literal[False]) -> Pending[None]: ...

    def remove(self, *, wait: bool = True) -> None | Pending[None]:
        """Ends the region. After the answer only this engine uses the memory.

        Transfers of the region end with errors.Cancelled, and its tokens are revoked. The object
        cannot be used from the call on.

        An error proves nothing: the agent may go on reading and writing the memory. The client keeps the
        Memory until the removal has succeeded or the client is closed; memory that is not a Memory the
        caller keeps, and uses for nothing else.
        """
        self.client._handle()
        if not self.handle:
            self._use()
        pending = _Removal(self)
        self.client._removing.add(self)
        self.client._request(pending, lib.held.dray_region_remove_start, self.handle)
        self._withdraw()
        return self.client._settle(pending, wait)

    def _withdraw(self) -> None:
        self.client._regions.pop(self.handle, None)
        self.handle = 0

    def _forget(self) -> None:
        """The memory is the engine's alone again."""
        self._kept = None

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        state = f"handle {self.handle:#x}" if self.handle else "removed"
        access = _ACCESS_NAMES.get(self.access, self.access)
        return f"<Region{name}, {state}, {self.length} bytes, {access}>"


class _Removal(Pending[None]):
    """The end of a region. The client keeps its memory until that is proven, also if the caller waits no longer."""

    __slots__ = ("_region",)

    def __init__(self, region: Region) -> None:
        super().__init__(region.client)
        self._region = region

    def _outcome(self, c: Any) -> tuple[None, errors.Error | None]:
        if c.status:
            error = self._client._failure(c)
            error.fix = "Use the memory for nothing else until the client is closed: the agent may still use it."
            return None, error
        self._region._withdraw()
        self._client._removing.discard(self._region)
        self._region._forget()
        return None, None


def _audience(audience: bytes) -> bytes:
    if len(audience) != 16:
        raise errors.Invalid(f"audience has {len(audience)} bytes, not 16",
                             fix="Pass client.agent_id of the importing engine.")
    return audience


class Remote:
    """An imported range of another engine's memory, addressed by offsets from 0 to length.

    Or a lease of another engine, addressed by the offsets of the owner's region; only its ranges may be
    used. expiry: seconds that such a lease had when it was acquired or renewed last; None: not a lease.

    handle: number of the remote at this client. access: bits of ACCESS_READ and ACCESS_WRITE.
    transport: name of the best path at the time of the import: "local", "tcp", "rdma" or "gpu".
    lost: the error, once the agent has reported the remote as lost, or the session has ended; None
    before. A lost remote is released by itself.

    The remote stays imported until release() or the end of the session, whether or not this object
    lives on. Any thread may use it.
    """

    __slots__ = ("__weakref__", "access", "client", "expiry", "handle", "length", "lost", "transport")

    def __init__(self, client: Client, handle: int, expiry: float | None = None) -> None:
        info = lib.RemoteInfo()
        self.client, self.handle = client, handle
        client._check(lib.held.dray_remote_get_info, handle, byref(info))
        self.length: int = info.length
        self.access: int = info.access
        self.transport = s.TRANSPORT_NAMES.get(info.transport, str(info.transport))
        self.lost: errors.Error | None = None
        self.expiry = expiry

    def _use(self) -> int:
        if self.lost is not None:
            raise self.lost
        if not self.handle:
            self.client._handle()
            raise errors.NotFound(f"{self!r} was released", fix="Import its token again.")
        return self.handle

    @property
    def agent_handle(self) -> int:
        """The agent's number of the remote, for borrow_remote() of another session of the group."""
        info = lib.RemoteInfo()
        handle = self._use()
        self.client._check(lib.held.dray_remote_get_info, handle, byref(info))
        return int(info.agent_remote)

    @overload
    def notify(self, tag: int, payload: bytes = b"", *, wait: Literal[True] = True) -> None: ...

    @overload
    def notify(self, tag: int, payload: bytes = b"", *, wait: Literal[False]) -> Pending[None]: ...

    def notify(self, tag: int, payload: bytes = b"", *, wait: bool = True) -> None | Pending[None]:
        """Delivers a tag of 64 bits and a payload of up to 4096 bytes to the group that owns the range.

        After the answer it is queued for every session of that group that reads notifications.
        """
        handle, data = self._use(), arguments.data("payload", payload)
        pending: Pending[None] = Pending(self.client)
        return self.client._start(pending, wait, lib.held.dray_notify_start, handle, arguments.number("tag", tag), data, len(data))

    @overload
    def renew(self, seconds: float | None = None, *, wait: Literal[True] = True) -> float: ...

    @overload
    def renew(self, seconds: float | None = None, *, wait: Literal[False]) -> Pending[float]: ...

    def renew(self, seconds: float | None = None, *, wait: bool = True) -> float | Pending[float]:
        """Renews the lease: it expires in `seconds` from now, or after the owner's limit if that is less (None).

        Returns the seconds until it expires, which a renewal never makes fewer. errors.Revoked: it has ended.
        """
        handle = self._use()

        def renewed(c: Any) -> float:
            self.expiry = left = float(c.expiry_ms / 1000)
            return left

        pending: Pending[float] = Pending(self.client, renewed)
        return self.client._start(pending, wait, lib.held.dray_lease_renew_start, handle, arguments.milliseconds("seconds", seconds))

    @overload
    def release(self, *, wait: Literal[True] = True) -> None: ...

    @overload
    def release(self, *, wait: Literal[False]) -> Pending[None]: ...

    def release(self, *, wait: bool = True) -> None | Pending[None]:
        """Releases the remote; its transfers end with errors.Cancelled first.

        To the owner of a lease this says that this holder has used it. Nothing happens if the remote is lost. The object cannot be used from the call on.
        """
        pending: Pending[None] = Pending(self.client, lambda _: self._withdraw())
        if self.lost is not None:
            pending._end(None, None)
        else:
            self.client._request(pending, lib.held.dray_remote_release_start, self._use())
            self._withdraw()
        return self.client._settle(pending, wait)

    def _withdraw(self) -> None:
        self.client._remotes.pop(self.handle, None)
        self.handle = 0

    def _lose(self, error: errors.Error) -> None:
        """The library has no use for the handle any more."""
        if self.lost is None:
            self.lost = error
        if self.handle:
            self.client._free_remote(self.handle)
            self.handle = 0

    def __repr__(self) -> str:
        state = f"lost: {self.lost.name}" if self.lost else f"handle {self.handle:#x}" if self.handle else "released"
        return f"<Remote, {state}, {self.length} bytes, {_ACCESS_NAMES.get(self.access, self.access)}>"


def check_pair(local: Any, remote: Any) -> errors.Invalid:
    """The error for a transfer between other things than a Region and a Remote."""
    fix = "Pass the Region of this engine first, then the Remote: read(region, remote, operations)."
    if isinstance(local, Remote) and isinstance(remote, Region):
        return errors.Invalid(f"{local!r} and {remote!r} are in each other's place", fix=fix, handle=local.handle)
    if not isinstance(local, Region):
        return errors.Invalid(f"the local memory is {_show(local)}, not a Region", fix=fix)
    return errors.Invalid(f"the remote memory for {local!r} is {_show(remote)}, not a Remote", fix=fix,
                          handle=local.handle)


def _show(what: Any) -> str:
    return repr(what) if isinstance(what, (Region, Remote)) else f"a {type(what).__name__}"
