# SPDX-License-Identifier: Apache-2.0
"""Counts the runs of the encoder of the model in vision.py: a line in the file $TIME_ENCODER for each, with its seconds."""

import importlib.abc
import importlib.util
import os
import sys
import time

_MODULE = "vllm.model_executor.models.qwen2_vl"


class _Counting(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        self.real = importlib.util.find_spec(name)
        return importlib.util.spec_from_file_location(name, self.real.origin, loader=self)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        self.real.loader.exec_module(module)
        model = module.Qwen2VLForConditionalGeneration
        encode = model.embed_multimodal

        def counted(*args, **how):
            began = time.perf_counter()
            try:
                return encode(*args, **how)
            finally:
                with open(os.environ["TIME_ENCODER"], "a") as file:
                    file.write(f"{time.perf_counter() - began}\n")

        model.embed_multimodal = counted


if "TIME_ENCODER" in os.environ:
    sys.meta_path.insert(0, _Counting())
