# SPDX-License-Identifier: Apache-2.0
"""Text form of region tokens: dray1:<base64url without padding>."""

import base64
import binascii

from . import errors
from ._schema import TOKEN_MAX

PREFIX = "dray1:"


def to_text(raw):
    return PREFIX + base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def to_bytes(token):
    """Binary form of a token in either form."""
    if isinstance(token, str):
        digits = token.removeprefix(PREFIX)
        if digits == token:
            raise errors.TokenInvalid(f"a token begins with {PREFIX!r}")
        try:
            padding = "=" * (-len(digits) % 4)
            token = base64.b64decode(digits + padding, altchars=b"-_", validate=True)
        except (binascii.Error, ValueError) as e:
            raise errors.TokenInvalid("the token is not base64url") from e
    if len(token) > TOKEN_MAX:
        raise errors.TokenInvalid(f"the token has {len(token)} bytes, the limit is {TOKEN_MAX}")
    return bytes(token)
