/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the process, its limits, and the kernel. */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include "netdetect/choose/address.h"
#include "netdetect/doctor/internal.h"

#define MIB (1024.0 * 1024)
#define GIB (1ull << 30)
/* The initial user namespace (PROC_USER_INIT_INO of include/linux/proc_ns.h). */
#define FIRST_USER_NAMESPACE "user:[4026531837]"
/* Containers get 64 MiB by default; a KV cache in shared memory needs GiBs. */
#define SHM_SMALL GIB

bool nd_skipped(struct examination *x)
{
	if (nd_is_live(x->s))
		return false;
	nd_finding(x, ND_INFO, "", "", "not checked: a recorded machine has no process");
	return true;
}

/* The number behind a key of /proc/meminfo or /proc/self/status; 0 if the key is missing. */
static uint64_t number_after(const char *text, const char *key, int base)
{
	const char *at = strstr(text, key);

	return at ? strtoull(at + strlen(key), NULL, base) : 0;
}

/* CapEff of proc(5). False if it cannot be read. */
static bool effective_capabilities(uint64_t *ret)
{
	char text[8192];

	if (nd_read_text(&ND_SOURCE_LIVE, text, sizeof(text), "/proc/self/status") <= 0 ||
	    !strstr(text, "CapEff:"))
		return false;
	*ret = number_after(text, "CapEff:", 16);
	return true;
}

/* The kernel wants the capability in the initial user namespace. Root of another one has it there only. */
static bool may_lock_all(void)
{
	char target[ND_PATH_MAX];
	uint64_t caps = 0;

	return effective_capabilities(&caps) && (caps & 1ull << CAP_IPC_LOCK) &&
	       nd_read_link(&ND_SOURCE_LIVE, target, "/proc/self/ns/user") &&
	       !strcmp(target, FIRST_USER_NAMESPACE);
}

void nd_check_memlock(struct examination *x)
{
	uint64_t wanted = x->register_bytes;
	struct rlimit l;

	if (nd_skipped(x))
		return;
	if (may_lock_all()) {
		nd_finding_ok(x, "CAP_IPC_LOCK is effective: no limit on locked memory");
		return;
	}
	if (getrlimit(RLIMIT_MEMLOCK, &l) < 0)
		return;
	/* the agent raises its soft limit to the hard one */
	if (l.rlim_max == RLIM_INFINITY) {
		nd_finding_ok(x, "no limit on locked memory");
	} else if (wanted > l.rlim_max || (!wanted && l.rlim_max < GIB)) {
		nd_finding(
			x, x->scan->devices.n ? ND_ERROR : ND_WARNING, "",
			"raise it: LimitMEMLOCK=infinity (systemd), --ulimit memlock=-1 (containers), or CAP_IPC_LOCK as root",
			"%.0f MiB may be locked%s: registering more fails with \"Cannot allocate memory\"",
			(double)l.rlim_max / MIB,
			wanted ? ", less than the memory to be registered" : "");
	} else {
		nd_finding_ok(x, "%.0f MiB may be locked", (double)l.rlim_max / MIB);
	}
}

void nd_check_capabilities(struct examination *x)
{
	static const struct {
		unsigned bit;
		const char *name;
	} known[] = { { CAP_IPC_LOCK, "IPC_LOCK" },
		      { CAP_NET_ADMIN, "NET_ADMIN" },
		      { CAP_NET_RAW, "NET_RAW" },
		      { CAP_SYS_PTRACE, "SYS_PTRACE" },
		      { CAP_SYS_ADMIN, "SYS_ADMIN" } };
	char text[160] = "";
	uint64_t caps;
	size_t n = 0;

	if (nd_skipped(x) || !effective_capabilities(&caps))
		return;
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(known); i++)
		if (caps & 1ull << known[i].bit)
			n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%s", n ? ", " : "",
					      known[i].name);
	/* never a warning: a check that needs one of them reports that itself */
	nd_finding_ok(x, "relevant effective capabilities: %s", n ? text : "none");
}

void nd_check_shm(struct examination *x)
{
	struct statvfs st;
	uint64_t bytes;

	if (nd_skipped(x))
		return;
	if (statvfs("/dev/shm", &st) < 0) {
		nd_finding(x, ND_WARNING, "",
			   "mount a tmpfs there, such as an emptyDir of medium Memory",
			   "/dev/shm: %s", strerror(errno));
		return;
	}
	bytes = (uint64_t)st.f_blocks * st.f_frsize;
	if (bytes < SHM_SMALL)
		nd_finding(
			x, ND_WARNING, "",
			"mount an emptyDir of medium Memory there, or --shm-size",
			"/dev/shm has %.0f MiB, which engines that share memory by name soon fill (memfds do not count)",
			(double)bytes / MIB);
	else
		nd_finding_ok(x, "/dev/shm has %.0f MiB, %.0f MiB free", (double)bytes / MIB,
			      (double)((uint64_t)st.f_bavail * st.f_frsize) / MIB);
}

void nd_check_huge_pages(struct examination *x)
{
	char text[8192];
	uint64_t total, left;

	if (nd_read_text(x->s, text, sizeof(text), "/proc/meminfo") <= 0)
		return;
	total = number_after(text, "HugePages_Total:", 10);
	left = number_after(text, "HugePages_Free:", 10);
	if (total && !left)
		nd_finding(x, ND_WARNING, "", "reserve more: sysctl vm.nr_hugepages",
			   "all %" PRIu64 " huge pages are in use", total);
	else if (total)
		nd_finding_ok(x, "%" PRIu64 " of %" PRIu64 " huge pages are free", left, total);
	else
		nd_finding(
			x, ND_INFO, "",
			"reserve some for large pools (sysctl vm.nr_hugepages): RNICs then need fewer translations",
			"no huge pages are reserved");
}

void nd_check_kernel(struct examination *x)
{
	static const struct {
		unsigned major, minor;
		enum nd_severity severity;
		const char *lack;
	} since[] = {
		{ 5, 12, ND_WARNING, "RNICs cannot register DMA-BUF memory" },
		{ 5, 14, ND_WARNING,
		  "the agent is charged for pages of a client that are not resident (userfaultfd)" },
		{ 6, 5, ND_INFO,
		  "the peer process of a socket is known by PID only (SO_PEERPIDFD)" },
		{ 6, 12, ND_INFO,
		  "RDMA netlink reports no device changes; device events are used" },
	};
	char release[ND_RELEASE_MAX];
	bool lacks = false;

	if (!*nd_kernel_release(x->s, release))
		return;
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(since); i++) {
		if (nd_kernel_at_least(release, since[i].major, since[i].minor))
			continue;
		lacks = true;
		nd_finding(x, since[i].severity, "", "", "Linux %s is older than %u.%u: %s",
			   release, since[i].major, since[i].minor, since[i].lack);
	}
	if (!lacks)
		nd_finding_ok(x, "Linux %s has every feature that dray uses", release);
}

void nd_check_address(struct examination *x)
{
	dray_auto_free struct nd_candidate *c = NULL;
	char text[INET6_ADDRSTRLEN];
	size_t n = 0;
	bool bad;

	if (nd_advertise_rank(&x->scan->links, true, true, &c, &n) < 0) {
		x->failed = true;
		return;
	}
	if (!n || c[0].rejected) {
		nd_finding(x, ND_WARNING, "", "give an interface an address, or set peer.advertise",
			   "no address that peers can reach");
		return;
	}
	/* the best is an overlay, or a bridge of containers */
	bad = c[0].score < ND_ADVERTISE_GOOD &&
	      (c[0].link->kind == ND_LINK_BRIDGE || c[0].link->kind == ND_LINK_TUNNEL);
	nd_finding(x, bad ? ND_WARNING : ND_OK, c[0].link->name,
		   bad ? "set peer.advertise, or run with hostNetwork" : "",
		   "peers get the address %s: %s",
		   nd_addr_text(&c[0].addr->addr, c[0].addr->family, text), c[0].reason);
}
