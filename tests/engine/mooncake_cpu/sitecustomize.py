# SPDX-License-Identifier: Apache-2.0
"""What vLLM's Mooncake connectors need of PyTorch and of the runner on a machine without a GPU.

Nothing of the connectors is changed: torch.accelerator has a device 0, an event of CUDA has passed when it is recorded,
and a consumer of encoder outputs is called in steps without tokens, too, as in the runner for GPUs of the next generation.
"""

import copy
import importlib.abc
import importlib.util
import pathlib
import sys

_CONNECTORS = "vllm.distributed.kv_transfer.kv_connector.v1.mooncake"
_RUNNER = "vllm.v1.worker.gpu_model_runner"


class _Event:
    def record(self, *_):
        pass

    synchronize = record


def _patch_torch(_):
    import torch

    torch.accelerator.current_device_index = lambda: 0
    torch.cuda.Event = _Event


def _patch_runner(module):
    from vllm.distributed.ec_transfer import get_ec_transfer, has_ec_transfer

    runner = module.GPUModelRunner
    execute = runner.execute_model

    def execute_model(self, scheduler_output, *arguments, **how):
        output = execute(self, scheduler_output, *arguments, **how)
        if not scheduler_output.total_num_scheduled_tokens and has_ec_transfer() and get_ec_transfer().is_consumer:
            with self.maybe_get_ec_connector_output(scheduler_output, encoder_cache=self.encoder_cache) as ec:
                pass
            output = copy.copy(output)
            output.ec_connector_output = ec
        return output

    runner.execute_model = execute_model


class _Patching(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Calls `patch` with a module when it has been imported."""

    def __init__(self, name, patch):
        self.name, self.patch = name, patch

    def find_spec(self, name, path, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        self.real = importlib.util.find_spec(name)
        return importlib.util.spec_from_file_location(name, self.real.origin, loader=self,
                                                      submodule_search_locations=self.real.submodule_search_locations)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        self.real.loader.exec_module(module)
        self.patch(module)


sys.meta_path[:0] = [_Patching(_CONNECTORS, _patch_torch), _Patching(_RUNNER, _patch_runner)]
# Python runs one such module only.
_counting = importlib.util.spec_from_file_location("counting", pathlib.Path(__file__).parent.with_name("counting") / "sitecustomize.py")
_counting.loader.exec_module(importlib.util.module_from_spec(_counting))
