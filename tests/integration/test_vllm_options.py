# SPDX-License-Identifier: Apache-2.0
"""dray.vllm.options: each option, and the sentences about wrong ones. The package itself needs neither numpy nor vllm."""

import subprocess
import sys

import pytest

from dray import errors
from dray.vllm.options import Options


def test_defaults():
    assert Options.parse({}) == Options("auto", None, "auto", None, (), 30.0, 60.0, "pull")


def test_each_option():
    given = {"transport": "rdma", "agent": "private", "key_file": "/etc/key", "devices": "mlx5_0, mlx5_1", "deadline": 5,
             "lease": 0.5, "mode": "push"}
    assert Options.parse(given) == Options("rdma", None, "private", "/etc/key", ("mlx5_0", "mlx5_1"), 5.0, 0.5, "push")
    assert Options.parse({"name": "dray-tcp", "pool": False, "bounce": True, "bounce_size": 4096}) == \
        Options(name="dray-tcp", pool=False, bounce=True, bounce_size=4096)
    assert Options.parse({"socket": "/run/x.sock", "devices": ["mlx5_*"]}) == Options(socket="/run/x.sock", devices=("mlx5_*",))


@pytest.mark.parametrize(("name", "value", "words"), [
    ("transport", "infiniband", "'auto', 'rdma', 'tcp', 'local'"), ("transport", 3, "one of"), ("socket", "", "path of a file"),
    ("socket", None, "path of a file"), ("deadline", 0, "above 0"), ("deadline", True, "above 0"),
    ("agent", "no", "'external'"), ("mode", "both", "'pull', 'push'"), ("mode", ["push"], "one of"), ("key_file", 7, "path of a file"), ("devices", [], "RDMA devices"),
    ("devices", ["mlx5_0", ""], "RDMA devices"), ("devices", 5, "RDMA devices"), ("deadline", float("nan"), "above 0"), ("lease", "30s", "number of seconds"), ("lease", 1e9, "at most 86400"),
    ("name", "other", "'dray' and up to 28"), ("name", "dray/x", "'dray' and up to 28"), ("name", 3, "'dray'"), ("pool", 1, "true or false"),
    ("bounce", "yes", "true or false"), ("bounce_size", 0, "above 0"), ("bounce_size", True, "number of bytes")])
def test_wrong_values(name, value, words):
    with pytest.raises(errors.Invalid) as e:
        Options.parse({name: value})
    assert f"option {name!r}" in str(e.value) and repr(value) in str(e.value) and words in str(e.value)


def test_options_that_exclude_each_other():
    with pytest.raises(errors.Invalid, match="names a socket, and asks for a private agent"):
        Options.parse({"socket": "/run/x.sock", "agent": "private"})
    with pytest.raises(errors.Invalid, match="sets bounce_size without bounce"):
        Options.parse({"bounce_size": 4096})
    for option in ({"bounce": True}, {"name": "dray-b"}):
        with pytest.raises(errors.Invalid, match="works with the mode 'pull' only"):
            Options.parse({"mode": "push", **option})


def test_unknown_option():
    with pytest.raises(errors.Invalid, match="unknown option 'dead_line'; did you mean 'deadline'\\?.*transport"):
        Options.parse({"dead_line": 3})


def test_imports():
    """`import dray.vllm` needs nothing; what is not there is an AttributeError."""
    code = ("import sys\n"
            "for name in ('numpy', 'torch', 'vllm'): sys.modules[name] = None\n"
            "import dray, dray.vllm\n"
            "assert not hasattr(dray.vllm, 'Other')\n"
            "try: dray.vllm.DrayConnector\n"
            "except ImportError: print('needs vllm')\n")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "needs vllm\n", done.stderr
