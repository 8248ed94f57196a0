# SPDX-License-Identifier: Apache-2.0
"""What two engines must have in common, apart from the layout: the model, and the options that change its KV cache.

The fields travel with each request, so that a refusal can name both values.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from .. import errors
from . import layout

if TYPE_CHECKING:
    from vllm.config import VllmConfig

__all__ = ["group_kind", "groups", "kv_heads", "model_fields", "refuse_context_parallelism", "waits_for_each_step"]

# Fields of a model's configuration that say where its files came from.
_ORIGIN = ("_name_or_path", "_commit_hash", "transformers_version", "name_or_path")


def model_fields(config: VllmConfig) -> dict[str, str]:
    """The fields that must be equal at both engines."""
    model, cache = config.model_config, config.cache_config
    described = {name: value for name, value in model.hf_config.to_dict().items() if name not in _ORIGIN}
    text = json.dumps(described, sort_keys=True, default=str)
    architectures = getattr(model, "architectures", None) or getattr(model.hf_config, "architectures", None) or ["unknown"]
    fields = {
        "model architecture": ", ".join(architectures),
        "model configuration": hashlib.sha256(text.encode()).hexdigest()[:16],
        "dtype": str(model.dtype).removeprefix("torch."),
        "kv_cache_dtype": str(cache.cache_dtype),
    }
    if getattr(model, "quantization", None):
        fields["quantization"] = str(model.quantization)
    speculative = getattr(config, "speculative_config", None)
    if speculative is not None:
        fields["speculative method"] = str(getattr(speculative, "method", "unknown"))
    return fields


def group_kind(spec: Any) -> str:
    """The kind of attention of a KV-cache group, with what changes which blocks are kept. errors.Unsupported."""
    name = type(spec).__name__
    if name == "UniformTypeKVCacheSpecs":
        kinds = {group_kind(one) for one in spec.kv_cache_specs.values()}
        if len(kinds) == 1:
            return kinds.pop()
        raise errors.Unsupported(f"a KV-cache group has layers of several kinds: {', '.join(sorted(kinds))}",
                                 fix="Run this model without DrayConnector.")
    if not hasattr(spec, "head_size"):
        raise errors.Unsupported(f"a KV-cache group is a {name}, not attention over blocks of tokens",
                                 fix="Run models with recurrent states without DrayConnector.")
    if "CrossAttention" in name:
        raise errors.Unsupported("a KV-cache group holds cross-attention, whose blocks belong to no token of the prompt",
                                 fix="Run encoder-decoder models without DrayConnector.")
    if not getattr(spec, "prefix_cacheable", True):
        raise errors.Unsupported(f"a KV-cache group is a {name} whose blocks are not kept for the tokens that they were computed for",
                                 fix="Run this model without DrayConnector and DrayStoreConnector.")
    kind = "mla" if "MLA" in name else "attention"
    window = getattr(spec, "sliding_window", None)
    chunk = getattr(spec, "attention_chunk_size", None)
    if name.startswith(("SlidingWindow", "ChunkedLocal")):
        return kind + (f", window {window}" if window else f", chunks of {chunk}")
    # All blocks of the other specs are kept and read, also if some of their layers look at a part of the tokens only.
    return kind + (f", masked by a window of {window}" if window else "") + (f", masked by pieces of {chunk}" if chunk else "")


def groups(kv_cache_config: Any) -> tuple[layout.Group, ...]:
    """The engine's KV-cache groups, in its order."""
    return tuple(layout.Group(group_kind(group.kv_cache_spec), group.kv_cache_spec.block_size)
                 for group in kv_cache_config.kv_cache_groups)


def refuse_context_parallelism(config: VllmConfig, connector: str) -> None:
    """errors.Unsupported: a block of a rank does not have all of its tokens."""
    size = getattr(config.parallel_config, "decode_context_parallel_size", 1)
    if size > 1:
        raise errors.Unsupported(f"decode_context_parallel_size is {size}, by which ranks share the tokens of each block",
                                 fix=f"Set it to 1 (--decode-context-parallel-size), or run without {connector}.")


def waits_for_each_step(config: VllmConfig) -> bool:
    """True if nothing is computed in a step without tokens.

    The engine has a step's results before it schedules the next one, and other engines do not wait for its steps, as those of a
    model with experts do that compute a layer together.
    """
    parallel = config.parallel_config
    return not config.scheduler_config.async_scheduling and parallel.pipeline_parallel_size == 1 and \
        parallel.data_parallel_size == 1


def kv_heads(total: int, tp_size: int, tp_rank: int) -> tuple[int, int]:
    """(first head, heads) of a rank: heads are split over the ranks, or repeated if there are fewer of them."""
    if total >= tp_size:
        held = total // tp_size
        return tp_rank * held, held
    return tp_rank // (tp_size // total), 1
