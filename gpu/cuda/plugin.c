/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/cuda/plugin.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "schema/gen/errors.h"

#define RELEASE_BYTES 24

static void cuda_close(struct gpu_plugin *p)
{
	for (unsigned i = 0; i < p->n; i++)
		cuda_stop(p, i);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

DRAY_DEFINE_CLEANUP(struct gpu_plugin *, cuda_close);

/* Of the kernel's driver; "" if /sys does not show it. */
static void driver_release(char ret[RELEASE_BYTES])
{
	FILE *f = fopen("/sys/module/nvidia/version", "re");

	if (!f || fscanf(f, "%23s", ret) != 1)
		ret[0] = '\0';
	if (f)
		fclose(f);
}

static int cuda_open(struct gpu_plugin **ret, struct dray_err *reterr)
{
	dray_auto(cuda_close) struct gpu_plugin *p = calloc(1, sizeof(*p));
	char release[RELEASE_BYTES];
	int version = 0, r;

	if (!p)
		return dray_err_set(reterr, -ENOMEM, DRAY_E_NO_MEMORY, "out of memory");
	pthread_mutex_init(&p->lock, NULL);
	dray_list_init(&p->imports);
	dray_list_init(&p->ranges);
	r = cuda_driver_load(&version, reterr);
	if (r < 0)
		return r;
	p->lists = version >= 12080;
	driver_release(release);
	snprintf(p->version, sizeof(p->version),
		 "CUDA plug-in %s with CUDA %d.%d, driver %s%sfor CUDA %d.%d", DRAY_VERSION,
		 CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10, release, *release ? " " : "",
		 version / 1000, version % 1000 / 10);
	r = cuda_devices_find(p, reterr);
	if (r < 0)
		return r;
	*ret = dray_take(p);
	return 0;
}

static const char *cuda_version(const struct gpu_plugin *p)
{
	return p->version;
}

static unsigned cuda_devices(const struct gpu_plugin *p, struct gpu_device_info *v, unsigned max)
{
	for (unsigned i = 0; i < p->n && i < max; i++)
		v[i] = p->devices[i].info;
	return p->n;
}

static int cuda_flush_rdma(struct gpu_plugin *p, unsigned device)
{
	struct cuda_context *c;
	cudaError_t result;
	int r;

	if (!p->devices[device].flush)
		return -EOPNOTSUPP;
	r = cuda_enter(p, device, &c, NULL);
	if (r < 0)
		return r;
	/* peers read the memory too */
	result = cudaDeviceFlushGPUDirectRDMAWrites(cudaFlushGPUDirectRDMAWritesTargetCurrentDevice,
						    cudaFlushGPUDirectRDMAWritesToAllDevices);
	return result == cudaSuccess ? 0 : cuda_lost(c);
}

extern const struct gpu_plugin_ops gpu_plugin_ops;

__attribute__((visibility("default"))) const struct gpu_plugin_ops gpu_plugin_ops = {
	.abi = GPU_PLUGIN_ABI,
	.name = "cuda",
	.open = cuda_open,
	.close = cuda_close,
	.version = cuda_version,
	.devices = cuda_devices,
	.start = cuda_start,
	.stop = cuda_stop,
	.import = cuda_import,
	.release = cuda_release,
	.export_dmabuf = cuda_export_dmabuf,
	.flush_rdma = cuda_flush_rdma,
	.block_alloc = cuda_block_alloc,
	.block_free = cuda_block_free,
	.block_handle = cuda_block_handle,
	.host_alloc = cuda_host_alloc,
	.host_free = cuda_unpin,
	.pin = cuda_pin,
	.unpin = cuda_unpin,
	.queue_new = cuda_queue_new,
	.queue_free = cuda_queue_free,
	.submit = cuda_queue_submit,
	.check = cuda_queue_check,
	.notify = cuda_queue_notify,
};
