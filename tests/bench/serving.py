# SPDX-License-Identifier: Apache-2.0
"""OpenAI servers of vLLM engines, and the load that `vllm bench serve` puts on them."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import urllib.request

import common as c

sys.path.insert(0, str(c.ROOT / "tests/engine"))

import model  # noqa: E402
from harness import LIMIT, until  # noqa: E402
from rig import BLOCK, engine_environment, guarded  # noqa: E402

OUTPUT = 8  # tokens of an answer
# Arguments of requests that have nothing in common, and of those of which four have the same first 512 tokens each.
RANDOM = "--dataset-name", "random", "--random-input-len", "64", "--random-output-len", str(OUTPUT)
PREFIXES = ("--dataset-name", "prefix_repetition", "--prefix-repetition-prefix-len", "512", "--prefix-repetition-suffix-len", "64",
            "--prefix-repetition-num-prefixes", "25", "--prefix-repetition-output-len", str(OUTPUT))
# What the program `vllm` runs for `bench serve`, which does not start with this build of vLLM, because the package has another name.
# One process for several loads: it takes 20 s to start.
BENCH = """import argparse, json, sys
from vllm.benchmarks import serve
parser = argparse.ArgumentParser()
serve.add_cli_args(parser)
for given in json.loads(sys.argv[1]):
    serve.main(parser.parse_args(given))"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def answers(port):
    with contextlib.suppress(OSError):
        return urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).status == 200
    return False


class Servers:
    """One engine, or P, D and the router of the example, as processes that end with this one.

    connectors: (kv_transfer_config, environment) of each engine; kv_transfer_config None: without a connector.
    """

    def __init__(self, folder, name, connectors):
        self.folder, self.name, self.started = pathlib.Path(folder), name, {}
        self.words = str(model.with_words(c.ROOT / "build/engine-model-words"))
        connectors = list(connectors)
        self.ports = [free_port() for _ in range(len(connectors) + (len(connectors) > 1))]
        for which, port, (connector, environment) in zip("pd", self.ports, connectors):
            self._start(which, ["-m", "vllm.entrypoints.openai.api_server", "--model", self.words, "--served-model-name", "model",
                                "--port", str(port), "--dtype", "bfloat16", "--max-model-len", "2048", "--block-size", str(BLOCK),
                                "--enforce-eager", "--kv-cache-memory-bytes", str(1 << 30), "--max-num-seqs", "128",
                                *(["--kv-transfer-config", json.dumps(connector)] if connector else [])], {**engine_environment(), **environment})
        if len(connectors) > 1:
            self._start("router", [str(c.ROOT / "examples/vllm-pd/router.py"), str(self.ports[-1]),
                                   *[f"http://127.0.0.1:{port}" for port in self.ports[:-1]]], dict(os.environ))

    def _log(self, which):
        return self.folder / f"{self.name}-{which}.log"

    def _start(self, which, program, environment):
        with self._log(which).open("wb") as out:
            self.started[which] = subprocess.Popen(guarded(*program), stdout=out, stderr=out, env=environment, process_group=0)

    def _tail(self, which):
        return "\n".join(self._log(which).read_text(errors="replace").splitlines()[-30:])

    def ready(self):
        for (which, process), port in zip(self.started.items(), self.ports):
            def answering(process=process, which=which, port=port):
                if process.poll() is not None:
                    raise c.CannotRun(f"{which} has ended:\n{self._tail(which)}")
                return answers(port)
            try:
                until(answering, f"the server of {which}", 20 * LIMIT)
            except AssertionError as e:
                raise c.CannotRun(f"{e}\n{self._tail(which)}") from e

    def load(self, loads, requests_of=RANDOM):
        """What `vllm bench serve` finds for each of these loads, one after the other: (requests, how many at once, seed).

        requests_of: arguments that say what the requests are.
        """
        given, found = [], []
        for requests, concurrent, seed in loads:
            found.append(self.folder / f"{self.name}-{len(found)}.json")
            given.append([
                "--backend", "openai", "--base-url", f"http://127.0.0.1:{self.ports[-1]}", "--model", "model", "--tokenizer", self.words,
                *requests_of, "--num-prompts", str(requests), "--max-concurrency", str(concurrent), "--seed", str(seed), "--ignore-eos",
                "--disable-tqdm", "--percentile-metrics", "ttft,tpot,itl", "--metric-percentiles", "50,90,99", "--save-result",
                "--result-dir", str(self.folder), "--result-filename", found[-1].name])
        done = subprocess.run([sys.executable, "-c", BENCH, json.dumps(given)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, env=engine_environment())
        if done.returncode:
            raise c.CannotRun(f"vllm bench serve: {done.stdout[-3000:]}")
        return [json.loads(path.read_text()) for path in found]

    def close(self):
        for process in self.started.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()
