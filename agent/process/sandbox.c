/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/process/sandbox.h"

#include <errno.h>
#include <malloc.h>
#include <sched.h>
#include <seccomp.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/log.h"
#include "schema/gen/errors.h"

/* not in the headers of older C libraries */
#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41
#endif

#ifdef DRAY_TEST
#define WITH_SANITIZERS 1
#else
#define WITH_SANITIZERS 0
#endif

/* Calls of the sanitizers, mostly of the leak check: its process traces our threads. */
static const char *const for_sanitizers[] = {
	"clone", "getpgid", "kill", "personality", "prctl", "process_vm_readv", "ptrace", "tgkill",
};

#define MASKED(i, mask, value) SCMP_CMP64(i, SCMP_CMP_MASKED_EQ, mask, value)
/* of an int: the kernel ignores the upper half */
#define EQUAL(i, value) MASKED(i, UINT32_MAX, (uint32_t)(value))

static bool sanitizers_need(const char *call)
{
	for (size_t i = 0; WITH_SANITIZERS && i < DRAY_ARRAY_SIZE(for_sanitizers); i++)
		if (!strcmp(call, for_sanitizers[i]))
			return true;
	return false;
}

static int add(scmp_filter_ctx ctx, uint32_t action, const char *call, unsigned n,
	       const struct scmp_arg_cmp *args)
{
	int number = seccomp_syscall_resolve_name(call);

	/* the default action applies to a call that this libseccomp does not know */
	if (number == __NR_SCMP_ERROR)
		return 0;
	return seccomp_rule_add_array(ctx, action, number, n, args);
}

static int add_names(scmp_filter_ctx ctx, uint32_t action, const char *const *calls)
{
	int ret = 0;

	for (; *calls && ret >= 0; calls++)
		if (!sanitizers_need(*calls))
			ret = add(ctx, action, *calls, 0, NULL);
	return ret;
}

/* Calls that are allowed with certain arguments. */
static int add_with_arguments(scmp_filter_ctx ctx, bool libraries)
{
	const struct scmp_arg_cmp plain = MASKED(2, PROT_EXEC, 0);
	const struct scmp_arg_cmp code = MASKED(2, PROT_EXEC | PROT_WRITE, PROT_EXEC);
	const struct scmp_arg_cmp file = MASKED(3, MAP_ANONYMOUS, 0);
	const struct {
		const char *call;
		struct scmp_arg_cmp args[2];
		unsigned n;
	} rules[] = {
		{ "mmap", { code, file }, 2 },
		{ "mmap2", { code, file }, 2 },
		{ "mprotect", { plain }, 1 },
		{ "mmap", { plain }, 1 },
		{ "mmap2", { plain }, 1 },
		{ "socket", { EQUAL(0, AF_UNIX) }, 1 },
		{ "socket", { EQUAL(0, AF_INET) }, 1 },
		{ "socket", { EQUAL(0, AF_INET6) }, 1 },
		{ "socket", { EQUAL(0, AF_NETLINK) }, 1 },
		{ "socketpair", { EQUAL(0, AF_UNIX) }, 1 },
		{ "prctl", { EQUAL(0, PR_SET_NAME) }, 1 },
		{ "prctl", { EQUAL(0, PR_GET_NAME) }, 1 },
		{ "prctl", { EQUAL(0, PR_CAPBSET_READ) }, 1 },
		{ "prctl", { EQUAL(0, PR_GET_DUMPABLE) }, 1 },
		{ "prctl", { EQUAL(0, PR_SET_VMA) }, 1 },
		{ "clone", { MASKED(0, CLONE_THREAD | CLONE_NEWUSER, CLONE_THREAD) }, 1 },
		{ "tgkill", { EQUAL(0, getpid()) }, 1 },
		/* the time slices of the calling thread; not of others */
		{ "sched_setattr", { EQUAL(0, 0) }, 1 },
		/* to find out whether a client's descriptor is a pidfd */
		{ "pidfd_send_signal", { EQUAL(1, 0) }, 1 },
		/* of this process, for a client */
		{ "pidfd_open", { EQUAL(0, getpid()) }, 1 },
	};
	int ret = add(ctx, SCMP_ACT_ERRNO(ENOSYS), "clone3", 0, NULL);

	/* the first two are for libraries; the filter cannot tell their files from others, such as memfds */
	for (size_t i = libraries ? 0 : 2; i < DRAY_ARRAY_SIZE(rules) && ret >= 0; i++)
		if (!sanitizers_need(rules[i].call))
			ret = add(ctx, SCMP_ACT_ALLOW, rules[i].call, rules[i].n, rules[i].args);
	return ret;
}

static int set_attributes(scmp_filter_ctx ctx)
{
	const struct {
		enum scmp_filter_attr attribute;
		uint32_t value;
	} attributes[] = {
		{ SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS },
		{ SCMP_FLTATR_CTL_NNP, 0 },      /* set already */
		{ SCMP_FLTATR_CTL_TSYNC, 1 },    /* all threads */
		{ SCMP_FLTATR_CTL_LOG, 1 },      /* refused calls go to the audit log */
		{ SCMP_FLTATR_CTL_OPTIMIZE, 2 }, /* a tree of calls, not a list */
		{ SCMP_FLTATR_API_SYSRAWRC, 1 }, /* errors of the kernel */
	};
	int ret = 0;

	for (size_t i = 0; i < DRAY_ARRAY_SIZE(attributes) && ret >= 0; i++)
		ret = seccomp_attr_set(ctx, attributes[i].attribute, attributes[i].value);
	return ret;
}

static int fill(scmp_filter_ctx ctx, bool enforce, bool libraries)
{
	int ret = add_names(ctx, SCMP_ACT_ALLOW, sandbox_allowed);

	if (ret >= 0)
		ret = add_with_arguments(ctx, libraries);
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(for_sanitizers) && ret >= 0; i++)
		if (WITH_SANITIZERS)
			ret = add(ctx, SCMP_ACT_ALLOW, for_sanitizers[i], 0, NULL);
	if (ret >= 0 && enforce)
		ret = add_names(ctx, SCMP_ACT_KILL_PROCESS, sandbox_forbidden);
	return ret;
}

static bool is_unsupported(int ret)
{
	return ret == -EINVAL || ret == -ENOSYS || ret == -EOPNOTSUPP;
}

int sandbox_enter(enum dray_config_agent_seccomp mode, bool libraries, struct dray_err *reterr)
{
	bool enforce = mode == DRAY_CONFIG_AGENT_SECCOMP_ENFORCE;
	scmp_filter_ctx ctx;
	bool unsupported;
	int ret;

	if (mode == DRAY_CONFIG_AGENT_SECCOMP_OFF) {
		log_warning("agent", "agent.seccomp is off: system calls are not restricted");
		return 0;
	}
	/* the library does not tell why it makes none: no memory, or a kernel without SCMP_ACT_LOG */
	errno = 0;
	ctx = seccomp_init(enforce ? SCMP_ACT_ERRNO(EPERM) : SCMP_ACT_LOG);
	if (!ctx)
		ret = enforce || errno == ENOMEM ? -ENOMEM : -EOPNOTSUPP;
	else
		ret = set_attributes(ctx);
	/* an error of a rule says nothing of the kernel */
	unsupported = is_unsupported(ret);
	if (ret >= 0)
		ret = fill(ctx, enforce, libraries);
	if (ret >= 0) {
		ret = seccomp_load(ctx);
		unsupported = is_unsupported(ret);
	}
	seccomp_release(ctx);
	/* returns the few hundred KiB that building the filter took */
	malloc_trim(0);
	if (unsupported) {
		log_warning("agent",
			    "the kernel has no seccomp filters: system calls are not restricted");
		return 0;
	}
	if (ret < 0)
		return dray_err_set(
			reterr, ret, DRAY_E_IO,
			"installing the seccomp filter: %s; agent.seccomp = \"off\" starts without it",
			dray_errno_text(ret));
	return 0;
}
