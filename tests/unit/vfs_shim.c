/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/vfs_shim.h"

#include <pthread.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

struct shim_file {
	sqlite3_file base;
	sqlite3_file *real; /* lies behind this struct */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
/* protected by the lock */
static struct {
	unsigned ops;
	int code;
	uint32_t n, count;
	bool once, failed, hang;
	unsigned hanging;
} fault;

static sqlite3_vfs *real_vfs, shim_vfs;

/* Returns SQLITE_OK if the real file system should do the call. */
static int passes(enum shim_op op)
{
	int code = SQLITE_OK;

	pthread_mutex_lock(&lock);
	if (op == SHIM_WRITE) {
		fault.hanging++;
		pthread_cond_broadcast(&changed);
		while (fault.hang)
			pthread_cond_wait(&changed, &lock);
		fault.hanging--;
	}
	if (fault.ops & 1u << op) {
		uint32_t i = fault.count++;

		if (fault.once ? i == fault.n : i >= fault.n) {
			fault.failed = true;
			code = fault.code;
		}
	}
	pthread_mutex_unlock(&lock);
	return code;
}

void shim_fail(unsigned ops, int code, uint32_t n, bool once)
{
	pthread_mutex_lock(&lock);
	fault.ops = ops;
	fault.code = code;
	fault.n = n;
	fault.count = 0;
	fault.once = once;
	fault.failed = false;
	pthread_mutex_unlock(&lock);
}

bool shim_heal(void)
{
	bool failed;

	pthread_mutex_lock(&lock);
	fault.ops = 0;
	failed = fault.failed;
	pthread_mutex_unlock(&lock);
	return failed;
}

static void set_hang(bool hang)
{
	pthread_mutex_lock(&lock);
	fault.hang = hang;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

void shim_hang(void)
{
	set_hang(true);
}

void shim_release(void)
{
	set_hang(false);
}

void shim_wait_hanging(void)
{
	pthread_mutex_lock(&lock);
	while (!fault.hanging)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
}

/* --- files ------------------------------------------------------------------------------------- */

static sqlite3_file *real(sqlite3_file *f)
{
	return ((struct shim_file *)(void *)f)->real;
}

static int file_close(sqlite3_file *f)
{
	return real(f)->pMethods->xClose(real(f));
}

static int file_read(sqlite3_file *f, void *p, int n, sqlite3_int64 at)
{
	int code = passes(SHIM_READ);

	return code ? code : real(f)->pMethods->xRead(real(f), p, n, at);
}

/* A disk that becomes full writes the first part. */
static int file_write(sqlite3_file *f, const void *p, int n, sqlite3_int64 at)
{
	int code = passes(SHIM_WRITE);

	if (code && n > 1)
		real(f)->pMethods->xWrite(real(f), p, n / 2, at);
	return code ? code : real(f)->pMethods->xWrite(real(f), p, n, at);
}

static int file_truncate(sqlite3_file *f, sqlite3_int64 n)
{
	int code = passes(SHIM_TRUNCATE);

	return code ? code : real(f)->pMethods->xTruncate(real(f), n);
}

static int file_sync(sqlite3_file *f, int flags)
{
	int code = passes(SHIM_SYNC);

	return code ? code : real(f)->pMethods->xSync(real(f), flags);
}

static int file_size(sqlite3_file *f, sqlite3_int64 *n)
{
	return real(f)->pMethods->xFileSize(real(f), n);
}

static int file_lock(sqlite3_file *f, int level)
{
	return real(f)->pMethods->xLock(real(f), level);
}

static int file_unlock(sqlite3_file *f, int level)
{
	return real(f)->pMethods->xUnlock(real(f), level);
}

static int file_is_locked(sqlite3_file *f, int *ret)
{
	return real(f)->pMethods->xCheckReservedLock(real(f), ret);
}

static int file_control(sqlite3_file *f, int op, void *arg)
{
	return real(f)->pMethods->xFileControl(real(f), op, arg);
}

static int file_sector(sqlite3_file *f)
{
	return real(f)->pMethods->xSectorSize(real(f));
}

static int file_kind(sqlite3_file *f)
{
	return real(f)->pMethods->xDeviceCharacteristics(real(f));
}

/* version 1, without shared memory, which a database of a single process does not need */
static const sqlite3_io_methods methods = {
	.iVersion = 1,
	.xClose = file_close,
	.xRead = file_read,
	.xWrite = file_write,
	.xTruncate = file_truncate,
	.xSync = file_sync,
	.xFileSize = file_size,
	.xLock = file_lock,
	.xUnlock = file_unlock,
	.xCheckReservedLock = file_is_locked,
	.xFileControl = file_control,
	.xSectorSize = file_sector,
	.xDeviceCharacteristics = file_kind,
};

static int vfs_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *f, int flags, int *ret_flags)
{
	struct shim_file *s = (struct shim_file *)(void *)f;
	int code = passes(SHIM_OPEN);

	s->base.pMethods = NULL;
	s->real = (sqlite3_file *)(void *)(s + 1);
	if (code)
		return code;
	code = real_vfs->xOpen(real_vfs, name, s->real, flags, ret_flags);
	if (s->real->pMethods)
		s->base.pMethods = &methods;
	return code;
}

void shim_install(void)
{
	real_vfs = sqlite3_vfs_find("unix");
	shim_vfs = *real_vfs;
	shim_vfs.zName = "shim";
	shim_vfs.pNext = NULL;
	shim_vfs.szOsFile = (int)sizeof(struct shim_file) + real_vfs->szOsFile;
	shim_vfs.xOpen = vfs_open;
	sqlite3_vfs_register(&shim_vfs, 1);
}

void shim_remove(void)
{
	sqlite3_vfs_unregister(&shim_vfs);
}
