# SPDX-License-Identifier: Apache-2.0
"""A vLLM engine whose parts are all in one thread: what makes a request of a prompt, the scheduler, the worker and the model. No message goes from one of
them to another, so that the time of a request varies less, and each part of it is seen.

    python inside.py '{"model": ..., ...}'      arguments of EngineArgs

Requests and answers are those of engine.py, one after the other. "times" of an answer are by the clock of this machine:

received   the line of the request was there
added      the scheduler has the request
scheduled  the end of the schedule() of the step that computes the request
inputs     the model has its inputs, with outputs of encoders
computed   the worker is at the end of the step; an encoder's output is saved
first      the engine has the first token
answered   the answer is a text

"processed" are the seconds that the image's processing took between "received" and "added", and "saved" those of save_caches(). "encoded": runs of the encoder.
"""

import json
import os
import select
import sys
import time

from engine import image


class Inside:
    """arguments: of EngineArgs."""

    def __init__(self, arguments):
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        self.engine = LLMEngine.from_engine_args(EngineArgs(**arguments, distributed_executor_backend="uni"))
        self.core = core = self.engine.engine_core.engine_core
        self.times, self.spent, self.encoded, self.executed = {}, {"processed": 0.0, "saved": 0.0}, 0, False
        runner = core.model_executor.driver_worker.worker.model_runner
        self._note(core.scheduler, "schedule", "scheduled")
        self._note(runner, "_preprocess", "inputs")
        self._note(core.model_executor, "execute_model", "computed")
        self._note(core.model_executor, "sample_tokens", "computed")
        self._add_up(self.engine.renderer, "_process_multimodal", "processed")
        self._add_up(runner, "maybe_save_ec_to_connector", "saved")
        encode, step = runner.model.embed_multimodal, core.step_fn

        def counted(*args, **how):
            self.encoded += 1
            return encode(*args, **how)

        def stepped():
            outputs, self.executed = step()
            return outputs, self.executed

        runner.model.embed_multimodal, core.step_fn = counted, stepped

    def _note(self, where, name, what):
        """The end of each call is noted."""
        function = getattr(where, name)

        def noted(*args, **how):
            result = function(*args, **how)
            self.times[what] = time.monotonic()
            return result

        setattr(where, name, noted)

    def _add_up(self, where, name, what):
        function = getattr(where, name)

        def added(*args, **how):
            began = time.monotonic()
            result = function(*args, **how)
            self.spent[what] += time.monotonic() - began
            return result

        setattr(where, name, added)

    @property
    def busy(self):
        return self.core.scheduler.has_requests()

    def step(self):
        """As the process of an engine core does it."""
        outputs = self.engine.step()
        if not outputs and not self.executed and self.busy:
            time.sleep(0.001)
        return outputs

    def run(self, r):
        from vllm import SamplingParams

        sampling = SamplingParams(temperature=0.0, max_tokens=r["max_tokens"], ignore_eos=True, detokenize=False,
                                  extra_args={"ec_transfer_params": r["ec"]} if r.get("ec") else None)
        prompt = {"prompt_token_ids": r["prompt"]}
        if r.get("images"):
            prompt["multi_modal_data"] = {"image": [image(*one) for one in r["images"]]}
        made = time.monotonic()
        self.engine.add_request(r["id"], prompt, sampling)
        self.times["added"] = time.monotonic()
        while not (outputs := self.step()):
            pass
        self.times["first"] = time.monotonic()
        return outputs[0], made

    def answer(self, line):
        """The answer to a line, as a text."""
        self.times["received"] = time.monotonic()
        self.spent.update(processed=0.0, saved=0.0)
        r = json.loads(line)
        parsed = time.monotonic()
        try:
            got, made = self.run(r)
        except Exception as e:
            return json.dumps({"id": r["id"], "error": f"{type(e).__name__}: {e}"})
        self.spent["processed"] += made - parsed  # the image was made, which a request brings
        params = json.dumps(got.ec_transfer_params)
        self.times["answered"] = time.monotonic()
        rest = json.dumps({"id": r["id"], "tokens": list(got.outputs[0].token_ids), "reason": got.outputs[0].finish_reason, "times": self.times,
                           **self.spent, "encoded": self.encoded})
        return f'{rest[:-1]}, "ec": {params}}}'


def serve(inside, source, out):
    left = b""
    while True:
        while b"\n" not in left:
            if inside.busy and not select.select([source], [], [], 0)[0]:
                inside.step()
                continue
            if not (read := os.read(source, 1 << 20)):
                return
            left += read
        line, _, left = left.partition(b"\n")
        out.write(inside.answer(line) + "\n")
        out.flush()


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the engine prints goes to its log
    inside = Inside(json.loads(sys.argv[1]))
    print(json.dumps({"ready": os.getpid()}), file=answers, flush=True)
    serve(inside, 0, answers)
