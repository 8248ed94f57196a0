# SPDX-License-Identifier: Apache-2.0
"""The state database: reads state.yaml, runs its SQL on a database in memory, and writes gen/state."""

import re
import sqlite3

from generator.check import SchemaError, check_keys, named, unique
from generator.text import Names, banner, header_file, quoted

COLUMN_TYPES = ("text", "integer")
MEMBER_TYPES = {"name": "const char *", "text": "const char *", "u32": "uint32_t ", "i64": "int64_t ", "u64": "uint64_t "}
ROW_STATEMENTS = ("save", "drop", "clear", "all")


def sentence(text):
    """SQL as one line; no literal in state.yaml contains blanks."""
    return " ".join(text.split())


def migrated(raw):
    """A database in memory, after all migrations."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    for number, m in enumerate(raw["migrations"], 1):
        where = f"state.yaml: migration {number}"
        check_keys(where, m, ("doc", "text"))
        try:
            db.executescript(m["text"])
        except sqlite3.Error as e:
            raise SchemaError(f"{where}: {e}") from None
    return db


def check_tables(db, tables):
    found = {row[0] for row in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    for t in tables:
        where = f"state.yaml: table {t['name']}"
        check_keys(where, t, ("name", "doc", "columns"))
        for c in named(where, t["columns"]):
            check_keys(f"{where}: column {c['name']}", c, ("name", "type", "doc"))
            if c["type"] not in COLUMN_TYPES:
                raise SchemaError(f"{where}: column {c['name']}: unknown type {c['type']}")
        if t["name"] not in found:
            raise SchemaError(f"{where}: no migration creates it")
        strict = db.execute("SELECT strict FROM pragma_table_list(?)", (t["name"],)).fetchone()
        if not strict[0]:
            raise SchemaError(f"{where}: the table is not STRICT")
        made = [(r[1], r[2].lower()) for r in db.execute(f"PRAGMA table_info({t['name']})")]
        listed = [(c["name"], c["type"]) for c in t["columns"]]
        if made != listed:
            raise SchemaError(f"{where}: the migrations create other columns: {made}")
    left = found - {t["name"] for t in tables}
    if left:
        raise SchemaError(f"state.yaml: the migrations create tables that are not listed: {', '.join(sorted(left))}")


def check_statement(db, s):
    where = f"state.yaml: statement {s['name']}"
    check_keys(where, s, ("name", "parameters", "text"))
    s["text"] = sentence(s["text"])
    in_text = list(dict.fromkeys(re.findall(r":([a-z_]+)", s["text"])))
    if in_text != s["parameters"]:
        raise SchemaError(f"{where}: the text has other parameters: {', '.join(in_text) or 'none'}")
    if ";" in s["text"]:
        raise SchemaError(f"{where}: not a single statement without a semicolon")
    try:
        cursor = db.execute(s["text"], dict.fromkeys(s["parameters"], 1))
    except sqlite3.Error as e:
        raise SchemaError(f"{where}: {e}") from None
    cursor.close()


def check_row(row, tables, statements):
    """Adds the members, and how many of them are the key, to the row."""
    where = f"state.yaml: row {row['name']}"
    check_keys(where, row, ("name", "doc", "types", "save", "all"), ("drop", "clear"))
    for use in ROW_STATEMENTS:
        if row.get(use) not in [None, *statements]:
            raise SchemaError(f"{where}: there is no statement {row[use]}")
    parameters = statements[row["save"]]["parameters"]
    table = tables[re.search(r"INTO (\w+)", statements[row["save"]]["text"])[1]]
    docs = {c["name"]: c["doc"] for c in table["columns"]}
    for name, kind in row["types"].items():
        if name not in parameters or kind not in MEMBER_TYPES:
            raise SchemaError(f"{where}: unknown member or type: {name}: {kind}")
    row["members"] = [(p, row["types"].get(p, "i64"), docs[p]) for p in parameters]
    row["n_key"] = len(statements[row["drop"]]["parameters"]) if "drop" in row else 0
    if "drop" in row and statements[row["drop"]]["parameters"] != parameters[:row["n_key"]]:
        raise SchemaError(f"{where}: the parameters of {row['drop']} are not the first ones of {row['save']}")


def load(raw):
    check_keys("state.yaml", raw, ("database", "application_id", "page_size", "limits", "tables", "migrations", "rows", "statements"))
    if not isinstance(raw["application_id"], int) or not 0 < raw["application_id"] < 2**31:
        raise SchemaError("state.yaml: application_id is not a number of 31 bits above 0")
    if raw["page_size"] not in [512 << i for i in range(8)]:
        raise SchemaError("state.yaml: page_size is not a power of two from 512 to 65536")
    for n in named("state.yaml: limits", raw["limits"]):
        check_keys(f"state.yaml: limit {n['name']}", n, ("name", "value", "doc"))
        if type(n["value"]) is not int or n["value"] < 1:
            raise SchemaError(f"state.yaml: limit {n['name']}: value is not a number from 1")
    if not raw["migrations"]:
        raise SchemaError("state.yaml: no migrations")
    unique("state.yaml: tables", "name", [(t["name"], t["name"]) for t in named("state.yaml: tables", raw["tables"])])
    db = migrated(raw)
    check_tables(db, raw["tables"])
    for s in named("state.yaml: statements", raw["statements"]):
        check_statement(db, s)
    db.close()
    for row in named("state.yaml: rows", raw["rows"]):
        check_row(row, {t["name"]: t for t in raw["tables"]}, {s["name"]: s for s in raw["statements"]})
    return raw


def literal(text, indent):
    """A C string on as many lines as it needs."""
    words, lines = text.split(" "), [""]
    for w in words:
        if lines[-1] and len(lines[-1]) + len(w) > 76:
            lines.append("")
        lines[-1] += w + " "
    lines[-1] = lines[-1][:-1]
    return f"\n{indent}".join(quoted(line) for line in lines)


def rows_header(rows):
    h = ""
    for row in rows:
        h += f"\n/* {row['doc']} */\nstruct state_{row['name']} {{\n"
        for name, kind, doc in row["members"]:
            h += f"\t{MEMBER_TYPES[kind]}{name}; /* {doc} */\n"
        h += "};\n"
    h += "\nenum state_kind {\n" + "".join(f"\tSTATE_{row['name'].upper()},\n" for row in rows) + "\tSTATE_KIND_N,\n};\n"
    h += "\nunion state_row {\n" + "".join(f"\tstruct state_{row['name']} {row['name']};\n" for row in rows) + "};\n"
    most = max(len(row["members"]) for row in rows)
    return h + f"""
enum state_field_type {{
	STATE_FIELD_NAME, /* a text that is never cut: a row whose name is too long is refused */
	STATE_FIELD_TEXT,
	STATE_FIELD_U32,
	STATE_FIELD_I64,
	STATE_FIELD_U64,
}};

struct state_field {{
	enum state_field_type type;
	size_t offset; /* in union state_row */
}};

/* A kind of rows: its fields in the order of the parameters and columns of its statements, those of the key first. */
struct state_format {{
	struct state_field fields[{most}];
	unsigned n, n_key;
	enum dray_state_statement_id save, drop, clear, all; /* events are never dropped or cleared */
}};

extern const struct state_format dray_state_formats[STATE_KIND_N];
"""


def rows_source(rows):
    c = "\nconst struct state_format dray_state_formats[STATE_KIND_N] = {\n"
    for row in rows:
        c += f"\t[STATE_{row['name'].upper()}] = {{\n\t\t.fields = {{\n"
        for name, kind, _ in row["members"]:
            c += f"\t\t\t{{ STATE_FIELD_{kind.upper()}, offsetof(union state_row, {row['name']}.{name}) }},\n"
        c += f"\t\t}},\n\t\t.n = {len(row['members'])},\n\t\t.n_key = {row['n_key']},\n"
        c += "".join(f"\t\t.{use} = DRAY_STATE_{row[use].upper()},\n" for use in ROW_STATEMENTS if use in row) + "\t},\n"
    return c + "};\n"


def header(state, names):
    h = "#include <stddef.h>\n#include <stdint.h>\n\n"
    h += f"#define {names.add('DRAY_STATE_DATABASE', 'database')} {quoted(state['database'])}\n"
    h += f"#define {names.add('DRAY_STATE_APPLICATION_ID', 'application_id')} 0x{state['application_id']:08x}\n"
    h += f"#define {names.add('DRAY_STATE_PAGE_SIZE', 'page_size')} {state['page_size']}\n\n"
    for n in state["limits"]:
        h += f"#define {names.add('DRAY_STATE_MAX_' + n['name'].upper(), n['name'])} {n['value']} /* {n['doc']} */\n"
    h += f"""
struct dray_state_migration {{
	const char *doc;
	const char *text; /* statements, each ended by a semicolon */
}};

/* The n-th, from 0, makes version n + 1. */
#define {names.add('DRAY_STATE_VERSION', 'version')} {len(state['migrations'])}
extern const struct dray_state_migration dray_state_migrations[DRAY_STATE_VERSION];

enum dray_state_statement_id {{
"""
    for s in state["statements"]:
        parameters = ", ".join(s["parameters"]) or "none"
        h += f"\t{names.add('DRAY_STATE_' + s['name'].upper(), s['name'])}, /* {parameters} */\n"
    return h + f"""\t{names.add('DRAY_STATE_STATEMENT_N', 'the count')},
}};

/* In the order of enum dray_state_statement_id. Parameters are numbered from 1, in the order above. */
extern const char *const dray_state_statements[DRAY_STATE_STATEMENT_N];
""" + rows_header(state["rows"])


def source(state):
    c = banner("/*", " */") + '#include "schema/gen/state.h"\n\n'
    c += "const struct dray_state_migration dray_state_migrations[DRAY_STATE_VERSION] = {\n"
    for m in state["migrations"]:
        c += f"\t{{ {quoted(m['doc'])},\n\t  {literal(sentence(m['text']), '	  ')} }},\n"
    c += "};\n\nconst char *const dray_state_statements[DRAY_STATE_STATEMENT_N] = {\n"
    for s in state["statements"]:
        c += f"\t{literal(s['text'], '	')},\n"
    return c + "};\n" + rows_source(state["rows"])


def write(state):
    h = header(state, Names("state.yaml", SchemaError))
    return {"schema/gen/state.h": header_file(h),
            "schema/gen/state.c": source(state)}
