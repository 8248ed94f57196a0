# SPDX-License-Identifier: Apache-2.0
"""mooncake.engine, carried out by dray."""

from dray.mooncake.engine import (SUPPORT_CUDA, SUPPORT_EFA, SUPPORT_HIP, SUPPORT_INTRA_NVLINK, SUPPORT_MNNVL, SUPPORT_MUSA,
                                  Read, TransferEngine, TransferNotify, TransferOpcode, Write)

__all__ = ["Read", "SUPPORT_CUDA", "SUPPORT_EFA", "SUPPORT_HIP", "SUPPORT_INTRA_NVLINK", "SUPPORT_MNNVL", "SUPPORT_MUSA",
           "TransferEngine", "TransferNotify", "TransferOpcode", "Write"]
