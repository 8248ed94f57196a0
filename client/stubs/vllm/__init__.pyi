# SPDX-License-Identifier: Apache-2.0
# What dray.vllm uses of vLLM 0.32, for the type checker.
