# SPDX-License-Identifier: Apache-2.0
"""Writes gen/data.[ch] and gen/peer.[ch]: constants, records and the codec of one protocol."""

from generator.model import SchemaError
from generator.text import Names, banner, header_file, quoted

CTYPES = {"u8": "uint8_t", "u16": "uint16_t", "u32": "uint32_t", "u64": "uint64_t", "i64": "int64_t",
          "str": "struct dray_str", "blob": "struct dray_blob", "vec": "struct dray_vec"}

CHECK_H = banner("/*", " */") + """/* Helpers of the decoders and encoders of both protocols. */
#pragma once

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "lib/err.h"
#include "lib/wire.h"
#include "schema/gen/errors.h"

static inline int check_short(struct dray_err *reterr, const char *what)
{
	return dray_err_set(reterr, -EPROTO, DRAY_E_TRUNCATED, "%s is shorter than its fields", what);
}

static inline int check_large(struct dray_err *reterr, const char *what, uint32_t n, uint32_t max)
{
	return dray_err_set(reterr, -EPROTO, DRAY_E_TOO_LARGE, "%s has %" PRIu32 ", the limit is %" PRIu32,
			    what, n, max);
}

static inline int check_value(struct dray_err *reterr, const char *what, uint64_t v)
{
	return dray_err_set(reterr, -EPROTO, DRAY_E_INVALID, "%s has no value %" PRIu64, what, v);
}

static inline int check_bits(struct dray_err *reterr, const char *what, uint64_t unknown)
{
	return dray_err_set(reterr, -EPROTO, DRAY_E_UNSUPPORTED, "%s has unknown bits 0x%" PRIx64, what,
			    unknown);
}

static inline int check_text(struct dray_err *reterr, const char *what)
{
	return dray_err_set(reterr, -EPROTO, DRAY_E_INVALID,
			    "%s is not UTF-8 text without control characters", what);
}

/* Bytes of the character at p; 0 if it is not UTF-8, or a control character. n is at least 1. */
static inline size_t text_char(const uint8_t *p, size_t n)
{
	uint32_t c = p[0], low;
	size_t size;

	if (c < 0x80)
		return c >= 0x20 && c != 0x7f;
	if (c >= 0xc2 && c <= 0xdf) {
		size = 2;
		low = 0xa0; /* U+0080 to U+009F are control characters */
		c &= 0x1f;
	} else if ((c & 0xf0) == 0xe0) {
		size = 3;
		low = 0x800;
		c &= 0x0f;
	} else if (c >= 0xf0 && c <= 0xf4) {
		size = 4;
		low = 0x10000;
		c &= 0x07;
	} else {
		return 0;
	}
	if (n < size)
		return 0;
	for (size_t i = 1; i < size; i++) {
		if ((p[i] & 0xc0) != 0x80)
			return 0;
		c = c << 6 | (p[i] & 0x3f);
	}
	return c < low || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff) ? 0 : size;
}

static inline bool text_ok(struct dray_str s)
{
	const uint8_t *p = (const uint8_t *)s.p;

	for (size_t i = 0, k; i < s.n; i += k) {
		k = text_char(p + i, s.n - i);
		if (!k)
			return false;
	}
	return true;
}

static inline uint8_t *put_bytes(uint8_t *p, const void *src, size_t n)
{
	if (n)
		memcpy(p, src, n);
	return p + n;
}

/* Copies text. Invalid bytes become '?', so that the receiver accepts an answer in any case. */
static inline uint8_t *put_text(uint8_t *p, struct dray_str s)
{
	const uint8_t *src = (const uint8_t *)s.p;

	for (size_t i = 0, k; i < s.n; i += k ? k : 1) {
		k = text_char(src + i, s.n - i);
		if (k)
			memcpy(p + i, src + i, k);
		else
			p[i] = '?';
	}
	return p + s.n;
}
"""


class Writer:
    def __init__(self, protocol):
        self.pr, self.px, self.up = protocol, protocol.prefix, protocol.prefix.upper()
        self.names = Names(protocol.file, SchemaError)

    def define(self, name, value, what, doc=""):
        self.names.add(name, what)
        return f"#define {name} {value}" + (f" /* {doc} */" if doc else "") + "\n"

    def get(self, f, at):
        if f.type == "u8":
            return f"p[{at}]"
        bits = int(f.type[1:])
        return ("(int64_t)" if f.type[0] == "i" else "") + f"dray_le_get{bits}(p + {at})"

    def put(self, f, at, value):
        if f.reserved:
            return f"memset(p + {at}, 0, {f.size});"
        if f.type.startswith("bytes"):
            return f"memcpy(p + {at}, {value}, {f.size});"
        if f.type == "u8":
            return f"p[{at}] = {value};"
        return f"dray_le_put{int(f.type[1:])}(p + {at}, {'(uint64_t)' if f.type[0] == 'i' else ''}{value});"

    def member(self, f):
        if f.type.startswith("bytes"):
            return f"uint8_t {f.name}[{f.size}]"
        return f"{CTYPES[f.type]} {f.name}"

    def members(self, fields, pad="\t"):
        return "".join(f"{pad}{self.member(f)}; /* {f.doc} */\n" for f in fields if not f.reserved)

    def struct(self, name, fields, doc, shared=None):
        """`shared`: fields that the struct has in common with others; they are also a struct member."""
        out = f"/* {doc} */\n" if doc else ""
        out += f"struct {self.names.add(name, 'struct')} {{\n"
        if shared:
            out += f"\tunion {{\n\t\tstruct {self.px}_{shared.name} {shared.member};\n\t\tstruct {{\n"
            out += self.members(shared.of(fields), "\t\t\t") + "\t\t};\n\t};\n"
        return out + self.members([f for f in fields if not shared or f.name not in shared.fields]) + "};\n"

    def shared(self):
        out = ""
        for s in self.pr.shared.values():
            out += f"\n/* {s.doc} */\nstruct {self.names.add(f'{self.px}_{s.name}', 'shared fields')} {{\n"
            out += self.members(s.of(s.owners[0].fields)) + "};\n"
        return out

    def check(self, f, var, what, pad):
        """Lines that refuse an invalid value of f; empty if every value is valid."""
        if not f.checked:
            return ""
        value = f"{var}{f.name}"
        if f.enum:
            return (f"{pad}if (!{self.px}_{f.enum}_valid({value}))\n"
                    f"{pad}\treturn check_value(reterr, {quoted(what + '.' + f.name)}, {value});\n")
        mask = f"{self.up}_{f.bits.upper()}_ALL" if f.bits else None
        unknown = f"{value} & ~({CTYPES[f.type]}){mask}" if mask else value
        return (f"{pad}if ({unknown})\n"
                f"{pad}\treturn check_bits(reterr, {quoted(what + '.' + f.name)}, {unknown});\n")

    def header_file(self):
        pr, px, up = self.pr, self.px, self.up
        out = "#include <stdbool.h>\n#include <stddef.h>\n#include <stdint.h>\n#include <string.h>\n\n"
        out += '#include "lib/wire.h"\n\nstruct dray_err;\n\n'
        out += self.define(f"{up}_MAGIC", f"0x{pr.magic:08x}u", "magic")
        out += self.define(f"{up}_MAJOR", pr.major, "version")
        out += self.define(f"{up}_MINOR", pr.minor, "version")
        out += self.define(f"{up}_HEADER_SIZE", pr.header.size, "header") + "\n"
        for n in pr.limits:
            out += self.define(f"{up}_{n['name'].upper()}", n["value"], f"limit {n['name']}", n["doc"])
        for n in pr.constants:
            shown = f"0x{n['value']:08x}u" if n["value"] > 0xffff else n["value"]
            out += self.define(f"{up}_{n['name'].upper()}", shown, f"constant {n['name']}", n["doc"])
        for e in pr.enums.values():
            out += "\n" + (f"/* {e['doc']} */\n" if e.get("doc") else "")
            out += f"enum {self.names.add(px + '_' + e['name'], 'enum ' + e['name'])} {{\n"
            for v in e["values"]:
                ident = self.names.add(f"{up}_{e['name'].upper()}_{v['name'].upper()}", f"enum {e['name']}")
                out += f"\t{ident} = {v['value']}, /* {v['doc']} */\n"
            out += "};\n"
            if e.get("named", True):
                out += f"const char *{px}_{e['name']}_name(unsigned int v); /* \"?\" if unknown */\n"
            if e["name"] in pr.checked_enums:
                out += f"bool {px}_{e['name']}_valid(unsigned int v);\n"
        for b in pr.bits.values():
            out += "\n" + (f"/* {b['doc']} */\n" if b.get("doc") else "")
            for v in b["values"]:
                out += self.define(f"{up}_{b['name'].upper()}_{v['name'].upper()}", f"{v['value']}u",
                                   f"bits {b['name']}", v["doc"])
            out += self.define(f"{up}_{b['name'].upper()}_ALL", f"{pr.mask(b['name'])}u", f"bits {b['name']}")
        out += f"\nenum {self.names.add(px + '_type', 'enum of types')} {{\n"
        for m in pr.messages:
            out += f"\t{self.names.add(up + '_' + m.name.upper(), 'message ' + m.name)} = 0x{m.type:04x},\n"
        out += f"}};\nconst char *{px}_type_name(unsigned int type); /* \"?\" if unknown */\n\n"
        out += self.struct(f"{px}_header", pr.header.fields, "Header of every message.")
        out += self.header_functions_declared() + self.shared()
        for r in pr.records.values():
            out += self.record(r)
        for lay in pr.layouts:
            out += f"\n/* {lay.doc} */\n"
            for f in lay.fields:
                out += self.define(f"{up}_{lay.name.upper()}_{f.name.upper()}", f.offset, f"layout {lay.name}", f.doc)
            out += self.define(f"{up}_{lay.name.upper()}_SIZE", lay.size, f"layout {lay.name}")
        out += ("\n/*\n * Messages. X_MIN: bytes of the smallest body; X_BODY_MAX: of the largest that is encoded.\n"
                " * X_decode: 0, or -EPROTO with the reason in *reterr (which may be NULL) and *ret untouched. Strings,\n"
                " * blobs and vectors point into the body. X_encode: writes header and body and returns the bytes\n"
                " * written; -EMSGSIZE if cap is too small, -EINVAL if a field is over its limit or not text.\n */\n")
        for m in pr.messages:
            out += self.message_declared(m)
        return header_file(out + (self.body_declared() if pr.body else ""))

    def body_declared(self):
        px = self.px
        rows = "".join(f"\tstruct {px}_{m.name} {m.name};\n" for m in self.pr.messages if m.fields)
        return (f"\n/* The body of any message. */\nunion {self.names.add(px + '_body', 'union of messages')} {{\n{rows}}};\n"
                f"/* As X_decode for the message of that type; 0 also for types that have no fields or are unknown. */\n"
                f"int {px}_body_decode(unsigned int type, const void *body, size_t len, union {px}_body *ret,\n"
                f"\tstruct dray_err *reterr);\n"
                f"/* As X_encode for the message of that type; m may be NULL for types that have no fields.\n"
                f" * -ENOENT for an unknown type. */\n"
                f"int {px}_body_encode(unsigned int type, void *buf, size_t cap, uint64_t request_id,\n"
                f"\tconst union {px}_body *m);\n")

    def body_decode(self):
        px, up = self.px, self.up
        rows = "".join(f"\tcase {up}_{m.name.upper()}:\n\t\treturn {px}_{m.name}_decode(body, len, &ret->{m.name}, reterr);\n"
                       for m in self.pr.messages if m.fields)
        return (f"\nint {px}_body_decode(unsigned int type, const void *body, size_t len, union {px}_body *ret,\n"
                f"\tstruct dray_err *reterr)\n{{\n\tswitch (type) {{\n{rows}\t}}\n\treturn 0;\n}}\n")

    def body_encode(self):
        px, up = self.px, self.up
        rows = "".join(f"\tcase {up}_{m.name.upper()}:\n\t\treturn {px}_{m.name}_encode(buf, cap, request_id, "
                       f"{f'&m->{m.name}' if m.fields else 'NULL'});\n" for m in self.pr.messages)
        return (f"\nint {px}_body_encode(unsigned int type, void *buf, size_t cap, uint64_t request_id,\n"
                f"\tconst union {px}_body *m)\n{{\n\tswitch (type) {{\n{rows}\t}}\n\treturn -ENOENT;\n}}\n")

    def header_functions_declared(self):
        px, up = self.px, self.up
        out = (f"/* Checks magic, version, flags and the bound of length, without reading the body. 0 or -EPROTO. */\n"
               f"int {px}_header_decode(const void *p, size_t len, struct {px}_header *ret, struct dray_err *reterr);\n"
               f"void {px}_header_put(void *p, const struct {px}_header *h);\n")
        if self.pr.framing == "packet":
            out += (f"/* Request id of a message, even if its header is refused; 0 if it has no whole header with our magic. */\n"
                    f"uint64_t {px}_header_id(const void *p, size_t len);\n"
                    f"/* A packet is one whole message: header and length bytes of body. 0 or -EPROTO. */\n"
                    f"int {px}_packet_check(const struct {px}_header *h, size_t packet_len, struct dray_err *reterr);\n")
        return out

    def record(self, r):
        px, name = self.px, f"{self.px}_{r.name}"
        out = "\n" + self.define(f"{name.upper()}_SIZE", r.size, f"record {r.name}")
        out += self.struct(name, r.fields, r.doc, self.pr.shared_by(r))
        out += f"static inline void {name}_get(const void *src, struct {name} *ret)\n{{\n\tconst uint8_t *p = src;\n\n"
        for f in r.fields:
            if f.reserved:
                continue
            if f.type.startswith("bytes"):
                out += f"\tmemcpy(ret->{f.name}, p + {f.offset}, {f.size});\n"
            else:
                out += f"\tret->{f.name} = {self.get(f, f.offset)};\n"
        out += f"}}\nstatic inline void {name}_put(void *dst, const struct {name} *r)\n{{\n\tuint8_t *p = dst;\n\n"
        for f in r.fields:
            out += f"\t{self.put(f, f.offset, 'r->' + f.name)}\n"
        return out + "}\n"

    def message_declared(self, m):
        name = f"{self.px}_{m.name}"
        out = "\n" + self.define(f"{name.upper()}_MIN", m.min, f"message {m.name}")
        out += self.define(f"{name.upper()}_BODY_MAX", m.max, f"message {m.name}")
        kind = "Request. " if m.reply else ""
        out += self.struct(name, m.fields, kind + m.doc, self.pr.shared_by(m))
        if m.fields:
            out += f"int {name}_decode(const void *body, size_t len, struct {name} *ret, struct dray_err *reterr);\n"
        out += f"int {name}_encode(void *buf, size_t cap, uint64_t request_id, const struct {name} *m);\n"
        return out

    def source_file(self):
        pr, px, up = self.pr, self.px, self.up
        out = banner("/*", " */")
        out += f'#include "schema/gen/{pr.name}.h"\n\n#include <errno.h>\n\n#include "schema/gen/check.h"\n'
        for e in pr.enums.values():
            rows = [(f"{up}_{e['name'].upper()}_{v['name'].upper()}", v["name"]) for v in e["values"]]
            if e.get("named", True):
                out += self.name_function(f"{px}_{e['name']}_name", "v", rows)
            if e["name"] in pr.checked_enums:
                out += f"\nbool {px}_{e['name']}_valid(unsigned int v)\n{{\n\treturn {self.valid(e)};\n}}\n"
        out += self.name_function(f"{px}_type_name", "type",
                                  [(f"{up}_{m.name.upper()}", m.name) for m in pr.messages])
        out += self.header_functions()
        for r in pr.records.values():
            if r.checked and r.name in pr.elements:
                out += f"\nstatic int {px}_{r.name}_check(const struct {px}_{r.name} *r, struct dray_err *reterr)\n{{\n"
                out += "".join(self.check(f, "r->", r.name, "\t") for f in r.fields)
                out += "\treturn 0;\n}\n"
        for m in pr.messages:
            out += (self.decode(m) if m.fields else "") + self.encode(m)
        return out + (self.body_decode() + self.body_encode() if pr.body else "")

    def name_function(self, name, arg, rows):
        out = f"\nconst char *{name}(unsigned int {arg})\n{{\n\tswitch ({arg}) {{\n"
        for ident, text in rows:
            out += f"\tcase {ident}:\n\t\treturn {quoted(text)};\n"
        return out + '\t}\n\treturn "?";\n}\n'

    def valid(self, e):
        values = sorted(v["value"] for v in e["values"])
        if values == list(range(values[0], values[-1] + 1)):
            low = f"v >= {values[0]} && " if values[0] else ""
            return f"{low}v <= {values[-1]}"
        return " || ".join(f"v == {v}" for v in values)

    def header_functions(self):
        px, up, at = self.px, self.up, {f.name: f.offset for f in self.pr.header.fields}
        out = f"""
int {px}_header_decode(const void *src, size_t len, struct {px}_header *ret, struct dray_err *reterr)
{{
	const uint8_t *p = src;
	struct {px}_header h;

	if (len >= 4 && dray_le_get32(p) != {up}_MAGIC)
		return dray_err_set(reterr, -EPROTO, DRAY_E_BAD_MAGIC, "magic is 0x%08" PRIx32 ", not 0x%08x",
				    dray_le_get32(p), {up}_MAGIC);
	if (len < {up}_HEADER_SIZE)
		return check_short(reterr, "header");
"""
        for f in self.pr.header.fields:
            out += f"\th.{f.name} = {self.get(f, f.offset)};\n"
        out += f"""	if (h.major != {up}_MAJOR)
		return dray_err_set(reterr, -EPROTO, DRAY_E_VERSION,
				    "major version is %u, this side speaks %d to %d", h.major, {up}_MAJOR, {up}_MAJOR);
	if (h.flags)
		return check_bits(reterr, "header.flags", h.flags);
	if (h.length > {up}_MESSAGE_MAX - {up}_HEADER_SIZE)
		return check_large(reterr, "header.length", h.length, {up}_MESSAGE_MAX - {up}_HEADER_SIZE);
	*ret = h;
	return 0;
}}

void {px}_header_put(void *dst, const struct {px}_header *h)
{{
	uint8_t *p = dst;

"""
        for f in self.pr.header.fields:
            out += f"\t{self.put(f, f.offset, 'h->' + f.name)}\n"
        out += "}\n"
        if self.pr.framing == "packet":
            out += f"""
uint64_t {px}_header_id(const void *src, size_t len)
{{
	const uint8_t *p = src;

	return len >= {up}_HEADER_SIZE && dray_le_get32(p) == {up}_MAGIC ? dray_le_get64(p + {at['request_id']}) : 0;
}}

int {px}_packet_check(const struct {px}_header *h, size_t packet_len, struct dray_err *reterr)
{{
	if (packet_len < {up}_HEADER_SIZE || packet_len - {up}_HEADER_SIZE < h->length)
		return check_short(reterr, "packet");
	if (packet_len - {up}_HEADER_SIZE > h->length)
		return dray_err_set(reterr, -EPROTO, DRAY_E_INVALID,
				    "header.length is %" PRIu32 ", the packet holds %zu bytes of body", h->length,
				    packet_len - {up}_HEADER_SIZE);
	return 0;
}}
"""
        return out + f"""
static uint8_t *start(void *buf, uint16_t type, size_t length, uint64_t request_id)
{{
	{px}_header_put(buf, &(struct {px}_header){{ {up}_MAGIC, {up}_MAJOR, {up}_MINOR, type, 0,
		       (uint32_t)length, request_id }});
	return (uint8_t *)buf + {up}_HEADER_SIZE;
}}
"""

    def decode(self, m):
        name = f"{self.px}_{m.name}"
        out = f"\nint {name}_decode(const void *body, size_t len, struct {name} *ret, struct dray_err *reterr)\n{{\n"
        if not any(not f.reserved for f in m.fields):
            if m.min:
                out += f"\tif (len < {m.min})\n\t\treturn check_short(reterr, {quoted(m.name)});\n"
            return out + "\treturn 0;\n}\n"
        groups = m.parts()
        late = any(since for since, _ in groups)
        out += f"\tconst uint8_t *p = body;\n\tstruct {name} m{' = { 0 }' if late else ''};\n\n"
        for i, (since, runs) in enumerate(groups):
            pad = "\t"
            if since:
                out += f"\tif (len) {{ /* since minor version {since} */\n"
                pad = "\t\t"
            for k, run in enumerate(runs):
                last = i == len(groups) - 1 and k == len(runs) - 1
                out += self.decode_run(m, run, pad, last)
            if since:
                out += "\t}\n"
        return out + "\t*ret = m;\n\treturn 0;\n}\n"

    def decode_run(self, m, run, pad, last):
        size = sum(f.size for f in run)
        out = f"{pad}if (len < {size})\n{pad}\treturn check_short(reterr, {quoted(m.name)});\n"
        at = 0
        for f in run:
            if f.var:
                place = f"(const char *)(p + {at + 4})" if f.type == "str" else f"p + {at + 4}"
                out += f"{pad}m.{f.name}.n = dray_le_get32(p + {at});\n{pad}m.{f.name}.p = {place};\n"
                out += self.decode_var(m, f, size, pad, last)
                return out
            if f.type.startswith("bytes"):
                out += f"{pad}memcpy(m.{f.name}, p + {at}, {f.size});\n"
            elif not f.reserved:
                out += f"{pad}m.{f.name} = {self.get(f, at)};\n" + self.check(f, "m.", m.name, pad)
            at += f.size
        if not last:
            out += f"{pad}p += {size};\n{pad}len -= {size};\n"
        return out

    def decode_var(self, m, f, size, pad, last):
        where, unit = quoted(f"{m.name}.{f.name}"), self.pr.unit(f)
        n = f"m.{f.name}.n" if unit == 1 else f"(size_t)m.{f.name}.n * {unit}"
        out = (f"{pad}if (m.{f.name}.n > {f.max})\n{pad}\treturn check_large(reterr, {where}, m.{f.name}.n, {f.max});\n"
               f"{pad}if (len - {size} < {n})\n{pad}\treturn check_short(reterr, {quoted(m.name)});\n")
        if f.type == "str":
            out += f"{pad}if (!text_ok(m.{f.name}))\n{pad}\treturn check_text(reterr, {where});\n"
        if f.type == "vec" and self.pr.records[f.of].checked:
            rec = f"{self.px}_{f.of}"
            out += (f"{pad}for (uint32_t i = 0; i < m.{f.name}.n; i++) {{\n{pad}\tstruct {rec} r;\n\n"
                    f"{pad}\t{rec}_get(m.{f.name}.p + (size_t)i * {unit}, &r);\n"
                    f"{pad}\tif ({rec}_check(&r, reterr) < 0)\n{pad}\t\treturn -EPROTO;\n{pad}}}\n")
        if not last:
            out += f"{pad}p += {size} + {n};\n{pad}len -= {size} + {n};\n"
        return out

    def encode(self, m):
        name, up = f"{self.px}_{m.name}", self.up
        variable = [f for f in m.fields if f.var]
        whole = sum(f.size for f in m.fields)
        out = f"\nint {name}_encode(void *buf, size_t cap, uint64_t request_id, const struct {name} *m)\n{{\n"
        out += f"\tsize_t length = {whole};\n" + ("\tuint8_t *p;\n" if m.fields else "") + "\n"
        for f in variable:
            text = f" || !text_ok(m->{f.name})" if f.type == "str" and m.is_request else ""
            out += f"\tif (m->{f.name}.n > {f.max}{text})\n\t\treturn -EINVAL;\n"
        for f in variable:
            unit = self.pr.unit(f)
            out += f"\tlength += {'(size_t)' if unit > 1 else ''}m->{f.name}.n{f' * {unit}' if unit > 1 else ''};\n"
        out += f"\tif (cap < {up}_HEADER_SIZE + length)\n\t\treturn -EMSGSIZE;\n"
        begin = f"start(buf, {up}_{m.name.upper()}, length, request_id);\n"
        out += f"\tp = {begin}" if m.fields else f"\t{begin}"
        runs = [run for _, group in m.parts() for run in group]
        for k, run in enumerate(runs):
            at, last = 0, k == len(runs) - 1
            for f in run:
                if f.var:
                    out += f"\tdray_le_put32(p + {at}, m->{f.name}.n);\n"
                    take = "" if last else "p = "
                    unit = self.pr.unit(f)
                    if f.type == "str" and not m.is_request:
                        out += f"\t{take}put_text(p + {at + 4}, m->{f.name});\n"
                    else:
                        n = f"m->{f.name}.n" if unit == 1 else f"(size_t)m->{f.name}.n * {unit}"
                        out += f"\t{take}put_bytes(p + {at + 4}, m->{f.name}.p, {n});\n"
                else:
                    out += f"\t{self.put(f, at, 'm->' + f.name)}\n"
                at += f.size
            if not run[-1].var and not last:
                out += f"\tp += {at};\n"
        return out + f"\treturn (int)({up}_HEADER_SIZE + length);\n}}\n"


def write(protocol):
    w = Writer(protocol)
    base = f"schema/gen/{protocol.name}"
    return {f"{base}.h": w.header_file(), f"{base}.c": w.source_file()}
