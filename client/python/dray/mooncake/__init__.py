# SPDX-License-Identifier: Apache-2.0
"""Mooncake's Python interfaces, carried out by dray's agents: docs/mooncake.md.

    from dray.mooncake.engine import TransferEngine     # instead of mooncake.engine

`python -m dray.mooncake PROGRAM...` runs an unmodified program with `mooncake` resolved to this package.
"""
