# SPDX-License-Identifier: Apache-2.0
"""Writes the manual pages drayd.conf(5) and dray(7)."""

import re

from generator.drayctl import bold, roff, roff_words
from generator.text import banner

CONFIGURATION = """.SH NAME
drayd.conf \\- configuration of the data-movement agent
.SH SYNOPSIS
.I /etc/dray/drayd.conf
.SH DESCRIPTION
Every key has a default that works or is detected, so the file is optional.
.BR drayd (8)
reads it in the format of libconfig: sections with keys, lists of strings in brackets, and comments after # or //.
.B \\-\\-config
names another file.
.PP
A value comes from, in rising order of precedence: the default, the file, the environment, the command line.
The variable of agent.state_dir is
.BR DRAY_AGENT_STATE_DIR ;
on the command line it is
.B \\-\\-set
agent.state_dir=VALUE, or the option that is named with the key.
.PP
A size is a number with a unit (B, KiB, MiB, GiB, TiB; KB, MB and so on are powers of 1000), and so is a duration (ns, us, ms, s, min, h).
In the file both are strings. A list is an array of strings in the file, and separated by commas elsewhere.
.PP
.B drayctl config check
checks a file,
.B drayctl config show
prints the values of a running agent with their origins, and
.B drayctl reload
makes it read the file again. Keys with "May change on reload" change then; the others need a restart.
.SH EXAMPLE
.RS
.nf
log: { level = "debug"; };
peer: {
    key_file = "/etc/dray/key";
    listen = ["10.0.0.7:7411"];
};
limits: { store_bytes = "16GiB"; };
.fi
.RE
"""

OVERVIEW = """.SH NAME
dray \\- moves KV caches and encoder outputs between LLM inference engines
.SH DESCRIPTION
One agent,
.BR drayd (8),
runs beside an inference engine. It owns the RDMA devices and the connections to other agents, and moves bytes for its clients:
between their memories, and to and from memory of the clients of other agents, over RDMA, TCP, or within the machine.
.PP
A client, usually an engine's connector, opens a
.I session
over the data socket, by
.BR libdray (3)
or the Python package
.BR dray .
It shares memory as a
.IR region ,
exports ranges of it as
.IR tokens ,
and sends these to another client, which imports a token as a
.I remote
and requests
.I transfers
between its own regions and the remote. Each transfer ends once: done, failed with an error from the list below, or cancelled.
A
.I lease
is a right on some ranges for some holders and a limited time; a
.I mailbox
takes messages of clients that have no token; the
.I store
keeps objects by key.
.PP
Agents find each other by
.IR segment ,
the address host:port at which an agent listens. They prove to each other that they hold the same key.
.SH FIRST STEPS
.TP
.B drayd
starts an agent. It needs no configuration, and no privileges except for RDMA.
.TP
.B drayctl status
shows what it does, and names the next step.
.TP
.B drayctl bench
moves bytes through it and compares them.
.TP
.B drayctl doctor
looks for problems of the machine.
.SH FILES
.TP
.I /run/dray/dray.sock
Data socket, for engines.
.TP
.I /run/dray/control.sock
Control socket, for
.BR drayctl (1)
and
.BR busctl (1).
.TP
.I /etc/dray/drayd.conf
Configuration.
.TP
.I /var/lib/dray
The agent's id and its database.
.SH PORTS
Agents listen at TCP port 7411, by default only on loopback unless a key is configured. Port 7412 is usual for metrics, 7413 for probes of health.
.SH ERRORS
Errors have the same names in the protocol, in libdray, in Python and in logs.
"""
SEE_ALSO = {"drayd.conf": ("drayd (8)", "drayctl (1)", "dray (7)"), "dray": ("drayd (8)", "drayctl (1)", "drayd.conf (5)", "libdray (3)")}


def page(name, section, text):
    also = ",\n".join(f".BR {n}" for n in SEE_ALSO[name])
    return banner('.\\"') + f'.TH {name.upper()} {section} "" "dray" "dray"\n{text}.SH SEE ALSO\n{also}\n'


def prose(doc):
    """Words in backticks are bold."""
    parts = re.split(r"`([^`]*)`", doc)
    return "\\&" + " ".join("".join(bold(p) if i % 2 else roff(p) for i, p in enumerate(parts)).split()) + "\n"


def key(k):
    allowed = f"{k.min_text} to {k.max_text}" if k.numeric else ", ".join(k.choices)
    facts = [k.type, *([f"default {k.default}"] if k.default else []), *([allowed] if allowed else [])]
    out = f".TP\n{bold(k.path)}\n{roff_words('; '.join(facts) + '.')}.br\n{prose(k.doc)}"
    if k.flag:
        out += f"Option {bold(k.flag)}.\n"
    return out + ("May change on reload.\n" if k.reload else "")


def configuration(keys):
    out, section = CONFIGURATION, None
    for k in keys:
        if k.section != section:
            section = k.section
            out += f".SH SECTION {roff(section.upper())}\n"
        out += key(k)
    return out


def overview(errors):
    return OVERVIEW + "".join(f".TP\n{bold(e['name'])}\n{prose(e['doc'] + ' ' + e['fix'])}" for e in errors if e["code"])


def write(schema):
    return {"agent/man/drayd.conf.5": page("drayd.conf", 5, configuration(schema.config)), "agent/man/dray.7": page("dray", 7, overview(schema.errors))}
