# SPDX-License-Identifier: Apache-2.0
"""Connectors for vLLM. Importing this package needs nothing; its modules need numpy."""
