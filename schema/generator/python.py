# SPDX-License-Identifier: Apache-2.0
"""Writes tests/wire/codec.py, the same codec in pure Python, and client/python/dray/_schema.py, the constants of the public package."""

import keyword
import textwrap

from generator.model import SchemaError
from generator.text import Names, banner, camel

WIDTH = 100
LOCALS = {"n", "at", "left", "body", "record", "request_id", "len"}  # of the generated functions
CODES = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i64": "q"}

HEAD = '''"""dray's error codes and protocols: constants, and a pack and an unpack function for each message.

pack_x(request_id, field=...) returns header and body; fields that are not given are 0 or empty. It
raises ValueError if a field is over its limit, or a string of a request is not valid text. unpack_x(body)
returns a named tuple, or raises WireError with the code of the C decoder. A vec is packed from bytes in
wire form or from tuples, and unpacked to a list of named tuples. Names of the peer protocol begin with
peer_, Peer or PEER_; names of the data protocol have no prefix.
"""

from collections import namedtuple
from struct import Struct
'''

PACKAGE_HEAD = '''"""dray's error codes, limits and enumerations.

X_NAMES has the names of an enumeration by value. An agent may send values that are newer than this file.
"""
'''

HELPERS = '''

class WireError(Exception):
    """A message was refused; code is one of E_*."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


def error_name(code):
    return ERRORS[code][0] if code < len(ERRORS) else "unknown"


def _short(what):
    return WireError(E_TRUNCATED, f"{what} is shorter than its fields")


def _large(what, n, most):
    return WireError(E_TOO_LARGE, f"{what} has {n}, the limit is {most}")


def _value(what, v):
    return WireError(E_INVALID, f"{what} has no value {v}")


def _bits(what, unknown):
    return WireError(E_UNSUPPORTED, f"{what} has unknown bits 0x{unknown:x}")


def _control(c):
    return c < " " or "\\x7f" <= c <= "\\x9f"


def _text(what, raw):
    """A string from a message."""
    try:
        text = str(raw, "utf-8")
    except UnicodeDecodeError:
        text = "\\n"
    if any(map(_control, text)):
        raise WireError(E_INVALID, f"{what} is not UTF-8 text without control characters")
    return text


def _clean(raw):
    """Invalid bytes become '?', one for each."""
    text = raw.decode("utf-8", "surrogateescape")
    return "".join("?" if "\\udc80" <= c <= "\\udcff" else "?" * len(c.encode()) if _control(c) else c
                   for c in text).encode()


def _put_text(what, text, most, strict):
    raw = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else bytes(text)
    if len(raw) > most:
        raise ValueError(f"{what} has {len(raw)}, the limit is {most}")
    clean = _clean(raw)
    if strict and clean != raw:
        raise ValueError(f"{what} is not UTF-8 text without control characters")
    return clean


def _put_blob(what, blob, most):
    if len(blob) > most:
        raise ValueError(f"{what} has {len(blob)}, the limit is {most}")
    return blob


def _put_vec(what, items, record, most):
    """Wire form and count."""
    if not isinstance(items, (bytes, bytearray, memoryview)):
        items = b"".join([record.pack(*item) for item in items])
    n, rest = divmod(len(items), record.size)
    if rest:
        raise ValueError(f"{what} is not a whole number of records")
    if n > most:
        raise ValueError(f"{what} has {n}, the limit is {most}")
    return items, n
'''


def ident(name):
    return name + "_" if keyword.iskeyword(name) else name


def code(f):
    if f.reserved:
        return f"{f.size}x"
    if f.type.startswith("bytes"):
        return f"{f.size}s"
    return "I" if f.var else CODES[f.type]


def fmt(fields):
    return '"<' + "".join(code(f) for f in fields) + '"'


def comment(text):
    return textwrap.fill(text, WIDTH, initial_indent="# ", subsequent_indent="# ") + "\n"


def wrapped(head, items, tail, width=WIDTH):
    """head item, item, ... tail, with lines broken between items and aligned under the first."""
    lines, line = [], head
    pad = " " * len(head)
    for i, item in enumerate(items):
        piece = item + (", " if i < len(items) - 1 else tail)
        if len(line) + len(piece.split("\n")[0].rstrip()) > width and line not in (pad, head):
            lines.append(line.rstrip())
            line = pad
        line += piece
    if not items:
        line += tail
    return "\n".join(lines + [line]) + "\n"


class Writer:
    def __init__(self, protocol, errors, names, low, title, up):
        self.pr, self.names, self.low, self.title, self.up = protocol, names, low, title, up
        self.codes = {e["name"]: e for e in errors}

    def const(self, name, value, doc="", what=""):
        self.names.add(self.up + name, what or name)
        line = f"{self.up}{name} = {value}" + (f"  # {doc}" if doc else "")
        if len(line) <= WIDTH:
            return line + "\n"
        return f"{comment(doc)}{self.up}{name} = {value}\n"

    def check(self, f, what, pad="    "):
        if not f.checked:
            return ""
        name, where = ident(f.name), f'"{what}.{f.name}"'
        if f.enum:
            return f"{pad}if {name} not in {self.up}{f.enum.upper()}_NAMES:\n{pad}    raise _value({where}, {name})\n"
        unknown = f"{name} & ~{self.up}{f.bits.upper()}_ALL" if f.bits else name
        return f"{pad}if {unknown}:\n{pad}    raise _bits({where}, {unknown})\n"

    def write(self):
        return self.title_line() + self.const("MAGIC", f"0x{self.pr.magic:08x}") + self.constants() + self.messages()

    def title_line(self):
        return f"\n# --- {self.pr.name} protocol ---\n\n"

    def constants(self):
        """Versions, limits, enumerations and bits."""
        pr = self.pr
        out = self.const("MAJOR", pr.major) + self.const("MINOR", pr.minor)
        for n in pr.limits + pr.constants:
            out += self.const(n["name"].upper(), n["value"], n["doc"])
        for e in pr.enums.values():
            out += "\n"
            for v in e["values"]:
                out += self.const(f"{e['name']}_{v['name']}".upper(), v["value"], v["doc"])
            pairs = [f'{v["value"]}: "{v["name"]}"' for v in e["values"]]
            self.names.add(f"{self.up}{e['name'].upper()}_NAMES", e["name"])
            out += f"{self.up}{e['name'].upper()}_NAMES = {{{', '.join(pairs)}}}\n"
        for b in pr.bits.values():
            out += "\n"
            for v in b["values"]:
                out += self.const(f"{b['name']}_{v['name']}".upper(), v["value"], v["doc"])
            out += self.const(f"{b['name']}_all".upper(), pr.mask(b["name"]))
        return out

    def messages(self):
        """Layouts in shared memory, records, and the functions of each message."""
        pr, out = self.pr, ""
        for lay in pr.layouts:
            out += "\n" + comment(lay.doc)
            for f in lay.fields:
                out += self.const(f"{lay.name}_{f.name}".upper(), f.offset, f.doc)
            out += self.const(f"{lay.name}_size".upper(), lay.size)
        out += "\n"
        for m in pr.messages:
            out += self.const(f"MSG_{m.name.upper()}", f"0x{m.type:04x}")
        rows = [f'    {self.up}MSG_{m.name.upper()}: "{m.name}",\n' for m in pr.messages]
        out += f"{self.up}TYPE_NAMES = {{\n{''.join(rows)}}}\n"
        for r in pr.records.values():
            out += self.record(r)
        out += self.header()
        for m in pr.messages:
            out += self.pack(m) + self.unpack(m)
        rows = [f"    {self.up}MSG_{m.name.upper()}: {self.low}unpack_{m.name},\n" for m in pr.messages]
        out += f"\n\n{self.up}UNPACK = {{\n{''.join(rows)}}}\n"
        return out

    def tuple_type(self, name, fields):
        names = [ident(f.name) for f in fields if not f.reserved]
        self.names.add(name, "type")
        line = f'{name} = namedtuple("{name}", "{" ".join(names)}")\n'
        if len(line) <= WIDTH:
            return line
        text = textwrap.fill(" ".join(names), WIDTH - 10, initial_indent="    ", subsequent_indent="    ")
        return f'{name} = namedtuple("{name}", """\n{text}""")\n'

    def record(self, r):
        up, cls = f"{self.up}{r.name.upper()}", self.title + camel(r.name)
        out = "\n" + comment(r.doc) + self.tuple_type(cls, r.fields)
        self.names.add(up, "record")
        out += f"{up} = Struct({fmt(r.fields)})  # {r.size} bytes\n"
        if r.checked:
            shown = [ident(f.name) if f.checked else "_" for f in r.fields if not f.reserved]
            out += f"\n\ndef {self.low}check_{r.name}(record):\n    {', '.join(shown)} = record\n"
            out += "".join(self.check(f, r.name) for f in r.fields) + "    return record\n\n"
        return out

    def header(self):
        up, low = self.up, self.low
        cls = f"{self.title}Header"
        out = f"\n{self.tuple_type(cls, self.pr.header.fields)}{up}HEADER = Struct({fmt(self.pr.header.fields)})\n"
        out += f'''

def {low}unpack_header(raw):
    if len(raw) >= 4 and int.from_bytes(raw[:4], "little") != {up}MAGIC:
        raise WireError(E_BAD_MAGIC, "magic is 0x%08x, not 0x%08x"
                        % (int.from_bytes(raw[:4], "little"), {up}MAGIC))
    if len(raw) < {up}HEADER.size:
        raise _short("header")
    header = {cls}._make({up}HEADER.unpack_from(raw))
    if header.major != {up}MAJOR:
        raise WireError(E_VERSION, "major version is %d, this side speaks %d to %d"
                        % (header.major, {up}MAJOR, {up}MAJOR))
    if header.flags:
        raise _bits("header.flags", header.flags)
    if header.length > {up}MESSAGE_MAX - {up}HEADER.size:
        raise _large("header.length", header.length, {up}MESSAGE_MAX - {up}HEADER.size)
    return header


def {low}unpack(packet):
    """Header and body of a whole message."""
    header = {low}unpack_header(packet)
    got = len(packet) - {up}HEADER.size
    if got < header.length:
        raise _short("packet")
    if got > header.length:
        raise WireError(E_INVALID, "header.length is %d, the packet holds %d bytes of body"
                        % (header.length, got))
    if header.type not in {up}UNPACK:
        raise WireError(E_UNKNOWN_TYPE, f"message type 0x{{header.type:04x}} is unknown")
    return header, {up}UNPACK[header.type](memoryview(packet)[{up}HEADER.size:])


def {low}build(type_, request_id, *parts):
    """A message of a header and the parts of a body."""
    length = sum(map(len, parts))
    header = {up}HEADER.pack({up}MAGIC, {up}MAJOR, {up}MINOR, type_, 0, length, request_id)
    return b"".join((header, *parts))
'''
        return out

    def runs(self, m):
        return [run for _, group in m.parts() for run in group]

    def structs(self, m):
        out = ""
        for i, run in enumerate(self.runs(m)):
            if [f.type for f in run] not in (["str"], ["blob"], ["vec"]):
                out += f"_{self.up}{m.name.upper()}_{i} = Struct({fmt(run)})\n"
        return out

    def struct_of(self, m, i, run):
        return "_U32" if run[0].var else f"_{self.up}{m.name.upper()}_{i}"

    def default(self, f):
        if f.type == "str":
            return '""'
        if f.type.startswith("bytes"):
            return f"bytes({f.size})"
        return 'b""' if f.var else "0"

    def pack(self, m):
        cls, shown = self.title + camel(m.name), [f for f in m.fields if not f.reserved]
        for f in shown:
            if f.name in LOCALS:
                raise SchemaError(f"{self.pr.file}: message {m.name}: field {f.name}: the name is taken in Python")
        out = "\n\n" + comment(m.doc)
        if shown:
            out += self.tuple_type(cls, m.fields)
        else:
            self.names.add(cls, "type")
            out += f"{cls} = namedtuple(\"{cls}\", \"\")\n"
        out += self.structs(m)
        name = self.names.add(f"{self.low}pack_{m.name}", "message")
        args = [f"{ident(f.name)}={self.default(f)}" for f in shown]
        out += "\n\n" + wrapped(f"def {name}(", ["request_id=0"] + args, "):")
        for f in shown:
            where = f'"{m.name}.{f.name}"'
            if f.type == "str":
                out += f"    {f.name} = _put_text({where}, {f.name}, {f.max}, {m.is_request})\n"
            elif f.type == "blob":
                out += f"    {f.name} = _put_blob({where}, {f.name}, {f.max})\n"
            elif f.type == "vec":
                out += f"    {f.name}, n_{f.name} = _put_vec({where}, {f.name}, {self.up}{f.of.upper()}, {f.max})\n"
        parts = [f"{self.up}MSG_{m.name.upper()}", "request_id"]
        for i, run in enumerate(self.runs(m)):
            values = [f"n_{f.name}" if f.type == "vec" else f"len({f.name})" if f.var else ident(f.name)
                      for f in run if not f.reserved]
            pad = " " * len(f"    return {self.low}build(")
            parts.append(wrapped(f"{pad}{self.struct_of(m, i, run)}.pack(", values, ")", WIDTH - 10).strip())
            if run[-1].var:
                parts.append(run[-1].name)
        return out + wrapped(f"    return {self.low}build(", parts, ")")

    def unpack(self, m):
        cls, shown = self.title + camel(m.name), [f for f in m.fields if not f.reserved]
        name = self.names.add(f"{self.low}unpack_{m.name}", "message")
        out = f"\n\ndef {name}(body):\n"
        if not m.fields:
            return out + f"    return {cls}()\n"
        out += "    left = len(body)\n"
        if len(self.runs(m)) > 1 or self.runs(m)[0][-1].var:
            out += "    at = 0\n"
        i = 0
        for since, runs in m.parts():
            pad = "    "
            if since:
                for run in runs:
                    for f in run:
                        if not f.reserved:
                            empty = "[]" if f.type == "vec" else self.default(f)
                            out += f"    {ident(f.name)} = {empty}\n"
                out += f"    if left:  # since minor version {since}\n"
                pad += "    "
            for run in runs:
                out += self.unpack_run(m, i, run, pad, len(self.runs(m)) == 1)
                i += 1
        return out + wrapped(f"    return {cls}(", [ident(f.name) for f in shown], ")")

    def unpack_run(self, m, i, run, pad, only):
        size = sum(f.size for f in run)
        out = f"{pad}if left < {size}:\n{pad}    raise _short(\"{m.name}\")\n"
        values = ["n" if f.var else ident(f.name) for f in run if not f.reserved]
        fixed = only and not run[-1].var
        if values:
            comma = "," if len(values) == 1 else ""
            out += wrapped(pad + ("(" if len(values) > 1 else ""), [v + comma for v in values],
                           f"{')' if len(values) > 1 else ''} = {self.struct_of(m, i, run)}.unpack_from(body"
                           f"{'' if fixed else ', at'})")
        for f in run:
            out += self.check(f, m.name, pad)
        if fixed:
            return out
        out += f"{pad}at += {size}\n{pad}left -= {size}\n"
        f = run[-1]
        if not f.var:
            return out
        where, unit = f'"{m.name}.{f.name}"', self.pr.unit(f)
        n = "n" if unit == 1 else f"n * {unit}"
        out += (f"{pad}if n > {f.max}:\n{pad}    raise _large({where}, n, {f.max})\n"
                f"{pad}if left < {n}:\n{pad}    raise _short(\"{m.name}\")\n")
        piece = f"body[at:at + {n}]"
        if f.type == "str":
            out += f"{pad}{f.name} = _text({where}, {piece})\n"
        elif f.type == "blob":
            out += f"{pad}{f.name} = _copy({piece})\n"
        else:
            cls = self.title + camel(f.of)
            out += f"{pad}{f.name} = [{cls}._make(r) for r in {self.up}{f.of.upper()}.iter_unpack({piece})]\n"
            if self.pr.records[f.of].checked:
                out += f"{pad}for record in {f.name}:\n{pad}    {self.low}check_{f.of}(record)\n"
        return out + f"{pad}at += {n}\n{pad}left -= {n}\n"


def errors(schema, names):
    out = "# --- errors ---\n\n"
    for e in schema.errors:
        out += f"{names.add('E_' + e['name'].upper(), 'error')} = {e['code']}\n"
    out += "\n# Name, meaning, what to do, by code.\nERRORS = (\n"
    for e in schema.errors:
        row = [f"{e[k]!r}".replace("'", '"') if "'" not in e[k] and '"' not in e[k] else f"{e[k]!r}"
               for k in ("name", "doc", "fix")]
        out += wrapped("    (", row, "),")
    return out + ")\n"


def codec(schema):
    names = Names("codec.py", SchemaError)
    out = banner("#") + HEAD + "\n_U32 = Struct(\"<I\")\n_copy = bytes  # some fields are called bytes\n\n"
    out += errors(schema, names) + HELPERS + "\n"
    out += Writer(schema.data, schema.errors, names, "", "", "").write()
    return out + Writer(schema.peer, schema.errors, names, "peer_", "Peer", "PEER_").write()


def package(schema):
    names = Names("_schema.py", SchemaError)
    data = Writer(schema.data, schema.errors, names, "", "", "")
    return banner("#") + PACKAGE_HEAD + "\n" + errors(schema, names) + data.title_line() + data.constants()


def write(schema):
    text = codec(schema)
    return {"tests/wire/codec.py": text, "client/python/dray/_schema.py": package(schema)}
