# SPDX-License-Identifier: Apache-2.0
"""The two forms of a token: text, dray1:<base64url without padding>, and binary."""

from __future__ import annotations

from .handles import Token

__all__ = ["to_bytes", "to_text"]


def to_text(raw: bytes) -> str:
    """Text form of a token's binary form."""
    return str(Token(raw))


def to_bytes(token: str | bytes | Token) -> bytes:
    """Binary form of a token in any form."""
    return token.data if isinstance(token, Token) else Token(token).data
