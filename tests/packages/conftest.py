# SPDX-License-Identifier: Apache-2.0
import os
import sys

import pytest

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))

from claims import pytest_collection, pytest_runtestloop  # noqa: E402, F401
from packages import DEBS, IMAGES, VERSION, folder_for_all, has_cuda, run, unpack_image  # noqa: E402


@pytest.fixture(scope="session")
def debs():
    """The packages by name, without those of debugging information."""
    return {f.name.split("_")[0]: f for f in DEBS.glob(f"*_{VERSION}_*.deb") if "-dbgsym_" not in f.name}


@pytest.fixture(scope="session")
def unpacked(debs, tmp_path_factory):
    """A folder with the files of all packages."""
    folder = tmp_path_factory.mktemp("unpacked")
    for file in debs.values():
        run("dpkg-deb", "-x", file, folder)
    return folder


@pytest.fixture(scope="module", params=["dray", "dray-cuda"])
def image(request):
    """The image's name, its file, the folder with its files, and its configuration."""
    if request.param == "dray-cuda" and not has_cuda():
        pytest.skip("no CUDA toolkit")
    (file,) = IMAGES.glob(f"{request.param}-{VERSION}-*.tar")
    with folder_for_all() as folder:
        config = unpack_image(file, folder / "root")
        (folder / "root").chmod(0o755)
        yield request.param, file, folder / "root", config
