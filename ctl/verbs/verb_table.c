/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs. Help, manual and completion are made from these rows. A new verb needs a row here, and its options need
 * rows in command_line/options.c. The first row is the default verb.
 */
#include "ctl/bus/list.h"
#include "lib/cleanup.h"

#define OPERATORS "Allowed for root, the agent's own user, and members of control.group."

const struct ctl_verb ctl_verbs[] = {
	{ .name = "status",
	  .args = "",
	  .help = "show the state of the agent",
	  .more = "Prints the agent's state, its identity and segment, and its totals.",
	  .example = "drayctl status",
	  .fn = ctl_status },
	{ .name = "sessions",
	  .args = "",
	  .help = "list the open sessions of engines and other clients",
	  .more = "Prints the name, group and user of each session, and the resources that it "
		  "uses.",
	  .example = "drayctl sessions --json | jq '.sessions[].name'",
	  .fn = ctl_list_verb,
	  .list = &ctl_list_sessions },
	{ .name = "regions",
	  .args = "",
	  .help = "list the memory that clients registered",
	  .more = "Prints the owner, kind and length of each region, and the number of its "
		  "tokens and of the grants to peers.",
	  .example = "drayctl regions",
	  .fn = ctl_list_verb,
	  .list = &ctl_list_regions },
	{ .name = "peers",
	  .args = "",
	  .help = "list other agents, and the state of the connections to them",
	  .more = "Prints each agent that this one knows, the state of the connection to it, "
		  "how long it has had this state, and the reason.",
	  .example = "drayctl peers",
	  .fn = ctl_list_verb,
	  .list = &ctl_list_peers },
	{ .name = "rails",
	  .args = "[--enable DEVICE[/PORT] | --disable DEVICE[/PORT]]",
	  .help = "list RDMA ports with the chosen GIDs, or enable or disable one",
	  .more = "Prints state, rate and interface of each port, and its GID with the reason. "
		  "--json and --plain also have the state of the agent's rail on the port, its "
		  "queue pairs, the bytes it moved, and how often slices were sent again or "
		  "moved to another rail.",
	  .example = "drayctl rails --disable mlx5_0",
	  .fn = ctl_rails,
	  .options = { CTL_OPTION_ENABLE, CTL_OPTION_DISABLE, 0 } },
	{ .name = "paths",
	  .args = "",
	  .help = "list the RDMA paths to peers, with their traffic",
	  .more = "A path is a local rail and a rail of the peer that reach each other. Prints "
		  "GIDs, MTU, state with the reason, queue pairs, and bytes moved.",
	  .example = "drayctl paths --json | jq '.paths[] | {segment, device, state, queue_pairs}'",
	  .fn = ctl_list_verb,
	  .list = &ctl_list_paths },
	{ .name = "gpus",
	  .args = "",
	  .help = "list the GPUs that the agent uses, and its memory on each",
	  .more = "Prints state with the reason, regions and bytes, GPU memory of the agent's "
		  "own context, and the GPUs within direct reach. The agent loads CUDA with "
		  "the first region of GPU memory; before that, the list is empty. drayctl "
		  "detect shows the capabilities of this machine.",
	  .example = "drayctl gpus --json | jq '.gpus[] | {uuid, state, bytes}'",
	  .fn = ctl_gpus },
	{ .name = "transfers",
	  .args = "[--recent] [--watch [--interval DURATION] [--count N]]",
	  .help = "list transfers in flight, or those that ended last",
	  .more = "Prints direction, class, path, progress, and the time left to the deadline. "
		  "For transfers that ended, it prints the result and where their time went.",
	  .example = "drayctl transfers --plain | cut -f 7,9,10",
	  .fn = ctl_transfers,
	  .options = { CTL_OPTION_RECENT, CTL_OPTION_REPEAT, CTL_OPTION_INTERVAL, CTL_OPTION_TIMES,
		       0 } },
	{ .name = "top",
	  .args = "[--interval DURATION] [--count N]",
	  .help = "show the present rates, in total, by rail and by session",
	  .more = "Prints bytes and transfers per second between two outputs; the first output "
		  "has zeros. On a terminal, each output replaces the one before.",
	  .example = "drayctl top --interval 2s",
	  .fn = ctl_top,
	  .options = { CTL_OPTION_INTERVAL, CTL_OPTION_TIMES, 0 } },
	{ .name = "events",
	  .args = "[--watch]",
	  .help = "list recent changes of states, rails, peers, sessions, configuration",
	  .more = "Prints the last 1,000 changes since the agent's start, oldest first, each "
		  "with its time and reason. With --watch, it continues with later changes.",
	  .example = "drayctl events --watch",
	  .fn = ctl_events,
	  .options = { CTL_OPTION_WATCH, 0 } },
	{ .name = "cancel",
	  .args = "SESSION REQUEST",
	  .help = "stop a transfer; returns when none of its bytes can move any more",
	  .more = "drayctl transfers lists both numbers. Prints cancelled, or the result of "
		  "the transfer if it ended first. Its client learns that an operator "
		  "cancelled it.\n\n" OPERATORS,
	  .example = "drayctl cancel 4294967296 17",
	  .fn = ctl_cancel,
	  .max_args = 2,
	  .kinds = { CTL_KIND_SESSION } },
	{ .name = "close",
	  .args = "SESSION [REASON]",
	  .help = "end a session as if its client had died",
	  .more = "Its transfers end, its regions and tokens become invalid, and its client "
		  "learns the reason. A client library connects again.\n\n" OPERATORS,
	  .example = "drayctl close 4294967296 'wrong model'",
	  .fn = ctl_close,
	  .max_args = 2,
	  .kinds = { CTL_KIND_SESSION } },
	{ .name = "detect",
	  .args = "[--explain DEVICE[/PORT] | --watch] [OPTION]...",
	  .help = "show RNICs, GIDs, GPUs, addresses and listeners of this machine",
	  .more = "Prints RDMA devices with the best GID of each port; GPUs with their "
		  "preferred RNICs and, if the CUDA plug-in is installed, their capabilities; "
		  "addresses with the one to advertise; and listening sockets. Each choice has "
		  "its reason. Needs no agent.",
	  .example = "drayctl detect --explain mlx5_0",
	  .fn = ctl_detect,
	  .options = { CTL_OPTION_EXPLAIN, CTL_OPTION_FROM_SYSFS, CTL_OPTION_WATCH, CTL_OPTION_ONLY,
		       CTL_OPTION_WITHOUT, CTL_OPTION_GID_INDEX, CTL_OPTION_FAMILY,
		       CTL_OPTION_NODE_ADDRESSES, CTL_OPTION_RNICS, CTL_OPTION_OWNERS,
		       CTL_OPTION_GPU_PLUGIN, 0 } },
	{ .name = "doctor",
	  .args = "[--register SIZE] [--from-sysfs DIR] [--gpu-plugin FILE]",
	  .help = "find problems of this machine; exits 1 on warnings, 2 on errors",
	  .more = "Prints one line for each finding, with its fix. Exits with 0 if there are "
		  "no warnings and no errors. Needs no agent.",
	  .example = "drayctl doctor --register 64GiB",
	  .fn = ctl_doctor,
	  .options = { CTL_OPTION_REGISTER, CTL_OPTION_FROM_SYSFS, CTL_OPTION_GPU_PLUGIN, 0 } },
	{ .name = "health",
	  .args = "[--live | --ready]",
	  .help = "check whether the agent is alive and ready; exits 1 if it is not",
	  .more = "Prints each condition of readiness with its reason. It uses the control "
		  "socket, and serves as the command of a probe if HTTP is not available. "
		  "Exits with 0 if the agent is alive and ready, and with 3 if it cannot be "
		  "reached. With --plain, the lines are alive with the reason, ready, and then "
		  "the conditions.",
	  .example = "drayctl health --live",
	  .fn = ctl_health,
	  .options = { CTL_OPTION_LIVE, CTL_OPTION_READY, 0 } },
	{ .name = "segments",
	  .args = "[--explain [--scope SCOPE]]",
	  .help = "list known segments, their states, and the preferred one",
	  .more = "Prints the state of each segment with the reason, the sources that named "
		  "it, and its probe. With --explain, it prints the candidates for the "
		  "preferred segment, the source of each, and why it won or lost.",
	  .example = "drayctl segments --explain",
	  .fn = ctl_segments,
	  .options = { CTL_OPTION_CANDIDATES, CTL_OPTION_SCOPE, 0 } },
	{ .name = "hints",
	  .args = "[--set SCOPE=SEGMENT [--score N] [--ttl DURATION] | --forget "
		  "SCOPE[=SEGMENT] | --forget-all]",
	  .help = "list, set or forget the remembered segments of scopes",
	  .more = "For each scope, the agent uses the hint of the strongest source, then the "
		  "highest score, then the newest. The empty scope is the whole node.\n\n"
		  "Changes are allowed for root, the agent's own user, and members of "
		  "control.group.",
	  .example = "drayctl hints --set llama-70b=10.0.0.7:50053 --ttl 1h",
	  .fn = ctl_hints,
	  .options = { CTL_OPTION_SET, CTL_OPTION_SCORE, CTL_OPTION_TTL, CTL_OPTION_FORGET,
		       CTL_OPTION_FORGET_ALL, 0 } },
	{ .name = "env",
	  .args = "[--profile NAME[,NAME]...] [--format shell|dotenv|json|args] [--override]",
	  .help = "print the environment that an engine's launcher should set",
	  .more = "Prints the variables of the profiles, with the agent's values. Omitted "
		  "variables, with the reason, go to standard error, so that eval can read the "
		  "output. --json and --plain print the agent's records instead of a "
		  "--format.\n\n"
		  "  $ eval \"$(drayctl env --profile vllm-mooncake)\"\n"
		  "  $ eval \"mooncake_client $(drayctl env --profile mooncake-owner --format "
		  "args)\"",
	  .example = "drayctl env --profile nccl,ucx --format dotenv",
	  .fn = ctl_env,
	  .options = { CTL_OPTION_PROFILE, CTL_OPTION_ENV_FORMAT, CTL_OPTION_OVERRIDE, 0 } },
	{ .name = "exec",
	  .args = "[OPTION]... -- COMMAND [ARG]...",
	  .help = "replace drayctl by a command that runs in that environment",
	  .more = "Gets the variables from the agent, sets those that are not set already, and "
		  "runs the command with its arguments, and with the open files, signals and "
		  "terminal of drayctl. Notes go to standard error.\n\n"
		  "Exits with 124 if the preferred segment is not ready in time, with 126 or "
		  "127 if the command cannot be run or found, and otherwise like every verb. "
		  "After that, the exit status is that of the command.",
	  .example = "drayctl exec --wait-ready --profile vllm-mooncake -- vllm serve MODEL",
	  .fn = ctl_exec,
	  .options = { CTL_OPTION_WAIT_READY, CTL_OPTION_ON_TIMEOUT, CTL_OPTION_PROFILE,
		       CTL_OPTION_OVERRIDE, CTL_OPTION_KV_TRANSFER, 0 },
	  .command = true },
	{ .name = "wait",
	  .args = "[--timeout DURATION] [--for ready|live|drained|gone] [segment=SEGMENT] "
		  "[state=STATE]",
	  .help = "wait until the agent is ready, or for another condition",
	  .more = "For launchers and hooks; the agent may start later. Prints the condition "
		  "that was reached. After --timeout, it fails with the missing condition.\n\n"
		  "With segment=HOST:PORT, segment=local (any on this node) or "
		  "segment=preferred, it waits for that segment instead, until its state is "
		  "ready or the value of state=: unknown, probing, ready or lost. The segment "
		  "may become known later.",
	  .example = "drayctl wait --timeout 60s && exec vllm serve",
	  .fn = ctl_wait,
	  .max_args = 2,
	  .options = { CTL_OPTION_FOR, CTL_OPTION_WAIT_LIMIT, 0 } },
	{ .name = "drain",
	  .args = "[--wait] [--timeout DURATION | --force] [--stay]",
	  .help = "accept no new work, finish the work in flight, then exit",
	  .more = "The agent accepts no new sessions and transfers, informs clients and peers, "
		  "finishes the work in flight, and exits with status 0. If a drain has "
		  "already begun, its limit stays, unless --force sets it to now. With --wait, "
		  "the remaining work is printed on the error stream each second.\n\n" OPERATORS,
	  .example = "drayctl drain --wait --timeout 10s",
	  .fn = ctl_drain,
	  .options = { CTL_OPTION_WAIT, CTL_OPTION_LIMIT, CTL_OPTION_STAY, CTL_OPTION_FORCE, 0 } },
	{ .name = "resume",
	  .args = "",
	  .help = "end a drain, and accept new work again",
	  .more = "Work that the drain refused or stopped is not restored. An agent that is "
		  "ending, for example by SIGTERM, refuses.\n\n" OPERATORS,
	  .example = "drayctl drain --wait --stay && drayctl resume",
	  .fn = ctl_resume },
	{ .name = "reload",
	  .args = "",
	  .help = "read the configuration again; an invalid one changes nothing",
	  .more = "Prints the keys that changed, and those that differ but need a restart; "
		  "drayctl config --origin shows which keys reload. Sessions and transfers "
		  "continue. SIGHUP does the same.\n\n" OPERATORS,
	  .example = "drayctl reload",
	  .fn = ctl_reload },
	{ .name = "config",
	  .args = "[--origin]",
	  .help = "show the configuration in effect",
	  .more = "Prints every key with its value, in the form of the configuration file.",
	  .example = "drayctl config --origin | grep -v default",
	  .fn = ctl_config,
	  .options = { CTL_OPTION_ORIGIN, 0 } },
	{ .name = "log-level",
	  .args = "[error|warning|notice|info|debug]",
	  .help = "show or set the lowest level that is logged",
	  .more = "A level stays until log.level changes on a reload, or the agent ends.\n\n"
		  "Setting it is allowed for root, the agent's own user, and members of "
		  "control.group.",
	  .example = "drayctl log-level debug",
	  .fn = ctl_log_level,
	  .max_args = 1 },
	{ .name = "bench",
	  .args = "[--serve | --token TOKEN | --owner PATH] [OPTION]...",
	  .help = "measure transfers within this agent or to another one",
	  .more = "Prints the throughput, and the latency from submission to completion. "
		  "Without --token and --owner, both ends are sessions with the same agent, "
		  "and the path is local. The first transfer of each session is not measured; "
		  "if both ends are here, its bytes are compared.\n\n"
		  "With --ceiling, it compares with the least that the same work takes on this "
		  "machine:\n\n"
		  "  $ drayctl bench --ceiling --size 64 --batch 1 --wait spin\n\n"
		  "bench is a client of the agent's data socket, as an engine is. From one "
		  "node to another:\n\n"
		  "  first$ drayctl bench --serve\n"
		  "  second$ drayctl bench --token - --size 64KiB --ops 256",
	  .example = "drayctl bench --size 64KiB --ops 256 --duration 5s",
	  .fn = ctl_bench,
	  .options = { CTL_OPTION_SOCKET, CTL_OPTION_SIZE, CTL_OPTION_OPS, CTL_OPTION_BATCH,
		       CTL_OPTION_COUNT, CTL_OPTION_DURATION, CTL_OPTION_DIRECTION,
		       CTL_OPTION_CLASS, CTL_OPTION_MEMORY, CTL_OPTION_SESSIONS,
		       CTL_OPTION_WAIT_METHOD, CTL_OPTION_CEILING, CTL_OPTION_ROUNDS,
		       CTL_OPTION_OWNER, CTL_OPTION_TOKEN, CTL_OPTION_SERVE, 0 } },
	{ .name = "version",
	  .args = "",
	  .help = "show the versions of drayctl and of the agent",
	  .more = "If no agent answers, its version is unknown, which is not an error.",
	  .example = "drayctl version",
	  .fn = ctl_version },
	{ .name = "help",
	  .args = "[VERB]",
	  .help = "print help",
	  .more = "Prints help for one verb, or the list of verbs.",
	  .example = "drayctl help drain",
	  .fn = ctl_help,
	  .max_args = 1,
	  .kinds = { CTL_KIND_VERB } },
};

const unsigned ctl_verbs_n = DRAY_ARRAY_SIZE(ctl_verbs);
