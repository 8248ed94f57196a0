/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of another process: the exporting process, and the checks of imports. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gpu/cuda/driver.h"
#include "schema/gen/errors.h"
#include "tests/gpu/ceiling_lab.h"

#define LARGE (64u << 20)
#define SMALL 4096u

enum ask { ASK_IPC, ASK_IPC_SMALL, ASK_VMM, ASK_VERIFY };

struct request {
	enum ask ask;
	uint64_t seed;
};

struct answer {
	uint64_t bytes;
	cudaIpcMemHandle_t handle;
	bool same;
};

static void pattern(uint64_t *v, uint64_t bytes, uint64_t seed)
{
	for (uint64_t i = 0; i < bytes / 8; i++)
		v[i] = (i + seed) * 0x9e3779b97f4a7c15u;
}

/* --- the exporting process ---------------------------------------------------------------------- */

static void answer(int sock, const struct answer *a, int fd)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct iovec iov = { (void *)(uintptr_t)a, sizeof(*a) };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };

	if (fd >= 0) {
		m.msg_control = &control;
		m.msg_controllen = sizeof(control);
		*CMSG_FIRSTHDR(&m) = (struct cmsghdr){ .cmsg_len = CMSG_LEN(sizeof(int)),
						       .cmsg_level = SOL_SOCKET,
						       .cmsg_type = SCM_RIGHTS };
		memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), &fd, sizeof(fd));
	}
	if (sendmsg(sock, &m, MSG_NOSIGNAL) < 0)
		_exit(1);
}

static void *vmm_mapped(int fd, uint64_t bytes)
{
	CUmemAccessDesc access = {
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 },
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	CUmemGenericAllocationHandle handle;
	CUdeviceptr address;

	LAB_CUDA_OK(cuda_driver.vmm_import(&handle, (void *)(intptr_t)fd,
					   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	LAB_CUDA_OK(cuda_driver.vmm_reserve(&address, bytes, 0, 0, 0));
	LAB_CUDA_OK(cuda_driver.vmm_map(address, bytes, 0, handle, 0));
	LAB_CUDA_OK(cuda_driver.vmm_set_access(address, bytes, &access, 1));
	LAB_CUDA_OK(cuda_driver.vmm_release(handle));
	return cuda_pointer(address);
}

void lab_export(int sock)
{
	struct dray_err err = DRAY_ERR_NULL;
	uint64_t *buf = malloc(LARGE);
	void *address = NULL;
	struct request q;
	struct answer a = { 0 };
	int version = 0;

	/* initialises the driver only on demand: there may be none */
	while (recv(sock, &q, sizeof(q), 0) == sizeof(q)) {
		int fd = -1;

		if (!version) {
			LAB_OK(cuda_driver_load(&version, &err), &err);
			lab_client(0);
		}
		switch (q.ask) {
		case ASK_IPC:
		case ASK_IPC_SMALL:
			a.bytes = q.ask == ASK_IPC ? LARGE : SMALL;
			LAB_CUDA_OK(cudaMalloc(&address, a.bytes));
			LAB_CUDA_OK(cudaIpcGetMemHandle(&a.handle, address));
			break;
		case ASK_VMM:
			a.bytes = LARGE;
			fd = lab_vmm_new(0, &a.bytes);
			address = vmm_mapped(fd, a.bytes);
			break;
		case ASK_VERIFY:
			LAB_CUDA_OK(cudaMemcpy(buf + LARGE / 16, address, a.bytes / 2,
					       cudaMemcpyDeviceToHost));
			pattern(buf, a.bytes / 2, q.seed);
			a.same = memcmp(buf, buf + LARGE / 16, a.bytes / 2) == 0;
			break;
		}
		if (q.ask != ASK_VERIFY) {
			pattern(buf, a.bytes, q.seed);
			LAB_CUDA_OK(cudaMemcpy(address, buf, a.bytes, cudaMemcpyHostToDevice));
			LAB_CUDA_OK(cudaDeviceSynchronize());
		}
		answer(sock, &a, fd);
		dray_close(fd);
	}
	_exit(0);
}

/* --- the importing process ---------------------------------------------------------------------- */

struct importer {
	struct lab *l;
	int sock;
	unsigned failed;
	struct gpu_queue *q;
	uint64_t submitted;
	struct dray_piece *pieces;
	uint64_t *host, *expected;
};

static void report(struct importer *m, bool ok, const char *what, const char *detail)
{
	printf("{\"check\": \"%s\", \"ok\": %s, \"detail\": \"%s\"}\n", what, ok ? "true" : "false",
	       detail);
	m->failed += !ok;
}

static struct answer ask(struct importer *m, enum ask what, uint64_t seed, int *ret_fd)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct request q = { what, seed };
	struct answer a;
	struct iovec iov = { &a, sizeof(a) };
	struct msghdr h = { .msg_iov = &iov,
			    .msg_iovlen = 1,
			    .msg_control = &control,
			    .msg_controllen = sizeof(control) };

	if (send(m->sock, &q, sizeof(q), MSG_NOSIGNAL) < 0 ||
	    recvmsg(m->sock, &h, MSG_CMSG_CLOEXEC) != sizeof(a))
		lab_die("the exporting process has ended");
	if (ret_fd && CMSG_FIRSTHDR(&h))
		memcpy(ret_fd, CMSG_DATA(CMSG_FIRSTHDR(&h)), sizeof(*ret_fd));
	return a;
}

static void copy(struct importer *m, uint64_t to, uint64_t from, uint64_t bytes,
		 enum gpu_route route)
{
	struct gpu_copy c = { .pieces = m->pieces, .route = route, .bytes = bytes };

	for (uint64_t at = 0; at < bytes; at += GPU_PIECE_MAX)
		m->pieces[c.n++] =
			(struct dray_piece){ (uint8_t *)(uintptr_t)(to + at),
					     (const uint8_t *)(uintptr_t)(from + at),
					     dray_min(bytes - at, (uint64_t)GPU_PIECE_MAX) };
	lab_submit(m->l, m->q, &c);
	lab_wait(m->l, m->q, ++m->submitted);
}

static bool holds(struct importer *m, uint64_t address, uint64_t bytes, uint64_t seed)
{
	memset(m->host, 0xa5, bytes);
	copy(m, (uint64_t)(uintptr_t)m->host, address, bytes, GPU_TO_HOST);
	pattern(m->expected, bytes, seed);
	return memcmp(m->host, m->expected, bytes) == 0;
}

static void store(struct importer *m, uint64_t address, uint64_t bytes, uint64_t seed)
{
	pattern(m->host, bytes, seed);
	copy(m, address, (uint64_t)(uintptr_t)m->host, bytes, GPU_FROM_HOST);
}

static void dmabuf(struct importer *m, struct gpu_import *i, const char *what)
{
	struct dray_err err = DRAY_ERR_NULL;
	int fd = m->l->ops->export_dmabuf(i, 0, 2u << 20, &err);

	printf("{\"dmabuf\": \"%s\", \"exported\": %s, \"why\": \"%s\"}\n", what,
	       fd >= 0 ? "true" : "false", err.msg);
	if (fd < 0 && fd != -EOPNOTSUPP)
		report(m, false, "DMA-BUF export, or a refusal by the driver", err.msg);
	dray_close(fd);
}

static void ipc(struct importer *m)
{
	struct gpu_import_spec spec = { .kind = GPU_IMPORT_IPC, .device = 0, .write = true };
	struct answer a = ask(m, ASK_IPC, 1, NULL);
	struct gpu_import *i, *again;
	struct dray_err err = DRAY_ERR_NULL;
	uint64_t address, second, bytes;
	void *own;
	cudaIpcMemHandle_t handle;
	int r;

	memcpy(spec.handle, &a.handle, sizeof(spec.handle));
	spec.bytes = a.bytes;
	LAB_OK(m->l->ops->import(m->l->plugin, &spec, &i, &address, &bytes, &err), &err);
	report(m, bytes == a.bytes, "ipc: size of the allocation", "");
	report(m, holds(m, address, a.bytes, 1), "ipc: reading the exporter's memory", "");
	LAB_OK(m->l->ops->import(m->l->plugin, &spec, &again, &second, &bytes, &err), &err);
	report(m, second == address, "ipc: a second import shares the mapping", "");
	m->l->ops->release(i);
	store(m, address, a.bytes / 2, 2);
	report(m, ask(m, ASK_VERIFY, 2, NULL).same, "ipc: the exporter sees written bytes", "");
	dmabuf(m, again, "ipc");
	m->l->ops->release(again);

	for (unsigned k = 0; k < 3; k++) {
		a = ask(m, ASK_IPC_SMALL, 10 + k, NULL);
		memcpy(spec.handle, &a.handle, sizeof(spec.handle));
		LAB_OK(m->l->ops->import(m->l->plugin, &spec, &i, &address, &bytes, &err), &err);
		report(m, bytes == SMALL && holds(m, address, SMALL, 10 + k),
		       "ipc: of a small allocation", "");
		m->l->ops->release(i);
	}

	lab_client(0);
	LAB_CUDA_OK(cudaMalloc(&own, LARGE));
	LAB_CUDA_OK(cudaIpcGetMemHandle(&handle, own));
	memcpy(spec.handle, &handle, sizeof(spec.handle));
	r = m->l->ops->import(m->l->plugin, &spec, &i, &address, &bytes, &err);
	report(m, r < 0 && err.code == DRAY_E_GPU_HANDLE,
	       "ipc: a handle of this process is refused", err.msg);
	lab_client(0);
	LAB_CUDA_OK(cudaFree(own));

	err = DRAY_ERR_NULL;
	memset(spec.handle, 7, sizeof(spec.handle));
	r = m->l->ops->import(m->l->plugin, &spec, &i, &address, &bytes, &err);
	report(m, r < 0 && err.code == DRAY_E_GPU_HANDLE, "ipc: an invalid handle is refused",
	       err.msg);
}

static void vmm(struct importer *m)
{
	struct gpu_import_spec spec = { .kind = GPU_IMPORT_VMM, .device = 0, .fd = -1 };
	struct answer a = ask(m, ASK_VMM, 3, &spec.fd);
	struct dray_err err = DRAY_ERR_NULL;
	struct gpu_import *i, *again;
	uint64_t address, second, bytes;
	char detail[80];
	double begin;
	int r;

	spec.bytes = a.bytes - 5;
	LAB_OK(m->l->ops->import(m->l->plugin, &spec, &i, &address, &bytes, &err), &err);
	report(m, bytes == a.bytes && holds(m, address, a.bytes, 3),
	       "vmm: reading the exporter's memory", "read only");
	spec.write = true;
	spec.bytes = a.bytes / 2;
	begin = lab_seconds();
	LAB_OK(m->l->ops->import(m->l->plugin, &spec, &again, &second, &bytes, &err), &err);
	snprintf(detail, sizeof(detail), "half of it requested: %.2f ms",
		 (lab_seconds() - begin) * 1e3);
	store(m, second, a.bytes / 2, 4);
	report(m, ask(m, ASK_VERIFY, 4, NULL).same, "vmm: the exporter sees written bytes", detail);
	dmabuf(m, i, "vmm");
	m->l->ops->release(again);
	m->l->ops->release(i);

	spec.bytes = a.bytes + 1;
	begin = lab_seconds();
	r = m->l->ops->import(m->l->plugin, &spec, &i, &address, &bytes, &err);
	snprintf(detail, sizeof(detail), "%.0f ms", (lab_seconds() - begin) * 1e3);
	report(m, r < 0 && err.code == DRAY_E_GPU_HANDLE, "vmm: a larger size is refused", detail);
	spec.bytes = a.bytes;
	if (m->l->n > 1) {
		err = DRAY_ERR_NULL;
		spec.device = 1;
		r = m->l->ops->import(m->l->plugin, &spec, &i, &address, &bytes, &err);
		report(m, r < 0 && err.code == DRAY_E_GPU_DEVICE,
		       "vmm: memory of another device is refused", err.msg);
		spec.device = 0;
	}
	close(spec.fd);

	err = DRAY_ERR_NULL;
	spec.fd = memfd_create("none", MFD_CLOEXEC);
	r = m->l->ops->import(m->l->plugin, &spec, &i, &address, &bytes, &err);
	report(m, r < 0 && err.code == DRAY_E_GPU_HANDLE,
	       "vmm: another kind of descriptor is refused", err.msg);
	close(spec.fd);
}

unsigned lab_check_imports(struct lab *l, int exporter)
{
	struct importer m = { .l = l, .sock = exporter };

	m.q = lab_queue(l, 0, false, 100);
	m.host = lab_host_memory(l, LARGE);
	m.pieces = lab_host_memory(l, 1u << 20);
	m.expected = malloc(LARGE);
	if (!m.expected)
		lab_die("out of memory");
	ipc(&m);
	vmm(&m);
	l->ops->queue_free(m.q);
	free(m.expected);
	return m.failed;
}
