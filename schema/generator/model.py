# SPDX-License-Identifier: Apache-2.0
"""Reads the schema files and refuses inconsistent ones, so that the writers can trust the model."""

import pathlib
import re

from generator import drayctl, state
from generator.check import (INT64_MAX, NAME, SIZES, TIMES, SchemaError, check_keys, load_yaml, named, unique,
                             with_unit)
from generator.kubernetes import Kubernetes
from generator.monitoring import Monitoring

INTS = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "i64": 8}
REPLY = 0x8000
EVENT = 0x4000
CONFIG_TYPES = ("string", "path", "bool", "int", "size", "duration", "enum", "list")
FAMILY_TYPES = ("counter", "gauge", "histogram")
VERSION = pathlib.Path(__file__).resolve().parents[2] / "client/python/dray/__init__.py"
LABELS_MAX = 4
BUCKETS_MAX = 32


class Field:
    """One field of a header, record, layout or message."""

    def __init__(self, where, raw, fixed):
        check_keys(where, raw, ("name", "type", "doc"), ("enum", "bits", "open", "zero", "max", "of", "since"))
        self.name, self.type, self.doc = raw["name"], str(raw["type"]), raw["doc"]
        self.enum, self.bits, self.of = raw.get("enum"), raw.get("bits"), raw.get("of")
        self.open, self.zero = raw.get("open", False), raw.get("zero", False)
        self.max, self.since = raw.get("max"), raw.get("since", 0)
        self.reserved = self.name.startswith("reserved")
        where = f"{where}: field {self.name}"
        self.var = self.type in ("str", "blob", "vec")
        fixed_bytes = re.match(r"^bytes([1-9][0-9]*)$", self.type)
        if self.type in INTS:
            self.size = self.align = INTS[self.type]
        elif fixed_bytes:
            self.size, self.align = int(fixed_bytes.group(1)), 1
        elif self.var and not fixed:
            self.size, self.align = 4, 4
        else:
            raise SchemaError(f"{where}: unknown type {self.type}")
        if self.var and not (isinstance(self.max, int) and 0 < self.max < 2**31):
            raise SchemaError(f"{where}: {self.type} needs a max")
        if not self.var and self.max is not None:
            raise SchemaError(f"{where}: only str, blob and vec have a max")
        if (self.type == "vec") != (self.of is not None):
            raise SchemaError(f"{where}: a vec needs the attribute of, and no other type has it")
        if (self.enum or self.bits or self.zero) and self.type not in INTS:
            raise SchemaError(f"{where}: only integers have enum, bits or zero")
        if bool(self.enum) + bool(self.bits) + bool(self.zero) > 1:
            raise SchemaError(f"{where}: at most one of enum, bits and zero is allowed")
        if self.open and not (self.enum or self.bits):
            raise SchemaError(f"{where}: open needs enum or bits")
        if not isinstance(self.since, int) or self.since < 0:
            raise SchemaError(f"{where}: since is not a minor version")

    @property
    def checked(self):
        """True if the decoder checks the value."""
        return self.zero or bool((self.enum or self.bits) and not self.open)


class Fixed:
    """Header or record: adjacent fields, each on its natural boundary."""

    def __init__(self, where, fields, doc="", name="", size=None):
        self.name, self.doc = name, doc
        named(where, fields)
        self.fields = [Field(where, f, True) for f in fields]
        offset, align = 0, 1
        for f in self.fields:
            if f.since:
                raise SchemaError(f"{where}: field {f.name}: only fields of messages have since")
            if offset % f.align:
                raise SchemaError(f"{where}: field {f.name}: offset {offset} is not a multiple of {f.align}")
            f.offset = offset
            offset += f.size
            align = max(align, f.align)
        if not offset:
            raise SchemaError(f"{where}: no fields")
        if offset % align:
            raise SchemaError(f"{where}: size {offset} is not a multiple of {align}")
        if size is not None and size != offset:
            raise SchemaError(f"{where}: size is {offset}, declared {size}")
        self.size = offset

    @property
    def checked(self):
        return any(f.checked for f in self.fields)


class Layout:
    """A layout in shared memory: fields at given offsets."""

    def __init__(self, where, raw):
        check_keys(where, raw, ("name", "doc", "fields", "size"))
        self.name, self.doc, self.size = raw["name"], raw["doc"], raw["size"]
        self.fields, taken = [], []
        for item in named(where, raw["fields"]):
            spot = item.get("offset")
            f = Field(where, {k: v for k, v in item.items() if k != "offset"}, True)
            if not isinstance(spot, int) or spot % f.align:
                raise SchemaError(f"{where}: field {f.name}: offset {spot} is not a multiple of {f.align}")
            f.offset = spot
            for other in taken:
                if spot < other.offset + other.size and other.offset < spot + f.size:
                    raise SchemaError(f"{where}: fields {other.name} and {f.name} overlap")
            if spot + f.size > self.size:
                raise SchemaError(f"{where}: field {f.name} passes the size {self.size}")
            taken.append(f)
            self.fields.append(f)


class Message:
    def __init__(self, where, raw, minor):
        check_keys(where, raw, ("name", "type", "doc", "fields"), ("errors",))
        self.name, self.type, self.doc = raw["name"], raw["type"], raw["doc"]
        self.errors = raw.get("errors", [])
        self.reply = None
        self.fields = [Field(where, f, False) for f in named(where, raw["fields"] or [])]
        if not isinstance(self.type, int) or not 0 < self.type < 65536:
            raise SchemaError(f"{where}: type {self.type} is not a 16-bit number")
        last = 0
        for f in self.fields:
            if f.since < last:
                raise SchemaError(f"{where}: field {f.name}: since goes down from {last} to {f.since}")
            if f.since > minor:
                raise SchemaError(f"{where}: field {f.name}: since {f.since} is over the minor version {minor}")
            last = f.since
        self.min = sum(f.size for f in self.fields if not f.since)

    @property
    def is_request(self):
        return self.type < EVENT

    def parts(self):
        """Fields grouped by `since`. Each group is a list of runs: fixed fields, then at most one variable field."""
        groups = []
        for f in self.fields:
            if not groups or groups[-1][0] != f.since:
                groups.append((f.since, [[]]))
            runs = groups[-1][1]
            if runs[-1] and runs[-1][-1].var:
                runs.append([])
            runs[-1].append(f)
        return groups


class Shared:
    """Fields that several records and messages have in common, so that C copies them as one struct."""

    def __init__(self, where, raw, owners):
        check_keys(where, raw, ("name", "member", "doc", "of", "fields"))
        self.name, self.member, self.doc, self.fields = raw["name"], raw["member"], raw["doc"], raw["fields"]
        unique(where, "field", [(f, f) for f in self.fields])
        missing = [name for name in raw["of"] if name not in owners]
        if missing:
            raise SchemaError(f"{where}: unknown record or message {missing[0]}")
        self.owners = [owners[name] for name in raw["of"]]
        for name in self.fields:
            kinds = {(f.type, f.enum, f.bits) for o in self.owners for f in o.fields if f.name == name}
            if len(kinds) != 1 or any(name not in [f.name for f in o.fields] for o in self.owners):
                raise SchemaError(f"{where}: field {name} is not the same in all of them")

    def of(self, fields):
        by_name = {f.name: f for f in fields}
        return [by_name[name] for name in self.fields]


class Protocol:
    def __init__(self, file, raw, errors):
        check_keys(file, raw, ("protocol", "prefix", "magic", "version", "header", "limits", "messages"),
                   ("framing", "body", "constants", "enums", "bits", "records", "layouts", "shared"))
        self.file, self.name, self.prefix, self.magic = file, raw["protocol"], raw["prefix"], raw["magic"]
        self.framing, self.body = raw.get("framing", "stream"), raw.get("body", False)
        self.major, self.minor = raw["version"]["major"], raw["version"]["minor"]
        self.header = Fixed(f"{file}: header", raw["header"])
        if [f.name for f in self.header.fields] != ["magic", "major", "minor", "type", "flags", "length", "request_id"]:
            raise SchemaError(f"{file}: header: its fields are fixed by the generated code")
        self.limits = self.numbers("limits", raw)
        self.constants = self.numbers("constants", raw)
        self.message_max = dict((n["name"], n["value"]) for n in self.limits).get("message_max")
        if not self.message_max:
            raise SchemaError(f"{file}: limit message_max is missing")
        self.enums = self.values("enums", "enum", raw)
        self.bits = self.values("bits", "bits", raw)
        for b in self.bits.values():
            for v in b["values"]:
                if v["value"] <= 0 or v["value"] & (v["value"] - 1):
                    raise SchemaError(f"{file}: bits {b['name']}: {v['name']} is not a single bit")
        self.records = {}
        for r in named(f"{file}: records", raw.get("records", [])):
            where = f"{file}: record {r['name']}"
            check_keys(where, r, ("name", "doc", "fields"), ("size",))
            self.records[r["name"]] = Fixed(where, r["fields"], r["doc"], r["name"], r.get("size"))
        self.layouts = [Layout(f"{file}: layout {n['name']}", n)
                        for n in named(f"{file}: layouts", raw.get("layouts", []))]
        self.messages = [Message(f"{file}: message {m['name']}", m, self.minor)
                         for m in named(f"{file}: messages", raw["messages"])]
        unique(file, "type", [(m.type, m.name) for m in self.messages])
        self.check_references(errors)
        owners = {**self.records, **{m.name: m for m in self.messages}}
        self.shared = {s["name"]: Shared(f"{file}: shared {s['name']}", s, owners)
                       for s in named(f"{file}: shared", raw.get("shared", []))}
        self.elements = {f.of for m in self.messages for f in m.fields if f.of}
        decoded = self.messages + [self.records[name] for name in sorted(self.elements)]
        self.checked_enums = {f.enum for o in decoded for f in o.fields if f.enum and not f.open}

    def shared_by(self, owner):
        return next((s for s in self.shared.values() if owner in s.owners), None)

    def numbers(self, key, raw):
        items = named(f"{self.file}: {key}", raw.get(key, []))
        for n in items:
            check_keys(f"{self.file}: {key}: {n['name']}", n, ("name", "value", "doc"))
            if not isinstance(n["value"], int):
                raise SchemaError(f"{self.file}: {key}: {n['name']}: value is not a number")
        return items

    def values(self, key, what, raw):
        out = {}
        for item in named(f"{self.file}: {key}", raw.get(key, [])):
            where = f"{self.file}: {what} {item['name']}"
            check_keys(where, item, ("name", "values"), ("doc", "named"))
            for v in named(where, item["values"]):
                check_keys(f"{where}: {v['name']}", v, ("name", "value", "doc"))
                if not isinstance(v["value"], int) or v["value"] < 0:
                    raise SchemaError(f"{where}: {v['name']}: value is not a number")
            unique(where, "value", [(v["value"], v["name"]) for v in item["values"]])
            out[item["name"]] = item
        return out

    def check_references(self, errors):
        by_type = {m.type: m for m in self.messages}
        for kind, owners in (("record", self.records.values()), ("message", self.messages)):
            for owner in owners:
                for f in owner.fields:
                    self.check_field(f"{self.file}: {kind} {owner.name}: field {f.name}", f)
        for m in self.messages:
            where = f"{self.file}: message {m.name}"
            for e in m.errors:
                if e not in errors:
                    raise SchemaError(f"{where}: unknown error {e}")
            unique(where, "error", [(e, e) for e in m.errors])
            if m.is_request:
                m.reply = by_type.get(m.type | REPLY)
            m.max = sum(f.size + (f.max * self.unit(f) if f.var else 0) for f in m.fields)
            if self.header.size + m.max > self.message_max:
                raise SchemaError(f"{where}: up to {self.header.size + m.max} bytes, over message_max {self.message_max}")

    def check_field(self, where, f):
        for what, name, known in (("enum", f.enum, self.enums), ("bits", f.bits, self.bits)):
            if name is None:
                continue
            if name not in known:
                raise SchemaError(f"{where}: unknown {what} {name}")
            if max(v["value"] for v in known[name]["values"]) >= 1 << 8 * f.size:
                raise SchemaError(f"{where}: {what} {name} does not fit {f.type}")
        if f.of is not None and f.of not in self.records:
            raise SchemaError(f"{where}: unknown record {f.of}")

    def unit(self, f):
        """Bytes of one element of a variable field."""
        return self.records[f.of].size if f.type == "vec" else 1

    def mask(self, bits):
        return sum(v["value"] for v in self.bits[bits]["values"])


class ConfigKey:
    def __init__(self, raw):
        where = f"config.yaml: key {raw.get('key')}"
        check_keys(where, raw, ("key", "type", "default", "doc"), ("min", "max", "flag", "choices", "octal", "reload"))
        self.path, self.type, self.doc = raw["key"], raw["type"], raw["doc"]
        if not re.match(r"^[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*$", str(self.path)):
            raise SchemaError(f"{where}: not of the form section.name")
        self.section, self.name = self.path.split(".")
        self.ident = self.path.replace(".", "_")
        self.env = "DRAY_" + self.ident.upper()
        self.flag, self.octal, self.reload = raw.get("flag"), raw.get("octal", False), raw.get("reload", False)
        self.choices = [str(c) for c in raw.get("choices", [])]
        if self.type not in CONFIG_TYPES:
            raise SchemaError(f"{where}: unknown type {self.type}")
        if self.flag is not None and not re.match(r"^--[a-z][a-z-]*$", self.flag):
            raise SchemaError(f"{where}: bad flag {self.flag}")
        if bool(self.choices) != (self.type == "enum"):
            raise SchemaError(f"{where}: type enum needs choices, and no other type has them")
        if self.octal and self.type != "int":
            raise SchemaError(f"{where}: only type int can be octal")
        self.numeric = self.type in ("int", "size", "duration")
        if ("min" in raw or "max" in raw) and not self.numeric:
            raise SchemaError(f"{where}: only numbers have min and max")
        default = raw["default"]
        if self.type == "bool":
            if not isinstance(default, bool):
                raise SchemaError(f"{where}: default {default} is not a bool")
            self.default = "true" if default else "false"
        elif self.type == "list":
            if not isinstance(default, list) or any("," in str(d) for d in default):
                raise SchemaError(f"{where}: default is not a list")
            self.default = ",".join(str(d) for d in default)
        elif isinstance(default, bool) or isinstance(default, list):
            raise SchemaError(f"{where}: default {default} is not of type {self.type}")
        else:
            self.default = self.show(default)
        self.min, self.max = 0, 0
        self.min_text = self.max_text = ""
        if self.numeric:
            if "min" not in raw or "max" not in raw:
                raise SchemaError(f"{where}: min and max are missing")
            self.min, self.max = self.number(where, raw["min"]), self.number(where, raw["max"])
            self.min_text, self.max_text = self.show(raw["min"]), self.show(raw["max"])
            value = self.number(where, default)
            if not self.min <= value <= self.max:
                raise SchemaError(f"{where}: default {self.default} is outside {self.min_text} to {self.max_text}")
            if self.max > INT64_MAX:
                raise SchemaError(f"{where}: max passes 64 bits")
        if self.type == "enum":
            unique(where, "choice", [(c, c) for c in self.choices])
            if any(not NAME.match(c) for c in self.choices):
                raise SchemaError(f"{where}: bad choice")
            if self.default not in self.choices:
                raise SchemaError(f"{where}: default {self.default} is not one of the choices")

    def allowed(self):
        if self.type == "int":
            return f"{'octal, ' if self.octal else ''}{self.min_text} to {self.max_text}"
        if self.numeric:
            return f'"{self.min_text}" to "{self.max_text}"'
        return {"bool": "true or false", "enum": ", ".join(self.choices), "list": "a list", "path": "a path",
                "string": "a string"}[self.type]

    def show(self, value):
        return f"0{value:o}" if self.octal and value else str(value)

    def number(self, where, value):
        if self.type == "int":
            if not isinstance(value, int) or isinstance(value, bool):
                raise SchemaError(f"{where}: bad value {value}")
            return value
        return with_unit(where, value, SIZES if self.type == "size" else TIMES)


def load_errors(raw):
    check_keys("errors.yaml", raw, ("errors",))
    errors = named("errors.yaml", raw["errors"])
    for e in errors:
        check_keys(f"errors.yaml: {e['name']}", e, ("name", "code", "doc", "fix"))
    unique("errors.yaml", "code", [(e["code"], e["name"]) for e in errors])
    if [e["code"] for e in errors] != list(range(len(errors))) or errors[0]["name"] != "ok":
        raise SchemaError("errors.yaml: codes do not count up by one from 0, which is ok")
    return errors


def load_config(raw):
    check_keys("config.yaml", raw, ("keys",))
    keys = [ConfigKey(k) for k in raw["keys"]]
    unique("config.yaml", "key", [(k.path, k.path) for k in keys])
    unique("config.yaml", "environment name", [(k.env, k.path) for k in keys])
    unique("config.yaml", "flag", [(k.flag, k.path) for k in keys if k.flag])
    return keys


def check_metric_type(where, m, types):
    if m["type"] not in types:
        raise SchemaError(f"{where}: unknown type {m['type']}")
    if (m["type"] == "counter") != m["name"].endswith("_total"):
        raise SchemaError(f"{where}: a counter's name ends in _total, and no other name does")


def load_metrics(raw):
    check_keys("metrics.yaml", raw, ("metrics", "families"))
    metrics = named("metrics.yaml", raw["metrics"])
    for m in metrics:
        where = f"metrics.yaml: {m['name']}"
        check_keys(where, m, ("name", "type", "owner", "doc"), ("unit",))
        if not m["name"].startswith("dray_"):
            raise SchemaError(f"{where}: name does not start with dray_")
        check_metric_type(where, m, ("counter", "gauge"))
        if m["owner"] not in ("worker", "control"):
            raise SchemaError(f"{where}: unknown owner {m['owner']}")
    return metrics


def check_buckets(where, f):
    if (f["type"] == "histogram") != ("buckets" in f and "scale" in f):
        raise SchemaError(f"{where}: a histogram needs buckets and scale, and no other type has them")
    buckets = f.get("buckets", [])
    if not isinstance(buckets, list) or any(type(n) is not int for n in buckets + [f.get("scale", 1)]):
        raise SchemaError(f"{where}: buckets is not a list of integers, or scale is not an integer")
    if f["type"] == "histogram" and (not 0 < len(buckets) <= BUCKETS_MAX or f["scale"] < 1):
        raise SchemaError(f"{where}: not 1 to {BUCKETS_MAX} buckets, or scale is below 1")
    if any(n < 1 for n in buckets) or buckets != sorted(set(buckets)):
        raise SchemaError(f"{where}: buckets do not rise from at least 1")


def load_families(raw):
    families = named("metrics.yaml", raw["families"])
    for f in families:
        where = f"metrics.yaml: {f['name']}"
        check_keys(where, f, ("name", "type", "doc"), ("unit", "labels", "scale", "buckets"))
        if not f["name"].startswith(("dray_", "process_")):
            raise SchemaError(f"{where}: name does not start with dray_ or process_")
        check_metric_type(where, f, FAMILY_TYPES)
        labels = f.get("labels", [])
        if not isinstance(labels, list) or any(not NAME.match(str(n)) for n in labels):
            raise SchemaError(f"{where}: labels is not a list of names")
        if len(labels) > LABELS_MAX:
            raise SchemaError(f"{where}: more than {LABELS_MAX} labels")
        unique(where, "label", [(n, n) for n in labels])
        check_buckets(where, f)
    unique("metrics.yaml", "name", [(m["name"], m["name"]) for m in raw["metrics"] + families])
    return families


# of a method: a basic type, or a structure of some, or a dictionary by name, or arrays of one
ARGUMENT = re.compile(r"a*([sbutixdyv]|\([sbutixdy]+\)|\{s[sbutixdv]\})")


def load_dbus(raw):
    check_keys("dbus.yaml", raw, ("interface", "path", "properties", "methods", "signals", "errors", "records"))
    records = {r["name"]: r for r in named("dbus.yaml: records", raw["records"])}
    for r in records.values():
        check_keys(f"dbus.yaml: record {r['name']}", r, ("name", "fields"), ("doc",))
        for f in named(f"dbus.yaml: record {r['name']}", r["fields"]):
            check_keys(f"dbus.yaml: record {r['name']}: {f['name']}", f, ("name", "type", "doc"))
            if f["type"] not in ("s", "b", "u", "t", "i", "x", "d"):
                raise SchemaError(f"dbus.yaml: record {r['name']}: {f['name']}: unknown type {f['type']}")
    for p in raw["properties"]:
        check_keys(f"dbus.yaml: property {p.get('name')}", p, ("name", "type", "doc"), ("emits", "const", "explicit"))
    for m in raw["methods"]:
        where = f"dbus.yaml: method {m.get('name')}"
        check_keys(where, m, ("name", "in", "out", "change", "doc"))
        for a in m["in"] + m["out"]:
            check_keys(where, a, ("name", "type"), ("doc", "record"))
            if not ARGUMENT.fullmatch(a["type"]):
                raise SchemaError(f"{where}: argument {a['name']}: unknown type {a['type']}")
            if "record" in a and a["record"] not in records:
                raise SchemaError(f"{where}: unknown record {a['record']}")
    for s in raw["signals"]:
        check_keys(f"dbus.yaml: signal {s.get('name')}", s, ("name", "args", "doc"))
    for e in raw["errors"]:
        check_keys(f"dbus.yaml: error {e.get('name')}", e, ("name", "doc"))
    unique("dbus.yaml: errors", "name", [(e["name"], e["name"]) for e in raw["errors"]])
    members = raw["properties"] + raw["methods"] + raw["signals"]
    unique("dbus.yaml", "name", [(m["name"], m["name"]) for m in members])
    return raw


class Schema:
    def __init__(self, folder):
        self.errors = load_errors(load_yaml(folder / "errors.yaml"))
        names = {e["name"] for e in self.errors}
        self.data = Protocol("data.yaml", load_yaml(folder / "data.yaml"), names)
        self.peer = Protocol("peer.yaml", load_yaml(folder / "peer.yaml"), names)
        self.config = load_config(load_yaml(folder / "config.yaml"))
        metrics = load_yaml(folder / "metrics.yaml")
        self.metrics = load_metrics(metrics)
        self.families = load_families(metrics)
        self.dbus = load_dbus(load_yaml(folder / "dbus.yaml"))
        self.drayctl = drayctl.load(load_yaml(folder / "drayctl.yaml"), self.dbus)
        self.state = state.load(load_yaml(folder / "state.yaml"))
        self.version = re.search(r'^__version__ = "(.*)"$', VERSION.read_text(encoding="utf-8"), re.M)[1]
        self.monitoring = Monitoring(load_yaml(folder / "monitoring.yaml"), self.metrics, self.families)
        self.kubernetes = Kubernetes(load_yaml(folder / "kubernetes.yaml"), self.version)
