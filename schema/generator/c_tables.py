# SPDX-License-Identifier: Apache-2.0
"""Writes the tables in gen/errors, config, metrics and dbus."""

from generator.check import INT64_MAX, SchemaError
from generator.model import BUCKETS_MAX, LABELS_MAX
from generator.text import Names, banner, dbus_error, header_file, quoted, snake


def errors(items):
    # Two headers have the list, because users of libdray have no schema/. The guard allows including both.
    codes = "#ifndef DRAY_ERROR_CODES\n#define DRAY_ERROR_CODES\nenum dray_error {\n\tDRAY_OK = 0,\n"
    for e in items[1:]:
        codes += f"\tDRAY_E_{e['name'].upper()} = {e['code']}, /* {e['doc']} */\n"
    codes += "};\n#endif\n"
    public = banner("/*", " */") + "#ifndef DRAY_ERRORS_H\n#define DRAY_ERRORS_H\n\n" + codes + "\n#endif\n"
    h = f"#include <stdint.h>\n\n{codes}\n#define DRAY_ERROR_N {len(items)}\n\n"
    h += "/* Stable name, meaning, what to do. Never NULL; \"unknown\" for an unknown code. */\n"
    h += "".join(f"const char *dray_error_{w}(uint32_t code);\n" for w in ("name", "doc", "fix"))
    c = banner("/*", " */") + '#include "schema/gen/errors.h"\n\n'
    c += "static const struct {\n\tconst char *name, *doc, *fix;\n} table[DRAY_ERROR_N] = {\n"
    for e in items:
        c += f"\t{{ {quoted(e['name'])}, {quoted(e['doc'])},\n\t  {quoted(e['fix'])} }},\n"
    c += "};\n"
    for w in ("name", "doc", "fix"):
        c += (f"\nconst char *dray_error_{w}(uint32_t code)\n{{\n"
              f"\treturn code < DRAY_ERROR_N ? table[code].{w} : \"unknown\";\n}}\n")
    return {"schema/gen/errors.h": header_file(h), "schema/gen/errors.c": c,
            "client/dray_errors.h": public}


CONFIG_MEMBER = {"string": "char *", "path": "char *", "bool": "bool ", "int": "int64_t ", "size": "int64_t ",
                 "duration": "int64_t ", "enum": "int ", "list": "struct dray_strv "}


def config_number(value):
    return "INT64_MAX" if value == INT64_MAX else f"INT64_C({value})"


def config(keys):
    names = Names("config.yaml", SchemaError)
    h = '#include <stdbool.h>\n#include <stddef.h>\n#include <stdint.h>\n\n#include "lib/strv.h"\n\n'
    h += ("enum dray_config_type {\n\tDRAY_CONFIG_STRING, /* char * */\n\tDRAY_CONFIG_PATH, /* char * */\n"
          "\tDRAY_CONFIG_BOOL, /* bool */\n\tDRAY_CONFIG_INT, /* int64_t */\n\tDRAY_CONFIG_SIZE, /* int64_t, bytes */\n"
          "\tDRAY_CONFIG_DURATION, /* int64_t, nanoseconds */\n\tDRAY_CONFIG_ENUM, /* int, index in choices */\n"
          "\tDRAY_CONFIG_LIST, /* struct dray_strv; default and environment: separated by commas */\n};\n")
    for t in ("STRING", "PATH", "BOOL", "INT", "SIZE", "DURATION", "ENUM", "LIST"):
        names.add(f"DRAY_CONFIG_{t}", "a type")
    for k in keys:
        if k.type == "enum":
            h += f"\n/* {k.path} */\nenum dray_config_{k.ident} {{\n"
            for c in k.choices:
                ident = names.add(f"DRAY_CONFIG_{k.ident.upper()}_{c.upper()}", k.path)
                h += f"\t{ident},\n"
            h += "};\n"
    h += "\nenum dray_config_key_id {\n"
    for k in keys:
        h += f"\t{names.add('DRAY_CONFIG_KEY_' + k.ident.upper(), k.path)},\n"
    h += f"\t{names.add('DRAY_CONFIG_KEY_N', 'the count')},\n}};\n\nstruct dray_config {{\n"
    sections = []
    for k in keys:
        if k.section not in sections:
            sections.append(k.section)
    for s in sections:
        h += "\tstruct {\n"
        for k in keys:
            if k.section == s:
                h += f"\t\t{CONFIG_MEMBER[k.type]}{k.name}; /* {k.doc} */\n"
        h += f"\t}} {s};\n"
    h += """};

struct dray_config_key {
	const char *path; /* section.name */
	const char *section, *name;
	const char *env;
	const char *flag; /* "--state-dir", or NULL */
	enum dray_config_type type;
	size_t offset, size; /* of the member of struct dray_config */
	const char *def; /* in the form of the configuration */
	const char *allowed; /* the allowed values, for people */
	int64_t min, max; /* int, size, duration */
	const char *const *choices; /* enum */
	size_t n_choices;
	bool octal; /* int, written in octal */
	bool reload; /* can change while the agent runs */
	const char *doc;
};

/* In the order of enum dray_config_key_id. */
extern const struct dray_config_key dray_config_keys[DRAY_CONFIG_KEY_N];
"""
    c = banner("/*", " */") + '#include "schema/gen/config.h"\n\n'
    for k in keys:
        if k.choices:
            c += f"static const char *const {k.ident}_choices[] = {{ {', '.join(quoted(x) for x in k.choices)} }};\n"
    c += ("\n#define CONFIG_MEMBER(m)                           \\\n"
          "\t.offset = offsetof(struct dray_config, m), \\\n"
          "\t.size = sizeof(((struct dray_config *)0)->m)\n\n"
          "const struct dray_config_key dray_config_keys[DRAY_CONFIG_KEY_N] = {\n")
    for k in keys:
        c += f"\t{{ .path = {quoted(k.path)}, .section = {quoted(k.section)}, .name = {quoted(k.name)},\n"
        c += f"\t  .env = {quoted(k.env)},"
        c += f" .flag = {quoted(k.flag)}," if k.flag else ""
        c += f" .type = DRAY_CONFIG_{k.type.upper()},\n"
        c += f"\t  CONFIG_MEMBER({k.path}), .def = {quoted(k.default)},\n"
        c += f"\t  .allowed = {quoted(k.allowed())},\n"
        if k.numeric:
            c += f"\t  .min = {config_number(k.min)}, .max = {config_number(k.max)},\n"
        if k.choices:
            c += f"\t  .choices = {k.ident}_choices, .n_choices = {len(k.choices)},\n"
        if k.octal or k.reload:
            c += "\t  " + ", ".join(f".{w} = true" for w in ("octal", "reload") if getattr(k, w)) + ",\n"
        c += f"\t  .doc = {quoted(k.doc)} }},\n"
    c += "};\n"
    return {"schema/gen/config.h": header_file(h), "schema/gen/config.c": c}


def family_ident(f):
    return "DRAY_FAMILY_" + f["name"].removeprefix("dray_").upper()


def metrics(items, families):
    h = "#include <stdint.h>\n\nenum dray_metric {\n"
    for m in items:
        h += f"\tDRAY_METRIC_{m['name'][5:].upper()}, /* {m['doc']} */\n"
    h += """	DRAY_METRIC_N,
};

enum dray_metric_type {
	DRAY_METRIC_TYPE_COUNTER,
	DRAY_METRIC_TYPE_GAUGE,
	DRAY_METRIC_TYPE_HISTOGRAM, /* only families */
};

enum dray_metric_owner {
	DRAY_METRIC_OWNER_WORKER, /* each worker has a copy; readers sum them */
	DRAY_METRIC_OWNER_CONTROL,
};

struct dray_metric_info {
	const char *name; /* as published, "dray_..." */
	const char *help;
	enum dray_metric_type type;
	enum dray_metric_owner owner;
	const char *unit; /* "" for plain numbers */
};

/* In the order of enum dray_metric. */
extern const struct dray_metric_info dray_metrics[DRAY_METRIC_N];

/* Metrics with labels, or of the process: only on /metrics. */
enum dray_family {
"""
    for f in families:
        h += f"\t{family_ident(f)}, /* {f['doc']} */\n"
    h += f"""	DRAY_FAMILY_N,
}};

#define DRAY_FAMILY_LABELS_MAX {LABELS_MAX}
#define DRAY_FAMILY_BUCKETS_MAX {BUCKETS_MAX}

struct dray_family_info {{
	const char *name; /* as published */
	const char *help;
	enum dray_metric_type type;
	const char *unit; /* "" for plain numbers */
	unsigned n_labels;
	const char *labels[DRAY_FAMILY_LABELS_MAX]; /* names of the labels */
	/* histograms: upper bounds in 1/scale of the unit; the last bucket has none */
	const uint64_t *bounds;
	unsigned n_bounds;
	uint64_t scale;
}};

/* In the order of enum dray_family. */
extern const struct dray_family_info dray_families[DRAY_FAMILY_N];
"""
    names = Names("metrics.yaml", SchemaError)
    names.add("DRAY_FAMILY_N", "a fixed name")
    names.add("DRAY_FAMILY_LABELS_MAX", "a fixed name")
    names.add("DRAY_FAMILY_BUCKETS_MAX", "a fixed name")
    for fixed in ("N", "TYPE_COUNTER", "TYPE_GAUGE", "TYPE_HISTOGRAM", "OWNER_WORKER", "OWNER_CONTROL"):
        names.add(f"DRAY_METRIC_{fixed}", "a fixed name")
    c = banner("/*", " */") + '#include "schema/gen/metrics.h"\n\n#include <stddef.h>\n\n'
    c += "const struct dray_metric_info dray_metrics[DRAY_METRIC_N] = {\n"
    for m in items:
        names.add(f"DRAY_METRIC_{m['name'][5:].upper()}", m["name"])
        c += (f"\t{{ {quoted(m['name'])}, {quoted(m['doc'])},\n\t  DRAY_METRIC_TYPE_{m['type'].upper()}, "
              f"DRAY_METRIC_OWNER_{m['owner'].upper()}, {quoted(m.get('unit', ''))} }},\n")
    c += "};\n"
    for f in families:
        if "buckets" in f:
            c += f"\nstatic const uint64_t {f['name']}_bounds[] = {{\n"
            c += "".join(f"\t{n}ull,\n" for n in f["buckets"]) + "};\n"
    c += "\nconst struct dray_family_info dray_families[DRAY_FAMILY_N] = {\n"
    for f in families:
        names.add(family_ident(f), f["name"])
        labels = f.get("labels", [])
        c += (f"\t{{ {quoted(f['name'])}, {quoted(f['doc'])},\n\t  DRAY_METRIC_TYPE_{f['type'].upper()}, "
              f"{quoted(f.get('unit', ''))}, {len(labels)}, {{ {', '.join(map(quoted, labels)) or 'NULL'} }}")
        if "buckets" in f:
            c += f",\n\t  {f['name']}_bounds, {len(f['buckets'])}, {f['scale']}"
        c += " },\n" if "buckets" in f else ",\n\t  NULL, 0, 1 },\n"
    return {"schema/gen/metrics.h": header_file(h), "schema/gen/metrics.c": c + "};\n"}


def signature(args):
    return "".join(a["type"] for a in args)


def kind_of(f):
    """The kind of a field's value, from the field's name."""
    name = f["name"]
    if f["type"] == "s":
        return "STATE" if name in ("state", "rail_state", "status", "old", "new") else "TEXT"
    if f["type"] in ("b", "i"):
        return "BOOL" if f["type"] == "b" else "SIGNED"
    if name.endswith("_ns"):
        return "TIME" if name == "time_ns" else "SPAN"
    if "bytes" in name or name in ("length", "memory", "capacity", "allocated"):
        return "SIZE"
    return "RATE" if name == "rate" else "NUMBER"


def properties(d):
    """The properties with one value each, as members of a struct."""
    simple = [(p, snake(p["name"])) for p in d["properties"] if p["type"] in ("s", "u", "t")]
    h = "\n/* Properties with one value each, as members of struct dray_dbus_properties. */\nstruct dray_dbus_properties {\n"
    c = f"\nconst struct dray_dbus_property dray_dbus_properties[{len(simple)}] = {{\n"
    for p, name in simple:
        h += f"\t{'const char *' if p['type'] == 's' else 'uint64_t '}{name}; /* {p['doc']} */\n"
        c += (f"\t{{ {quoted(p['name'])}, {quoted(name)}, {quoted(p['type'])}, "
              f"offsetof(struct dray_dbus_properties, {name}) }},\n")
    h += ("};\n\nstruct dray_dbus_property {\n\tconst char *name; /* on D-Bus */\n\tconst char *key; /* of the member */\n"
          "\tconst char *type; /* \"s\", \"u\" or \"t\" */\n\tsize_t offset; /* of the member */\n};\n\n"
          f"#define DRAY_DBUS_PROPERTIES_N {len(simple)}\n"
          "extern const struct dray_dbus_property dray_dbus_properties[DRAY_DBUS_PROPERTIES_N];\n")
    return h, c + "};\n"


RECORD_MEMBER = {"s": "const char *", "b": "bool ", "u": "uint32_t ", "i": "int32_t ", "t": "uint64_t "}


def dbus(d):
    names = Names("dbus.yaml", SchemaError)

    def define(name, value, doc=""):
        return f"#define {names.add(name, doc or value)} {quoted(value)}" + (f" /* {doc} */" if doc else "") + "\n"

    h = "#include <stdbool.h>\n#include <stddef.h>\n#include <stdint.h>\n\n"
    h += define("DRAY_DBUS_INTERFACE", d["interface"]) + define("DRAY_DBUS_PATH", d["path"])
    for kind, items in (("PROPERTY", d["properties"]), ("METHOD", d["methods"]), ("SIGNAL", d["signals"])):
        h += "\n"
        for i in items:
            h += define(f"DRAY_DBUS_{kind}_{snake(i['name']).upper()}", i["name"], i["doc"])
    h += "\n"
    for e in d["errors"]:
        h += define(f"DRAY_DBUS_ERROR_{snake(e['name']).upper()}", dbus_error(d["interface"], e["name"]), e["doc"])
    h += """
struct dray_dbus_method {
	const char *name;
	const char *out; /* signature */
	bool change; /* only for members of control.group */
};

"""
    n = len(d["methods"])
    h += f"#define {names.add('DRAY_DBUS_METHOD_N', 'methods')} {n}\n"
    h += f"extern const struct dray_dbus_method dray_dbus_methods[{n}];\n"
    h += """
/* Kind of a field's value. */
enum dray_dbus_kind {
	DRAY_DBUS_KIND_TEXT,
	DRAY_DBUS_KIND_STATE, /* the name of a state */
	DRAY_DBUS_KIND_BOOL,
	DRAY_DBUS_KIND_NUMBER,
	DRAY_DBUS_KIND_SIGNED, /* below 0: unknown, or none */
	DRAY_DBUS_KIND_SIZE, /* bytes */
	DRAY_DBUS_KIND_RATE, /* bits per second; 0: unknown */
	DRAY_DBUS_KIND_SPAN, /* nanoseconds */
	DRAY_DBUS_KIND_TIME, /* nanoseconds since 1970 */
};

/* One entry of the dictionaries that the list methods return. */
struct dray_dbus_field {
	const char *key;
	const char *type; /* D-Bus signature: s b u i t */
	enum dray_dbus_kind kind;
	size_t offset; /* of the member of the record's struct */
};
"""
    members, table = properties(d)
    h += members
    c = banner("/*", " */") + '#include "schema/gen/dbus.h"\n'
    c += f"\nconst struct dray_dbus_method dray_dbus_methods[{n}] = {{\n"
    for m in d["methods"]:
        change = "true" if m["change"] else "false"
        c += f"\t{{ {quoted(m['name'])}, {quoted(signature(m['out']))}, {change} }},\n"
    c += "};\n" + table
    for r in d["records"]:
        up = f"DRAY_DBUS_{r['name'].upper()}"
        h += f"\nenum dray_dbus_{r['name']}_field {{\n"
        for f in r["fields"]:
            h += f"\t{names.add(up + '_FIELD_' + f['name'].upper(), r['name'])},\n"
        h += f"\t{names.add(up + '_FIELD_N', r['name'])},\n}};\n"
        h += f"extern const struct dray_dbus_field dray_dbus_{r['name']}_fields[{up}_FIELD_N];\n"
        h += f"\nstruct dray_dbus_{r['name']} {{\n"
        h += "".join(f"\t{RECORD_MEMBER[f['type']]}{f['name']}; /* {f['doc']} */\n" for f in r["fields"]) + "};\n"
        c += f"\nconst struct dray_dbus_field dray_dbus_{r['name']}_fields[{up}_FIELD_N] = {{\n"
        for f in r["fields"]:
            c += (f"\t{{ {quoted(f['name'])}, {quoted(f['type'])}, DRAY_DBUS_KIND_{kind_of(f)}, "
                  f"offsetof(struct dray_dbus_{r['name']}, {f['name']}) }}, /* {f['doc']} */\n")
        c += "};\n"
    xml = introspection(d)
    return {"schema/gen/dbus.h": header_file(h), "schema/gen/dbus.c": c,
            "schema/gen/dbus_vtable.h": vtable(d), f"schema/gen/{d['interface']}.xml": xml}


def params(args):
    return " ".join(f"SD_BUS_PARAM({a['name']})" for a in args)


def vtable(d):
    h = "/* For the files that implement the interface. The table is for the file that defines DRAY_DBUS_VTABLE. */\n\n"
    h += "#include <systemd/sd-bus.h>\n\n"
    for p in d["properties"]:
        h += (f"int dbus_get_{snake(p['name'])}(sd_bus *bus, const char *path, const char *interface,\n"
              "\tconst char *property, sd_bus_message *reply, void *userdata, sd_bus_error *reterr);\n")
    for m in d["methods"]:
        h += (f"int dbus_method_{snake(m['name'])}(sd_bus_message *m, void *userdata, "
              "sd_bus_error *reterr);\n")
    h += ("\n#ifdef DRAY_DBUS_VTABLE\n/* All methods are unprivileged, because sd-bus would demand capabilities otherwise; methods that change\n"
          " * something check the caller themselves. */\nstatic const sd_bus_vtable dbus_vtable[] = {\n\tSD_BUS_VTABLE_START(0),\n")
    for p in d["properties"]:
        flags = "SD_BUS_VTABLE_PROPERTY_EMITS_CHANGE" if p.get("emits") else \
            "SD_BUS_VTABLE_PROPERTY_CONST" if p.get("const") else \
            "SD_BUS_VTABLE_PROPERTY_EXPLICIT" if p.get("explicit") else "0"
        h += f"\tSD_BUS_PROPERTY({quoted(p['name'])}, {quoted(p['type'])}, dbus_get_{snake(p['name'])}, 0, {flags}),\n"
    for m in d["methods"]:
        if not m["in"] and not m["out"]:
            h += (f"\tSD_BUS_METHOD({quoted(m['name'])}, \"\", \"\", dbus_method_{snake(m['name'])},\n"
                  "\t\tSD_BUS_VTABLE_UNPRIVILEGED),\n")
            continue
        h += (f"\tSD_BUS_METHOD_WITH_NAMES({quoted(m['name'])}, {quoted(signature(m['in']))}, {params(m['in'])},\n"
              f"\t\t{quoted(signature(m['out']))}, {params(m['out'])}, dbus_method_{snake(m['name'])},\n"
              "\t\tSD_BUS_VTABLE_UNPRIVILEGED),\n")
    for s in d["signals"]:
        h += (f"\tSD_BUS_SIGNAL_WITH_NAMES({quoted(s['name'])}, {quoted(signature(s['args']))}, "
              f"{params(s['args'])}, 0),\n")
    return header_file(h + "\tSD_BUS_VTABLE_END,\n};\n#endif\n")


def introspection(d):
    x = ('<!DOCTYPE node PUBLIC "-//freedesktop//DTD D-BUS Object Introspection 1.0//EN"\n'
         ' "http://www.freedesktop.org/standards/dbus/1.0/introspect.dtd">\n'
         "<!-- SPDX-License-Identifier: Apache-2.0 -->\n<!-- Generated by schema/generate.py, do not edit. -->\n"
         f"<node name=\"{d['path']}\">\n <interface name=\"{d['interface']}\">\n")
    for m in d["methods"]:
        x += f"  <!-- {m['doc']} -->\n  <method name=\"{m['name']}\">\n"
        for way in ("in", "out"):
            for a in m[way]:
                x += f"   <arg type=\"{a['type']}\" name=\"{a['name']}\" direction=\"{way}\"/>\n"
        x += "  </method>\n"
    for s in d["signals"]:
        x += f"  <!-- {s['doc']} -->\n  <signal name=\"{s['name']}\">\n"
        x += "".join(f"   <arg type=\"{a['type']}\" name=\"{a['name']}\"/>\n" for a in s["args"])
        x += "  </signal>\n"
    for p in d["properties"]:
        emits = "true" if p.get("emits") else "const" if p.get("const") else "false"
        x += (f"  <!-- {p['doc']} -->\n  <property name=\"{p['name']}\" type=\"{p['type']}\" access=\"read\">\n"
              "   <annotation name=\"org.freedesktop.DBus.Property.EmitsChangedSignal\" "
              f"value=\"{emits}\"/>\n")
        if p.get("explicit"):
            x += "   <annotation name=\"org.freedesktop.systemd1.Explicit\" value=\"true\"/>\n"
        x += "  </property>\n"
    return x + " </interface>\n</node>\n"


def write(schema):
    return {**errors(schema.errors), **config(schema.config), **metrics(schema.metrics, schema.families), **dbus(schema.dbus)}
