# SPDX-License-Identifier: Apache-2.0
"""Writes test vectors: tests/data/golden/*.hex, packed by the generated Python, and
tests/unit/schema_vectors.[ch], which check that C decodes the same values."""

import struct

from generator.python import code, ident
from generator.text import banner, quoted

REQUEST_ID = 0x1122334455667788
VARIANTS = ("full", "empty")

HEADER_H = banner("/*", " */") + """/* clang-format off */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "lib/err.h"

#define VECTOR_REQUEST_ID 0x1122334455667788u

enum vector_protocol { VECTOR_DATA, VECTOR_PEER, VECTOR_PROTOCOL_N };

/* A message with a different value in each field. */
struct vector {
	enum vector_protocol protocol;
	uint16_t type;
	const char *name;
	size_t min, body_max; /* of this version; min: all fields of variable size are empty */
	const char *(*check)(const void *body, size_t len); /* the first field with a wrong value, or NULL */
	int (*encode)(void *buf, size_t cap);
	int (*encode_empty)(void *buf, size_t cap); /* fields are 0 where that is valid, and empty if of variable size */
	unsigned int n_older;
	const size_t *older; /* lengths of the bodies of earlier minor versions */
};
extern const struct vector vectors[];
extern const size_t n_vectors;

/* A value written over a part of that message's body, and the error that results (0: none). */
struct vector_poke {
	const struct vector *vector;
	const char *field;
	size_t at;
	unsigned int size;
	uint64_t value;
	uint32_t code;
};
extern const struct vector_poke vector_pokes[];
extern const size_t n_vector_pokes;

/* A string, blob or vector. at: offset of its count in a message whose fields of variable size are all empty. */
struct vector_limit {
	const struct vector *vector;
	const char *field;
	size_t at, unit, max;
	const char *fill; /* one element */
};
extern const struct vector_limit vector_limits[];
extern const size_t n_vector_limits;

/* A record in wire form. */
struct vector_record {
	const char *name;
	size_t size;
	const char *wire;
	const char *(*check)(const void *wire);
	void (*put)(void *wire);
};
extern const struct vector_record vector_records[];
extern const size_t n_vector_records;

/* Decodes a body and encodes the result. Returns bytes written, -EPROTO (reason in reterr), -ENOENT for an unknown type. */
int vector_recode(enum vector_protocol protocol, unsigned int type, const void *body, size_t len,
		  uint64_t request_id, void *buf, size_t cap, struct dray_err *reterr);
"""


def pattern(n, seed):
    return bytes((seed * 29 + 7 * i + 1) & 0xff for i in range(n))


def c_bytes(raw):
    return '"' + "".join(f"\\{b:03o}" for b in raw) + '"'


def full_value(pr, f, seed):
    if f.enum:
        return pr.enums[f.enum]["values"][-1]["value"]
    if f.bits:
        return pr.mask(f.bits)
    if f.zero:
        return 0
    if f.type == "str":
        text = f"{f.name} \u00fc\u2713 \U0001f6d2"
        while len(text.encode()) > f.max:
            text = text[:-1]
        return text
    if f.type == "blob":
        return pattern(min(40 + seed, f.max), seed)
    if f.type == "vec":
        return [record_values(pr, pr.records[f.of], seed + i) for i in range(min(3, f.max))]
    if f.type.startswith("bytes"):
        return pattern(f.size, seed)
    return int.from_bytes(pattern(f.size, seed), "little", signed=f.type[0] == "i")


def record_values(pr, r, seed):
    return tuple(full_value(pr, f, seed + i) for i, f in enumerate(r.fields) if not f.reserved)


def record_wire(r, values):
    return struct.pack("<" + "".join(code(f) for f in r.fields), *values)


def values_of(pr, m, variant):
    out = {}
    for i, f in enumerate(m.fields):
        if f.reserved:
            continue
        if variant == "full":
            out[f.name] = full_value(pr, f, i)
        elif f.enum and not f.open:
            out[f.name] = pr.enums[f.enum]["values"][0]["value"]
    return out


def wire_value(pr, f, value):
    """Bytes of one field."""
    if f.type == "str":
        value = value.encode()
    if f.type == "vec":
        return struct.pack("<I", len(value)) + b"".join(record_wire(pr.records[f.of], v) for v in value)
    if f.var:
        return struct.pack("<I", len(value)) + value
    return struct.pack("<" + code(f), *([] if f.reserved else [value]))


def places(pr, m, values):
    """Offset of each field in the body."""
    at, out = 0, {}
    for f in m.fields:
        out[f.name] = at
        empty = "" if f.type == "str" else b"" if f.type == "blob" else [] if f.type == "vec" else \
            bytes(f.size) if f.type.startswith("bytes") else 0
        at += len(wire_value(pr, f, values.get(f.name, empty)))
    return out


def differs(f, value, var):
    if f.type == "str":
        value = value.encode()
    if f.var and f.type != "vec":
        return f"{var}{f.name}.n != {len(value)} || memcmp({var}{f.name}.p, {c_bytes(value)}, {len(value)})"
    if f.type.startswith("bytes"):
        return f"memcmp({var}{f.name}, {c_bytes(value)}, {f.size})"
    return f"{var}{f.name} != {literal(f, value)}"


def literal(f, value):
    return f"INT64_C({value})" if f.type == "i64" else f"UINT{8 * f.size}_C(0x{value:x})"


def initialiser(f, value, pr):
    if f.type == "vec":
        wire = wire_value(pr, f, value)[4:]
        return f".{f.name} = {{ (const uint8_t *){c_bytes(wire)}, {len(value)} }}"
    if f.type == "str":
        return f".{f.name} = {{ {c_bytes(value.encode())}, {len(value.encode())} }}"
    if f.type == "blob":
        return f".{f.name} = {{ (const uint8_t *){c_bytes(value)}, {len(value)} }}"
    if f.type.startswith("bytes"):
        return f".{f.name} = {{ {', '.join(str(b) for b in value)} }}"
    return f".{f.name} = {literal(f, value)}"


def older_ends(pr, m):
    """Sizes of the full body in each earlier minor version that differs."""
    values = values_of(pr, m, "full")
    return [sum(len(wire_value(pr, f, values.get(f.name, 0))) for f in m.fields if f.since < since)
            for since in sorted({f.since for f in m.fields if f.since})]


def message_c(pr, m):
    name, values = f"{pr.prefix}_{m.name}", values_of(pr, m, "full")
    shown = [f for f in m.fields if not f.reserved]
    out = f"\nstatic const char *check_{name}(const void *body, size_t len)\n{{\n"
    if not m.fields:
        out += "\treturn NULL;\n}\n\n"
        out += f"static int encode_{name}(void *buf, size_t cap)\n{{\n" + encode_body(pr, name, shown, values)
        return out + f"\nstatic int encode_empty_{name}(void *buf, size_t cap)\n{{\n" + encode_body(pr, name, shown, values)
    out += f"\tstruct {name} m;\n\n"
    out += f"\tif ({name}_decode(body, len, &m, NULL) < 0)\n\t\treturn \"(refused)\";\n"
    for f in shown:
        if f.type == "vec":
            wire = wire_value(pr, f, values[f.name])[4:]
            test = f"m.{f.name}.n != {len(values[f.name])} || memcmp(m.{f.name}.p, {c_bytes(wire)}, {len(wire)})"
        else:
            test = differs(f, values[f.name], "m.")
        out += f"\tif ({test})\n\t\treturn {quoted(f.name)};\n"
    out += f"\treturn NULL;\n}}\n\nstatic int encode_{name}(void *buf, size_t cap)\n{{\n"
    out += encode_body(pr, name, shown, values)
    out += f"\nstatic int encode_empty_{name}(void *buf, size_t cap)\n{{\n"
    return out + encode_body(pr, name, shown, values_of(pr, m, "empty"))


def encode_body(pr, name, shown, values):
    rows = "".join(f"\t\t{initialiser(f, values[f.name], pr)},\n" for f in shown if f.name in values)
    decl = f"\tconst struct {name} m = {{\n{rows}\t}};\n\n" if rows else f"\tconst struct {name} m = {{}};\n\n"
    arg = "&m"
    if not shown:
        decl, arg = "", "NULL"
    return f"{decl}\treturn {name}_encode(buf, cap, VECTOR_REQUEST_ID, {arg});\n}}\n"


def record_c(pr, r):
    name, values = f"{pr.prefix}_{r.name}", record_values(pr, r, 3)
    shown = [f for f in r.fields if not f.reserved]
    out = f"\nstatic const char *check_record_{name}(const void *wire)\n{{\n\tstruct {name} r;\n\n\t{name}_get(wire, &r);\n"
    for f, v in zip(shown, values):
        out += f"\tif ({differs(f, v, 'r.')})\n\t\treturn {quoted(f.name)};\n"
    rows = "".join(f"\t\t{initialiser(f, v, pr)},\n" for f, v in zip(shown, values))
    out += f"\treturn NULL;\n}}\n\nstatic void put_record_{name}(void *wire)\n{{\n"
    return out + f"\tconst struct {name} r = {{\n{rows}\t}};\n\n\t{name}_put(wire, &r);\n}}\n"


def bad_values(pr, f):
    """Values that must be refused with their code, or accepted if the field is open."""
    if f.enum:
        yield max(v["value"] for v in pr.enums[f.enum]["values"]) + 1, "0" if f.open else "DRAY_E_INVALID"
        yield (1 << 8 * f.size) - 1, "0" if f.open else "DRAY_E_INVALID"
    elif f.bits:
        unknown = ~pr.mask(f.bits) & ((1 << 8 * f.size) - 1)
        yield unknown & -unknown, "0" if f.open else "DRAY_E_UNSUPPORTED"
        yield 1 << (8 * f.size - 1), "0" if f.open else "DRAY_E_UNSUPPORTED"
    elif f.zero:
        yield 1, "DRAY_E_UNSUPPORTED"


def pokes(pr, m, index):
    values = values_of(pr, m, "full")
    at = places(pr, m, values)
    rows = []
    for f in m.fields:
        where = f"{m.name}.{f.name}"
        for value, error in bad_values(pr, f):
            rows.append((where, at[f.name], f.size, value, error))
        if f.type == "str":
            for byte in (0x00, 0x0a, 0x7f, 0x80, 0xff):
                rows.append((where, at[f.name] + 4, 1, byte, "DRAY_E_INVALID"))
        if f.type == "vec":
            r = pr.records[f.of]
            for g in r.fields:
                for value, error in bad_values(pr, g):
                    rows.append((f"{where}.{g.name}", at[f.name] + 4 + (len(values[f.name]) - 1) * r.size + g.offset, g.size, value, error))
        if f.reserved:
            rows.append((where, at[f.name], 1, 0xff, "0"))
    return "".join(f"\t{{ &vectors[{index}], {quoted(w)}, {a}, {s}, UINT64_C(0x{v:x}), {e} }},\n"
                   for w, a, s, v, e in rows)


def limits(pr, m, index):
    at, out = places(pr, m, values_of(pr, m, "empty")), ""
    for f in m.fields:
        if f.var:
            fill = b"a"
            if f.type == "vec":
                fill = record_wire(pr.records[f.of], record_values(pr, pr.records[f.of], 0))
            out += (f"\t{{ &vectors[{index}], {quoted(m.name + '.' + f.name)}, {at[f.name]}, {pr.unit(f)}, {f.max},\n"
                    f"\t  {c_bytes(fill)} }},\n")
    return out


def recode_c(pr):
    px = pr.prefix
    return (f"\nstatic int recode_{pr.name}(unsigned int type, const void *body, size_t len, uint64_t id,\n"
            f"\tvoid *buf, size_t cap, struct dray_err *reterr)\n{{\n\tunion {px}_body m;\n"
            f"\tint r = {px}_body_decode(type, body, len, &m, reterr);\n\n"
            f"\treturn r < 0 ? r : {px}_body_encode(type, buf, cap, id, &m);\n}}\n")


def source(protocols):
    out = banner("/*", " */") + '/* clang-format off */\n#include "tests/unit/schema_vectors.h"\n\n'
    out += "#include <errno.h>\n#include <string.h>\n\n"
    out += "".join(f'#include "schema/gen/{pr.name}.h"\n' for pr in protocols)
    out += '#include "schema/gen/errors.h"\n'
    rows = [(pr, m) for pr in protocols for m in pr.messages]
    records = [(pr, r) for pr in protocols for r in pr.records.values()]
    out += "".join(message_c(pr, m) for pr, m in rows) + "".join(record_c(pr, r) for pr, r in records)
    out += "\nconst struct vector vectors[] = {\n"
    for pr, m in rows:
        name = f"{pr.prefix}_{m.name}"
        older = older_ends(pr, m)
        ends = f"(const size_t[]){{ {', '.join(map(str, older))} }}" if older else "NULL"
        out += (f"\t{{ VECTOR_{pr.name.upper()}, {name.upper()}, {quoted(m.name)}, {sum(f.size for f in m.fields)}, "
                f"{name.upper()}_BODY_MAX,\n\t  check_{name}, encode_{name}, encode_empty_{name}, {len(older)}, {ends} }},\n")
    out += "};\n\nconst struct vector_poke vector_pokes[] = {\n"
    out += "".join(pokes(pr, m, i) for i, (pr, m) in enumerate(rows))
    out += "};\n\nconst struct vector_limit vector_limits[] = {\n"
    out += "".join(limits(pr, m, i) for i, (pr, m) in enumerate(rows))
    out += "};\n\nconst struct vector_record vector_records[] = {\n"
    for pr, r in records:
        name = f"{pr.prefix}_{r.name}"
        wire = record_wire(r, record_values(pr, r, 3))
        out += (f"\t{{ {quoted(name)}, {name.upper()}_SIZE,\n\t  {c_bytes(wire)},\n"
                f"\t  check_record_{name}, put_record_{name} }},\n")
    out += "};\n"
    for what in ("vectors", "vector_pokes", "vector_limits", "vector_records"):
        out += f"const size_t n_{what} = sizeof({what}) / sizeof({what}[0]);\n"
    out += "".join(recode_c(pr) for pr in protocols)
    out += ("\nint vector_recode(enum vector_protocol protocol, unsigned int type, const void *body, size_t len,\n"
            "\tuint64_t request_id, void *buf, size_t cap, struct dray_err *reterr)\n{\n"
            "\tif (protocol == VECTOR_DATA)\n\t\treturn recode_data(type, body, len, request_id, buf, cap, reterr);\n"
            "\treturn recode_peer(type, body, len, request_id, buf, cap, reterr);\n}\n")
    return out


def golden(pr, module, low):
    """Lines of NAME VARIANT HEX, each with a whole message."""
    out = banner("#")
    for m in pr.messages:
        for variant in VARIANTS:
            values = {ident(k): v for k, v in values_of(pr, m, variant).items()}
            packed = module[f"{low}pack_{m.name}"](REQUEST_ID, **values)
            out += f"{m.name} {variant} {packed.hex()}\n"
    return out


def write(schema, python_source):
    module = {}
    exec(compile(python_source, "codec.py", "exec"), module)
    return {"tests/unit/schema_vectors.h": HEADER_H,
            "tests/unit/schema_vectors.c": source([schema.data, schema.peer]),
            "tests/data/golden/data.hex": golden(schema.data, module, ""),
            "tests/data/golden/peer.hex": golden(schema.peer, module, "peer_")}
