# SPDX-License-Identifier: Apache-2.0
"""Recorded machines, built from documented layouts, for hardware that is not available here. See builder.py and models.py."""
