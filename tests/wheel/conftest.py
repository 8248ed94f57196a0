# SPDX-License-Identifier: Apache-2.0
import os
import sys
import zipfile

import pytest

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))

from claims import pytest_collection, pytest_runtestloop  # noqa: E402, F401
from wheels import CLIENTS, VERSION, WHEELS, Environment  # noqa: E402


@pytest.fixture(scope="session")
def agent_wheel():
    (name,) = WHEELS.glob(f"dray_agent-{VERSION}-py3-none-manylinux_*_x86_64.whl")
    return name


@pytest.fixture(scope="session")
def machine_folder(tmp_path_factory):
    """Each client wheel, unpacked."""
    folders = {}
    for machine, name in CLIENTS.items():
        folders[machine] = tmp_path_factory.mktemp(machine)
        with zipfile.ZipFile(WHEELS / name) as z:
            z.extractall(folders[machine])
    return folders


@pytest.fixture(scope="session")
def environment(tmp_path_factory, agent_wheel):
    return Environment(tmp_path_factory.mktemp("environment"), agent_wheel, WHEELS / CLIENTS["x86_64"])
