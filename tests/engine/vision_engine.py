# SPDX-License-Identifier: Apache-2.0
"""Real engines with the tiny vision model, whose encoder runs are counted."""

import pathlib

import vision
from harness import ROOT
from rig import Engine

ARGUMENTS = {"skip_tokenizer_init": False, "max_model_len": 2048, "max_num_batched_tokens": 2048, "kv_cache_memory_bytes": 64 << 20,
             "max_num_seqs": 8, "limit_mm_per_prompt": {"image": 4, "video": 0}}


def tiny():
    """The folder of the model, as an argument of an engine."""
    return str(vision.with_weights(ROOT / "build/engine-vision"))


class VisionEngine(Engine):
    """model: a folder with weights; None: the tiny model."""

    def __init__(self, folder, name, model=None, **more):
        self._runs = pathlib.Path(folder) / f"{name}.encoder"
        self._runs.touch()
        super().__init__(folder, name, model=str(model or tiny()), variables={
            "TIME_ENCODER": str(self._runs), "PYTHONPATH": f"{ROOT}/client/python:{pathlib.Path(__file__).with_name('counting')}"},
            **{**ARGUMENTS, **more})

    @property
    def encoded(self):
        """Seconds of each run of the encoder."""
        return [float(line) for line in self._runs.read_text().split()]
