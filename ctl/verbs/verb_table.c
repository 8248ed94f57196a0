/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs. Help, manual and completion are made from these rows; a new verb needs its row here, and its
 * options theirs in args.c. The first one is what a bare drayctl does.
 */
#include "ctl/ctl.h"

const struct ctl_verb ctl_verbs[] = {
	{ .name = "status",
	  .args = "",
	  .help = "what the agent is and does",
	  .more = "State of the agent, its identity and segment, and the sums of what it holds and "
		  "has done.",
	  .example = "drayctl status",
	  .fn = ctl_status },
	{ .name = "sessions",
	  .args = "",
	  .help = "engines and other clients with an open session",
	  .more = "Name, group and user of each, and how much it uses.",
	  .example = "drayctl sessions --json | jq '.sessions[].name'",
	  .fn = ctl_sessions },
	{ .name = "regions",
	  .args = "",
	  .help = "memory that clients registered",
	  .more = "Whose, what kind, how long, and how many tokens and peers' grants stand for it.",
	  .example = "drayctl regions",
	  .fn = ctl_regions },
	{ .name = "peers",
	  .args = "",
	  .help = "other agents, and the state of the way to them",
	  .more = "The agents that this one knows, the state of the connection to each and since "
		  "when, and the reason for it.",
	  .example = "drayctl peers",
	  .fn = ctl_peers },
	{ .name = "rails",
	  .args = "[--enable DEVICE[/PORT] | --disable DEVICE[/PORT]]",
	  .help = "RDMA ports, and the GID that the agent chose for each",
	  .more = "State, rate and interface of each port, and its GID with the reason; the state of "
		  "the agent's rail on it, its queue pairs, what it moved, and how often slices were "
		  "sent again or moved to another rail.",
	  .example = "drayctl rails --disable mlx5_0",
	  .fn = ctl_rails,
	  .options = { CTL_OPTION_ENABLE, CTL_OPTION_DISABLE, 0 } },
	{ .name = "paths",
	  .args = "",
	  .help = "rails by which peers are reached, and what has gone over each",
	  .more = "For each peer, the pairs of a rail here and a rail there that reach each other: "
		  "GIDs, MTU, state with the reason, queue pairs, and what moved over each.",
	  .example = "drayctl paths --json | jq '.paths[] | {segment, device, state, queue_pairs}'",
	  .fn = ctl_paths },
	{ .name = "gpus",
	  .args = "",
	  .help = "GPUs that the agent copies with, and what it holds on each",
	  .more = "State with the reason, regions and bytes on it, GPU memory that the agent's own "
		  "context takes, and the GPUs it reaches directly. There are none before the first "
		  "region of GPU memory: until then the agent loads no CUDA. What this place could do "
		  "is told by drayctl detect.",
	  .example = "drayctl gpus --json | jq '.gpus[] | {uuid, state, bytes}'",
	  .fn = ctl_gpus },
	{ .name = "transfers",
	  .args = "[--recent] [--watch [--interval DURATION] [--count N]]",
	  .help = "transfers in flight, or those that ended last",
	  .more = "Way, class, path, how much is done, and how long is left to the deadline; of those "
		  "that ended also how, and where their time went.",
	  .example = "drayctl transfers --plain | cut -f 7,9,10",
	  .fn = ctl_transfers,
	  .options = { CTL_OPTION_RECENT, CTL_OPTION_REPEAT, CTL_OPTION_INTERVAL, CTL_OPTION_LOOKS,
		       0 } },
	{ .name = "top",
	  .args = "[--interval DURATION] [--count N]",
	  .help = "what moves at this moment, in all, by rail and by session",
	  .more = "Bytes and transfers in a second, between two looks; the first look has nothing to "
		  "compare with, and shows zeros. On a terminal each look takes the place of the one "
		  "before.",
	  .example = "drayctl top --interval 2s",
	  .fn = ctl_top,
	  .options = { CTL_OPTION_INTERVAL, CTL_OPTION_LOOKS, 0 } },
	{ .name = "events",
	  .args = "[--watch]",
	  .help = "what has changed lately: states, rails, peers, sessions, configuration",
	  .more = "The last 1,000 changes since the agent's start, each with its time and reason, "
		  "oldest first. With --watch those too that come from then on.",
	  .example = "drayctl events --watch",
	  .fn = ctl_events,
	  .options = { CTL_OPTION_WATCH, 0 } },
	{ .name = "cancel",
	  .args = "SESSION REQUEST",
	  .help = "stop a transfer; returns when no byte of it can move any more",
	  .more = "Both numbers are those of drayctl transfers. Prints cancelled, or how the transfer "
		  "ended where that came first. Its client is told that an operator did it.\n\n"
		  "For root, the agent's own user, and members of control.group.",
	  .example = "drayctl cancel 4294967296 17",
	  .fn = ctl_cancel,
	  .max_args = 2,
	  .kinds = { CTL_KIND_SESSION } },
	{ .name = "close",
	  .args = "SESSION [REASON]",
	  .help = "end a session as if its client had died",
	  .more = "Its transfers end, its regions and tokens are void, and its client is told the "
		  "reason. A client library connects again.\n\n"
		  "For root, the agent's own user, and members of control.group.",
	  .example = "drayctl close 4294967296 'wrong model'",
	  .fn = ctl_close,
	  .max_args = 2,
	  .kinds = { CTL_KIND_SESSION } },
	{ .name = "detect",
	  .args = "[--explain DEVICE[/PORT] | --watch] [OPTION]...",
	  .help = "RNICs, GIDs, GPUs, addresses and listeners of this place, without an agent",
	  .more = "RDMA devices with the best GID of each port, GPUs with the RNICs that they should "
		  "use and, where the CUDA plug-in is, with what it can do on each, addresses with the one to advertise, listening sockets; each choice with its "
		  "reason.",
	  .example = "drayctl detect --explain mlx5_0",
	  .fn = ctl_detect,
	  .options = { CTL_OPTION_EXPLAIN, CTL_OPTION_FROM_SYSFS, CTL_OPTION_WATCH, CTL_OPTION_ONLY,
		       CTL_OPTION_WITHOUT, CTL_OPTION_GID_INDEX, CTL_OPTION_FAMILY,
		       CTL_OPTION_NODE_ADDRESSES, CTL_OPTION_RNICS, CTL_OPTION_OWNERS,
		       CTL_OPTION_GPU_PLUGIN, 0 } },
	{ .name = "doctor",
	  .args = "[--register SIZE] [--from-sysfs DIR] [--gpu-plugin FILE]",
	  .help = "what is wrong with this place, and the fix; exits 1 on warnings, 2 on errors",
	  .more = "One line for each finding, with the way to mend it. The exit status is 0 where all "
		  "is well. Needs no agent.",
	  .example = "drayctl doctor --register 64GiB",
	  .fn = ctl_doctor,
	  .options = { CTL_OPTION_REGISTER, CTL_OPTION_FROM_SYSFS, CTL_OPTION_GPU_PLUGIN, 0 } },
	{ .name = "health",
	  .args = "[--live | --ready]",
	  .help = "is the agent alive, and ready; exits 1 where it is not",
	  .more = "And why not, with each condition of readiness; by the control socket, so that it "
		  "serves as the command of a probe where HTTP is not wanted. Exits with 0 where the "
		  "agent is both, with 3 where it cannot be asked. With --plain a line each for alive, "
		  "with the reason, and ready, then the conditions.",
	  .example = "drayctl health --live",
	  .fn = ctl_health,
	  .options = { CTL_OPTION_LIVE, CTL_OPTION_READY, 0 } },
	{ .name = "segments",
	  .args = "[--explain [--scope SCOPE]]",
	  .help = "segments that are known, which are ready, and which is preferred",
	  .more = "State of each with the reason, from where it is known, and how it is probed. With "
		  "--explain the candidates for the preferred segment, with what speaks for each and "
		  "why it won or lost.",
	  .example = "drayctl segments --explain",
	  .fn = ctl_segments,
	  .options = { CTL_OPTION_CANDIDATES, CTL_OPTION_SCOPE, 0 } },
	{ .name = "hints",
	  .args = "[--set SCOPE=SEGMENT [--score N] [--ttl DURATION] | --forget SCOPE[=SEGMENT] | "
		  "--forget-all]",
	  .help = "remembered placements: for this scope, that segment",
	  .more = "Of each scope the strongest source counts, then the highest score, then the "
		  "youngest. The empty scope is the whole node.\n\n"
		  "To change them is for root, the agent's own user, and members of control.group.",
	  .example = "drayctl hints --set llama-70b=10.0.0.7:50053 --ttl 1h",
	  .fn = ctl_hints,
	  .options = { CTL_OPTION_SET, CTL_OPTION_SCORE, CTL_OPTION_TTL, CTL_OPTION_FORGET,
		       CTL_OPTION_FORGET_ALL, 0 } },
	{ .name = "env",
	  .args = "[--profile NAME[,NAME]...] [--format shell|dotenv|json|args] [--override]",
	  .help = "the environment that an engine's launcher should set",
	  .more = "Variables by profile, as the agent found them. What is left out, and why, goes to "
		  "standard error, so that the output can be read by eval. --json and --plain print "
		  "the agent's records instead of a --format.\n\n"
		  "  $ eval \"$(drayctl env --profile vllm-mooncake)\"\n"
		  "  $ eval \"mooncake_client $(drayctl env --profile mooncake-owner --format args)\"",
	  .example = "drayctl env --profile nccl,ucx --format dotenv",
	  .fn = ctl_env,
	  .options = { CTL_OPTION_PROFILE, CTL_OPTION_ENV_FORMAT, CTL_OPTION_OVERRIDE, 0 } },
	{ .name = "exec",
	  .args = "[OPTION]... -- COMMAND [ARG]...",
	  .help = "run a command in that environment; it takes drayctl's place",
	  .more = "Asks the agent for the variables, sets those that are not set already, and becomes the "
		  "command: with its arguments, open files, signals and terminal as they are. Notes go to "
		  "standard error.\n\n"
		  "Exits with 124 when the preferred segment is not ready in time, with 126 or 127 when "
		  "the command cannot be run or found, and else as every verb; what the command exits "
		  "with is its own.",
	  .example = "drayctl exec --wait-ready --profile vllm-mooncake -- vllm serve MODEL",
	  .fn = ctl_exec,
	  .options = { CTL_OPTION_WAIT_READY, CTL_OPTION_ON_TIMEOUT, CTL_OPTION_PROFILE,
		       CTL_OPTION_OVERRIDE, CTL_OPTION_KV_TRANSFER, 0 },
	  .command = true },
	{ .name = "wait",
	  .args = "[--timeout DURATION] [--for ready|live|drained|gone] [segment=SEGMENT] [state=STATE]",
	  .help = "return when the agent is ready, or what else is waited for",
	  .more = "For launchers and hooks: the agent need not have been started yet. Prints what was "
		  "reached; after --timeout it fails with what is still missing.\n\n"
		  "With segment=HOST:PORT, segment=local (any on this node) or segment=preferred it waits "
		  "for that segment instead, until its state is ready, or what state= says: unknown, "
		  "probing, ready or lost. A segment that is not known yet is waited for.",
	  .example = "drayctl wait --timeout 60s && exec vllm serve",
	  .fn = ctl_wait,
	  .max_args = 2,
	  .options = { CTL_OPTION_FOR, CTL_OPTION_WAIT_LIMIT, 0 } },
	{ .name = "drain",
	  .args = "[--wait] [--timeout DURATION | --force] [--stay]",
	  .help = "take no new work, end what is in flight, then exit",
	  .more = "The agent takes no new sessions and transfers, tells clients and peers, ends what "
		  "is in flight, and exits with status 0. A drain that is under way already is no "
		  "error; its limit stays, unless --force makes it now. With --wait what is left is told "
		  "each second on the error stream.\n\n"
		  "For root, the agent's own user, and members of control.group.",
	  .example = "drayctl drain --wait --timeout 10s",
	  .fn = ctl_drain,
	  .options = { CTL_OPTION_WAIT, CTL_OPTION_LIMIT, CTL_OPTION_STAY, CTL_OPTION_FORCE, 0 } },
	{ .name = "resume",
	  .args = "",
	  .help = "take new work again, while draining or drained",
	  .more = "What was refused or stopped meanwhile stays so. An agent that was told to end by "
		  "SIGTERM, or is about to, refuses.\n\n"
		  "For root, the agent's own user, and members of control.group.",
	  .example = "drayctl drain --wait --stay && drayctl resume",
	  .fn = ctl_resume },
	{ .name = "reload",
	  .args = "",
	  .help = "read the configuration again; a bad one changes nothing",
	  .more = "Prints the keys that have changed, and those that differ and need a restart; "
		  "drayctl config --origin says of each which it is. Sessions and transfers go on. "
		  "SIGHUP does the same.\n\n"
		  "For root, the agent's own user, and members of control.group.",
	  .example = "drayctl reload",
	  .fn = ctl_reload },
	{ .name = "config",
	  .args = "[--origin]",
	  .help = "the configuration in effect",
	  .more = "Every key with its value, as one would write it.",
	  .example = "drayctl config --origin | grep -v default",
	  .fn = ctl_config,
	  .options = { CTL_OPTION_ORIGIN, 0 } },
	{ .name = "log-level",
	  .args = "[error|warning|notice|info|debug]",
	  .help = "the lowest level that is logged, or another one from now on",
	  .more = "It holds until log.level changes on a reload, or the agent ends.\n\n"
		  "To set it is for root, the agent's own user, and members of control.group.",
	  .example = "drayctl log-level debug",
	  .fn = ctl_log_level,
	  .max_args = 1 },
	{ .name = "bench",
	  .args = "[--serve | --token TOKEN | --owner PATH] [OPTION]...",
	  .help = "measure transfers, within this agent or to another",
	  .more = "Throughput, and latency from submission to completion. Without --token and --owner "
		  "both ends are sessions with the same agent, and the path is local. Each session's "
		  "first transfer is not measured; where both ends are ours, its bytes are "
		  "compared.\n\n"
		  "With --ceiling, how that compares with the least that the same work takes on this "
		  "machine:\n\n"
		  "  $ drayctl bench --ceiling --size 64 --batch 1 --wait spin\n\n"
		  "It is a client of the agent's data socket, as an engine is. From one node to "
		  "another:\n\n"
		  "  first$ drayctl bench --serve\n"
		  "  second$ drayctl bench --token - --size 64KiB --ops 256",
	  .example = "drayctl bench --size 64KiB --ops 256 --duration 5s",
	  .fn = ctl_bench,
	  .options = { CTL_OPTION_SOCKET, CTL_OPTION_SIZE, CTL_OPTION_OPS, CTL_OPTION_BATCH,
		       CTL_OPTION_COUNT, CTL_OPTION_DURATION, CTL_OPTION_DIRECTION,
		       CTL_OPTION_CLASS, CTL_OPTION_MEMORY, CTL_OPTION_SESSIONS, CTL_OPTION_HOW,
		       CTL_OPTION_CEILING, CTL_OPTION_ROUNDS, CTL_OPTION_OWNER, CTL_OPTION_TOKEN,
		       CTL_OPTION_SERVE, 0 } },
	{ .name = "version",
	  .args = "",
	  .help = "releases of drayctl and of the agent",
	  .more = "Where no agent answers, its release is unknown, and that is no error.",
	  .example = "drayctl version",
	  .fn = ctl_version },
	{ .name = "help",
	  .args = "[VERB]",
	  .help = "print help",
	  .more = "Of one verb, or the list of all.",
	  .example = "drayctl help drain",
	  .fn = ctl_help,
	  .max_args = 1,
	  .kinds = { CTL_KIND_VERB } },
};

const unsigned ctl_verbs_n = sizeof(ctl_verbs) / sizeof(ctl_verbs[0]);
