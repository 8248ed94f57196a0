# SPDX-License-Identifier: Apache-2.0
"""Recorded machines, built from documented layouts: what no machine at hand has. See builder.py and models.py."""
