# SPDX-License-Identifier: Apache-2.0
"""The size of an engine's pool and what its steps may encode, beside what the largest output of its model needs."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ... import errors
from ..free_memory import free_memory
from .allocator import Allocator
from .header import HEADER

if TYPE_CHECKING:
    from vllm.config import VllmConfig

__all__ = ["Budget", "check_memory", "check_steps", "of_engine", "row_bytes", "size_of", "width_of", "widths"]

_logger = logging.getLogger("vllm.dray")
_SIZE_MAX = 1 << 42
_PAGE = 4096
_SMALLEST = 64 << 10  # of a pool through which outputs move in pieces


@dataclass(frozen=True)
class Budget:
    """size: of the pool in bytes. row: bytes of one embedding. rows: embeddings of the largest output of the model."""

    size: int
    row: int
    rows: int

    @property
    def embeddings(self) -> int:
        """How many embeddings the pool holds."""
        return self.size // self.row

    def __str__(self) -> str:
        return (f"{self.embeddings} embeddings of {self.row} bytes ({self.size / (1 << 30):.2f} GiB); the largest output of the "
                f"model has {self.rows}")


def of_engine(config: VllmConfig, in_pieces: bool = False) -> Budget:
    """The pool of an engine. in_pieces: it need not hold the largest output of the model. errors.Invalid: its budgets do not go together."""
    rows = _largest_output(config)
    check_steps(config, rows)
    return size_of(config.ec_transfer_config.ec_buffer_size, row_bytes(config), rows, in_pieces)


def size_of(wanted: Any, row: int, rows: int, in_pieces: bool = False) -> Budget:
    """The pool for ec_buffer_size bytes: raised with a warning if the largest output does not fit, unless it moves in pieces then.

    errors.Invalid: not a size.
    """
    if isinstance(wanted, bool) or not isinstance(wanted, (int, float)) or not math.isfinite(wanted) or not 0 < wanted <= _SIZE_MAX:
        raise errors.Invalid(f"ec_buffer_size is {wanted!r}", fix=f"Set it to a number of bytes above 0, at most {_SIZE_MAX}.")
    size = -(-int(wanted) // _PAGE) * _PAGE
    need = -(-Allocator.room(HEADER + row * rows) // _PAGE) * _PAGE
    what = "the largest output of the model takes"
    if in_pieces and size < need:
        _logger.warning("dray: ec_buffer_size is %d bytes, and the largest output of the model takes %d; outputs that are larger than the pool move in "
                        "pieces, one at a time", int(wanted), need)
        need, what = min(need, _SMALLEST), "a pool through which outputs move in pieces has at least"
    if need > _SIZE_MAX:
        raise errors.Invalid(f"the largest output of the model takes {need} bytes, and a pool has at most {_SIZE_MAX}",
                             fix="Set a smaller limit for the size of media (--mm-processor-kwargs), or a smaller --max-model-len.")
    if size < need:
        _logger.warning("dray: ec_buffer_size is %d bytes, and %s %d; the pool has that size", int(wanted), what, need)
        size = need
    return Budget(size, row, rows)


def check_memory(size: int, root: str = "/") -> None:
    """errors.NoMemory: the host, or a control group, has less memory than a pool, all of whose pages are touched at the start."""
    free = free_memory(root)
    if free is not None and size > free:
        raise errors.NoMemory(f"the pool of encoder outputs takes {size} bytes of memory, and {free} are available",
                              fix="Give the engine's container more memory, or set ec_buffer_size to less. If it was raised, set a smaller limit for the size of media "
                                  "(--mm-processor-kwargs), or a smaller --max-model-len.")


def check_steps(config: VllmConfig, largest: int) -> None:
    """Compares what a step may encode, and what the engine's encoder cache holds, with the largest output, all in embeddings.

    vLLM raises budgets that are smaller than that without a word, so that a warning says it here. errors.Invalid: steps may encode
    more than the cache holds, and would fail.
    """
    scheduler: Any = config.scheduler_config
    step, cache = int(scheduler.max_num_encoder_input_tokens), int(scheduler.encoder_cache_size)
    if max(step, largest) > max(cache, largest):
        raise errors.Invalid(f"a step may encode {step} embeddings, and the encoder cache of the engine holds {max(cache, largest)}",
                             fix="Make the encoder cache as large as what a step may encode (both are max_num_batched_tokens in vLLM 0.32).")
    if min(step, cache) < largest:
        _logger.warning("dray: by max_num_batched_tokens a step encodes %d embeddings, and the encoder cache holds %d; the largest output of "
                        "the model has %d, and vLLM raises both to that size, so that such an output is alone in a step and in the cache",
                        step, cache, largest)


def widths(config: VllmConfig) -> set[int]:
    """Numbers in an embedding of the model: of the language model's input, and of all layers that deepstack models put side by side."""
    model = config.model_config
    vision = getattr(model.hf_config, "vision_config", None)
    one = int(model.get_inputs_embeds_size())
    return {one, one * (1 + len(getattr(vision, "deepstack_visual_indexes", None) or ()))}


def width_of(config: VllmConfig, modality: str) -> int:
    """Numbers in an embedding of a modality, at an engine that has not measured it. Layers of deepstack are those of vision."""
    return max(widths(config)) if modality in ("image", "video") else min(widths(config))


def row_bytes(config: VllmConfig) -> int:
    """Bytes of the widest embedding that encoders of the model make. A producer has measured it."""
    measured = getattr(config.ec_transfer_config, "mm_encoder_output_widths", None)
    width = int(max(measured.values())) if measured else max(widths(config))
    return width * int(config.model_config.dtype.itemsize)


def _largest_output(config: VllmConfig) -> int:
    """Embeddings of the largest output that one item of any modality can have."""
    from vllm.multimodal import MULTIMODAL_REGISTRY
    from vllm.multimodal.encoder_budget import MultiModalBudget

    most = MultiModalBudget(config, MULTIMODAL_REGISTRY, enable_cache=False).mm_max_toks_per_item
    return max(map(int, most.values()), default=0)
