/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/command_line/manual.h"

#include <stddef.h>

const char ctl_manual_summary[] = "look at the dray agent of this node, and drain it";

const char ctl_manual_description[] =
	"drayctl talks to drayd(8) over its control socket. Without a verb it does status. Only bench is a "
	"client of the agent's data socket, as an engine is; detect and doctor need no agent.\n\n"
	"Whoever the control socket's mode and group let in may look. What changes something, such as drain "
	"and resume, is for root, the agent's own user, and members of control.group.\n\n"
	"No call waits longer than --timeout for an agent that does not answer.";

const char ctl_manual_options[] =
	"These stand anywhere; before the verb where the verb has one of the same name. A value follows as the "
	"next word or after =, as in --timeout=2s. After -- there are no more options.";

const char ctl_manual_units[] =
	"A DURATION is a number with a unit, such as 500ms, 2s or 10min; a SIZE such "
	"as 4096, 64KiB or 1.5GiB.";

static const struct ctl_manual_item exits[] = {
	{ "0", "Done." },
	{ "1", "Failed." },
	{ "2", "Wrong use: one line on standard error says what." },
	{ "3", "No agent is there, or it does not answer." },
	{ "4", "The kernel or the agent refuses: permission, or not in its present state." },
	{ "124", "exec: the preferred segment was not ready in time." },
	{ "126", "exec: the command is there and cannot be run." },
	{ "127", "exec: there is no such command." },
	{ NULL, NULL },
};

static const struct ctl_manual_item environment[] = {
	{ "DRAY_CONTROL_SOCKET",
	  "Control socket where --control is not given; else /run/dray/control.sock." },
	{ "DRAY_SOCKET", "Data socket for bench, where --socket is not given." },
	{ "PATH", "Where exec looks for its command." },
	{ "NO_COLOR", "No colour if this is set and not empty." },
	{ "TERM", "No colour if this is not set, or dumb." },
	{ NULL, NULL },
};

static const struct ctl_manual_item files[] = {
	{ "/run/dray/control.sock", "The agent's control socket, where nothing names another." },
	{ "/run/dray/dray.sock", "Its data socket, likewise." },
	{ NULL, NULL },
};

const struct ctl_manual_section ctl_manual_sections[] = {
	{ "EXIT STATUS", "doctor has its own: 0 where all is well, 1 with warnings, 2 with errors.",
	  exits },
	{ "ENVIRONMENT", "", environment },
	{ "FILES", "", files },
	{ "EXAMPLES",
	  "What an engine has open:\n\n"
	  "  drayctl sessions --json | jq '.sessions[].name'\n\n"
	  "Before a node is taken down:\n\n"
	  "  drayctl drain --wait --timeout 30s\n\n"
	  "An engine with the right environment, when its node's segment is ready:\n\n"
	  "  drayctl exec --wait-ready=60s --profile vllm-mooncake,nccl -- vllm serve MODEL\n\n"
	  "The same state without drayctl:\n\n"
	  "  busctl --address=unix:path=/run/dray/control.sock introspect dev.dray.Agent1 /dev/dray/Agent",
	  NULL },
	{ "SEE ALSO", "drayd(8), libdray(3), busctl(1)", NULL },
	{ NULL, NULL, NULL },
};
