# SPDX-License-Identifier: Apache-2.0
"""examples/vllm-pd as a user runs it: two servers that start their own agents, a router and a request."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys

import model
import pytest
from harness import BUILD, LIMIT, ROOT
from rig import KV_BYTES

pytestmark = pytest.mark.long
WORDS = 200


def free_ports():
    """A port such that it, and those 100 and 200 above it, are free."""
    for port in range(20000, 30000, 7):
        try:
            for one in (port, port + 100, port + 200):
                with socket.create_server(("127.0.0.1", one)):
                    pass
        except OSError:
            continue
        return port
    raise AssertionError("no free ports")


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_example(tmp_path, mode):
    package = tmp_path / "site/dray_agent"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"BIN = {str(BUILD)!r}\n")
    (tmp_path / "run").mkdir(mode=0o700)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "DRAY_"))}
    environment.update(
        MODE=mode, PORT=str(free_ports()), HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_HOST_IP="127.0.0.1", VLLM_CPU_OMP_THREADS_BIND="nobind", OMP_NUM_THREADS="1", DRAY_LIBRARY=os.environ["DRAY_LIBRARY"],
        XDG_RUNTIME_DIR=str(tmp_path / "run"), PYTHONPATH=f"{ROOT / 'client/python'}:{package.parent}",
        PATH=f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}",
        VLLM_ARGS=f"--dtype bfloat16 --max-model-len 4096 --block-size 32 --enforce-eager --kv-cache-memory-bytes {KV_BYTES}")
    prompt = " ".join(f"w{i * 37 % model.VOCABULARY}" for i in range(1, WORDS + 1))
    program = [ROOT / "examples/vllm-pd/run", model.with_words(ROOT / "build/engine-model-words"), prompt]
    process = subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        printed, _ = process.communicate(timeout=20 * LIMIT)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, printed
    assert len(re.findall(r"answer: +w\d+", printed)) == {"pull": 1, "push": 2}[mode], printed
    loaded = int(float(re.search(r"has loaded: ([0-9.]+)", printed)[1]))
    assert loaded == WORDS + {"pull": 0, "push": 1}[mode], printed
