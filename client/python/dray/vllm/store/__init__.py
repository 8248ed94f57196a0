# SPDX-License-Identifier: Apache-2.0
"""DrayStoreConnector: KV blocks of vLLM in the store of the agent. See docs/vllm.md."""
