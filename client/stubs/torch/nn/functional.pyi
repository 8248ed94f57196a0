# SPDX-License-Identifier: Apache-2.0
from typing import Any

from torch import Tensor

def pad(data: Any, pad: tuple[int, int]) -> Tensor: ...
