# SPDX-License-Identifier: Apache-2.0
"""The examples with engines as a user runs them: servers with agents, and a request."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys

import model
import pytest
import vision
from harness import BUILD, LIMIT, ROOT
from rig import BLOCK, KV_BYTES

pytestmark = pytest.mark.long
WORDS = 200


def free_ports():
    """A port such that it, and those 100 to 400 above it, are free."""
    for port in range(20000, 30000, 7):
        try:
            for one in range(port, port + 500, 100):
                with socket.create_server(("127.0.0.1", one)):
                    pass
        except OSError:
            continue
        return port
    raise AssertionError("no free ports")


def run(tmp_path, example, folder=None, prompt=None, **variables):
    """What an example prints that sends one prompt, of WORDS words if it is not given."""
    package = tmp_path / "site/dray_agent"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"BIN = {str(BUILD)!r}\n")
    (tmp_path / "run").mkdir(mode=0o700)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "DRAY_"))}
    environment.update(
        PORT=str(free_ports()), HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_HOST_IP="127.0.0.1", VLLM_CPU_OMP_THREADS_BIND="nobind", OMP_NUM_THREADS="1", DRAY_LIBRARY=os.environ["DRAY_LIBRARY"],
        XDG_RUNTIME_DIR=str(tmp_path / "run"), PYTHONPATH=f"{ROOT / 'client/python'}:{package.parent}",
        PATH=f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}")
    environment.setdefault("VLLM_ARGS", f"--dtype bfloat16 --max-model-len 4096 --block-size {BLOCK} --enforce-eager --kv-cache-memory-bytes {KV_BYTES}")
    environment.update(variables)
    prompt = prompt or " ".join(f"w{i * 37 % model.VOCABULARY}" for i in range(1, WORDS + 1))
    program = [ROOT / "examples" / example / "run", folder or model.with_words(ROOT / "build/engine-model-words"), prompt]
    process = subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        printed, _ = process.communicate(timeout=20 * LIMIT)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, printed
    return printed


def loaded(printed):
    return int(float(re.search(r"has loaded: ([0-9.]+)", printed)[1]))


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_prefill_and_decode(tmp_path, mode):
    printed = run(tmp_path, "vllm-pd", MODE=mode)
    assert len(re.findall(r"answer: +w\d+", printed)) == {"pull": 1, "push": 2}[mode], printed
    assert loaded(printed) == WORDS + {"pull": 0, "push": 1}[mode], printed


def test_store(tmp_path):
    printed = run(tmp_path, "vllm-store", STORE="64MiB")
    first, second = re.findall(r"answer after .* s: +(w\d+.*)", printed)
    assert first == second, printed
    assert loaded(printed) == WORDS // BLOCK * BLOCK, printed


@pytest.mark.parametrize("split", ["", "1"])
def test_encoder(tmp_path, split):
    """An image of 224 pixels each way has 64 embeddings here, which the engine that computes the prompt has not encoded."""
    template = tmp_path / "template.jinja"
    template.write_text("{% for m in messages %}{% for p in m.content %}{% if p.type == 'text' %} {{ p.text }}{% else %}"
                        " <|vision_start|> <|image_pad|> <|vision_end|>{% endif %}{% endfor %}{% endfor %}")
    printed = run(tmp_path, "vllm-epd", vision.with_weights(ROOT / "build/engine-vision"), "w1 w2 w3", SPLIT=split,
                  VLLM_ARGS="--dtype bfloat16 --max-model-len 2048 --max-num-batched-tokens 2048 --block-size 32 --enforce-eager "
                            f"--kv-cache-memory-bytes {64 << 20} --chat-template {template} --chat-template-content-format openai "
                            "--limit-mm-per-prompt {\"image\":2,\"video\":0}")
    assert re.search(r"answer: +w\d+", printed), printed
    assert float(re.search(r"loaded from the encoder: ([0-9.]+)", printed)[1]) == 64, printed
    if split:
        assert float(re.search(r"decode engine has loaded: ([0-9.]+)", printed)[1]) > 64, printed
