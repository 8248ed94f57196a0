# SPDX-License-Identifier: Apache-2.0
"""The proof that an offer comes from an encoder with the same secret: a keyed digest (HMAC) of all that it says.

It covers the right, the exports, the places, and of each output the digest of its identifier and its tenant. So whoever can set the parameters
of a request, or lease memory to this engine's agent, but does not know the secret, cannot place an output of his own.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import stat

from ... import errors
from .header import digest
from .protocol import VERSION, Offer

__all__ = ["Secret"]

_LEAST, _MOST = 16, 4096  # bytes
_PURPOSE = "dray encoder outputs"


class Secret:
    """What E and PD have in common. It never appears in a log or an error."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        self._key = key

    @classmethod
    def read(cls, path: str) -> Secret:
        """The content of a file, without white space around it. errors.Io, errors.Denied, errors.Invalid."""
        named = f"secret_file {path!r} of the connector"
        try:
            with open(path, "rb") as file:
                info = os.fstat(file.fileno())
                key = file.read(_MOST + 1).strip()
        except OSError as e:
            raise errors.Io(f"{named} cannot be read: {e.strerror}", fix="Name a file that this user may read.") from None
        # A file of root may be readable by its group, because Kubernetes mounts secrets in that way.
        others = stat.S_IRWXO | stat.S_IWGRP | (stat.S_IRGRP if info.st_uid else 0)
        if info.st_uid not in (0, os.geteuid()) or info.st_mode & others:
            raise errors.Denied(f"{named} belongs to another user, or others may use it (mode {stat.S_IMODE(info.st_mode):o}, "
                                f"uid {info.st_uid})", fix="Give it to the user of the engine, with the mode 0400.")
        if not _LEAST <= len(key) <= _MOST:
            raise errors.Invalid(f"{named} has {len(key) if len(key) <= _MOST else 'too many'} bytes, and a secret has {_LEAST} to {_MOST}",
                                 fix="Make one with: head -c 32 /dev/urandom | base64")
        return cls(key)

    def sign(self, offer: Offer, salt: str | None) -> str:
        """The proof of an offer. salt: cache_salt of the request that it is for."""
        said = [_PURPOSE, VERSION, offer.engine_id, offer.token, sorted(offer.model.items()),
                offer.device, sorted([digest(name, salt).hex(), one.offset, one.rows, one.width, one.nonce.hex(), one.digest.hex(), one.number, one.piece]
                                      for name, one in offer.items.items())]
        if offer.pool is not None:
            said.append([offer.pool.process, offer.pool.fd, offer.pool.door])
        said.append(sorted(offer.exports.items()))
        return hmac.new(self._key, json.dumps(said).encode(), hashlib.sha256).hexdigest()

    def check(self, offer: Offer, salt: str | None) -> None:
        """errors.Denied: the offer is not one of an encoder with this secret for such a request."""
        if not hmac.compare_digest(self.sign(offer, salt).encode(), offer.proof.encode(errors="surrogatepass")):
            raise errors.Denied(
                "the offer has no proof of this engine's secret" if not offer.proof else
                "the proof of the offer is of another secret or another cache_salt, or the offer was changed on its way",
                fix="Set secret_file to the same secret at both engines, send both the same cache_salt, and let only the router set "
                    "ec_transfer_params.")
