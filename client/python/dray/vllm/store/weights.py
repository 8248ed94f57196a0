# SPDX-License-Identifier: Apache-2.0
"""Which weights a model has: a digest of the content of their files.

Objects on disk outlive a model's weights under the same name, and blocks of other weights give wrong answers without any sign.
So nothing less than the content counts: names, sizes and times can all stay the same. Files of the Hugging Face cache are named
by their SHA-256 and need not be read; all others are read once, in parts, by threads beside the engine's start.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
import pathlib
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from ... import errors

if TYPE_CHECKING:
    from vllm.config import VllmConfig

__all__ = ["Weights", "digest", "find_files", "of_engine"]

_logger = logging.getLogger("vllm.dray")
_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".npz")
_FROM_FILES = ("auto", "hf", "safetensors", "fastsafetensors", "pt", "npcache", "mistral", "bitsandbytes", "gguf", "sharded_state")
_PART, _PIECE, _THREADS = 64 << 20, 1 << 20, 8
_BLOB = re.compile(r"[0-9a-f]{64}")
_FIX = "Set the option 'weights' to a text that no other weights have."


def find_files(config: VllmConfig) -> list[pathlib.Path]:
    """All weight files of an engine: of the model, and of the one that drafts for it. errors.Unsupported: they are unknown."""
    load_format = str(getattr(config.load_config, "load_format", "auto"))
    if load_format not in _FROM_FILES:
        raise errors.Unsupported(f"weights of the load format {load_format!r} have no files that can be told apart", fix=_FIX)
    models = [config.model_config]
    draft = getattr(getattr(config, "speculative_config", None), "draft_model_config", None)
    return [file for model in [*models, *filter(None, [draft])] for file in _of_model(model)]


def _of_model(model: Any) -> list[pathlib.Path]:
    name = str(getattr(model, "model_weights", None) or model.model)
    place = pathlib.Path(name)
    if not place.exists():
        place = _in_cache(name, getattr(model, "revision", None))
    files = [place] if place.is_file() else sorted(one for one in place.rglob("*") if one.suffix in _SUFFIXES and one.is_file())
    if not files:
        raise errors.Unsupported(f"no weight files ({', '.join(_SUFFIXES)}) are in {place}", fix=_FIX)
    return files


def _in_cache(name: str, revision: str | None) -> pathlib.Path:
    try:
        hub = importlib.import_module("huggingface_hub")
        return pathlib.Path(hub.snapshot_download(name, revision=revision, local_files_only=True))
    except Exception as e:  # of a library whose errors are many
        raise errors.Unsupported(f"the files of the model {name!r} cannot be found: {e}", fix=_FIX) from None


def digest(files: Sequence[pathlib.Path], threads: int) -> str:
    """A digest of the content of files, whatever their names are. Blocks. OSError: a file cannot be read."""
    with ThreadPoolExecutor(threads, "dray-weights") as pool:
        parts = [[] if _blob(file) else
                 [pool.submit(_of_part, file, at) for at in range(0, max(1, file.stat().st_size), _PART)] for file in files]
        each = sorted(_blob(file) or hashlib.sha256(b"".join(part.result() for part in of)).hexdigest()
                      for file, of in zip(files, parts, strict=True))
    return hashlib.sha256("\n".join(each).encode()).hexdigest()


def _blob(file: pathlib.Path) -> str | None:
    """The digest in the name of a file of the Hugging Face cache."""
    target = pathlib.Path(os.path.realpath(file))
    return target.name if target.parent.name == "blobs" and _BLOB.fullmatch(target.name) else None


def _of_part(file: pathlib.Path, at: int) -> bytes:
    sha, buffer, left = hashlib.sha256(), bytearray(_PIECE), _PART
    with open(file, "rb", buffering=0) as source:
        source.seek(at)
        while left and (n := source.readinto(memoryview(buffer)[:left])):
            sha.update(memoryview(buffer)[:n])
            left -= n
    return sha.digest()


class Weights:
    """The identity of an engine's weights, which is known some time after the engine's start.

    text: None: not yet. error: why it will never be known.
    """

    def __init__(self, given: str | None, dummy_seed: int | None, files: Callable[[], Sequence[pathlib.Path]]) -> None:
        """given: a name that the user vouches for. dummy_seed: of weights without files. errors.Unsupported: of files()."""
        self.text: str | None = None
        self.error: str | None = None
        if given is not None:
            self.text = f"named {given}"
        elif dummy_seed is not None:
            self.text = f"dummy {dummy_seed}"
        else:
            threading.Thread(target=self._read, args=(list(files()),), name="dray-weights", daemon=True).start()

    def _read(self, files: list[pathlib.Path]) -> None:
        began = time.monotonic()
        try:
            self.text = f"sha256 {digest(files, max(1, min(_THREADS, (os.cpu_count() or 1) // 2)))}"
        except OSError as e:
            self.error = f"the weights in {e.filename} cannot be read: {e.strerror}"
            _logger.error("dray: nothing is loaded from the store or saved there: %s", self.error)
            return
        size = sum(file.stat().st_size for file in files)
        _logger.info("dray: the weights are %s (%d MB in %d files, %.1f s)", self.text, size // 10**6, len(files), time.monotonic() - began)


def of_engine(config: VllmConfig, given: str | None) -> Weights:
    """The weights of an engine."""
    dummy = str(getattr(config.load_config, "load_format", "")) == "dummy"
    return Weights(given, config.model_config.seed if dummy else None, lambda: find_files(config))
