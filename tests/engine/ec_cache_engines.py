# SPDX-License-Identifier: Apache-2.0
"""Real engines with an encoder cache of their own: vLLM's manager, or DrayEncoderCacheManager with and without a host tier."""

import random

import vision
from ec_cache_bare import MANAGER
from vision_engine import VisionEngine

OUTPUT = 256 * vision.HIDDEN * 2  # bytes of the largest output
TEXT = 12  # tokens before an image


class Caching(VisionEngine):
    """manager: options of DrayEncoderCacheManager; None: vLLM's own. host: bytes of the host tier."""

    def __init__(self, folder, name, manager=None, host=0, **more):
        if manager is not None:
            more["ec_manager_config"] = {"encoder_cache_manager_cls": MANAGER, "manager_config": manager}
        if host:
            more["ec_transfer_config"] = {"ec_connector": "DrayECCacheConnector", "ec_connector_module_path": "dray.vllm",
                                          "ec_role": "ec_both", "ec_buffer_size": host}
        super().__init__(folder, name, **more)


def requests(seed, count, popular, sizes, once=0.3):
    """(prompt, images) of a trace with repeats: some images come often, and a part of them once. The text before each image is new,
    so that no KV blocks are found for it."""
    chance, numbers = random.Random(seed), iter(range(1 << 20))
    known = [[*chance.choice(sizes), seed * 10000 + next(numbers)] for _ in range(popular)]
    weights = [(i + 1) ** -0.8 for i in range(popular)]
    for _ in range(count):
        if chance.random() < once:
            image = [*chance.choice(sizes), seed * 10000 + next(numbers)]
        else:
            image = chance.choices(known, weights)[0]
        yield vision.prompt(chance, before=TEXT), [image]
