/* SPDX-License-Identifier: Apache-2.0 */
#include "netdetect/gpu/nvidia.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/cleanup.h"
#include "netdetect/source/attr.h"
#include "netdetect/source/kernel.h"
#include "netdetect/gpu/libcuda.h"
#include "schema/gen/errors.h"

#define PROC "/proc/driver/nvidia"

/* --- what the driver says -------------------------------------------------------------------------------- */

/* The value of a line "Key: \t value". */
static void value_of(const char *text, const char *key, char *ret, size_t n)
{
	const char *at = strstr(text, key);
	size_t length;

	ret[0] = '\0';
	if (!at)
		return;
	at += strlen(key);
	at += strspn(at, ": \t");
	length = strcspn(at, "\n");
	while (length && strchr(" \t\r", at[length - 1]))
		length--;
	snprintf(ret, n, "%.*s", (int)dray_min(length, n - 1), at);
}

void nd_nvidia_parse(const char *text, struct nd_nvidia_gpu *g)
{
	char minor[16], *end;
	long v;

	value_of(text, "Model", g->name, sizeof(g->name));
	value_of(text, "GPU UUID", g->uuid, sizeof(g->uuid));
	/* question marks stand there until the device is first opened */
	if (strchr(g->uuid, '?') || strncmp(g->uuid, "GPU-", 4) != 0)
		g->uuid[0] = '\0';
	value_of(text, "Device Minor", minor, sizeof(minor));
	v = strtol(minor, &end, 10);
	g->minor = end != minor && !*end && v >= 0 && v < 65536 ? (int)v : -1;
}

static int node_error(const struct nd_source *s, const char *name)
{
	char path[ND_PATH_MAX];

	return access(nd_path(s, path, "/dev/%s", name), R_OK | W_OK) < 0 ? errno : 0;
}

static int gpu_add(const struct nd_source *s, const struct nd_topology *t, const char *name,
		   struct nd_nvidia *n)
{
	struct nd_nvidia_gpu g = { .minor = -1, .node_error = ENODATA }, *place;
	char text[4096], node[32];

	nd_bdf_of(name, g.bdf);
	if (!g.bdf[0])
		return 0;
	if (nd_read_text(s, text, sizeof(text), PROC "/gpus/%s/information", name) > 0)
		nd_nvidia_parse(text, &g);
	if (g.minor >= 0) {
		snprintf(node, sizeof(node), "nvidia%d", g.minor);
		g.node_error = node_error(s, node);
	}
	for (size_t i = 0; i < t->n_gpus; i++)
		g.in_sysfs |= !strcmp(t->gpus[i].bdf, g.bdf);
	place = nd_grow((void **)&n->gpus, &n->n_gpus, sizeof(g));
	if (!place)
		return -ENOMEM;
	*place = g;
	return 0;
}

static int by_bdf(const void *a, const void *b)
{
	return strcmp(((const struct nd_nvidia_gpu *)a)->bdf,
		      ((const struct nd_nvidia_gpu *)b)->bdf);
}

static int scan_gpus(const struct nd_source *s, const struct nd_topology *t, struct nd_nvidia *n)
{
	char path[ND_PATH_MAX];
	DIR *dir = opendir(nd_path(s, path, PROC "/gpus"));
	struct dirent *e;
	int r = 0;

	if (!dir)
		return 0;
	while (r >= 0 && (e = readdir(dir)))
		r = gpu_add(s, t, e->d_name, n);
	closedir(dir);
	if (n->n_gpus)
		qsort(n->gpus, n->n_gpus, sizeof(*n->gpus), by_bdf);
	return r;
}

static unsigned count_nodes(const struct nd_source *s)
{
	char path[ND_PATH_MAX];
	DIR *dir = opendir(nd_path(s, path, "/dev"));
	unsigned count = 0;
	struct dirent *e;

	if (!dir)
		return 0;
	while ((e = readdir(dir))) {
		const char *rest = e->d_name + strlen("nvidia");

		if (!strncmp(e->d_name, "nvidia", strlen("nvidia")) && *rest)
			count += !rest[strspn(rest, "0123456789")];
	}
	closedir(dir);
	return count;
}

/* "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build ..." */
static void scan_version(const struct nd_source *s, struct nd_nvidia *n)
{
	char text[4096], *save = NULL;

	if (nd_read_text(s, text, sizeof(text), PROC "/version") <= 0)
		return;
	n->open_modules = strstr(text, "Open Kernel Module");
	for (char *word = strtok_r(text, " \t\n", &save); word && !n->version[0];
	     word = strtok_r(NULL, " \t\n", &save))
		if (*word >= '0' && *word <= '9' && strchr(word, '.'))
			snprintf(n->version, sizeof(n->version), "%.31s", word);
}

/* --- what follows ------------------------------------------------------------------------------------------ */

static void judge_dma_buf(const struct nd_source *s, struct nd_nvidia *n)
{
	char release[ND_RELEASE_MAX];

	nd_kernel_release(s, release);
	n->dma_buf = false;
	if (!n->version[0])
		snprintf(n->dma_buf_reason, sizeof(n->dma_buf_reason),
			 "not known: " PROC "/version is not here");
	else if (!n->open_modules)
		snprintf(n->dma_buf_reason, sizeof(n->dma_buf_reason),
			 "driver %s has the closed kernel modules, which export no DMA-BUF",
			 n->version);
	else if (!nd_kernel_at_least(release, 5, 12))
		snprintf(n->dma_buf_reason, sizeof(n->dma_buf_reason),
			 "Linux %.60s is older than 5.12: RDMA devices take no DMA-BUF", release);
	else
		n->dma_buf = true;
	if (n->dma_buf)
		snprintf(n->dma_buf_reason, sizeof(n->dma_buf_reason),
			 "driver %s with the open kernel modules", n->version);
}

int nd_nvidia_scan(const struct nd_source *s, const struct nd_topology *topology,
		   struct nd_nvidia *ret, struct dray_err *reterr)
{
	struct nd_nvidia n = { 0 };
	int r;

	scan_version(s, &n);
	r = scan_gpus(s, topology, &n);
	if (r < 0) {
		nd_nvidia_deinit(&n);
		return dray_err_set(reterr, r, DRAY_E_NO_MEMORY, "GPUs: %s", dray_errno_text(r));
	}
	n.nodes = count_nodes(s);
	n.control_error = node_error(s, "nvidiactl");
	n.uvm_error = node_error(s, "nvidia-uvm");
	n.present = n.version[0] || n.n_gpus || n.nodes || !n.control_error;
	for (size_t i = 0; i < topology->n_gpus; i++)
		n.present |= !strcmp(topology->gpus[i].driver, "nvidia");
	if (n.present) {
		n.libcuda_loads = nd_libcuda_find(s, n.libcuda, sizeof(n.libcuda));
		judge_dma_buf(s, &n);
	}
	*ret = n;
	return 0;
}

void nd_nvidia_deinit(struct nd_nvidia *n)
{
	free(n->gpus);
	*n = (struct nd_nvidia){ 0 };
}

const struct nd_nvidia_gpu *nd_nvidia_by_bdf(const struct nd_nvidia *n, const char *bdf)
{
	for (size_t i = 0; i < n->n_gpus; i++)
		if (!strcmp(n->gpus[i].bdf, bdf))
			return &n->gpus[i];
	return NULL;
}

const char *nd_nvidia_node_text(int error)
{
	return error == ENOENT  ? "not here" :
	       error == ENODATA ? "unknown" :
	       error            ? dray_errno_text(error) :
				  "yes";
}
