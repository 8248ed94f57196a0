/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the process, its limits, and the kernel. */
#include <errno.h>
#include <inttypes.h>
#include <arpa/inet.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>

#include "lib/cleanup.h"
#include "netdetect/choose/address.h"
#include "netdetect/doctor/internal.h"
#include "netdetect/source/kernel.h"

#define MIB (1024.0 * 1024)
/* Containers get 64 MiB unless somebody asks for more; a KV cache in shared memory needs GiBs. */
#define SHM_SMALL (1ull << 30)

bool nd_skipped(struct examination *x)
{
	if (nd_is_live(x->s))
		return false;
	nd_finding(x, ND_INFO, "", "", "not looked at: a recorded machine has no process");
	return true;
}

/* CapEff of proc(5), which is what counts, whatever was asked for. */
static bool effective(uint64_t *ret)
{
	char text[8192], *at;

	if (nd_read_text(&ND_SOURCE_LIVE, text, sizeof(text), "/proc/self/status") <= 0)
		return false;
	at = strstr(text, "CapEff:");
	if (!at)
		return false;
	*ret = strtoull(at + strlen("CapEff:"), NULL, 16);
	return true;
}

void nd_check_memlock(struct examination *x)
{
	uint64_t wanted = x->options->register_bytes, caps = 0;
	struct rlimit l;

	if (nd_skipped(x))
		return;
	if (effective(&caps) && (caps & 1ull << CAP_IPC_LOCK)) {
		nd_finding(x, ND_OK, "", "",
			   "CAP_IPC_LOCK is effective: no limit on locked memory");
		return;
	}
	if (getrlimit(RLIMIT_MEMLOCK, &l) < 0)
		return;
	if (l.rlim_cur == RLIM_INFINITY) {
		nd_finding(x, ND_OK, "", "", "no limit on locked memory");
	} else if (wanted > l.rlim_max || (!wanted && l.rlim_max < (1ull << 30))) {
		nd_finding(
			x, x->scan->devices.n ? ND_ERROR : ND_WARNING, "",
			"raise it: LimitMEMLOCK=infinity (systemd), --ulimit memlock=-1 (containers), or CAP_IPC_LOCK as root",
			"%.0f MiB may be locked (hard limit %.0f MiB)%s: registering more fails with \"Cannot allocate memory\"",
			(double)l.rlim_cur / MIB, (double)l.rlim_max / MIB,
			wanted ? ", less than what is to be registered" : "");
	} else if (wanted > l.rlim_cur) {
		nd_finding(x, ND_WARNING, "", "raise the soft limit (ulimit -l) to the hard one",
			   "%.0f MiB may be locked, the hard limit would allow %.0f MiB",
			   (double)l.rlim_cur / MIB, (double)l.rlim_max / MIB);
	} else {
		nd_finding(x, ND_OK, "", "", "%.0f MiB may be locked", (double)l.rlim_cur / MIB);
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

	if (nd_skipped(x) || !effective(&caps))
		return;
	for (size_t i = 0; i < DRAY_ARRAY_SIZE(known); i++)
		if (caps & 1ull << known[i].bit)
			n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%s", n ? ", " : "",
					      known[i].name);
	/* none is needed: what needs one says so in its own check */
	nd_finding(x, ND_OK, "", "", "effective capabilities of note: %s", n ? text : "none");
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
			"/dev/shm has %.0f MiB, which engines that share memory by name soon fill (memfds are not limited by it)",
			(double)bytes / MIB);
	else
		nd_finding(x, ND_OK, "", "", "/dev/shm has %.0f MiB, %.0f MiB free",
			   (double)bytes / MIB,
			   (double)((uint64_t)st.f_bavail * st.f_frsize) / MIB);
}

static uint64_t meminfo(const char *text, const char *key)
{
	const char *at = strstr(text, key);

	return at ? strtoull(at + strlen(key), NULL, 10) : 0;
}

void nd_check_huge_pages(struct examination *x)
{
	char text[8192];
	uint64_t total, left;

	if (nd_read_text(x->s, text, sizeof(text), "/proc/meminfo") <= 0)
		return;
	total = meminfo(text, "HugePages_Total:");
	left = meminfo(text, "HugePages_Free:");
	if (total && !left)
		nd_finding(x, ND_WARNING, "", "reserve more: sysctl vm.nr_hugepages",
			   "all %" PRIu64 " huge pages are in use", total);
	else if (total)
		nd_finding(x, ND_OK, "", "", "%" PRIu64 " of %" PRIu64 " huge pages are free", left,
			   total);
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
		const char *what;
	} since[] = {
		{ 5, 12, ND_WARNING, "DMA-BUF memory cannot be registered with RNICs" },
		{ 5, 14, ND_WARNING,
		  "memory that is not there is allocated at the agent's expense (userfaultfd)" },
		{ 6, 5, ND_INFO,
		  "the process behind a socket is known by number alone (SO_PEERPIDFD)" },
		{ 6, 12, ND_INFO, "RDMA netlink does not tell of devices; device events do" },
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
			   release, since[i].major, since[i].minor, since[i].what);
	}
	if (!lacks)
		nd_finding(x, ND_OK, "", "", "Linux %s has all that is used", release);
}

void nd_check_address(struct examination *x)
{
	dray_auto_free struct nd_candidate *c = NULL;
	char text[INET6_ADDRSTRLEN];
	size_t n = 0;

	if (nd_advertise_rank(&x->scan->links, true, true, &c, &n) < 0) {
		x->failed = true;
	} else if (!n || c[0].rejected) {
		nd_finding(x, ND_WARNING, "", "give an interface an address, or set peer.advertise",
			   "no address that peers could reach");
	} else if (c[0].link->kind == ND_LINK_BRIDGE || c[0].link->kind == ND_LINK_TUNNEL) {
		nd_finding(x, c[0].score < 10 ? ND_WARNING : ND_OK, c[0].link->name,
			   c[0].score < 10 ? "set peer.advertise, or run with hostNetwork" : "",
			   "peers are told %s: %s",
			   nd_addr_text(&c[0].addr->addr, c[0].addr->family, text), c[0].reason);
	} else {
		nd_finding(x, ND_OK, c[0].link->name, "", "peers are told %s: %s",
			   nd_addr_text(&c[0].addr->addr, c[0].addr->family, text), c[0].reason);
	}
}
