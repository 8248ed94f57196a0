#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""build.py FOLDER NAME VERSION REVISION FILE...: writes FOLDER/NAME-VERSION-ARCH.tar, an image with the programs and the plug-in in
FILE..., and beside it its bill of materials (SPDX).

The tar file is an OCI image layout (https://github.com/opencontainers/image-spec), and has what `docker load` needs beside that. The image
contains the libraries that the programs load, as Debian's packages of this machine have them, RDMA's drivers, and no other program. The same
files, packages and SOURCE_DATE_EPOCH give the same bytes.
"""

import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import time
from urllib.parse import quote

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parents[1]
sys.path.append(str(HERE.parent))

from binaries import libraries, packages_of, stripped  # noqa: E402

EPOCH = int(os.environ.get("SOURCE_DATE_EPOCH", 0))
TIME = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(EPOCH))
USER = 65532  # a number, because Kubernetes cannot check of a name that it is not root's
VERBS = "libibverbs1"
PROVIDERS = "ibverbs-providers"
SBOM = "usr/share/sbom/dray.spdx.json"
CUDA_RUNTIME = "Apache-2.0, and contains the runtime of NVIDIA's CUDA Toolkit (libcudart_static.a), under the End User License Agreement of that"
ABOUT = {
    "dray": "Data-movement agent for LLM inference",
    "dray-cuda": "Data-movement agent for LLM inference, with its CUDA plug-in",
}
# The device plug-in or the runtime adds the driver's libraries.
NVIDIA = ["NVIDIA_DRIVER_CAPABILITIES=compute,utility", "NVIDIA_VISIBLE_DEVICES=all"]


class Layer:
    """Files by path. An entry is a tarfile.TarInfo and its bytes."""

    def __init__(self):
        self.entries = {}

    def add(self, path, kind, mode, data=b"", link="", owner=0):
        assert path not in self.entries, path
        entry = tarfile.TarInfo(path)
        entry.type, entry.mode, entry.size, entry.linkname, entry.mtime = kind, mode, len(data), link, EPOCH
        entry.uid = entry.gid = owner
        parent = os.path.dirname(path)
        if parent and parent not in self.entries:
            self.folder(parent)
        self.entries[path] = entry, data

    def file(self, path, data, mode=0o644):
        self.add(path, tarfile.REGTYPE, mode, data.encode() if isinstance(data, str) else data)

    def folder(self, path, mode=0o755, owner=0):
        self.add(path, tarfile.DIRTYPE, mode, owner=owner)

    def link(self, path, target):
        self.add(path, tarfile.SYMTYPE, 0o777, link=target)

    def tar(self):
        return tar_of(self.entries[path] for path in sorted(self.entries))


def tar_of(entries):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as t:
        for entry, data in entries:
            t.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def output(*argv):
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout


def about(packages):
    """Debian's fields of the packages, by name."""
    fields = {"Package": "Package", "Version": "Version", "Architecture": "Architecture", "Maintainer": "Maintainer",
              "Source": "source:Package", "Description": "binary:Synopsis"}
    form = "".join(f"${{{field}}}\\n" for field in fields.values())
    lines = iter(output("dpkg-query", "-W", f"-f={form}", *sorted(packages)).splitlines())
    rows = [dict(zip(fields, row)) for row in zip(*[lines] * len(fields))]
    return {row["Package"]: row for row in rows}


def system(programs):
    """The layer below the programs, and its Debian packages."""
    layer, where = Layer(), "usr/lib/" + output("dpkg-architecture", "-qDEB_HOST_MULTIARCH").strip()
    for path in ("bin", "sbin", "lib", "lib64"):
        layer.link(path, f"usr/{path}")
    for path in ("dev", "proc", "sys", "etc/dray"):
        layer.folder(path)
    layer.folder("tmp", 0o1777)
    layer.folder("run/dray", 0o755, USER)
    layer.folder("var/lib/dray", 0o700, USER)
    layer.file("etc/passwd", f"root:x:0:0:root:/:/usr/sbin/nologin\ndray:x:{USER}:{USER}:dray:/var/lib/dray:/usr/sbin/nologin\n")
    layer.file("etc/group", f"root:x:0:\ndray:x:{USER}:\n")
    layer.file("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n")
    layer.file("etc/os-release", pathlib.Path("/etc/os-release").read_text())

    # libibverbs loads the drivers by the names in its folder of configuration.
    drivers = [pathlib.Path(f) for f in output("dpkg", "-L", VERBS, PROVIDERS).split() if re.search(r"\.so[.0-9]*$|\.driver$", f)]
    for file in drivers:
        path = str(file)[1:]
        if file.is_symlink():
            layer.link(path, os.readlink(file))
        else:
            layer.file(path, file.read_bytes())
    found = libraries([*programs, *(f for f in drivers if ".so" in f.name)])
    for name, path in sorted(found.items()):
        if f"{where}/{name}" not in layer.entries:
            layer.file(f"{where}/{name}", pathlib.Path(path).read_bytes(), 0o755)
        if name.startswith("ld-linux-x86-64"):  # elsewhere programs look for it in /lib
            layer.link(f"usr/lib64/{name}", f"../../{where}/{name}")
    packages = about({VERBS, PROVIDERS, *packages_of(list(found.values()))})
    for package, fields in packages.items():
        layer.file(f"usr/share/doc/{package}/copyright", pathlib.Path(f"/usr/share/doc/{package}/copyright").read_bytes())
        # where scanners for known vulnerabilities look for packages
        layer.file(f"var/lib/dpkg/status.d/{package}", "".join(f"{k}: {v}\n" for k, v in {**fields, "Status": "install ok installed"}.items()))
    return layer, packages


def bill(name, version, files, packages):
    """The bill of materials in SPDX 2.3: the image, its own files, and Debian's packages."""
    def package(ident, name, version, supplier, licence, purl):
        return {"SPDXID": f"SPDXRef-{ident}", "name": name, "versionInfo": version, "supplier": supplier, "downloadLocation": "NOASSERTION",
                "filesAnalyzed": False, "licenseConcluded": licence, "licenseDeclared": licence, "copyrightText": "NOASSERTION",
                "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}]}

    image = package("image", name, version, "Organization: dray", "Apache-2.0", f"pkg:generic/{name}@{version}")
    image["primaryPackagePurpose"] = "CONTAINER"
    debian = [package(f"deb-{p}", p, row["Version"], "Organization: Debian", "NOASSERTION",
                      f"pkg:deb/debian/{quote(p)}@{quote(row['Version'], safe=':')}?arch={row['Architecture']}") for p, row in packages.items()]
    own = [{"SPDXID": f"SPDXRef-file-{os.path.basename(path)}", "fileName": f"./{path}", "copyrightText": "NOASSERTION",
            **({"licenseConcluded": "NOASSERTION", "comment": CUDA_RUNTIME} if path.endswith("dray-cuda.so") else {"licenseConcluded": "Apache-2.0"}),
            "checksums": [{"algorithm": a.upper(), "checksumValue": hashlib.new(a, data).hexdigest()} for a in ("sha1", "sha256")]}
           for path, data in sorted(files.items())]
    document = {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"{name}-{version}",
        "creationInfo": {"created": TIME, "creators": ["Organization: dray", "Tool: packaging/image/build.py"]},
        "packages": [image, *debian], "files": own,
        "relationships": [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": "SPDXRef-image"},
                          *({"spdxElementId": "SPDXRef-image", "relationshipType": "CONTAINS", "relatedSpdxElement": part["SPDXID"]}
                            for part in [*debian, *own])],
    }
    unique = hashlib.sha256(json.dumps(document).encode()).hexdigest()
    return {**document, "documentNamespace": f"https://spdx.org/spdxdocs/{name}-{version}-{unique}"}


def main(argv):
    folder, name, version, revision, *files = argv
    folder, machine = pathlib.Path(folder), output("dpkg", "--print-architecture").strip()
    programs = {{"drayd": "usr/sbin/drayd", "drayctl": "usr/bin/drayctl", "dray-cuda.so": "usr/lib/dray/dray-cuda.so"}[os.path.basename(f)]: f for f in files}
    below, packages = system(files)
    contents = {path: stripped(file) for path, file in programs.items()}
    text = json.dumps(bill(name, version, contents, packages), indent=1) + "\n"
    above = Layer()
    for path, data in contents.items():
        above.file(path, data, 0o755)
    above.file(SBOM, text)
    above.file("usr/share/doc/dray/copyright", (TOP / "LICENSE").read_bytes())

    blobs = {}

    def blob(media, data):
        """Keeps the bytes, and returns their descriptor."""
        blobs[digest(data)] = data
        return {"mediaType": f"application/vnd.oci.image.{media}", "digest": digest(data), "size": len(data)}

    def document(media, value):
        return blob(media, json.dumps(value, sort_keys=True).encode())

    layers = [layer.tar() for layer in (below, above)]
    stored = [blob("layer.v1.tar+gzip", gzip.compress(data, mtime=0)) for data in layers]
    labels = {"title": name, "description": ABOUT[name], "version": version, "revision": revision, "created": TIME, "licenses": "Apache-2.0"}
    labels = {f"org.opencontainers.image.{key}": value for key, value in labels.items() if value}
    config = document("config.v1+json", {
        "architecture": machine, "os": "linux", "created": TIME,
        "config": {"User": f"{USER}:{USER}", "Entrypoint": ["/usr/sbin/drayd"], "WorkingDir": "/", "StopSignal": "SIGTERM", "Labels": labels,
                   "Env": ["PATH=/usr/sbin:/usr/bin", *(NVIDIA if len(files) > 2 else [])],
                   "Volumes": {"/run/dray": {}, "/var/lib/dray": {}}, "ExposedPorts": {"7411/tcp": {}, "7412/tcp": {}}},
        "rootfs": {"type": "layers", "diff_ids": [digest(data) for data in layers]},
        "history": [{"created": TIME, "created_by": "packaging/image/build.py", "comment": what} for what in ("libraries", "dray")],
    })
    manifest = document("manifest.v1+json", {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config,
                                             "layers": stored, "annotations": labels})
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [
        {**manifest, "platform": {"architecture": machine, "os": "linux"},
         "annotations": {"org.opencontainers.image.ref.name": version, "io.containerd.image.name": f"docker.io/library/{name}:{version}"}}]}
    path_of = lambda d: "blobs/" + d["digest"].replace(":", "/")  # noqa: E731
    loaded = [{"Config": path_of(config), "RepoTags": [f"{name}:{version}"], "Layers": [path_of(layer) for layer in stored]}]

    archive = Layer()
    archive.file("oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}))
    archive.file("index.json", json.dumps(index, sort_keys=True))
    archive.file("manifest.json", json.dumps(loaded))
    for ident, data in blobs.items():
        archive.file("blobs/" + ident.replace(":", "/"), data)
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{name}-{version}-{machine}"
    (folder / f"{stem}.tar").write_bytes(archive.tar())
    (folder / f"{stem}.spdx.json").write_text(text)
    print(f"{folder / stem}.tar  {manifest['digest']}  {sum(map(len, layers)) / 1e6:.1f} MB, {sum(d['size'] for d in stored) / 1e6:.1f} MB compressed")


if __name__ == "__main__":
    main(sys.argv[1:])
