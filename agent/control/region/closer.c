/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/control/region/closer.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "agent/process/privilege.h"
#include "lib/cleanup.h"

/* Enough for system calls. */
#define STACK_BYTES (128 << 10)

struct closing {
	struct dray_job job;
	void *p; /* NULL: nothing to unmap */
	uint64_t bytes;
	int fd;
};

static void close_now(const struct closing *c)
{
	if (c->p)
		munmap(c->p, c->bytes);
	dray_close(c->fd);
}

static void run(struct dray_job *j)
{
	struct closing *c = dray_container_of(j, struct closing, job);

	close_now(c);
	free(c);
}

static void begin(void)
{
	privilege_drop();
}

int closer_new(struct dray_jobs **ret)
{
	return dray_jobs_new(ret, "dray-closer", STACK_BYTES, begin);
}

void closer_unmap(struct dray_jobs *closer, void *p, uint64_t bytes, int fd)
{
	struct closing now = { .p = p, .bytes = bytes, .fd = fd };
	struct closing *c = malloc(sizeof(*c));

	if (!c) {
		close_now(&now);
		return;
	}
	*c = now;
	dray_jobs_add(closer, &c->job, run, NULL);
}

void closer_close(struct dray_jobs *closer, int fd)
{
	if (fd >= 0)
		closer_unmap(closer, NULL, 0, fd);
}
