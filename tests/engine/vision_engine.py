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

    def __init__(self, folder, name, model=None, variables=(), **more):
        self._runs, self._inputs = (pathlib.Path(folder) / f"{name}.{what}" for what in ("encoder", "inputs"))
        self._runs.touch()
        super().__init__(folder, name, model=str(model or tiny()), variables={
            "TIME_ENCODER": str(self._runs), "TIME_INPUTS": str(self._inputs),
            "PYTHONPATH": f"{ROOT}/client/python:{pathlib.Path(__file__).with_name('counting')}", **dict(variables)},
            **{**ARGUMENTS, **more})

    @property
    def encoded(self):
        """Seconds of each run of the encoder."""
        return [float(line) for line in self._runs.read_text().split()]

    @property
    def inputs(self):
        """When the model's inputs were there in the last step, by the clock of this machine."""
        return float(self._inputs.read_text().split()[-1])
