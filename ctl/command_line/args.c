/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/command_line/args.h"

#include <errno.h>
#include <string.h>

#include "lib/nearest.h"
#include "lib/time.h"
#include "lib/units.h"

#define CONTROL_DEFAULT "/run/dray/control.sock"
#define TIMEOUT_DEFAULT_NS (5 * DRAY_NS_PER_SEC)

const struct ctl_option ctl_options[CTL_OPTION_N] = {
	[CTL_OPTION_CONTROL] = { "--control", "PATH",
				 .help = "control socket; $DRAY_CONTROL_SOCKET, else " CONTROL_DEFAULT,
				 .kind = CTL_KIND_FILE },
	[CTL_OPTION_JSON] = { "--json", NULL, .help = "JSON, as schema/ctl says",
			      .more = "The schemas are in schema/ctl of the sources. Fields may be added, "
				      "and are never renamed or changed in type. Numbers reach "
				      "2^64-1, which not every reader of JSON keeps exact." },
	[CTL_OPTION_PLAIN] = { "--plain", NULL, .help = "values in plain units, separated by tabs",
			       .more = "One line for each item, without a head; all fields, in the order of "
				       "the JSON schema. Times are in nanoseconds, sizes in bytes, truth "
				       "is 1 or 0. Fields may be added at the end of the line. status "
				       "prints one name and value a line." },
	[CTL_OPTION_NO_COLOR] = { "--no-color", NULL, .help = "no colour, even on a terminal" },
	[CTL_OPTION_TIMEOUT] = { "--timeout", "DURATION",
				 .help = "longest wait for an answer; 5s" },
	[CTL_OPTION_HELP] = { "--help", NULL, .help = "print help, of the verb where one is named",
			      .more = "-h is the same." },
	[CTL_OPTION_VERSION] = { "--version", NULL, .help = "print the version",
				 .more = "That of drayctl; the verb version tells the agent's too." },

	[CTL_OPTION_WAIT] = { "--wait", NULL, .help = "return when the agent is drained",
			      .more = "Fails if the agent ended without being so." },
	[CTL_OPTION_LIMIT] = { "--timeout", "DURATION",
			       .help = "stop what is in flight after this; agent.drain_timeout",
			       .more = "What is stopped ends with the error deadline. Without the option "
				       "the agent's own agent.drain_timeout holds." },
	[CTL_OPTION_STAY] = { "--stay", NULL,
			      .help = "the agent stays, drained, instead of exiting" },
	[CTL_OPTION_FORCE] = { "--force", NULL,
			       .help = "stop what is in flight at once, also of a drain under way" },

	[CTL_OPTION_ENABLE] = { "--enable", "DEVICE[/PORT]", .help = "use the port again; port 1",
				.kind = CTL_KIND_DEVICE },
	[CTL_OPTION_DISABLE] = { "--disable", "DEVICE[/PORT]",
				 .help = "use the port no more, until --enable or a restart; port 1",
				 .kind = CTL_KIND_DEVICE,
				 .more = "What is in flight on it goes another way. For root, the agent's "
					 "own user, and members of control.group." },

	[CTL_OPTION_RECENT] = { "--recent", NULL,
				.help = "the last 1,000 that ended, and where their time went",
				.more = "For a wait word, for the first slice, moving, and for the answer to "
					"a notification." },
	[CTL_OPTION_REPEAT] = { "--watch", NULL,
				.help = "look again each --interval, until interrupted",
				.more = "On a terminal each look takes the place of the one before." },
	[CTL_OPTION_INTERVAL] = { "--interval", "DURATION", .help = "time between two looks; 1s" },
	[CTL_OPTION_LOOKS] = { "--count", "N", .help = "end after so many looks" },

	[CTL_OPTION_ORIGIN] = { "--origin", NULL,
				.help = "where each value comes from, and whether it reloads" },

	[CTL_OPTION_LIVE] = { "--live", NULL, .help = "exit with 0 where it is alive, ready or not",
			      .more = "Alive: its loop turns, every worker answers within "
				      "health.worker_limit, and no transfer is long past its deadline." },
	[CTL_OPTION_READY] = { "--ready", NULL,
			       .help = "exit with 0 where it is ready, as /readyz says" },

	[CTL_OPTION_FOR] = { "--for", "ready|live|drained|gone", .help = "what to wait for; ready",
			     .more = "ready and live are those of drayctl health; gone: nobody listens on "
				     "the control socket." },
	[CTL_OPTION_WAIT_LIMIT] = { "--timeout", "DURATION",
				    .help = "fail after this, and say what is missing; never" },

	[CTL_OPTION_SOCKET] = { "--socket", "PATH",
				.help = "data socket; $DRAY_SOCKET, else libdray's",
				.kind = CTL_KIND_FILE },
	[CTL_OPTION_SIZE] = { "--size", "SIZE", .help = "bytes of an operation; 1MiB" },
	[CTL_OPTION_OPS] = { "--ops", "N", .help = "operations of a transfer; 1",
			     .more = "They are scattered, so that the agent cannot merge them." },
	[CTL_OPTION_BATCH] = { "--batch", "N",
			       .help = "transfers in flight at once, of each session; 8",
			       .more = "With 1 the latency is that of an idle agent. Lists of operations "
				       "in flight may take 16 MiB, 24 bytes for each." },
	[CTL_OPTION_COUNT] = { "--count", "N", .help = "end after so many transfers" },
	[CTL_OPTION_DURATION] = { "--duration", "DURATION", .help = "end after this long; 2s" },
	[CTL_OPTION_DIRECTION] = { "--direction", "read|write", .help = "which way; read",
				   .more = "Whether bytes come from the other end or go there." },
	[CTL_OPTION_CLASS] = { "--class", "bulk|latency", .help = "priority class; bulk" },
	[CTL_OPTION_MEMORY] = { "--memory", "SIZE",
				.help = "memory of each session at each end; 256MiB for all, or "
					"more where that is too little",
				.more = "It is used in turn. How much is needed follows from --size, "
					"--ops and --batch." },
	[CTL_OPTION_TOKEN] = { "--token", "TOKEN",
			       .help = "the other end is what a --serve printed; - reads it from stdin",
			       .more = "That may be on another node. Whoever sees a token may use it while "
				       "it is served, and command lines can be seen: hence -." },
	[CTL_OPTION_SERVE] = { "--serve", NULL,
			       .help = "export memory, print its token, and serve until stdin closes",
			       .more = "That is the other end of a --token. After a restart of the agent a "
				       "new token is printed." },

	[CTL_OPTION_OWNER] = { "--owner", "PATH",
			       .help = "the other end is a session of the agent with this data socket",
			       .kind = CTL_KIND_FILE,
			       .more = "Another agent of this machine, so that the path is tcp or rdma." },
	[CTL_OPTION_SESSIONS] = { "--sessions", "N", .help = "sessions that measure, up to 64; 1",
				  .more = "Each has memory of its own, and one thread drives all. With "
					  "Jain's index of fairness: 1 where each moves as much." },
	[CTL_OPTION_HOW] = { "--wait", "adaptive|spin|sleep",
			     .help = "how completions are waited for; adaptive",
			     .more = "adaptive: as libdray does, polling for a while before it sleeps. "
				     "spin: polling all the time. sleep: sleeping at once." },
	[CTL_OPTION_CEILING] = { "--ceiling", NULL,
				 .help = "rounds of dray and of the least that the same work takes",
				 .more = "In turn, with the medians of both and of the ratios of the pairs; "
					 "each measures for --duration or --count in all. Within an "
					 "agent: memcpy of the same blocks in the same order, in one thread; "
					 "with --batch 1, --ops 1 and one session also a shared-memory "
					 "ping-pong beside spin, an eventfd ping-pong beside sleep, and both "
					 "beside adaptive, none of which carries the bytes. Over tcp: a "
					 "bare loop of send and recv over loopback between the same "
					 "memories, with as many streams as an agent has by default; and a "
					 "request that carries the bytes, and its answer. rdma has none here: "
					 "that is perftest's, in make bench-vm." },
	[CTL_OPTION_ROUNDS] = { "--rounds", "N", .help = "of --ceiling: how many; 11" },

	[CTL_OPTION_EXPLAIN] = { "--explain", "DEVICE[/PORT]",
				 .help = "every GID of a device with its score and reason",
				 .kind = CTL_KIND_DEVICE,
				 .more = "Rejected ones too; P_Keys; the GPUs it is near to." },
	[CTL_OPTION_FROM_SYSFS] = { "--from-sysfs", "DIR",
				    .help = "a recorded machine instead of this one",
				    .kind = CTL_KIND_DIR,
				    .more = "A directory with sys/, proc/, dev/ and netlink dumps in "
					    "netlink/." },
	[CTL_OPTION_WATCH] = { "--watch", NULL,
			       .help = "print changes, a line each, until interrupted",
			       .more = "With --json an object each. It ends, too, when its reader goes." },
	[CTL_OPTION_ONLY] = { "--only", "PATTERNS",
			      .help = "devices to use, such as mlx5_[0-3],rxe*",
			      .more = "Separated by commas, with *, ? and [ ]." },
	[CTL_OPTION_WITHOUT] = { "--without", "PATTERNS", .help = "devices to leave out",
				 .more = "Patterns as for --only." },
	[CTL_OPTION_GID_INDEX] = { "--gid-index", "LIST",
				   .help = "GID indices to use, such as mlx5_0:3,mlx5_1/2:0",
				   .more = "They win over everything, and say so." },
	[CTL_OPTION_FAMILY] = { "--family", "auto|ipv4|ipv6",
				.help = "address family of GIDs; auto, which takes IPv4 first",
				.more = "It matters on Ethernet." },
	[CTL_OPTION_NODE_ADDRESSES] = { "--node-addresses", "LIST",
					.help = "addresses of the node, to match listeners with" },
	[CTL_OPTION_RNICS] = { "--rnics-per-gpu", "N",
			       .help = "RNICs that each GPU prefers; 1, 0: all" },
	[CTL_OPTION_OWNERS] = { "--owners", NULL,
				.help = "look for the processes behind listeners" },
	[CTL_OPTION_REGISTER] = { "--register", "SIZE",
				  .help = "memory that will be registered, against the memlock limit",
				  .more = "That is the limit on locked memory." },
	[CTL_OPTION_GPU_PLUGIN] = { "--gpu-plugin", "FILE",
				    .help = "the CUDA plug-in, as gpu.plugin says; none: ask no CUDA",
				    .kind = CTL_KIND_FILE,
				    .more = "Without it, dray-cuda.so beside drayctl, or in its "
					    "installation's lib/dray. To ask takes the driver up to "
					    "seconds where it keeps no GPU awake, and no GPU memory." },

	[CTL_OPTION_CANDIDATES] = { "--explain", NULL,
				    .help = "which are in question for the preferred one, best first, and why" },
	[CTL_OPTION_SCOPE] = { "--scope", "SCOPE",
			       .help = "hints of this scope count too; that of the node",
			       .more = "A scope is a model, an instance, a rank, or a word of one's own." },

	[CTL_OPTION_SET] = { "--set", "SCOPE=SEGMENT",
			     .help = "remember the segment for the scope; =SEGMENT: for the node",
			     .more = "It takes the place of what an administrator said of the scope before." },
	[CTL_OPTION_SCORE] = { "--score", "N", .help = "of --set: the higher one counts; 0" },
	[CTL_OPTION_TTL] = { "--ttl", "DURATION", .help = "of --set: good for so long; hint.ttl" },
	[CTL_OPTION_FORGET] = { "--forget", "SCOPE[=SEGMENT]",
				.help = "forget the hints of the scope, whoever gave them" },
	[CTL_OPTION_FORGET_ALL] = { "--forget-all", NULL, .help = "forget every hint" },

	[CTL_OPTION_PROFILE] = { "--profile", "NAME[,NAME]...",
				 .help = "what to say; env.profiles of the agent",
				 .more = "dray: where the agent is. vllm: the address of this node. "
					 "vllm-mooncake: segment, host name, GID index and devices for "
					 "vLLM's Mooncake connectors. mooncake: the same for a transfer engine "
					 "or store in a process. mooncake-owner: arguments of mooncake_client. "
					 "nccl, ucx: devices, GID index, interface." },
	[CTL_OPTION_ENV_FORMAT] = { "--format", "shell|dotenv|json|args",
				    .help = "how to print it; shell",
				    .more = "shell: export lines for eval. dotenv: NAME=VALUE lines, quoted "
					    "only where that is needed. json: an object with variables, "
					    "arguments, and what is left out. args: the arguments of "
					    "profiles that have some, on one line, quoted for a shell." },
	[CTL_OPTION_OVERRIDE] = { "--override", NULL, .help = "also variables that are set already",
				  .more = "Without it these stay as they are." },
	[CTL_OPTION_WAIT_READY] = { "--wait-ready", "DURATION",
				    .help = "first wait until the preferred segment is ready; 30s",
				    .optional = true,
				    .more = "The agent need not have been started yet, and may restart "
					    "meanwhile. What counts is a segment that the agent prefers, "
					    "that a probe has found ready since its start." },
	[CTL_OPTION_ON_TIMEOUT] = { "--on-timeout", "fail|start",
				    .help = "when it is not ready in time, or no agent is there; fail",
				    .more = "start: go on with what is known, and without "
					    "MOONCAKE_PREFERRED_SEGMENT." },
	[CTL_OPTION_KV_TRANSFER] = { "--kv-transfer-config", "JSON",
				     .help = "give vLLM this argument, unless it has one",
				     .more = "It is put behind the arguments of vllm serve, or of python -m "
					     "vllm.entrypoints...; one that stands there already is left "
					     "alone, and that is said. Another command is an error." },
};

static bool is_own(const struct ctl_verb *verb, enum ctl_option_id id)
{
	for (unsigned i = 0; verb && verb->options[i] >= CTL_OPTION_GLOBAL_N; i++)
		if (verb->options[i] == id)
			return true;
	return false;
}

/* A verb's own option before a global one of the same name. CTL_OPTION_N: there is none. */
static enum ctl_option_id option_find(const struct ctl_verb *verb, const char *arg, size_t n)
{
	enum ctl_option_id found = CTL_OPTION_N;

	for (int i = 0; i < CTL_OPTION_N; i++) {
		enum ctl_option_id id = (enum ctl_option_id)i;

		if (strncmp(arg, ctl_options[i].name, n) || ctl_options[i].name[n])
			continue;
		if (is_own(verb, id))
			return id;
		if (i < CTL_OPTION_GLOBAL_N)
			found = id;
	}
	return found;
}

static int unknown_option(const struct ctl_verb *verb, const char *arg, size_t n,
			  struct ctl_err *reterr)
{
	char word[64];
	struct dray_nearest nearest = DRAY_NEAREST(word);

	snprintf(word, sizeof(word), "%.*s", (int)(n < 60 ? n : 60), arg);
	for (int i = 0; i < CTL_OPTION_N; i++) {
		const char *name = ctl_options[i].name;

		if (i < CTL_OPTION_GLOBAL_N || is_own(verb, (enum ctl_option_id)i)) {
			dray_nearest_offer(&nearest, name);
			continue;
		}
		for (unsigned v = 0; n == strlen(name) && !strncmp(arg, name, n) && v < ctl_verbs_n;
		     v++)
			if (is_own(&ctl_verbs[v], (enum ctl_option_id)i))
				return ctl_err_set(reterr, CTL_EXIT_USAGE,
						   "%s is an option of drayctl %s, and comes after "
						   "that word",
						   word, ctl_verbs[v].name);
	}
	if (nearest.best)
		return ctl_err_set(reterr, CTL_EXIT_USAGE, "unknown option %s, did you mean %s?",
				   word, nearest.best);
	return ctl_err_set(reterr, CTL_EXIT_USAGE,
			   "unknown option %s; drayctl %s%s--help lists all", word,
			   verb ? verb->name : "", verb ? " " : "");
}

static int option_take(struct ctl *c, const struct ctl_verb *verb, int argc, char *const *argv,
		       int *i, struct ctl_err *reterr)
{
	const char *arg = strcmp(argv[*i], "-h") ? argv[*i] : "--help", *value = NULL;
	size_t n = strcspn(arg, "=");
	enum ctl_option_id id = option_find(verb, arg, n);
	const struct ctl_option *o;

	if (id == CTL_OPTION_N)
		return unknown_option(verb, arg, n, reterr);
	o = &ctl_options[id];
	if (arg[n])
		value = arg + n + 1;
	if (!o->value && value)
		return ctl_err_set(reterr, CTL_EXIT_USAGE, "%s takes no value", o->name);
	if (o->value && !value && !o->optional && *i + 1 >= argc)
		return ctl_err_set(reterr, CTL_EXIT_USAGE, "%s needs a value, %s", o->name,
				   o->value);
	if (o->value && !value && !o->optional)
		value = argv[++*i];
	c->values[id] = value ? value : "";
	return 0;
}

static int word_take(struct ctl *c, const struct ctl_verb **verb, const char *word,
		     struct ctl_err *reterr)
{
	const char *nearest;

	if (*verb && c->n_args < (*verb)->max_args) {
		c->args[c->n_args++] = word;
		return 0;
	}
	if (*verb)
		return ctl_err_set(reterr, CTL_EXIT_USAGE,
				   "drayctl %s takes %s, and \"%.60s\" is %s", (*verb)->name,
				   (*verb)->max_args > 1 ? "two arguments" :
				   (*verb)->max_args     ? "one argument" :
							   "no argument",
				   word, (*verb)->max_args ? "another" : "one");
	*verb = ctl_verb_find(word, &nearest);
	if (*verb)
		return 0;
	if (nearest)
		return ctl_err_set(reterr, CTL_EXIT_USAGE, "unknown verb %.60s, did you mean %s?",
				   word, nearest);
	return ctl_err_set(reterr, CTL_EXIT_USAGE, "unknown verb %.60s; drayctl --help lists all",
			   word);
}

int ctl_args_parse(struct ctl *c, int argc, char *const *argv, const struct ctl_verb **ret_verb,
		   struct ctl_err *reterr)
{
	const struct ctl_verb *verb = NULL;
	bool words_only = false;

	for (int i = 1; i < argc; i++) {
		bool end = !strcmp(argv[i], "--");
		int ret;

		if (verb && verb->command && (end || words_only || argv[i][0] != '-')) {
			c->command = argv + i + end;
			c->n_command = (unsigned)(argc - i) - end;
			break;
		}
		if (!words_only && end) {
			words_only = true;
			continue;
		}
		if (!words_only && argv[i][0] == '-' && argv[i][1])
			ret = option_take(c, verb, argc, argv, &i, reterr);
		else
			ret = word_take(c, &verb, argv[i], reterr);
		if (ret < 0)
			return ret;
	}
	*ret_verb = verb;
	c->control = c->values[CTL_OPTION_CONTROL];
	if (!c->control)
		c->control = c->env->control && *c->env->control ? c->env->control :
								   CONTROL_DEFAULT;
	if (!*c->control)
		return ctl_err_set(reterr, CTL_EXIT_USAGE, "--control needs a path");
	if (c->values[CTL_OPTION_JSON] && c->values[CTL_OPTION_PLAIN])
		return ctl_err_set(reterr, CTL_EXIT_USAGE, "--json and --plain exclude each other");
	c->format = c->values[CTL_OPTION_JSON]  ? CTL_JSON :
		    c->values[CTL_OPTION_PLAIN] ? CTL_PLAIN :
						  CTL_TEXT;
	c->color = c->env->color && !c->values[CTL_OPTION_NO_COLOR];
	return ctl_option_span(c, CTL_OPTION_TIMEOUT, DRAY_NS_PER_MS, 3600 * DRAY_NS_PER_SEC,
			       TIMEOUT_DEFAULT_NS, &c->timeout_ns, reterr);
}

/* --- values ------------------------------------------------------------------------------------- */

static int out_of_range(const struct ctl *c, enum ctl_option_id id, const char *min,
			const char *max, struct ctl_err *reterr)
{
	return ctl_err_set(reterr, CTL_EXIT_USAGE, "%s %.60s: %s to %s is allowed",
			   ctl_options[id].name, c->values[id], min, max);
}

int ctl_option_count(const struct ctl *c, enum ctl_option_id id, int64_t min, int64_t max,
		     int64_t def, int64_t *ret, struct ctl_err *reterr)
{
	char a[24], b[24];

	*ret = def;
	if (!c->values[id])
		return 0;
	if (dray_int_parse(c->values[id], 0, ret) == 0 && *ret >= min && *ret <= max)
		return 0;
	snprintf(a, sizeof(a), "%lld", (long long)min);
	snprintf(b, sizeof(b), "%lld", (long long)max);
	return out_of_range(c, id, a, b, reterr);
}

int ctl_option_size(const struct ctl *c, enum ctl_option_id id, int64_t min, int64_t max,
		    int64_t def, int64_t *ret, struct ctl_err *reterr)
{
	char a[32], b[32];

	*ret = def;
	if (!c->values[id] ||
	    (dray_size_parse(c->values[id], ret) == 0 && *ret >= min && *ret <= max))
		return 0;
	return out_of_range(c, id, dray_size_show(min, a, sizeof(a)),
			    dray_size_show(max, b, sizeof(b)), reterr);
}

int ctl_option_span(const struct ctl *c, enum ctl_option_id id, int64_t min_ns, int64_t max_ns,
		    int64_t def_ns, int64_t *ret_ns, struct ctl_err *reterr)
{
	char a[32], b[32];

	*ret_ns = def_ns;
	if (!c->values[id] || (dray_duration_parse(c->values[id], ret_ns) == 0 &&
			       *ret_ns >= min_ns && *ret_ns <= max_ns))
		return 0;
	return out_of_range(c, id, dray_duration_show(min_ns, a, sizeof(a)),
			    dray_duration_show(max_ns, b, sizeof(b)), reterr);
}

int ctl_option_word(const struct ctl *c, enum ctl_option_id id, const char *const *words, int *ret,
		    struct ctl_err *reterr)
{
	const char *given = c->values[id];

	*ret = 0;
	for (int i = 0; given && words[i]; i++)
		if (!strcmp(given, words[i])) {
			*ret = i;
			return 0;
		}
	if (!given)
		return 0;
	return ctl_err_set(reterr, CTL_EXIT_USAGE, "%s %.60s: %s is allowed", ctl_options[id].name,
			   given, ctl_options[id].value);
}
