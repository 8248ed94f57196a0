/* SPDX-License-Identifier: Apache-2.0 */
/* The table of options, and the pairs of them that do not go together. */
#include "ctl/command_line/args.h"
#include "lib/cleanup.h"

#define OPTION(id, name_, value_, help_, ...) \
	[CTL_OPTION_##id] = { .name = (name_), .value = (value_), .help = (help_), ##__VA_ARGS__ }

const struct ctl_option ctl_options[CTL_OPTION_N] = {
	OPTION(CONTROL, "--control", "PATH",
	       "control socket; default $DRAY_CONTROL_SOCKET, else " CTL_CONTROL_DEFAULT,
	       CTL_KIND_FILE),
	OPTION(JSON, "--json", NULL, "print JSON, as schema/ctl describes it",
	       .more = "The schemas are in schema/ctl of the sources. Fields may be added, but no "
		       "field is renamed or changes its type. Numbers reach 2^64-1, which some "
		       "JSON readers round."),
	OPTION(PLAIN, "--plain", NULL, "print values in plain units, separated by tabs",
	       .more = "One line for each item, without a head, with all fields in the order of "
		       "the JSON schema. Times are in nanoseconds, sizes in bytes, and truth "
		       "values are 1 or 0. Fields may be added at the end of the line. status "
		       "prints one name and value on each line."),
	OPTION(NO_COLOR, "--no-color", NULL, "print no colour, even on a terminal"),
	OPTION(TIMEOUT, "--timeout", "DURATION", "longest wait for an answer; default 5s"),
	OPTION(HELP, "--help", NULL, "print help, for the verb if one is named",
	       .more = "-h is the same."),
	OPTION(VERSION, "--version", NULL, "print the version of drayctl",
	       .more = "The verb version also prints the version of the agent."),

	OPTION(WAIT, "--wait", NULL, "wait until the agent is drained",
	       .more = "Fails if the agent ends before it is drained."),
	OPTION(LIMIT, "--timeout", "DURATION",
	       "stop transfers that are still in flight after this time; default agent.drain_timeout",
	       .more = "A stopped transfer ends with the error deadline."),
	OPTION(STAY, "--stay", NULL, "keep the drained agent running instead of ending it"),
	OPTION(FORCE, "--force", NULL,
	       "stop transfers in flight at once, also in a drain that has begun"),

	OPTION(ENABLE, "--enable", "DEVICE[/PORT]", "use the port again; default port 1",
	       CTL_KIND_DEVICE),
	OPTION(DISABLE, "--disable", "DEVICE[/PORT]",
	       "stop using the port until --enable or a restart; default port 1", CTL_KIND_DEVICE,
	       .more = "Slices in flight on the port move to another path. Allowed for root, the "
		       "agent's own user, and members of control.group."),

	OPTION(RECENT, "--recent", NULL,
	       "show the last 1,000 transfers that ended, and where their time went",
	       .more = "The time is divided into the wait for a word in memory, the wait for the "
		       "first slice, the copying, and the wait for the answer to a notification."),
	OPTION(REPEAT, "--watch", NULL, "print again every --interval, until interrupted",
	       .more = "On a terminal, each output replaces the one before."),
	OPTION(INTERVAL, "--interval", "DURATION", "time between two outputs; default 1s"),
	OPTION(TIMES, "--count", "N", "end after this number of outputs"),

	OPTION(ORIGIN, "--origin", NULL,
	       "show the origin of each value, and whether a reload applies it"),

	OPTION(LIVE, "--live", NULL, "exit with 0 if the agent is alive, even if it is not ready",
	       .more = "An agent is alive if its event loop runs, every worker answers within "
		       "health.worker_limit, and no transfer is long past its deadline."),
	OPTION(READY, "--ready", NULL, "exit with 0 if the agent is ready, as /readyz reports it"),

	OPTION(FOR, "--for", "ready|live|drained|gone", "condition to wait for; default ready",
	       .more = "ready and live have the same meaning as in drayctl health. gone: no "
		       "process listens on the control socket."),
	OPTION(WAIT_LIMIT, "--timeout", "DURATION",
	       "fail after this time, and print the missing condition; default no limit"),

	OPTION(SOCKET, "--socket", "PATH",
	       "data socket; default $DRAY_SOCKET, else the default of libdray", CTL_KIND_FILE),
	OPTION(SIZE, "--size", "SIZE", "bytes of an operation; default 1MiB"),
	OPTION(OPS, "--ops", "N", "operations of a transfer; default 1",
	       .more = "They are scattered, so that the agent cannot merge them."),
	OPTION(BATCH, "--batch", "N", "transfers in flight in each session; default 8",
	       .more = "With 1, the latency is that of an idle agent. The lists of operations in "
		       "flight may take 16 MiB, at 24 bytes for an operation."),
	OPTION(COUNT, "--count", "N", "end after this number of transfers"),
	OPTION(DURATION, "--duration", "DURATION", "end after this time; default 2s"),
	OPTION(DIRECTION, "--direction", "read|write",
	       "read from the other end, or write to it; default read"),
	OPTION(CLASS, "--class", "bulk|latency", "priority class; default bulk"),
	OPTION(MEMORY, "--memory", "SIZE",
	       "memory of each session at each end; default 256MiB for all, or more if needed",
	       .more = "Transfers use all of it in turn. --size, --ops and --batch determine the "
		       "least that is needed."),
	OPTION(TOKEN, "--token", "TOKEN",
	       "use the memory of a --serve by the token that it printed; - reads it from stdin",
	       .more = "The --serve may run on another node. Anybody who sees the token may use "
		       "it as long as it is served, and command lines can be seen; use - to avoid "
		       "that."),
	OPTION(SERVE, "--serve", NULL,
	       "export memory, print its token, and serve it until stdin closes",
	       .more = "This is the other end for --token. After a restart of the agent, it "
		       "prints a new token."),
	OPTION(OWNER, "--owner", "PATH",
	       "open the other end as a session with the agent on this data socket", CTL_KIND_FILE,
	       .more = "That is another agent on this machine, so that the path is tcp or rdma."),
	OPTION(SESSIONS, "--sessions", "N", "sessions that measure, up to 64; default 1",
	       .more = "Each has its own memory, and one thread drives them all. The output has "
		       "Jain's index of fairness, which is 1 if all sessions move the same number "
		       "of bytes."),
	OPTION(WAIT_METHOD, "--wait", "adaptive|spin|sleep",
	       "method of waiting for completions; default adaptive",
	       .more = "adaptive polls for some time before it sleeps, as libdray does. spin "
		       "always polls. sleep sleeps at once."),
	OPTION(CEILING, "--ceiling", NULL,
	       "compare with the least that the same work takes on this machine",
	       .more = "Rounds of dray and of the ceiling alternate. The output has the medians "
		       "of both, and of the ratios of the pairs. Each side measures for "
		       "--duration or --count in all. Within one agent, the ceiling is memcpy of "
		       "the same blocks in the same order, in one thread. With --batch 1, --ops 1 "
		       "and one session, there are also a shared-memory ping-pong for spin, an "
		       "eventfd ping-pong for sleep, and both for adaptive; they do not carry the "
		       "bytes. Over tcp, the ceiling is a bare loop of send and recv over "
		       "loopback between the same memories, with as many streams as an agent has "
		       "by default, and a request that carries the bytes, with its answer. For "
		       "rdma there is no ceiling here; make bench-vm compares with perftest."),
	OPTION(ROUNDS, "--rounds", "N", "rounds of --ceiling; default 11"),

	OPTION(EXPLAIN, "--explain", "DEVICE[/PORT]",
	       "show every GID of a device with its score and reason", CTL_KIND_DEVICE,
	       .more = "Shows rejected GIDs as well, the P_Keys, and the distance to each GPU."),
	OPTION(FROM_SYSFS, "--from-sysfs", "DIR", "read a recorded machine instead of this one",
	       CTL_KIND_DIR,
	       .more = "The directory holds sys/, proc/, dev/, and netlink dumps in netlink/."),
	OPTION(WATCH, "--watch", NULL, "print one line for each change, until interrupted",
	       .more = "With --json, each change is an object. The output also ends when its "
		       "reader closes it."),
	OPTION(ONLY, "--only", "PATTERNS", "devices to use, such as mlx5_[0-3],rxe*",
	       .more = "Patterns are separated by commas, and may have *, ? and [ ]."),
	OPTION(WITHOUT, "--without", "PATTERNS", "devices to leave out",
	       .more = "Patterns as for --only."),
	OPTION(GID_INDEX, "--gid-index", "LIST", "GID indices to use, such as mlx5_0:3,mlx5_1/2:0",
	       .more = "They take precedence over every other rule, and the reason says so."),
	OPTION(FAMILY, "--family", "auto|ipv4|ipv6",
	       "address family of GIDs; default auto, which prefers IPv4",
	       .more = "It has an effect on Ethernet only."),
	OPTION(NODE_ADDRESSES, "--node-addresses", "LIST",
	       "addresses of the node, for comparison with listeners"),
	OPTION(RNICS, "--rnics-per-gpu", "N",
	       "number of preferred RNICs of each GPU, 0 for all; default 1"),
	OPTION(OWNERS, "--owners", NULL, "find the process of each listener"),
	OPTION(REGISTER, "--register", "SIZE",
	       "amount of memory to be registered, to compare with the memlock limit",
	       .more = "That is the limit on locked memory."),
	OPTION(GPU_PLUGIN, "--gpu-plugin", "FILE",
	       "CUDA plug-in, as in gpu.plugin; none: do not query CUDA", CTL_KIND_FILE,
	       .more = "The default is dray-cuda.so beside drayctl, or in lib/dray of its "
		       "installation. The query uses no GPU memory; it takes up to seconds if the "
		       "driver keeps no GPU awake."),

	OPTION(CANDIDATES, "--explain", NULL,
	       "show the candidates for the preferred segment, best first, with reasons"),
	OPTION(SCOPE, "--scope", "SCOPE",
	       "also use the hints of this scope; default the scope of the node",
	       .more = "A scope is a model, an instance, a rank, or any other word."),

	OPTION(SET, "--set", "SCOPE=SEGMENT",
	       "remember the segment for the scope; =SEGMENT is for the node",
	       .more = "It replaces the hint that an administrator gave for the scope before."),
	OPTION(SCORE, "--score", "N", "score of --set; the higher one is used; default 0"),
	OPTION(TTL, "--ttl", "DURATION", "lifetime of --set; default hint.ttl"),
	OPTION(FORGET, "--forget", "SCOPE[=SEGMENT]",
	       "forget the hints of the scope, from all sources"),
	OPTION(FORGET_ALL, "--forget-all", NULL, "forget every hint"),

	OPTION(PROFILE, "--profile", "NAME[,NAME]...",
	       "profiles to print; default env.profiles of the agent",
	       .more = "dray: the sockets of the agent. vllm: the address of this node. "
		       "vllm-mooncake: segment, host name, GID index and devices for vLLM's "
		       "Mooncake connectors. mooncake: the same for a transfer engine or store in "
		       "a process. mooncake-owner: arguments of mooncake_client. nccl, ucx: "
		       "devices, GID index, interface."),
	OPTION(ENV_FORMAT, "--format", "shell|dotenv|json|args", "output format; default shell",
	       .more = "shell: export lines for eval. dotenv: NAME=VALUE lines, quoted only if "
		       "needed. json: an object with variables, arguments, and omitted variables. "
		       "args: the arguments of profiles that have some, on one line, quoted for a "
		       "shell."),
	OPTION(OVERRIDE, "--override", NULL, "also give variables that are already set",
	       .more = "Without it, such variables keep their value."),
	OPTION(WAIT_READY, "--wait-ready", "DURATION",
	       "first wait until the preferred segment is ready; default 30s", .optional = true,
	       .more = "The agent may start later, and may restart during the wait. The agent "
		       "must prefer a segment, and a probe must have found it ready since the "
		       "agent's start."),
	OPTION(ON_TIMEOUT, "--on-timeout", "fail|start",
	       "reaction if the segment is not ready in time, or there is no agent; default fail",
	       .more = "start: run the command with the known variables, without "
		       "MOONCAKE_PREFERRED_SEGMENT."),
	OPTION(KV_TRANSFER, "--kv-transfer-config", "JSON",
	       "add this argument for vLLM, unless the command has one",
	       .more = "It goes to the end of vllm serve ..., or of python -m "
		       "vllm.entrypoints.... If the command already has such an argument, that "
		       "one stays, and a note says so. Any other command is an error."),
};

#define EXCLUDES(option, other, advice)                                \
	{                                                              \
		CTL_OPTION_##option, false, CTL_OPTION_##other, advice \
	}
#define NEEDS(option, other)                                        \
	{                                                           \
		CTL_OPTION_##option, true, CTL_OPTION_##other, NULL \
	}
#define MEASURING_END "give the second one at the end that measures"

const struct ctl_option_rule ctl_option_rules[] = {
	EXCLUDES(JSON, PLAIN, "give one of them"),
	EXCLUDES(FORCE, LIMIT, "--force sets the limit to now"),
	EXCLUDES(ENABLE, DISABLE, "give one of them"),
	EXCLUDES(LIVE, READY, "without either, both are checked"),
	EXCLUDES(SERVE, TOKEN, MEASURING_END),
	EXCLUDES(SERVE, OWNER, MEASURING_END),
	EXCLUDES(SERVE, SIZE, MEASURING_END),
	EXCLUDES(SERVE, OPS, MEASURING_END),
	EXCLUDES(SERVE, BATCH, MEASURING_END),
	EXCLUDES(SERVE, SESSIONS, MEASURING_END),
	EXCLUDES(SERVE, COUNT, MEASURING_END),
	EXCLUDES(SERVE, DURATION, MEASURING_END),
	EXCLUDES(SERVE, DIRECTION, MEASURING_END),
	EXCLUDES(SERVE, CLASS, MEASURING_END),
	EXCLUDES(SERVE, WAIT_METHOD, MEASURING_END),
	EXCLUDES(SERVE, CEILING, MEASURING_END),
	EXCLUDES(SERVE, ROUNDS, MEASURING_END),
	EXCLUDES(COUNT, DURATION, "give one of them"),
	EXCLUDES(TOKEN, OWNER, "each names the other end"),
	EXCLUDES(TOKEN, CEILING, "a ceiling needs both ends on this machine, as with --owner"),
	NEEDS(ROUNDS, CEILING),
	EXCLUDES(WATCH, FROM_SYSFS, "a recorded machine does not change"),
	EXCLUDES(WATCH, EXPLAIN, "give one of them"),
	EXCLUDES(EXPLAIN, JSON, "--json alone has every GID with its score and reason"),
	EXCLUDES(EXPLAIN, PLAIN, "--json alone has every GID with its score and reason"),
	NEEDS(SCOPE, CANDIDATES),
	EXCLUDES(SET, FORGET, "give one of them"),
	EXCLUDES(SET, FORGET_ALL, "give one of them"),
	EXCLUDES(FORGET, FORGET_ALL, "give one of them"),
	NEEDS(INTERVAL, REPEAT),
	NEEDS(TIMES, REPEAT),
	NEEDS(SCORE, SET),
	NEEDS(TTL, SET),
	EXCLUDES(ENV_FORMAT, JSON, "--format json prints variables by name"),
	EXCLUDES(ENV_FORMAT, PLAIN, "give one of them"),
};

const unsigned ctl_option_rules_n = DRAY_ARRAY_SIZE(ctl_option_rules);
