/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libibverbs belongs to the host, as its drivers do, so no program links it. This file defines the functions of
 * <infiniband/verbs.h> that the tree calls: each calls the function of the library, which the first of them loads. Without
 * the library, ibv_get_device_list() returns NULL with errno ELIBACC, and nothing else may be called. The data path
 * does not pass through here: posting and polling are inline functions that call the driver through its context.
 */
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdio.h>

#include "lib/assert.h"
#include "netdetect/rdma/device.h"

#define LIBRARY "libibverbs.so.1"

/* Macros of the header in front of functions of the same name. */
#undef ibv_get_device_list
#undef ibv_query_port

/*
 * X(version, type, name, parameters, arguments). The version is the one that a linker would choose: the default version
 * of a newer library may have another interface.
 */
#define FUNCTIONS(X)                                                                              \
	X("1.1", struct ibv_device **, ibv_get_device_list, (int *n), (n))                        \
	X("1.1", void, ibv_free_device_list, (struct ibv_device * *list), (list))                 \
	X("1.1", const char *, ibv_get_device_name, (struct ibv_device * d), (d))                 \
	X("1.1", struct ibv_context *, ibv_open_device, (struct ibv_device * d), (d))             \
	X("1.1", int, ibv_close_device, (struct ibv_context * c), (c))                            \
	X("1.1", int, ibv_query_device, (struct ibv_context * c, struct ibv_device_attr * a),     \
	  (c, a))                                                                                 \
	X("1.1", int, ibv_query_port,                                                             \
	  (struct ibv_context * c, uint8_t port, struct _compat_ibv_port_attr * a), (c, port, a)) \
	X("1.1", int, ibv_query_pkey, (struct ibv_context * c, uint8_t port, int i, __be16 *key), \
	  (c, port, i, key))                                                                      \
	X("1.11", ssize_t, _ibv_query_gid_table,                                                  \
	  (struct ibv_context * c, struct ibv_gid_entry * v, size_t n, uint32_t flags,            \
	   size_t one),                                                                           \
	  (c, v, n, flags, one))                                                                  \
	X("1.1", int, ibv_get_async_event, (struct ibv_context * c, struct ibv_async_event * e),  \
	  (c, e))                                                                                 \
	X("1.1", void, ibv_ack_async_event, (struct ibv_async_event * e), (e))                    \
	X("1.1", const char *, ibv_event_type_str, (enum ibv_event_type e), (e))                  \
	X("1.1", const char *, ibv_wc_status_str, (enum ibv_wc_status s), (s))                    \
	X("1.1", struct ibv_pd *, ibv_alloc_pd, (struct ibv_context * c), (c))                    \
	X("1.1", int, ibv_dealloc_pd, (struct ibv_pd * pd), (pd))                                 \
	X("1.1", struct ibv_ah *, ibv_create_ah, (struct ibv_pd * pd, struct ibv_ah_attr * a),    \
	  (pd, a))                                                                                \
	X("1.1", int, ibv_destroy_ah, (struct ibv_ah * ah), (ah))                                 \
	X("1.8", struct ibv_mr *, ibv_reg_mr_iova2,                                               \
	  (struct ibv_pd * pd, void *p, size_t n, uint64_t iova, unsigned access),                \
	  (pd, p, n, iova, access))                                                               \
	X("1.12", struct ibv_mr *, ibv_reg_dmabuf_mr,                                             \
	  (struct ibv_pd * pd, uint64_t offset, size_t n, uint64_t iova, int fd, int access),     \
	  (pd, offset, n, iova, fd, access))                                                      \
	X("1.1", int, ibv_dereg_mr, (struct ibv_mr * mr), (mr))                                   \
	X("1.0", struct ibv_comp_channel *, ibv_create_comp_channel, (struct ibv_context * c),    \
	  (c))                                                                                    \
	X("1.0", int, ibv_destroy_comp_channel, (struct ibv_comp_channel * ch), (ch))             \
	X("1.1", struct ibv_cq *, ibv_create_cq,                                                  \
	  (struct ibv_context * c, int n, void *arg, struct ibv_comp_channel *ch, int vector),    \
	  (c, n, arg, ch, vector))                                                                \
	X("1.1", int, ibv_resize_cq, (struct ibv_cq * cq, int n), (cq, n))                        \
	X("1.1", int, ibv_destroy_cq, (struct ibv_cq * cq), (cq))                                 \
	X("1.1", int, ibv_get_cq_event,                                                           \
	  (struct ibv_comp_channel * ch, struct ibv_cq * *cq, void **arg), (ch, cq, arg))         \
	X("1.1", void, ibv_ack_cq_events, (struct ibv_cq * cq, unsigned n), (cq, n))              \
	X("1.1", struct ibv_qp *, ibv_create_qp,                                                  \
	  (struct ibv_pd * pd, struct ibv_qp_init_attr * a), (pd, a))                             \
	X("1.1", int, ibv_modify_qp, (struct ibv_qp * qp, struct ibv_qp_attr * a, int mask),      \
	  (qp, a, mask))                                                                          \
	X("1.1", int, ibv_destroy_qp, (struct ibv_qp * qp), (qp))

enum {
#define ID(version, type, name, parameters, arguments) ID_##name,
	FUNCTIONS(ID) N_FUNCTIONS
};

static const struct {
	const char *name, *version;
} names[] = {
#define NAME(version, type, name, parameters, arguments) { #name, "IBVERBS_" version },
	FUNCTIONS(NAME)
};

static void *addresses[N_FUNCTIONS];
static char missing[ND_REASON_MAX];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load(void)
{
	/* the library and its drivers stay: they have no way to be unloaded */
	void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);

	if (!library) {
		/* names the library */
		const char *why = dlerror();

		snprintf(missing, sizeof(missing), "%s", why ? why : LIBRARY " cannot be loaded");
		return;
	}
	for (int i = 0; i < N_FUNCTIONS; i++) {
		addresses[i] = dlvsym(library, names[i].name, names[i].version);
		if (!addresses[i]) {
			snprintf(missing, sizeof(missing),
				 LIBRARY
				 " lacks %s of %s: a release of rdma-core from 34 on has it",
				 names[i].name, names[i].version);
			return;
		}
	}
}

static bool loaded(void)
{
	pthread_once(&once, load);
	return !*missing;
}

const char *nd_device_open_text(const struct nd_device *d)
{
	return d->open_error == ELIBACC && !loaded() ? missing : dray_errno_text(d->open_error);
}

static struct ibv_device **no_devices(int *n)
{
	errno = ELIBACC;
	return NULL;
}

static void *address(int id)
{
	if (loaded())
		return addresses[id];
	/* what the other functions need comes from the list of devices */
	dray_assert(id == ID_ibv_get_device_list);
	return (void *)no_devices;
}

#define DEFINE(version, type, name, parameters, arguments)                \
	type name parameters                                              \
	{                                                                 \
		return ((type(*) parameters)address(ID_##name))arguments; \
	}
FUNCTIONS(DEFINE)
