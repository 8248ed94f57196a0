# SPDX-License-Identifier: Apache-2.0
from vllm.config import VllmConfig

def get_encoder_output_width(vllm_config: VllmConfig, modality: str) -> int: ...
