/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cgroup of this process is a path in /proc/self/cgroup, relative to the root of its hierarchy;
 * /proc/self/mountinfo says where that hierarchy is mounted and which of its folders the mount
 * shows. Each folder from there up to the mount may carry a limit; the smallest one counts. In a
 * container with a cgroup namespace the path is "/", and the mount's own folder carries the limit.
 */
#include "lib/cpu.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/cleanup.h"

#define CPUS_MAX 65536
#define MILLI 1000

DRAY_DEFINE_CLEANUP(FILE *, fclose);

/*
 * Of the main thread, which keeps the mask that the process was given. Other threads may be pinned to some of these CPUs.
 */
unsigned dray_cpus_allowed(void)
{
	for (int cpus = CPU_SETSIZE; cpus <= CPUS_MAX; cpus *= 2) {
		size_t bytes = CPU_ALLOC_SIZE(cpus);
		cpu_set_t *set = CPU_ALLOC(cpus);
		unsigned n = 0;
		int r;

		if (!set)
			return 1;
		r = sched_getaffinity(getpid(), bytes, set);
		if (r == 0)
			n = (unsigned)CPU_COUNT_S(bytes, set);
		else if (errno != EINVAL)
			n = 1;
		CPU_FREE(set);
		if (n)
			return n;
	}
	return 1;
}

/* The first two numbers of a small file, the second one 0 if missing. False if it has none, as with "max". */
static bool numbers_read(const char *path, long long *ret_a, long long *ret_b)
{
	dray_auto(fclose) FILE *f = fopen(path, "re");

	*ret_b = 0;
	return f && fscanf(f, "%lld %lld", ret_a, ret_b) >= 1;
}

static unsigned quota_of(const char *dir, bool v2)
{
	long long quota, period, none;
	char path[PATH_MAX + 32];

	snprintf(path, sizeof(path), "%s/%s", dir, v2 ? "cpu.max" : "cpu.cfs_quota_us");
	if (!numbers_read(path, &quota, &period))
		return UINT_MAX;
	snprintf(path, sizeof(path), "%s/cpu.cfs_period_us", dir);
	if (!v2 && !numbers_read(path, &period, &none))
		return UINT_MAX;
	if (quota <= 0 || period <= 0 || period > LLONG_MAX / MILLI ||
	    quota / period >= UINT_MAX / MILLI)
		return UINT_MAX;
	return (unsigned)(quota / period * MILLI + quota % period * MILLI / period);
}

/* mountinfo writes a space as \040. */
static void unescape(char *s)
{
	char *to = s;

	for (; *s; s++, to++) {
		if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] >= '0' && s[2] <= '7' &&
		    s[3] >= '0' && s[3] <= '7') {
			*to = (char)((s[1] - '0') * 64 + (s[2] - '0') * 8 + (s[3] - '0'));
			s += 3;
		} else {
			*to = *s;
		}
	}
	*to = '\0';
}

/* Is word one of the comma-separated words of list? */
static bool list_has(const char *list, const char *word)
{
	size_t n = strlen(word);

	for (const char *p = list; p; p = strchr(p, ',')) {
		p += *p == ',';
		if (!strncmp(p, word, n) && (!p[n] || p[n] == ',' || p[n] == '\n'))
			return true;
	}
	return false;
}

#define PATH_WORD "%4095s"

struct mount {
	char point[PATH_MAX]; /* where it is mounted */
	char shown[PATH_MAX]; /* the folder of the hierarchy that it shows */
};
_Static_assert(PATH_MAX == 4096, "PATH_WORD fits");

/* ID PARENT DEV SHOWN POINT OPTIONS [TAGS...] - TYPE SOURCE SUPER_OPTIONS */
static bool mount_parse(const char *line, bool v2, struct mount *ret)
{
	const char *dash = strstr(line, " - ");
	char type[16], options[1024] = "";

	if (!dash || sscanf(dash, " - %15s %*s %1023s", type, options) < 1 ||
	    strcmp(type, v2 ? "cgroup2" : "cgroup") || (!v2 && !list_has(options, "cpu")) ||
	    sscanf(line, "%*s %*s %*s " PATH_WORD " " PATH_WORD, ret->shown, ret->point) != 2)
		return false;
	unescape(ret->shown);
	unescape(ret->point);
	return true;
}

static bool mount_find(const char *root, bool v2, struct mount *ret)
{
	char path[PATH_MAX];
	dray_auto(fclose) FILE *f = NULL;
	dray_auto_free char *line = NULL;
	bool found = false;
	size_t cap = 0;

	snprintf(path, sizeof(path), "%s/proc/self/mountinfo", root);
	f = fopen(path, "re");
	while (f && !found && getline(&line, &cap, f) > 0)
		found = mount_parse(line, v2, ret);
	return found;
}

/* From the cgroup's folder up to the mount. */
static int folders_upwards(struct dray_strv *l, const char *root, const struct mount *m,
			   const char *cgroup)
{
	size_t n_shown = strlen(m->shown), floor;
	char dir[PATH_MAX], *slash;
	int n, r;

	/* the mount does not show this cgroup, so only the limit of the mount's own folder is known */
	if (strstr(cgroup, "/.."))
		cgroup = "";
	else if (n_shown > 1 && !strncmp(cgroup, m->shown, n_shown) &&
		 (cgroup[n_shown] == '/' || !cgroup[n_shown]))
		cgroup += n_shown;
	else if (n_shown > 1)
		cgroup = "";
	floor = strlen(root) + strlen(m->point);
	n = snprintf(dir, sizeof(dir), "%s%s%s", root, m->point, cgroup);
	if (n < 0 || (size_t)n >= sizeof(dir))
		return 0;
	do {
		r = dray_strv_add(l, dir, strlen(dir));
		slash = strrchr(dir, '/');
		if (slash)
			*slash = '\0';
	} while (r == 0 && slash && strlen(dir) >= floor);
	return r;
}

int dray_cpu_limits_find(struct dray_cpu_limits *l, const char *root)
{
	char path[PATH_MAX];
	dray_auto(fclose) FILE *f = NULL;
	dray_auto_free char *line = NULL;
	size_t cap = 0;
	int r = 0;

	dray_cpu_limits_deinit(l);
	snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
	f = fopen(path, "re");
	while (f && r == 0 && getline(&line, &cap, f) > 0) {
		char *controllers = strchr(line, ':'), *cgroup;
		struct mount m;
		bool v2;

		if (!controllers)
			continue;
		controllers++;
		cgroup = strchr(controllers, ':');
		if (!cgroup)
			continue;
		*cgroup++ = '\0';
		cgroup[strcspn(cgroup, "\n")] = '\0';
		v2 = !*controllers;
		if (!v2 && !list_has(controllers, "cpu"))
			continue;
		if (mount_find(root, v2, &m))
			r = folders_upwards(v2 ? &l->v2 : &l->v1, root, &m, cgroup);
	}
	return r;
}

unsigned dray_cpu_limits_read(const struct dray_cpu_limits *l)
{
	unsigned least = UINT_MAX;

	for (size_t i = 0; i < l->v1.n; i++)
		least = dray_min(least, quota_of(l->v1.v[i], false));
	for (size_t i = 0; i < l->v2.n; i++)
		least = dray_min(least, quota_of(l->v2.v[i], true));
	return least;
}

void dray_cpu_limits_deinit(struct dray_cpu_limits *l)
{
	dray_strv_clear(&l->v1);
	dray_strv_clear(&l->v2);
}

void dray_cpus_get(struct dray_cpus *ret)
{
	struct dray_cpu_limits limits = { 0 };

	dray_cpu_limits_find(&limits, "");
	ret->allowed = dray_cpus_allowed();
	ret->quota_milli = dray_cpu_limits_read(&limits);
	dray_cpu_limits_deinit(&limits);
}

unsigned dray_cpus_whole(const struct dray_cpus *c)
{
	unsigned n = dray_min(c->allowed, c->quota_milli / MILLI);

	return dray_max(n, 1u);
}

bool dray_cpus_can_spin(const struct dray_cpus *c, char *why, size_t n)
{
	bool can = dray_cpus_whole(c) >= 2;

	if (can)
		snprintf(why, n, "%s", "");
	else if (c->allowed < 2)
		snprintf(why, n, "1 CPU allowed");
	else
		snprintf(why, n, "a CPU limit of %u.%03u", c->quota_milli / MILLI,
			 c->quota_milli % MILLI);
	return can;
}
