/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/process/privilege.h"

#include <errno.h>
#include <sys/capability.h>
#include <sys/prctl.h>

#include "lib/cleanup.h"
#include "schema/gen/errors.h"

/* For starting; the first N_WORK for work. */
static const cap_value_t needed[] = {
	CAP_IPC_LOCK,         /* memory beyond RLIMIT_MEMLOCK */
	CAP_CHOWN,            /* groups of the sockets */
	CAP_DAC_OVERRIDE,     /* directories of other users */
	CAP_DAC_READ_SEARCH,  /* root's key file */
	CAP_NET_ADMIN,        /* RDMA netlink (since Linux 6.12) */
	CAP_NET_BIND_SERVICE, /* ports below 1024 */
};

#define N_WORK 1u
#define N_START DRAY_ARRAY_SIZE(needed)

DRAY_DEFINE_CLEANUP(cap_t, cap_free);

/* Drops all capabilities of the calling thread except the first n of `needed`. */
static int keep(unsigned n)
{
	dray_auto(cap_free) cap_t now = cap_get_proc();
	dray_auto(cap_free) cap_t next = cap_init();

	if (!now || !next)
		return -errno;
	for (unsigned i = 0; i < n; i++) {
		cap_flag_value_t has;

		if (cap_get_flag(now, needed[i], CAP_PERMITTED, &has) < 0)
			return -errno;
		if (has == CAP_SET &&
		    (cap_set_flag(next, CAP_PERMITTED, 1, &needed[i], CAP_SET) < 0 ||
		     cap_set_flag(next, CAP_EFFECTIVE, 1, &needed[i], CAP_SET) < 0))
			return -errno;
	}
	/* an outer system call filter may refuse capset(), so it is called only for a change */
	if (!cap_compare(now, next))
		return 0;
	/* nothing is inheritable, which empties the ambient set too */
	return cap_set_proc(next) < 0 ? -errno : 0;
}

int privilege_init(struct dray_err *reterr)
{
	int ret;

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return dray_err_set(reterr, -errno, DRAY_E_IO, "setting no_new_privs: %s",
				    dray_errno_text(errno));
	/* fails without CAP_SETPCAP; then the bounding set cannot give the process anything either */
	for (cap_value_t c = 0; cap_get_bound(c) >= 0; c++)
		cap_drop_bound(c);
	ret = keep(N_START);
	if (ret < 0)
		return dray_err_set(reterr, ret, DRAY_E_IO, "dropping capabilities: %s",
				    dray_errno_text(ret));
	return 0;
}

int privilege_drop(void)
{
	return keep(N_WORK);
}
