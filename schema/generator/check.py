# SPDX-License-Identifier: Apache-2.0
"""Checks that all parts of the model use."""

import re

import yaml

NAME = re.compile(r"^[a-z][a-z0-9_]*$")


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
