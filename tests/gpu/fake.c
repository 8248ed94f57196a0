/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/fake.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "lib/assert.h"
#include "lib/cleanup.h"
#include "schema/gen/errors.h"
#include "tests/gpu/fake_internal.h"

#define CONTEXT_BYTES (500ull << 20)
#define SLOW_OPEN_NS 300000000

struct fake fake;
atomic_bool fake_held, fake_peerless, fake_refusing;
atomic_bool fake_told_lost[FAKE_DEVICES_MAX], fake_told_busy[FAKE_DEVICES_MAX];

static struct fake_gpu_status own_status, *status = &own_status;
static struct gpu_plugin {
	unsigned opens;
} plugin;

struct fake_gpu_status *fake_gpu_status(void)
{
	return status;
}

void fake_gpu_hold(bool hold)
{
	atomic_store(&fake_held, hold);
}

void fake_gpu_refuse(bool refuse)
{
	atomic_store(&fake_refusing, refuse);
}

void fake_gpu_lose(unsigned device, bool lost)
{
	atomic_store(&fake_told_lost[device], lost);
}

void fake_gpu_busy(unsigned device, bool busy)
{
	atomic_store(&fake_told_busy[device], busy);
}

void fake_gpu_peers(bool peers)
{
	atomic_store(&fake_peerless, !peers);
}

bool fake_fails(const char *what)
{
	size_t n = strlen(what);

	for (const char *p = fake.fail; p && *p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
		if (!strncmp(p, what, n) && (p[n] == ',' || !p[n]))
			return true;
	return false;
}

/* A file named so, with the number of the device. */
static bool is_there(const char *name, unsigned device)
{
	char path[PATH_MAX];

	if (!name)
		return false;
	snprintf(path, sizeof(path), "%s%u", name, device);
	return access(path, F_OK) == 0;
}

bool fake_is_busy(unsigned device)
{
	return atomic_load(&fake_told_busy[device]) || is_there(fake.busy, device);
}

/* --- lost devices -------------------------------------------------------------------------------- */

bool fake_is_losing(unsigned device)
{
	struct fake_device *d = &fake.devices[device];
	bool lose = atomic_load(&fake_told_lost[device]);

	if (atomic_load(&d->losing))
		return true;
	lose |= is_there(fake.lose, device);
	if (fake.lose_after && atomic_load(&d->copies) == fake.lose_after) {
		atomic_fetch_add(&d->copies, 1);
		lose = true;
	}
	if (lose)
		atomic_store(&d->losing, true);
	return lose;
}

bool fake_is_lost(unsigned device)
{
	struct fake_device *d = &fake.devices[device];

	if (!fake_is_losing(device) || atomic_load(&d->active))
		return false;
	if (!atomic_exchange(&d->lost, true))
		atomic_fetch_add(&status->lost, 1);
	return true;
}

bool fake_reaches(unsigned from, unsigned to)
{
	if (from == to)
		return true;
	return !fake.no_peers && !atomic_load(&fake_peerless) &&
	       !(fake.devices[from].unreached >> to & 1) &&
	       !(fake.devices[to].unreached >> from & 1);
}

/* --- plug-in and devices ------------------------------------------------------------------------- */

static unsigned number(const char *name, unsigned fallback)
{
	const char *text = getenv(name);

	return text ? (unsigned)strtoul(text, NULL, 10) : fallback;
}

static int share_status(const char *path, struct dray_err *reterr)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	void *p = MAP_FAILED;

	if (fd >= 0 && ftruncate(fd, sizeof(*status)) == 0)
		p = mmap(NULL, sizeof(*status), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	dray_close(fd);
	if (p == MAP_FAILED)
		return dray_err_set(reterr, -errno, DRAY_E_UNSUPPORTED,
				    "the fake plug-in cannot write its status to %s: %s", path,
				    dray_errno_text(errno));
	status = p;
	return 0;
}

static int fake_open(struct gpu_plugin **ret, struct dray_err *reterr)
{
	const char *path = getenv("FAKE_GPU_STATUS");

	if (path && status == &own_status && share_status(path, reterr) < 0)
		return -ENOENT;
	fake = (struct fake){
		.n = number("FAKE_GPU_DEVICES", 2),
		.no_peers = !number("FAKE_GPU_PEERS", 1),
		.dmabuf = number("FAKE_GPU_DMABUF", 0),
		.ordered = number("FAKE_GPU_ORDERED", 0),
		.dry = number("FAKE_GPU_DRY", 0),
		.free_mib = number("FAKE_GPU_FREE", 0),
		.free_of = number("FAKE_GPU_FREE_OF", FAKE_DEVICES_MAX),
		.fail = getenv("FAKE_GPU_FAIL"),
		.lose = getenv("FAKE_GPU_LOSE"),
		.hold = getenv("FAKE_GPU_HOLD"),
		.hold_import = getenv("FAKE_GPU_HOLD_IMPORT"),
		.hold_free = getenv("FAKE_GPU_HOLD_FREE"),
		.refuse = getenv("FAKE_GPU_REFUSE"),
		.refuse_pin = getenv("FAKE_GPU_REFUSE_PIN"),
		.busy = getenv("FAKE_GPU_BUSY"),
		.lose_after = number("FAKE_GPU_LOSE_AFTER", 0),
	};
	dray_assert(fake.n <= FAKE_DEVICES_MAX);
	if (fake_fails("open"))
		return dray_err_set(reterr, -ENODEV, DRAY_E_UNSUPPORTED,
				    "the fake driver does not load");
	/* a driver takes some time */
	if (getenv("FAKE_GPU_SLOW_OPEN"))
		nanosleep(&(struct timespec){ .tv_nsec = SLOW_OPEN_NS }, NULL);
	atomic_fetch_add(&status->plugins, 1);
	*ret = &plugin;
	return 0;
}

static void fake_close(struct gpu_plugin *p)
{
	(void)p;
	atomic_fetch_sub(&status->plugins, 1);
}

static const char *fake_version(const struct gpu_plugin *p)
{
	(void)p;
	return "fake 1.0";
}

static uint32_t peers_of(unsigned device)
{
	uint32_t peers = 0;

	for (unsigned i = 0; i < fake.n; i++)
		peers |= (uint32_t)(i != device && fake_reaches(device, i)) << i;
	return peers;
}

static unsigned fake_devices(const struct gpu_plugin *p, struct gpu_device_info *v, unsigned max)
{
	(void)p;
	for (unsigned i = 0; i < fake.n && i < max; i++) {
		v[i] = (struct gpu_device_info){ .name = "Fake GPU",
						 .memory = (uint64_t)number("FAKE_GPU_MEMORY", 1024)
							   << 20,
						 .multiprocessors = 4,
						 .major = 9,
						 .usable = true,
						 .dmabuf = fake.dmabuf,
						 .ipc = true,
						 .vmm = true,
						 .rdma_ordered = fake.ordered,
						 .shared = !fake.busy };
		v[i].peers = v[i].nvlink = peers_of(i);
		snprintf(v[i].uuid, sizeof(v[i].uuid), "GPU-00000000-0000-4000-8000-%012x", i);
		snprintf(v[i].bdf, sizeof(v[i].bdf), "0000:f%x:00.0", i % 16);
	}
	return fake.n;
}

static void peers_fail(unsigned device, struct dray_err *reterr)
{
	for (unsigned i = 0; i < fake.n; i++)
		if (i != device && fake.devices[i].starts) {
			atomic_fetch_or(&fake.devices[device].unreached, 1u << i);
			dray_err_set(reterr, -EINVAL, DRAY_E_UNSUPPORTED,
				     "device %u does not reach %u", device, i);
		}
}

static int fake_start(struct gpu_plugin *p, unsigned device, uint64_t *ret_bytes,
		      uint32_t *ret_peers, struct dray_err *reterr)
{
	struct fake_device *d = &fake.devices[device];

	(void)p;
	*ret_bytes = CONTEXT_BYTES;
	*ret_peers = peers_of(device);
	if (d->starts)
		return fake_is_lost(device) ? -EIO : 0;
	if (fake_fails("start"))
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY,
				    "device %u has no memory for a context", device);
	atomic_store(&d->losing, false);
	atomic_store(&d->lost, false);
	if (fake_is_losing(device))
		return dray_err_set(reterr, -EIO, DRAY_E_GPU_LOST, "device %u is lost", device);
	d->starts++;
	if (fake_fails("peer"))
		peers_fail(device, reterr);
	*ret_peers = peers_of(device);
	atomic_fetch_add(&status->started, 1);
	return 0;
}

static void fake_stop(struct gpu_plugin *p, unsigned device)
{
	(void)p;
	dray_assert(fake.devices[device].starts);
	fake.devices[device].starts = 0;
	atomic_store(&fake.devices[device].unreached, 0);
	if (atomic_fetch_sub(&status->started, 1) == 1)
		fake_pins_end();
}

static int fake_flush_rdma(struct gpu_plugin *p, unsigned device)
{
	(void)p;
	atomic_fetch_add(&status->flushes, 1);
	if (fake_fails("flush"))
		return -EOPNOTSUPP;
	return fake_is_lost(device) ? -EIO : 0;
}

__attribute__((visibility("default"))) const struct gpu_plugin_ops gpu_plugin_ops = {
	.abi = GPU_PLUGIN_ABI,
	.name = "fake",
	.open = fake_open,
	.close = fake_close,
	.version = fake_version,
	.devices = fake_devices,
	.start = fake_start,
	.stop = fake_stop,
	.import = fake_import,
	.release = fake_release,
	.export_dmabuf = fake_export_dmabuf,
	.flush_rdma = fake_flush_rdma,
	.block_alloc = fake_block_alloc,
	.block_free = fake_block_free,
	.block_handle = fake_block_handle,
	.host_alloc = fake_host_alloc,
	.host_free = fake_host_free,
	.pin = fake_pin,
	.unpin = fake_unpin,
	.queue_new = fake_queue_new,
	.queue_free = fake_queue_free,
	.submit = fake_submit,
	.check = fake_check,
	.notify = fake_notify,
};
