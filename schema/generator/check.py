# SPDX-License-Identifier: Apache-2.0
"""Checks that all loaders of the schema share."""

import re

import yaml

NAME = re.compile(r"^[a-z][a-z0-9_]*$")
SIZES = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
TIMES = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}
INT64_MAX = 2**63 - 1


class SchemaError(Exception):
    pass


class UniqueLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """Refuses duplicate keys, of which PyYAML silently keeps the last."""

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=deep)
            if key in seen:
                raise SchemaError(f"line {key_node.start_mark.line + 1}: key {key} is given twice")
            seen.add(key)
        return super().construct_mapping(node, deep)


def load_yaml(path):
    with open(path, encoding="utf-8") as f:
        try:
            return yaml.load(f, UniqueLoader)
        except (yaml.YAMLError, SchemaError) as e:
            raise SchemaError(f"{path.name}: {e}") from None


def check_keys(where, item, required, optional=()):
    if not isinstance(item, dict):
        raise SchemaError(f"{where}: not a mapping")
    for key in required:
        if key not in item:
            raise SchemaError(f"{where}: {key} is missing")
    for key in item:
        if key not in required and key not in optional:
            raise SchemaError(f"{where}: unknown attribute {key}")


def unique(where, what, values):
    seen = {}
    for value, name in values:
        if value in seen:
            shown = f"0x{value:04x}" if what == "type" else value
            other = f" ({seen[value]} and {name})" if seen[value] != value else ""
            raise SchemaError(f"{where}: duplicate {what} {shown}{other}")
        seen[value] = name


def named(where, items):
    for item in items:
        if not isinstance(item, dict) or "name" not in item:
            raise SchemaError(f"{where}: an item has no name")
        if not NAME.match(str(item["name"])):
            raise SchemaError(f"{where}: bad name {item['name']}")
    unique(where, "name", [(i["name"], i["name"]) for i in items])
    return items


def with_unit(where, text, units):
    m = re.match(r"^([0-9]+)([A-Za-z]*)$", str(text))
    if not m or m.group(2) not in units:
        raise SchemaError(f"{where}: bad value {text}")
    return int(m.group(1)) * units[m.group(2)]
