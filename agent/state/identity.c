/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files in the state directory:
 *
 *   lock         held under flock while the agent runs; its text, the holder's pid, is for people
 *   agent_id     32 hexadecimal characters, made once
 *   incarnation  decimal, of the last start
 *
 * The incarnation is the clock in nanoseconds, or one more than the last if the clock is behind. So it grows even if
 * the file is lost or the clock is set back. It is stored before it is used. If agent_id or incarnation is corrupt,
 * the agent does not start: to its peers an agent with a new id is another agent.
 */
#include "agent/state/identity.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "lib/file.h"
#include "lib/random.h"
#include "lib/time.h"
#include "schema/gen/errors.h"

DRAY_DEFINE_CLEANUP(FILE *, fclose);

const char *identity_show(const uint8_t agent_id[16], char buf[IDENTITY_TEXT_BYTES])
{
	for (int i = 0; i < 16; i++)
		snprintf(buf + (size_t)i * 2, 3, "%02x", agent_id[i]);
	return buf;
}

static int io_error(struct dray_err *reterr, int err, const char *what, const char *dir,
		    const char *name)
{
	const char *slash = *name ? "/" : "";

	if (err == ENOSPC || err == EDQUOT)
		return dray_err_set(
			reterr, -ENOSPC, DRAY_E_NO_SPACE,
			"%s %.100s%s%s: no space left; free some, or set agent.state_dir", what,
			dir, slash, name);
	if (err == EACCES || err == EPERM || err == EROFS || err == ENOTDIR)
		return dray_err_set(reterr, -err, DRAY_E_DENIED,
				    "%s %.100s%s%s: %s; set agent.state_dir to a directory of the "
				    "agent's own",
				    what, dir, slash, name, dray_errno_text(err));
	return dray_err_set(reterr, -err, DRAY_E_IO, "%s %.100s%s%s: %s", what, dir, slash, name,
			    dray_errno_text(err));
}

/* Parent directories follow the umask; the last one is for the agent alone. */
static int dir_make(const char *dir, struct dray_err *reterr)
{
	dray_auto_free char *path = strdup(dir);
	size_t n;

	if (!path)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "out of memory");
	n = strlen(path);
	while (n > 1 && path[n - 1] == '/')
		path[--n] = '\0';
	for (char *p = path + 1; n && *p; p++) {
		if (*p != '/')
			continue;
		*p = '\0';
		/* the last mkdir() reports all other errors */
		if (mkdir(path, 0755) < 0 && errno == ENOSPC)
			return io_error(reterr, errno, "making", path, "");
		*p = '/';
	}
	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return io_error(reterr, errno, "making", dir, "");
	return 0;
}

/* The holder of the lock, from /proc/locks. 0: unknown, since it may be in another PID namespace. */
static long holder_of(const struct stat *st)
{
	dray_auto(fclose) FILE *f = fopen("/proc/locks", "re");
	dray_auto_free char *line = NULL;
	size_t cap = 0;

	while (f && getline(&line, &cap, f) > 0) {
		unsigned major, minor;
		uint64_t inode;
		char kind[16];
		long pid;

		/* a line of a waiter has "->" after the number and does not match */
		if (sscanf(line, "%*s %15s %*s %*s %ld %x:%x:%" SCNu64, kind, &pid, &major, &minor,
			   &inode) == 5 &&
		    !strcmp(kind, "FLOCK") && inode == st->st_ino && major == major(st->st_dev) &&
		    minor == minor(st->st_dev) && pid > 0)
			return pid;
	}
	return 0;
}

static int lock_busy(int fd, const char *dir, struct dray_err *reterr)
{
	char text[32] = "", path[40], comm[32], holder[80] = "another process";
	struct stat st;
	long pid = fstat(fd, &st) == 0 ? holder_of(&st) : 0;

	if (pid) {
		snprintf(path, sizeof(path), "/proc/%ld/comm", pid);
		if (dray_file_read(AT_FDCWD, path, 0, comm, sizeof(comm)) <= 0)
			snprintf(comm, sizeof(comm), "?");
		comm[strcspn(comm, "\n")] = '\0';
		snprintf(holder, sizeof(holder), "process %ld (%s)", pid, comm);
	} else if (pread(fd, text, sizeof(text) - 1, 0) > 0 && (pid = strtol(text, NULL, 10)) > 0) {
		snprintf(holder, sizeof(holder), "process %ld (of its PID namespace)", pid);
	}
	return dray_err_set(reterr, -EBUSY, DRAY_E_BUSY,
			    "%.100s is in use by %s; stop it, or set another agent.state_dir", dir,
			    holder);
}

static int lock_take(struct identity *id, const char *dir, struct dray_err *reterr)
{
	char text[32];
	int n, r;

	id->lock_fd = openat(id->dir_fd, "lock",
			     O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
	if (id->lock_fd < 0)
		return io_error(reterr, errno, "opening", dir, "lock");
	do
		r = flock(id->lock_fd, LOCK_EX | LOCK_NB);
	while (r < 0 && errno == EINTR);
	if (r < 0 && errno == EWOULDBLOCK)
		return lock_busy(id->lock_fd, dir, reterr);
	if (r < 0)
		return io_error(reterr, errno, "locking", dir, "lock");
	/* the pid is only for people, so a full disk is ignored */
	n = snprintf(text, sizeof(text), "%ld\n", (long)getpid());
	if (ftruncate(id->lock_fd, 0) == 0 && pwrite(id->lock_fd, text, (size_t)n, 0) < 0)
		return 0;
	return 0;
}

/* Returns the length of the text without its newline; -ENOENT if there is no file (reterr is not set). */
static ssize_t file_read(const struct identity *id, const char *dir, const char *name, char *buf,
			 size_t cap, struct dray_err *reterr)
{
	ssize_t n = dray_file_read(id->dir_fd, name, O_NOFOLLOW | O_NONBLOCK, buf, cap);

	if (n < 0 && n != -ENOENT)
		return io_error(reterr, (int)-n, "reading", dir, name);
	if (n > 0 && buf[n - 1] == '\n')
		buf[--n] = '\0';
	return n;
}

/* The lock on the directory excludes another writer. */
static int file_replace(const struct identity *id, const char *dir, const char *name,
			const char *text, struct dray_err *reterr)
{
	int r = dray_file_replace(id->dir_fd, name, text, 0600, true, NULL);

	return r < 0 ? io_error(reterr, -r, "writing", dir, name) : 0;
}

static int corrupt(struct dray_err *reterr, const char *dir, const char *name, const char *advice)
{
	return dray_err_set(reterr, -EBADMSG, DRAY_E_INVALID, "%.80s/%s is corrupt; %s", dir, name,
			    advice);
}

static bool id_parse(const char *text, size_t n, uint8_t agent_id[16])
{
	static const char hex[] = "0123456789abcdef";
	uint8_t any = 0;

	if (n != 32 || strlen(text) != 32)
		return false;
	for (int i = 0; i < 16; i++) {
		const char *high = strchr(hex, text[i * 2]), *low = strchr(hex, text[i * 2 + 1]);

		if (!high || !low)
			return false;
		agent_id[i] = (uint8_t)((high - hex) << 4 | (low - hex));
		any |= agent_id[i];
	}
	return any != 0;
}

static int id_load(struct identity *id, const char *dir, struct dray_err *reterr)
{
	char text[64];
	ssize_t n;
	int r;

	n = file_read(id, dir, "agent_id", text, sizeof(text), reterr);
	if (n >= 0 && id_parse(text, (size_t)n, id->agent_id))
		return 0;
	if (n >= 0)
		return corrupt(
			reterr, dir, "agent_id",
			"restore it, or remove it: to its peers the agent is then a new one, "
			"and the tokens it exported are void");
	if (n != -ENOENT)
		return (int)n;
	r = dray_random_fill(id->agent_id, sizeof(id->agent_id));
	if (r < 0)
		return dray_err_set(reterr, r, DRAY_E_IO,
				    "the kernel gave no random bytes for the agent's id: %s",
				    dray_errno_text(r));
	identity_show(id->agent_id, text);
	text[32] = '\n';
	text[33] = '\0';
	return file_replace(id, dir, "agent_id", text, reterr);
}

static uint64_t clock_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return ts.tv_sec < 0 ? 1 : (uint64_t)ts.tv_sec * DRAY_NS_PER_SEC + (uint64_t)ts.tv_nsec;
}

static bool incarnation_parse(const char *text, size_t n, uint64_t *ret)
{
	uint64_t v = 0;

	if (!n || strlen(text) != n)
		return false;
	for (; *text; text++) {
		if (*text < '0' || *text > '9' || __builtin_mul_overflow(v, 10U, &v) ||
		    __builtin_add_overflow(v, (unsigned)(*text - '0'), &v))
			return false;
	}
	*ret = v;
	return v < UINT64_MAX;
}

static int incarnation_take(struct identity *id, const char *dir, struct dray_err *reterr)
{
	uint64_t last = 0;
	char text[64];
	ssize_t n;

	n = file_read(id, dir, "incarnation", text, sizeof(text), reterr);
	if (n >= 0 && !incarnation_parse(text, (size_t)n, &last))
		return corrupt(reterr, dir, "incarnation",
			       "remove it: the agent then takes the next one from the clock, which "
			       "must not have been set back");
	if (n < 0 && n != -ENOENT)
		return (int)n;
	id->incarnation = dray_max(last + 1, clock_ns());
	snprintf(text, sizeof(text), "%" PRIu64 "\n", id->incarnation);
	return file_replace(id, dir, "incarnation", text, reterr);
}

int identity_open(struct identity *id, const char *dir, struct dray_err *reterr)
{
	int r;

	*id = IDENTITY_NULL;
	r = dir_make(dir, reterr);
	if (r < 0)
		return r;
	id->dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (id->dir_fd < 0)
		return io_error(reterr, errno, "opening", dir, "");
	r = lock_take(id, dir, reterr);
	if (!r)
		r = id_load(id, dir, reterr);
	if (!r)
		r = incarnation_take(id, dir, reterr);
	if (r < 0)
		identity_close(id);
	return r;
}

void identity_close(struct identity *id)
{
	id->lock_fd = dray_close(id->lock_fd);
	id->dir_fd = dray_close(id->dir_fd);
}
