#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the static pages of the documentation, with search, and checks their links.

    build.py FOLDER     # FOLDER/html

The pages keep their places in the tree, so that the links of the Markdown files hold in both. What they link to that is no
page is copied. mkdocs, from Debian, turns them into HTML; SOURCE_DATE_EPOCH determines the dates in it.
"""

import html.parser
import json
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
# title of a group, and its pages in order; a pattern stands for the rest of a folder
NAV = [
    ("First steps", ["README.md", "docs/installation.md", "docs/first-day.md", "docs/versions.md", "CHANGELOG.md"]),
    ("Running it", ["docs/operation.md", "docs/kubernetes.md", "docs/security.md", "docs/rdma.md", "docs/gpu.md", "docs/segments.md",
                    "docs/environment.md", "docs/benchmarks.md"]),
    ("Using it", ["docs/vllm.md", "docs/mooncake.md", "docs/leases.md", "docs/store.md", "docs/rings.md", "examples/c/README.md"]),
    ("Reference", ["docs/reference/*.md", "docs/glossary.md"]),
    ("Alerts", ["docs/runbooks/README.md", "docs/runbooks/*.md"]),
    ("Working on it", ["docs/architecture.md", "CONTRIBUTING.md", "tests/integration/README.md"]),
]


def fail(text):
    sys.exit(f"site: {text}")


def pages():
    """(title of the group, its pages), each page once."""
    seen = set()
    for title, patterns in NAV:
        found = []
        for pattern in patterns:
            files = sorted(ROOT.glob(pattern))
            if not files:
                fail(f"{pattern} is no page")
            found += [f.relative_to(ROOT) for f in files if f not in seen]
            seen.update(files)
        yield title, found
    missing = {f for f in (ROOT / "docs").rglob("*.md")} - seen
    if missing:
        fail(f"{', '.join(str(f.relative_to(ROOT)) for f in sorted(missing))}: name these pages in NAV of packaging/site/build.py")


def title_of(page):
    return next(line[2:] for line in (ROOT / page).read_text().splitlines() if line.startswith("# "))


def lists_apart(text):
    """Python's Markdown begins a list only after an empty line, as it ends a paragraph."""
    out, fenced, before = [], False, ""
    for line in text.splitlines():
        if line.startswith("```"):
            fenced = not fenced
        item = re.match(r"([-*]|\d+\.) ", line)
        if item and not fenced and before.strip() and not re.match(r"([-*]|\d+\.) |  ", before):
            out.append("")
        out.append(line)
        before = line
    return "\n".join(out) + "\n"


def stage(groups, folder):
    shutil.rmtree(folder, ignore_errors=True)
    for _, group in groups:
        for page in group:
            text = (ROOT / page).read_text()
            to = folder / page
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_text(lists_apart(text))
            for link in LINK.findall(text):
                file = (ROOT / page).parent / link
                if "://" in link or not file.is_file() or file.suffix == ".md":
                    continue
                copy = folder / file.resolve().relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)


def configuration(groups, pages_folder, out):
    """mkdocs.yml. Its texts are JSON, which is YAML."""
    nav = [{title: [{title_of(page): str(page)} for page in group]} for title, group in groups]
    return json.dumps({
        "site_name": "dray", "docs_dir": str(pages_folder), "site_dir": str(out), "theme": {"name": None, "custom_dir": str(ROOT / "packaging/site/theme"), "search_index_only": True},
        "plugins": ["search"], "use_directory_urls": False, "nav": nav,
        "markdown_extensions": ["tables", "fenced_code", {"toc": {"permalink": True}}]}, indent=1)


class Page(html.parser.HTMLParser):
    """The links and anchors of a page."""

    def __init__(self, file):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(file.read_text())

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("href", "src") and value is not None:
                self.links.append((tag, value))
            if name in ("id", "name") and value:
                self.anchors.add(value)


def check(out):
    """Each link leads to a file and an anchor that exist, and nothing is loaded from elsewhere. The number of links."""
    read = {file: Page(file) for file in sorted(out.rglob("*.html"))}
    bad, count = [], 0
    for file, page in read.items():
        for tag, link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                if tag not in ("a",):
                    bad.append(f"{file.relative_to(out)}: loads {link}")
                continue
            count += 1
            to = (file.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else file
            to = to / "index.html" if to.is_dir() else to
            if not to.exists():
                bad.append(f"{file.relative_to(out)}: {link} leads nowhere")
            elif parts.fragment and to in read and urllib.parse.unquote(parts.fragment) not in read[to].anchors:
                bad.append(f"{file.relative_to(out)}: {link} names no place on that page")
    if bad:
        fail("broken links:\n  " + "\n  ".join(bad))
    return len(read), count


def main(folder):
    folder = pathlib.Path(folder).resolve()
    groups = list(pages())
    out = folder / "html"
    stage(groups, folder / "pages")
    shutil.rmtree(out, ignore_errors=True)
    (folder / "mkdocs.yml").write_text(configuration(groups, folder / "pages", out))
    built = subprocess.run(["mkdocs", "build", "--quiet", "--config-file", folder / "mkdocs.yml"], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True)
    if built.returncode:
        fail(built.stdout)
    if not (out / "search/search_index.json").exists():
        fail("there is no index for the search")
    count, links = check(out)
    print(f"{out.relative_to(ROOT) if out.is_relative_to(ROOT) else out}: {count} pages, {links} links, none broken")


if __name__ == "__main__":
    main(*sys.argv[1:])
