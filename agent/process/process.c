/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/process/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "lib/file.h"

int process_pidfd(void)
{
	int fd = (int)syscall(SYS_pidfd_open, getpid(), 0);

	return fd < 0 ? -errno : fd;
}

/* The first version of the kernel's struct sched_attr, which C libraries and headers declare in different ways. */
struct scheduling {
	uint32_t size;
	uint32_t policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime; /* the time slice, with the policies below */
	uint64_t deadline;
	uint64_t period;
};

static int scheduling_get(struct scheduling *ret)
{
	*ret = (struct scheduling){ .size = sizeof(*ret) };
	if (syscall(SYS_sched_getattr, 0, ret, sizeof(*ret), 0) < 0)
		return -errno;
	return ret->policy != SCHED_OTHER && ret->policy != SCHED_BATCH ? -ENOTSUP : 0;
}

int process_limit_time_slice(uint64_t ns, uint64_t *ret_before)
{
	struct scheduling s;
	uint64_t before;
	int ret;

	*ret_before = 0;
	ret = scheduling_get(&s);
	if (ret < 0)
		return ret;
	/* 0: a kernel that has no slices of threads */
	if (s.runtime && s.runtime <= ns)
		return 0;
	before = s.runtime;
	s.runtime = ns;
	if (syscall(SYS_sched_setattr, 0, &s, 0) < 0)
		return -errno;
	*ret_before = before;
	return 0;
}

int process_restore_time_slice(uint64_t before)
{
	struct scheduling s;
	int ret;

	if (!before)
		return 0;
	ret = scheduling_get(&s);
	if (ret < 0)
		return ret;
	s.runtime = before;
	return syscall(SYS_sched_setattr, 0, &s, 0) < 0 ? -errno : 0;
}

static double clock_seconds(clockid_t clock)
{
	struct timespec ts;

	if (clock_gettime(clock, &ts) < 0)
		return 0;
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

double process_start_time(void)
{
	static double found;
	uint64_t ticks;
	char text[1024];
	const char *p;

	if (found > 0 || dray_file_read(AT_FDCWD, "/proc/self/stat", 0, text, sizeof(text)) < 0)
		return found;
	/* field 22; field 3 follows the name, which may contain any character */
	p = strrchr(text, ')');
	for (int field = 2; p && field < 22; field++)
		p = strchr(p + 1, ' ');
	if (p && sscanf(p, "%" SCNu64, &ticks) == 1)
		found = clock_seconds(CLOCK_REALTIME) - clock_seconds(CLOCK_BOOTTIME) +
			(double)ticks / (double)sysconf(_SC_CLK_TCK);
	return found;
}

double process_cpu_seconds(void)
{
	return clock_seconds(CLOCK_PROCESS_CPUTIME_ID);
}

uint64_t process_resident_bytes(void)
{
	uint64_t pages;
	char text[256];

	if (dray_file_read(AT_FDCWD, "/proc/self/statm", 0, text, sizeof(text)) < 0 ||
	    sscanf(text, "%*u %" SCNu64, &pages) != 1)
		return 0;
	return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t process_open_fds(void)
{
	struct stat st;
	uint64_t n = 0;
	DIR *dir;

	/* since Linux 6.2 the directory's size; counting many descriptors takes long */
	if (!stat("/proc/self/fd", &st) && st.st_size)
		return (uint64_t)st.st_size;
	dir = opendir("/proc/self/fd");
	if (!dir)
		return 0;
	for (const struct dirent *e; (e = readdir(dir));)
		n += *e->d_name != '.';
	closedir(dir);
	/* without the descriptor of the directory */
	return n - 1;
}

uint64_t process_max_fds(void)
{
	struct rlimit l;

	return getrlimit(RLIMIT_NOFILE, &l) < 0 ? 0 : l.rlim_cur;
}
