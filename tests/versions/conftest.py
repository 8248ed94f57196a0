# SPDX-License-Identifier: Apache-2.0
"""Agents and clients of this tree and of the previous release (scripts/previous), in the two hosts of the integration tests."""

import json
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "integration"))
sys.path.insert(1, str(HERE.parents[1] / "client/python"))
sys.path.append(str(HERE.parent))

import harness  # noqa: E402
from claims import pytest_collection, pytest_runtestloop  # noqa: E402, F401


class Release:
    """Programs, libdray and Python package of one state of the tree."""

    def __init__(self, name, sources, build):
        self.name, self.python = name, sources / "client/python"
        self.drayd, self.drayctl, self.library = (build / file for file in ("drayd", "drayctl", "libdray.so.0"))

    def __repr__(self):
        return self.name


@pytest.fixture(scope="session")
def releases():
    made = subprocess.run([harness.ROOT / "scripts/previous"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if made.returncode == 3:
        pytest.skip(made.stderr.strip())
    assert made.returncode == 0, made.stderr
    old = pathlib.Path(made.stdout.strip())
    return {"old": Release("old", old, old / "build"), "new": Release("new", harness.ROOT, harness.BUILD)}


@pytest.fixture(scope="session")
def lab():
    made = harness.Lab()
    yield made
    made.close()


@pytest.fixture
def new_agent(lab, releases):
    """Makes agents of a release, which must stop with status 0."""
    agents = []

    def make(release, host=0, **how):
        agent = lab.agent(f"{release}{len(agents)}", lab.hosts[host], key=lab.key, listen=[lab.hosts[host].v4], program=releases[release].drayd,
                          **how)
        agents.append(agent)
        return agent.start()

    yield make
    for agent in agents:
        agent.stop()


class Engine:
    """tests/versions/engine.py with the package of a release: each call is a line in, and a line of JSON out."""

    def __init__(self, release, socket):
        env = {"PYTHONPATH": release.python, "DRAY_LIBRARY": release.library, "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
        self.process = subprocess.Popen([sys.executable, HERE / "engine.py", socket], env={k: str(v) for k, v in env.items()},
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, *words):
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the engine ended at {words}"
        answer = json.loads(line)
        if "error" in answer:
            raise AssertionError(f"{words}: {answer['error']}")
        return answer["result"]

    def close(self):
        self.process.stdin.close()
        self.process.wait(harness.LIMIT)


@pytest.fixture
def new_engine(releases):
    engines = []

    def make(release, agent):
        engines.append(Engine(releases[release], agent.socket))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()
