# SPDX-License-Identifier: Apache-2.0
"""A DrayConnector of mode 'push' that writes down what the blocks hold: at P when they are written, at D when a load has ended.

Digests are of one block in one layer. In the folder $RECORD lie TAG-p-NUMBER.json for each chunk of P, where `digests` are of the time when
it was computed, `later` of that when the agent had read it; and TAG-d.json, a list, of the time when D's load had ended, and of
each later step of its request. TAG is that of P's notifications.
"""

import hashlib
import json
import os
import pathlib

from dray.vllm import DrayConnector

BLOCK = 32


def check(folder):
    """What D has got is what P had, byte for byte, and stays so. Returns how many loads were looked at, and forgets them."""
    count = 0
    for path in list(pathlib.Path(folder).glob("*-d.json")):
        tag, at_p = path.name.partition("-")[0], {}
        for name in sorted(pathlib.Path(folder).glob(f"{tag}-p-*.json")):
            chunk = json.loads(name.read_text())
            assert chunk["later"] in (None, chunk["digests"]), f"blocks of {tag} have changed at P while its agent read them"
            at_p.update(chunk["digests"])
            name.unlink()
        for step, seen in enumerate(json.loads(path.read_text())):
            for place, digests in seen["digests"].items():
                # D computes the last token itself
                if step == 0 or (int(place) + 1) * BLOCK < seen["end"]:
                    assert digests == at_p[place], f"block {place} of {tag} in step {step}"
        path.unlink()
        count += 1
    return count


class RecordingConnector(DrayConnector):
    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        self._folder, self._caches = pathlib.Path(os.environ["RECORD"]), {}
        self._at_d, self._targets, self._chunks = {}, {}, {}

    def _digests(self, blocks, first, end):
        """{place: digests by layer} of the blocks that hold tokens [first, end); of the last one only these tokens."""
        return {str(place): [self._digest(cache[blocks[place]][:, :end - place * BLOCK]) for cache in self._caches]
                for place in range(first // BLOCK, -(-end // BLOCK))}

    @staticmethod
    def _digest(tensor):
        import torch

        return hashlib.blake2b(tensor.contiguous().view(torch.uint8).numpy().tobytes(), digest_size=8).hexdigest()

    def _write(self, name, what):
        new = self._folder / f".{name}"
        new.write_text(json.dumps(what))
        new.rename(self._folder / name)

    # --- scheduler side: which blocks D has got

    def build_connector_meta(self, scheduler_output):
        receiver = self._scheduler._receiver
        for load in receiver._waiting.values():
            if load.blocks is not None:
                self._at_d[load.request_id] = load.tag, load.blocks.get_block_ids()[0], load.first, load.end
        metadata = super().build_connector_meta(scheduler_output)
        metadata.got = [self._at_d[name] for name in metadata.loaded]
        metadata.got += [self._at_d[name] for name in scheduler_output.num_scheduled_tokens if name in self._at_d]
        return metadata

    # --- worker side

    def register_kv_caches(self, kv_caches):
        super().register_kv_caches(kv_caches)
        self._caches = list(kv_caches.values())

    def start_load_kv(self, forward_context, **kwargs):
        super().start_load_kv(forward_context, **kwargs)
        for tag, blocks, first, end in self._get_connector_metadata().got:
            known = self._at_d.setdefault(tag, [])
            known.append({"first": first, "end": end, "digests": self._digests(blocks, first, end)})
            self._write(f"{tag}-d.json", known)

    def wait_for_save(self):
        for push in self._worker._pushes._computed:
            if push.target is not None:
                self._targets[push.key] = push.target.tag
            if push.key in self._targets:
                self._chunks[push.key, push.number] = push
                self._record(push, None)
        super().wait_for_save()

    def _record(self, push, before):
        now = self._digests(push.blocks[0], push.first, push.end)
        self._write(f"{self._targets[push.key]}-p-{push.number:04}.json",
                    {"first": push.first, "end": push.end, "digests": before or now, "later": now if before else None})
        if before is None:
            self._chunks[push.key, push.number] = push, now

    def build_connector_worker_meta(self):
        metadata = super().build_connector_worker_meta()
        for chunk in metadata.pushed if metadata is not None else ():
            if chunk in self._chunks:
                self._record(*self._chunks.pop(chunk))
        return metadata
