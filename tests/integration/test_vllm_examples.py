# SPDX-License-Identifier: Apache-2.0
"""The scripts of examples/vllm-*, with programs in the place of vLLM's servers: what they say when one of their processes ends."""

import contextlib
import os
import signal
import subprocess

import pytest
from harness import BUILD, LIMIT, PORTS, ROOT

WAITS = "import signal\nsignal.pause()\n"
ENDS = "raise SystemExit('no such model')\n"


@pytest.fixture
def example(lab):
    """Runs an example with this program as server; returns its status and what it has printed. It leaves no files and no processes."""
    def run(name, server, **variables):
        site, files = lab.directory("site"), lab.directory("files")
        package = site / "vllm/entrypoints/openai"
        package.mkdir(parents=True)
        (package / "api_server.py").write_text(server)
        (site / "dray_agent.py").write_text(f"BIN = {str(BUILD)!r}\n")
        environment = {n: v for n, v in os.environ.items() if not n.startswith("DRAY_")}
        environment.update(PYTHONPATH=str(site), TMPDIR=str(files), PORT=str(next(PORTS)), **variables)
        process = subprocess.Popen([ROOT / "examples" / name / "run", "MODEL"], env=environment, text=True, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            printed, _ = process.communicate(timeout=LIMIT)  # the pipe ends with the last process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        assert not os.listdir(files), printed
        return process.returncode, printed
    return run


@pytest.mark.parametrize("server", [WAITS, ENDS], ids=["waits", "ends"])
def test_the_agent_of_the_store_does_not_start(example, server):
    status, printed = example("vllm-store", server, STORE="4Q")
    assert status == 1 and 'limits.store_bytes: "4Q" is not a size' in printed, printed


@pytest.mark.parametrize("name", ["vllm-pd", "vllm-epd", "vllm-store"])
def test_the_engine_does_not_start(example, name):
    status, printed = example(name, ENDS)
    assert status == 1 and "no such model" in printed, printed
