# SPDX-License-Identifier: Apache-2.0
"""Pools of encoder outputs in memory of GPUs, without a GPU: over a simulated driver, or in host memory."""

import contextlib
import ctypes

import torch
from dray import checksum, cuda
from dray.vllm.ec import hooks
from dray.vllm.ec.total import total
from harness import BUILD

DRIVER = BUILD / "tests/gpu/simulated/libcuda.so.1"


class HostBytes:
    """dray.vllm.ec.gpu_pool.GpuBytes in host memory, which no agent reaches."""

    def __init__(self, size):
        self.view = memoryview(bytearray(size))
        self.tensor = torch.frombuffer(self.view, dtype=torch.uint8)

    def extents(self):
        return contextlib.nullcontext(self)

    def store(self, offset, output):
        data = output.contiguous().view(-1).view(torch.uint8)
        self.tensor[offset:offset + data.numel()] = data
        return total(data)

    def totals(self, stored):
        return [int(number) for number in stored]

    def load(self, offset, size):
        return self.tensor[offset:offset + size].clone()

    def total(self, offset, size):
        return int(total(self.load(offset, size)))

    def crc(self, offset, size):
        return checksum(self.load(offset, size).numpy())

    def peek(self, offset, length):
        return self.load(offset, length).numpy().tobytes()

    def poke(self, offset, data):
        self.view[offset:offset + len(data)] = data

    def empty(self, size):
        return torch.empty(size, dtype=torch.uint8)

    def copy(self, to, offset):
        to.copy_(self.load(offset, to.numel()))

    def number_of(self, data, device):
        return int(total(data)) if device == "cuda" else checksum(data.numpy())

    def lend(self, data):
        pass

    def close(self):
        pass


class SimulatedBytes(HostBytes):
    """In memory of a simulated GPU, which agents with the fake plug-in reach, and no CPU does."""

    device = 0  # of what is made next

    def __init__(self, size):
        self.size, self.at, self.on = size, cuda.allocate(size, self.device), self.device
        self.driver = ctypes.CDLL(str(DRIVER))

    def extents(self):
        return cuda.describe(self.at, self.size)

    def store(self, offset, output):
        data = bytearray(output.contiguous().view(-1).view(torch.uint8).numpy())
        self.poke(offset, data)
        return total(torch.frombuffer(data, dtype=torch.uint8))

    def poke(self, offset, data):
        assert 0 <= offset <= offset + len(data) <= self.size
        buffer = (ctypes.c_char * len(data)).from_buffer(bytearray(data))
        assert not self.driver.cuMemcpyHtoD_v2(ctypes.c_uint64(self.at + offset), buffer, ctypes.c_size_t(len(data)))

    def load(self, offset, size):
        data = bytearray(size)
        buffer = (ctypes.c_char * size).from_buffer(data)
        assert not self.driver.cuMemcpyDtoH_v2(buffer, ctypes.c_uint64(self.at + offset), ctypes.c_size_t(size))
        return torch.frombuffer(data, dtype=torch.uint8)

    def close(self):
        cuda.free(self.at, self.size, self.on)


def use(monkeypatch, memory):
    """Engines have a GPU from now on, whose pools have that memory, unless their option pool_device is "cpu"."""
    monkeypatch.setattr(hooks, "_no_gpu_pool", lambda config: None)
    monkeypatch.setattr(hooks, "TorchBytes", memory)
