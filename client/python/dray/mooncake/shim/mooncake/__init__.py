# SPDX-License-Identifier: Apache-2.0
"""The package `mooncake` of programs that run under `python -m dray.mooncake`."""
