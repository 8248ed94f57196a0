# SPDX-License-Identifier: Apache-2.0
"""The command line of drayctl: reads drayctl.yaml, and writes the parser's tables, the help, the manual and the completion."""

import re

from generator.check import INT64_MAX, SIZES, TIMES, SchemaError, check_keys, named, unique, with_unit
from generator.text import Names, banner, header_file, quoted, snake

NUMBERS = {"N": "COUNT", "SIZE": "SIZE", "DURATION": "DURATION"}
KINDS = ("file", "dir", "verb", "device", "session", "request", "key")
# The verb that lists the current values of each kind, and the column of the value in its --plain output.
SOURCES = {"device": "detect 1", "session": "sessions 1", "request": "transfers 2", "key": "config 1"}
WORDS = re.compile(r"^[a-z0-9][a-z0-9_-]*(\|[a-z0-9][a-z0-9_-]*)*$")
EVERY = "."
COLUMNS = 80
ARGUMENTS_MAX = 2
COLUMNS_MAX = 19


class Value:
    """The value of an option or an argument."""

    def __init__(self, where, name, kind):
        if kind is not None and kind not in KINDS:
            raise SchemaError(f"{where}: unknown kind {kind}")
        self.name, self.kind = name, kind
        self.words = name.split("|") if not kind and WORDS.match(name) else []


class Option:
    def __init__(self, raw):
        where = f"drayctl.yaml: option {raw['name']}"
        check_keys(where, raw, ("name", "doc"),
                   ("flag", "letter", "global", "value", "implied", "min", "max", "default", "kind", "more"))
        self.name, self.doc, self.more = raw["name"], raw["doc"], raw.get("more")
        self.flag = raw.get("flag", "--" + self.name.replace("_", "-"))
        self.letter = raw.get("letter", "")
        self.every = raw.get("global", False)
        self.optional = "implied" in raw
        self.value = Value(where, raw["value"], raw.get("kind")) if "value" in raw else None
        self.type = "FLAG" if not self.value else "WORD" if self.value.words else NUMBERS.get(raw["value"], "TEXT")
        self.numeric = self.type in NUMBERS.values()
        if self.numeric != ("min" in raw and "max" in raw) or ("default" in raw or self.optional) > self.numeric:
            raise SchemaError(f"{where}: only N, SIZE and DURATION have min, max, default and implied")
        self.min, self.max, self.default, self.implied = (
            self.number(where, raw.get(key, 0)) for key in ("min", "max", "default", "implied"))
        if not self.min <= self.max <= INT64_MAX:
            raise SchemaError(f"{where}: min is over max, or max passes 64 bits")

    def number(self, where, value):
        return with_unit(where, value, {"": 1} if not value else {"SIZE": SIZES, "DURATION": TIMES}.get(self.type, {"": 1}))

    @property
    def usage(self):
        value = self.value.name if self.value else ""
        return f"{self.flag}[={value}]" if self.optional else f"{self.flag} {value}".strip()


class Verb:
    def __init__(self, raw, options):
        where = f"drayctl.yaml: verb {raw['name']}"
        check_keys(where, raw, ("name", "doc", "more", "example"), ("list", "args", "arguments", "command", "options"))
        self.ident, self.name = raw["name"], raw["name"].replace("_", "-")
        self.doc, self.more, self.example = raw["doc"], raw["more"], raw["example"]
        self.list, self.command, self.args = raw.get("list"), raw.get("command", False), raw.get("args", "")
        self.usage = f"{self.name} {self.args}".strip()
        for a in raw.get("arguments", []):
            check_keys(where, a, ("name",), ("kind",))
        self.arguments = [Value(where, a["name"], a.get("kind")) for a in raw.get("arguments", [])]
        if len(self.arguments) > ARGUMENTS_MAX:
            raise SchemaError(f"{where}: more than {ARGUMENTS_MAX} arguments")
        for name in raw.get("options", []):
            if name not in options or options[name].every:
                raise SchemaError(f"{where}: {name} is not an option of verbs")
        self.options = [options[name] for name in raw.get("options", [])]
        unique(where, "option", [(o.flag, o.name) for o in self.options])
        if self.name not in self.example:
            raise SchemaError(f"{where}: the example does not start with drayctl and this verb")


class List:
    """A list of records, with columns for people."""

    def __init__(self, raw, methods, records):
        where = f"drayctl.yaml: list {raw['name']}"
        check_keys(where, raw, ("name", "method", "columns"), ("noun",))
        self.name, self.method, self.noun = raw["name"], raw["method"], raw.get("noun", raw["name"])
        if self.method not in methods:
            raise SchemaError(f"{where}: {self.method} returns no records")
        self.record = methods[self.method]
        fields = [f["name"] for f in records[self.record]["fields"]]
        self.columns = []
        for column in raw["columns"].split():
            title, _, field = column.rpartition("=")
            if field not in fields:
                raise SchemaError(f"{where}: record {self.record} has no field {field}")
            self.columns.append((title or field.removesuffix("_ns").replace("_", " ").upper(), field))
        if len(self.columns) > COLUMNS_MAX:
            raise SchemaError(f"{where}: more than {COLUMNS_MAX} columns")


class CommandLine:
    def __init__(self, raw, dbus):
        check_keys("drayctl.yaml", raw, ("options", "rules", "verbs", "lists", "manual"))
        items = named("drayctl.yaml: options", raw["options"])
        self.options = {i["name"]: Option(i) for i in items}
        self.every = [o for o in self.options.values() if o.every]
        if list(self.options.values())[:len(self.every)] != self.every:
            raise SchemaError("drayctl.yaml: the global options come first")
        self.rules = raw["rules"]
        for r in self.rules:
            check_keys("drayctl.yaml: rule", r, ("option",), ("needs", "excludes", "advice"))
            for name in (r["option"], r.get("needs") or r.get("excludes")):
                if name not in self.options:
                    raise SchemaError(f"drayctl.yaml: rules: unknown option {name}")
        self.verbs = [Verb(v, self.options) for v in named("drayctl.yaml: verbs", raw["verbs"])]
        used = {o.name for v in self.verbs for o in v.options} | {o.name for o in self.every}
        if used != set(self.options):
            raise SchemaError(f"drayctl.yaml: no verb has {', '.join(sorted(set(self.options) - used))}")
        methods = {m["name"]: a["record"] for m in dbus["methods"] for a in m["out"] if "record" in a}
        records = {r["name"]: r for r in dbus["records"]}
        self.lists = [List(r, methods, records) for r in named("drayctl.yaml: lists", raw["lists"])]
        names = {entry.name for entry in self.lists}
        for v in self.verbs:
            if v.list is not None and v.list not in names:
                raise SchemaError(f"drayctl.yaml: verb {v.ident}: unknown list {v.list}")
        self.manual = raw["manual"]
        check_keys("drayctl.yaml: manual", self.manual, ("summary", "description", "options", "units", "sections"))


def load(raw, dbus):
    return CommandLine(raw, dbus)


# --- texts ----------------------------------------------------------------------------------------


def paragraphs(text):
    return text.split("\n\n") if text else []


def is_commands(paragraph):
    return paragraph.startswith("  ")


def wrapped(paragraph):
    lines = [""]
    for word in paragraph.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > COLUMNS:
            lines.append("")
        lines[-1] += " " * bool(lines[-1]) + word
    return "\n".join(lines)


def options_help(options):
    return "".join(f"  {o.usage:<24} {o.doc}\n" for o in options)


def verb_help(line, v):
    more = "\n\n".join(p if is_commands(p) else wrapped(p) for p in paragraphs(v.more))
    own = f"Options of this verb, which follow it:\n{options_help(v.options)}\n" if v.options else ""
    return (f"Usage: drayctl [OPTION]... {v.usage}\n{v.doc}\n\n{more}\n\n{own}"
            f"Options of every verb:\n{options_help(line.every)}\nExample: {v.example}\n")


def whole_help(line):
    verbs = "".join(f"  {v.name:<10} {v.doc}\n" for v in line.verbs)
    return ("Usage: drayctl [OPTION]... [VERB]\n"
            "Inspects and drains the dray agent of this node. The default verb is status.\n\n"
            f"Verbs:\n{verbs}\nOptions:\n{options_help(line.every)}\n"
            "Exit status: 0 success, 1 failure, 2 usage error, 3 agent unreachable, 4 refused.\n")


# --- C --------------------------------------------------------------------------------------------

HEADER = """
enum ctl_option_type {
	CTL_TYPE_FLAG, /* takes no value */
	CTL_TYPE_TEXT,
	CTL_TYPE_WORD, /* one of `words` */
	CTL_TYPE_COUNT,
	CTL_TYPE_SIZE, /* bytes */
	CTL_TYPE_DURATION, /* nanoseconds */
};

struct ctl_option {
	const char *name; /* with its dashes */
	char letter; /* -f is the same, or 0 */
	const char *value; /* the name of its value, or NULL */
	enum ctl_option_type type;
	bool optional; /* the value, which then follows = */
	int64_t min, max; /* of numbers */
	int64_t def; /* of numbers: without the option */
	int64_t implied; /* of numbers: with the option, but without a value */
	const char *const *words; /* up to NULL; the first one is the default */
};

/* In the order of enum ctl_option_id. */
extern const struct ctl_option ctl_options[CTL_OPTION_N];

/* An option that another one excludes, or without which another one has no effect. */
struct ctl_option_rule {
	enum ctl_option_id option;
	bool needs; /* only for verbs that have the other one too; else excludes */
	enum ctl_option_id other;
	const char *advice; /* end of the message */
};

extern const struct ctl_option_rule ctl_option_rules[CTL_OPTION_RULES_N];

struct ctl_column {
	const char *title;
	unsigned field;
};

/* A list of records. JSON and the plain form have every field of the schema, the table for people has the columns. */
struct ctl_list {
	const char *member; /* method */
	const char *what; /* key in JSON, and the noun */
	const struct dray_dbus_field *fields;
	unsigned n_fields, n_columns;
	struct ctl_column columns[CTL_COLUMNS_MAX];
};

struct ctl_verb {
	const char *name;
	const char *help; /* the whole text of --help */
	enum ctl_option_id options[CTL_VERB_OPTIONS_MAX]; /* its own; a global one ends them */
	unsigned max_args;
	const struct ctl_list *list; /* for verbs that only print one, else NULL */
	bool command; /* from -- or the first word on, the arguments are another program's */
};

/* In the order of enum ctl_verb_id; the first one is the default. */
extern const struct ctl_verb ctl_verbs[CTL_VERB_N];

/* The text of drayctl --help. */
extern const char ctl_help_text[];

"""


def literal(text, indent):
    return "".join(f"\n{indent}{quoted(line)[:-1]}\\n\"" for line in text.removesuffix("\n").split("\n"))


def tables(line):
    names = Names("drayctl.yaml", SchemaError)
    n_options = max(len(v.options) for v in line.verbs) + 1
    h = '#include <stdbool.h>\n#include <stdint.h>\n\n#include "schema/gen/dbus.h"\n'
    h += f"\n#define CTL_ARGS_MAX {ARGUMENTS_MAX}\n#define CTL_COLUMNS_MAX {COLUMNS_MAX}\n"
    h += f"#define CTL_VERB_OPTIONS_MAX {n_options}\n#define CTL_OPTION_RULES_N {len(line.rules)}\n"
    c = banner("/*", " */") + '#include "schema/gen/drayctl.h"\n\n#include <stddef.h>\n'
    for fixed in ("CTL_OPTION_RULES_N", "CTL_OPTION_GLOBAL_N", "CTL_OPTION_N", "CTL_VERB_N", "CTL_VERB_OPTIONS_MAX"):
        names.add(fixed, "a fixed name")
    h += "\nenum ctl_option_id {\n"
    for number, o in enumerate(line.options.values()):
        if number == len(line.every):
            h += "\tCTL_OPTION_GLOBAL_N,\n"
        first = " = CTL_OPTION_GLOBAL_N" if number == len(line.every) else ""
        h += f"\t{names.add('CTL_OPTION_' + o.name.upper(), o.name)}{first},\n"
    h += "\tCTL_OPTION_N\n};\n\nenum ctl_verb_id {\n"
    h += "".join(f"\t{names.add('CTL_VERB_' + v.ident.upper(), v.ident)},\n" for v in line.verbs)
    h += "\tCTL_VERB_N\n};\n"
    for o in line.options.values():
        if o.numeric and o.max < 2**31:
            h += f"\n#define {names.add(f'CTL_{o.name.upper()}_MAX', o.name)} {o.max} /* of {o.flag} */\n"
        if o.type == "WORD":
            h += f"\n/* {o.flag} */\nenum ctl_{o.name} {{\n"
            h += "".join(f"\t{names.add(f'CTL_{o.name.upper()}_' + w.upper().replace('-', '_'), o.name)},\n"
                         for w in o.value.words) + "};\n"
            c += f"\nstatic const char *const {o.name}_words[] = {{ {', '.join(map(quoted, o.value.words))}, NULL }};\n"
    h += HEADER
    h += "extern const struct ctl_list " + ", ".join(f"ctl_list_{entry.name}" for entry in line.lists) + ";\n"
    h += "\n/* X(id, function) for each verb that has a function. */\n#define CTL_VERB_FUNCTIONS(X)"
    h += "".join(f" \\\n\tX({v.ident.upper()}, ctl_{v.ident})" for v in line.verbs if not v.list) + "\n"
    c += "\nconst struct ctl_option ctl_options[CTL_OPTION_N] = {\n"
    for o in line.options.values():
        c += f"\t[CTL_OPTION_{o.name.upper()}] = {{ .name = {quoted(o.flag)}, .type = CTL_TYPE_{o.type},\n"
        if o.letter:
            c += f"\t\t.letter = '{o.letter}',\n"
        if o.value:
            c += f"\t\t.value = {quoted(o.value.name)},\n"
        if o.optional:
            c += f"\t\t.optional = true, .implied = INT64_C({o.implied}),\n"
        if o.numeric:
            c += f"\t\t.min = INT64_C({o.min}), .max = INT64_C({o.max}), .def = INT64_C({o.default}),\n"
        if o.type == "WORD":
            c += f"\t\t.words = {o.name}_words,\n"
        c += "\t},\n"
    c += "};\n\nconst struct ctl_option_rule ctl_option_rules[CTL_OPTION_RULES_N] = {\n"
    for r in line.rules:
        other = r.get("needs") or r["excludes"]
        c += (f"\t{{ CTL_OPTION_{r['option'].upper()}, {'true' if 'needs' in r else 'false'}, "
              f"CTL_OPTION_{other.upper()}, {quoted(r['advice']) if 'advice' in r else 'NULL'} }},\n")
    c += "};\n"
    for entry in line.lists:
        up = f"DRAY_DBUS_{entry.record.upper()}_FIELD_"
        c += (f"\nconst struct ctl_list ctl_list_{entry.name} = {{\n"
              f"\tDRAY_DBUS_METHOD_{snake(entry.method).upper()}, {quoted(entry.noun)}, dray_dbus_{entry.record}_fields,\n"
              f"\t{up}N, {len(entry.columns)},\n\t{{\n")
        c += "".join(f"\t\t{{ {quoted(title)}, {up}{field.upper()} }},\n" for title, field in entry.columns) + "\t},\n};\n"
    c += "\nconst struct ctl_verb ctl_verbs[CTL_VERB_N] = {\n"
    for v in line.verbs:
        c += f"\t[CTL_VERB_{v.ident.upper()}] = {{ .name = {quoted(v.name)},\n"
        if v.options:
            c += "\t\t.options = { " + ", ".join(f"CTL_OPTION_{o.name.upper()}" for o in v.options) + " },\n"
        if v.arguments:
            c += f"\t\t.max_args = {len(v.arguments)},\n"
        if v.list:
            c += f"\t\t.list = &ctl_list_{v.list},\n"
        if v.command:
            c += "\t\t.command = true,\n"
        c += f"\t\t.help ={literal(verb_help(line, v), chr(9) * 3)},\n\t}},\n"
    c += f"}};\n\nconst char ctl_help_text[] ={literal(whole_help(line), chr(9))};\n"
    return {"schema/gen/drayctl.h": header_file(h), "schema/gen/drayctl.c": c}


# --- completion -----------------------------------------------------------------------------------


def bash_values(line, v):
    if v.kind in ("file", "dir"):
        return v.kind
    if v.kind == "verb":
        return "words " + "".join(f" {x.name}" for x in line.verbs)[1:]
    if v.kind:
        return f"ask {SOURCES[v.kind]}"
    return " ".join(["words"] + v.words) if v.words else "free"


def bash(line):
    """Tables for the code in ctl/completion: options of a verb are under its name, the global ones under a dot."""
    groups = [(EVERY, line.every, [])] + [(v.name, v.options, v.arguments) for v in line.verbs]
    out = banner("#") + "# bash 4.4 or later.\n\n_drayctl_verbs='" + "".join(f" {v.name}" for v in line.verbs)
    out += f"'\n\n# Options by verb; {EVERY}: the global ones.\ndeclare -gA _drayctl_options=(\n"
    for name, options, _ in groups:
        out += f"\t['{name}']='" + "".join(f" {o.flag}" for o in options) + "'\n"
    out += ")\n\n# Values of an option, or of the first, second, ... argument of a verb.\ndeclare -gA _drayctl_values=(\n"
    for name, options, arguments in groups:
        # An optional value is never the next word.
        rows = [(o.flag, o.value) for o in options if o.value and not o.optional] + list(enumerate(arguments, 1))
        out += "".join(f"\t['{name} {key}']='{bash_values(line, value)}'\n" for key, value in rows)
    out += ")\n\n# Options that are given by one letter.\ndeclare -gA _drayctl_letters=(\n\t[-h]=--help\n"
    return out + "".join(f"\t[-{o.letter}]={o.flag}\n" for o in line.options.values() if o.letter) + ")\n\n"


def zsh_text(text, special):
    """Text within single quotes; special characters of _arguments and _describe get a backslash."""
    return "".join("'\\''" if ch == "'" else "\\" + ch if ch in special else ch for ch in text)


def zsh_values(v):
    """:message:action"""
    if v.kind in ("file", "dir"):
        action = "_files" + " -/" * (v.kind == "dir")
    elif v.kind == "verb":
        action = "_drayctl_verbs"
    elif v.kind:
        # After the space, _arguments calls the function with exactly these arguments.
        action = f" _drayctl_ask {SOURCES[v.kind]}"
    else:
        action = f"({''.join(f' {w}' for w in v.words)})" if v.words else " "
    return ":" + zsh_text(v.name, "\\:") + ":" + action


def zsh_options(options):
    """Each by its name, and those that have a letter by that, too."""
    return [zsh_option(o, flag) for o in options for flag in [o.flag] + [f"-{o.letter}"] * bool(o.letter)]


def zsh_option(o, flag):
    value = (":" if o.optional else "") + zsh_values(o.value) if o.value else ""
    equals = "" if not flag.startswith("--") else "=-" if o.optional else "=" if o.value else ""
    return f"'{flag}{equals}[{zsh_text(o.doc, chr(92) + '[]')}]{value}'"


def zsh_cases(cases):
    return "".join(f"\t{name})\n\t\treply=(\n" + "".join(f"\t\t\t{row}\n" for row in rows) + "\t\t)\n\t\t;;\n"
                   for name, rows in cases if rows) + "\tesac\n}\n\n"


def zsh(line):
    out = "#compdef drayctl\n" + banner("#") + "\n_drayctl_verbs() {\n\tlocal -a verbs=(\n"
    out += "".join(f"\t\t'{v.name}:{zsh_text(v.doc, chr(92))}'\n" for v in line.verbs)
    out += ("\t)\n\t_describe -t verbs verb verbs\n}\n\n"
            f"# Sets reply to the options of a verb; {EVERY}: the global ones.\n"
            "_drayctl_options() {\n\treply=()\n\tcase $1 in\n")
    out += zsh_cases([(EVERY, zsh_options(line.every))] +
                     [(v.name, zsh_options(v.options)) for v in line.verbs])
    out += "# Sets reply to the arguments of a verb.\n_drayctl_arguments() {\n\treply=()\n\tcase $1 in\n"
    return out + zsh_cases([(v.name, [f"'{i}{zsh_values(a)}'" for i, a in enumerate(v.arguments, 1)])
                            for v in line.verbs])


# --- manual ---------------------------------------------------------------------------------------

ESCAPES = {"-": "\\-", "\\": "\\e", "'": "\\(aq", "^": "\\(ha", "~": "\\(ti", "`": "\\(ga"}


def roff(text):
    return "".join(ESCAPES.get(ch, ch) for ch in text)


def bold(text):
    return f"\\fB{roff(text)}\\fR"


def roff_word(word):
    """An option, as in --json, and a page, as in drayd(8), are bold."""
    m = re.match(r"--[a-z-]+|[^(]+(?=\([0-9]\))", word)
    return bold(m.group()) + roff(word[m.end():]) if m else roff(word)


def roff_words(text):
    # The prefix keeps a line from looking like a request.
    return "\\&" + " ".join(map(roff_word, text.split())) + "\n"


def roff_commands(text):
    return ".RS\n.nf\n" + "".join(f"\\&{roff(n.removeprefix('  '))}\n" for n in text.split("\n")) + ".fi\n.RE\n"


def roff_text(text):
    return ".PP\n".join(roff_commands(p) if is_commands(p) else roff_words(p) for p in paragraphs(text))


def roff_sentence(doc):
    return roff_words(doc[0].upper() + doc[1:] + ("" if doc.endswith(".") else "."))


def roff_usage(args):
    """Literal words and options are bold, placeholders italic."""
    parts = re.findall(r"[A-Z_]+|[a-z0-9_=-]+|.", args)
    return "".join(f"\\fI{roff(p)}\\fR" if re.match(r"[A-Z_]", p) else bold(p) if re.match(r"[a-z0-9=-]", p) else roff(p)
                   for p in parts)


def roff_option(o):
    value = roff_usage(o.value.name) if o.value else ""
    out = f".TP\n{bold(o.flag)}" + (f"[={value}]" if o.optional else f" {value}" if value else "") + "\n"
    return out + roff_sentence(o.doc) + (roff_words(o.more) if o.more else "")


def roff_verb(v):
    usage = " " + roff_usage(v.args) if v.args else ""
    return (f".SS \"{bold(v.name)}{usage}\"\n{roff_sentence(v.doc)}.PP\n{roff_text(v.more)}"
            f"{''.join(map(roff_option, v.options))}.PP\nExample:\n.PP\n{roff_commands(v.example)}")


def roff_section(s):
    items = "".join(f".TP\n{bold(tag)}\n{roff_words(text)}" for tag, text in s.get("items", []))
    return f".SH {s['title']}\n{roff_text(s.get('text', ''))}{items}"


def manual(line):
    m = line.manual
    return (banner('.\\"') + f".TH DRAYCTL 1 \"\" \"dray @VERSION@\" dray\n.SH NAME\ndrayctl \\- {roff(m['summary'])}\n"
            ".SH SYNOPSIS\n\\fBdrayctl\\fR [\\fIOPTION\\fR]... [\\fIVERB\\fR]\n.SH DESCRIPTION\n"
            f"{roff_text(m['description'])}.SH VERBS\n{''.join(map(roff_verb, line.verbs))}"
            f".SH OPTIONS\n{roff_text(m['options'])}{''.join(map(roff_option, line.every))}.PP\n{roff_text(m['units'])}"
            f"{''.join(map(roff_section, m['sections']))}")


def write(line):
    return {**tables(line), "schema/gen/drayctl.bash": bash(line), "schema/gen/drayctl.zsh": zsh(line),
            "schema/gen/drayctl.1": manual(line)}
