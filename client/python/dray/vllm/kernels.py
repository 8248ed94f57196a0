# SPDX-License-Identifier: Apache-2.0
"""What decides how bytes are arranged inside of a block, besides its shape and strides.

Attention kernels pack keys and values as suits them: those of CPUs by the instructions that the processor has.
"""

from __future__ import annotations

import importlib
import platform
from typing import Any

__all__ = ["arrangement", "arrangements", "packing"]


def arrangements(config: Any, kv_cache_config: Any) -> tuple[str, ...]:
    """A text for each KV-cache group of this engine."""
    device = _device()
    return tuple(arrangement(device, _backends(config, group.layer_names), config, group.kv_cache_spec)
                 for group in kv_cache_config.kv_cache_groups)


def packing(config: Any, kv_cache_config: Any) -> str:
    """A text for all blocks of this engine, whose kernels of one device read what any of its backends has written."""
    device = _device()
    found = {arrangement(device, [], config, group.kv_cache_spec) for group in kv_cache_config.kv_cache_groups}
    return ", ".join(sorted(found))


def _device() -> str:
    device = str(importlib.import_module("vllm.platforms").current_platform.device_name)
    shuffled = device == "rocm" and bool(importlib.import_module("vllm.envs").VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT)
    return device + (", shuffled" if shuffled else "")


def _backends(config: Any, layers: list[str]) -> list[str]:
    """The names of the backends that write the blocks of layers."""
    kind = importlib.import_module("vllm.model_executor.layers.attention_layer_base").AttentionLayerBase
    found = importlib.import_module("vllm.config").get_layers_from_vllm_config(config, kind, layers)
    return sorted({layer.get_attn_backend().get_name() for layer in found.values()})


def arrangement(device: str, backends: list[str], config: Any, spec: Any) -> str:
    """The text of one group."""
    sets = sorted({_instructions(config, one) for one in getattr(spec, "kv_cache_specs", {"": spec}).values()}) if device == "cpu" else []
    return " ".join([device, *backends, *sets])


def _instructions(config: Any, spec: Any) -> str:
    """The instructions for which a CPU's kernels pack the blocks of a layer."""
    try:
        choose = importlib.import_module("vllm.v1.attention.backends.cpu_attn")._get_attn_isa
        return str(choose(config.model_config.dtype, spec.block_size, spec.head_size, config.cache_config.cache_dtype))
    except (ImportError, AttributeError, TypeError):  # a vLLM that chooses in another way: nothing is shared between hosts
        return f"of {platform.node()}"
