# SPDX-License-Identifier: Apache-2.0
"""Counts the runs of the encoder of the model in vision.py: a line in the file $TIME_ENCODER for each, with its seconds. The last line of the
file $TIME_INPUTS is the time at which the model's inputs were there, with outputs of encoders, in the last step that computed tokens."""

import importlib.abc
import importlib.util
import os
import sys
import time


def _count(module):
    model = module.Qwen2VLForConditionalGeneration
    encode = model.embed_multimodal

    def counted(*args, **how):
        began = time.perf_counter()
        try:
            return encode(*args, **how)
        finally:
            _write("TIME_ENCODER", time.perf_counter() - began)

    model.embed_multimodal = counted


def _watch(module):
    runner = module.GPUModelRunner
    preprocess = runner._preprocess

    def preprocessed(*args, **how):
        inputs = preprocess(*args, **how)
        _write("TIME_INPUTS", time.monotonic())
        return inputs

    runner._preprocess = preprocessed


def _write(file, seconds):
    with open(os.environ[file], "a") as out:
        out.write(f"{seconds}\n")


class _Patching(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Calls `patch` with a module when it has been imported."""

    def __init__(self, name, patch):
        self.name, self.patch = name, patch

    def find_spec(self, name, path, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        self.real = importlib.util.find_spec(name)
        return importlib.util.spec_from_file_location(name, self.real.origin, loader=self)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        self.real.loader.exec_module(module)
        self.patch(module)


if "TIME_ENCODER" in os.environ:
    sys.meta_path.insert(0, _Patching("vllm.model_executor.models.qwen2_vl", _count))
if "TIME_INPUTS" in os.environ:
    sys.meta_path.insert(0, _Patching("vllm.v1.worker.gpu_model_runner", _watch))
