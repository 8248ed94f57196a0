# SPDX-License-Identifier: Apache-2.0
"""A vLLM engine as a process: reads requests as lines of JSON from its input, and writes what they give to its output.

    python engine.py '{"model": ..., ...}'      arguments of AsyncEngineArgs

    -> {"id": "a", "prompt": [1, 2, ...], "max_tokens": 4, "params": {...}}    <- {"id": "a", "tokens": [...], ...}
       "images": [[width, height, seed], ...], "ec": {...} are optional; "first": seconds until the first token, from "began"; "queued": when the scheduler had the request, by the clock of this machine
    -> {"abort": "a"}
    -> {"metrics": "vllm:"}                                                    <- {"metrics": {...}}
"""

import asyncio
import functools
import json
import os
import sys
import threading
import time


def say(out, lock, **what):
    with lock:
        out.write(json.dumps(what) + "\n")
        out.flush()


def image(width, height, seed):
    """An image of random colours."""
    import numpy
    from PIL import Image

    return Image.fromarray(numpy.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=numpy.uint8))


async def serve(arguments, out, lock):
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
    loop, tasks = asyncio.get_running_loop(), {}

    async def run(r):
        extra = {key: r[name] for key, name in (("kv_transfer_params", "params"), ("ec_transfer_params", "ec")) if r.get(name)} or None
        sampling = SamplingParams(temperature=0.0, max_tokens=r["max_tokens"], ignore_eos=True, detokenize=False,
                                  logprobs=r.get("logprobs"), extra_args=extra)
        prompt = {"prompt_token_ids": r["prompt"]}
        if r.get("images"):
            prompt["multi_modal_data"] = {"image": [image(*one) for one in r["images"]]}
        began = time.monotonic()
        first = got = None
        try:
            async for got in engine.generate(prompt, sampling, request_id=r["id"]):
                if first is None:
                    first = time.monotonic() - began
            one = got.outputs[0]
            gaps = []
            for position in one.logprobs or ():
                best = sorted((p.logprob for p in position.values()), reverse=True)
                gaps.append(best[0] - best[1])
            queued = got.metrics.queued_ts if got.metrics else None
            say(out, lock, id=r["id"], tokens=list(one.token_ids), reason=one.finish_reason, began=began, first=first, queued=queued,
                total=time.monotonic() - began, cached=got.num_cached_tokens, params=got.kv_transfer_params, gaps=gaps,
                ec=got.ec_transfer_params)
        except Exception as e:
            say(out, lock, id=r["id"], error=f"{type(e).__name__}: {e}", total=time.monotonic() - began)

    def ended(name, task):
        tasks.pop(name, None)
        if task.cancelled():  # perhaps before it began
            say(out, lock, id=name, error="aborted")

    def metrics(prefix):
        from vllm.v1.metrics.reader import get_metrics_snapshot
        found = {}
        for metric in get_metrics_snapshot():
            if metric.name.startswith(prefix) and hasattr(metric, "value"):
                found[metric.name] = found.get(metric.name, 0) + metric.value
        return found

    def handle(line):
        r = json.loads(line)
        if "abort" in r:
            if task := tasks.get(r["abort"]):
                task.cancel()
        elif "metrics" in r:
            say(out, lock, metrics=metrics(r["metrics"]))
        else:
            task = tasks[r["id"]] = loop.create_task(run(r))
            task.add_done_callback(functools.partial(ended, r["id"]))

    stopped = asyncio.Event()

    def read():
        for line in sys.stdin:
            loop.call_soon_threadsafe(handle, line)
        loop.call_soon_threadsafe(stopped.set)

    threading.Thread(target=read, daemon=True).start()
    say(out, lock, ready=os.getpid())
    await stopped.wait()
    engine.shutdown()


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the engine prints goes to its log
    asyncio.run(serve(json.loads(sys.argv[1]), answers, threading.Lock()))
