/* SPDX-License-Identifier: Apache-2.0 */
#include "netdetect/gpu/nvidia.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/err.h"
#include "netdetect/gpu/libcuda.h"
#include "lib/array.h"

#define PROC "/proc/driver/nvidia"

/* The value of a line "Key: \t value". */
static void read_value(const char *text, const char *key, char *ret, size_t n)
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

	read_value(text, "Model", g->name, sizeof(g->name));
	read_value(text, "GPU UUID", g->uuid, sizeof(g->uuid));
	/* it consists of question marks until the device is first opened */
	if (strchr(g->uuid, '?') || strncmp(g->uuid, "GPU-", 4) != 0)
		g->uuid[0] = '\0';
	read_value(text, "Device Minor", minor, sizeof(minor));
	v = strtol(minor, &end, 10);
	g->minor = end != minor && !*end && v >= 0 && v < 65536 ? (int)v : -1;
}

static int check_node(const struct nd_source *s, const char *name)
{
	char path[ND_PATH_MAX];

	return access(nd_path(s, path, "/dev/%s", name), R_OK | W_OK) < 0 ? errno : 0;
}

static void read_gpu(const struct nd_source *s, const char *name, struct nd_nvidia_gpu *g)
{
	char text[4096], node[32];

	if (nd_read_text(s, text, sizeof(text), PROC "/gpus/%s/information", name) > 0)
		nd_nvidia_parse(text, g);
	if (g->minor < 0)
		return;
	snprintf(node, sizeof(node), "nvidia%d", g->minor);
	g->node_error = check_node(s, node);
}

static int by_bdf(const void *a, const void *b)
{
	return strcmp(((const struct nd_nvidia_gpu *)a)->bdf,
		      ((const struct nd_nvidia_gpu *)b)->bdf);
}

static int scan_gpus(const struct nd_source *s, const struct nd_gpu *gpus, size_t n_gpus,
		     struct nd_nvidia *n)
{
	dray_auto(closedir) DIR *dir = nd_open_dir(s, PROC "/gpus");
	const char *name;
	int r = 0;

	while (r >= 0 && (name = nd_next_entry(dir))) {
		struct nd_nvidia_gpu g = { .minor = -1, .node_error = ENODATA };

		nd_bdf_parse(name, g.bdf);
		if (!g.bdf[0])
			continue;
		read_gpu(s, name, &g);
		for (size_t i = 0; i < n_gpus; i++)
			g.in_sysfs |= !strcmp(gpus[i].bdf, g.bdf);
		r = DRAY_APPEND(n->gpus, n->n_gpus, g);
	}
	if (n->n_gpus)
		qsort(n->gpus, n->n_gpus, sizeof(*n->gpus), by_bdf);
	return r;
}

static unsigned count_nodes(const struct nd_source *s)
{
	dray_auto(closedir) DIR *dir = nd_open_dir(s, "/dev");
	const char *name;
	unsigned n = 0;

	while ((name = nd_next_entry(dir))) {
		const char *minor = name + strlen("nvidia");

		if (!strncmp(name, "nvidia", strlen("nvidia")) && *minor)
			n += !minor[strspn(minor, "0123456789")];
	}
	return n;
}

/* "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build ..." */
static void read_version(const struct nd_source *s, struct nd_nvidia *n)
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

static void check_dma_buf(const struct nd_source *s, struct nd_nvidia *n)
{
	const size_t size = sizeof(n->dma_buf_reason);
	char release[ND_RELEASE_MAX];

	nd_kernel_release(s, release);
	n->dma_buf = n->version[0] && n->open_modules && nd_kernel_at_least(release, 5, 12);
	if (n->dma_buf)
		snprintf(n->dma_buf_reason, size, "driver %s with the open kernel modules",
			 n->version);
	else if (!n->version[0])
		snprintf(n->dma_buf_reason, size, "not known: " PROC "/version is not here");
	else if (!n->open_modules)
		snprintf(n->dma_buf_reason, size,
			 "driver %s has the closed kernel modules, which export no DMA-BUF",
			 n->version);
	else
		snprintf(n->dma_buf_reason, size,
			 "Linux %.60s is older than 5.12, so RDMA devices cannot register DMA-BUF",
			 release);
}

int nd_nvidia_scan(const struct nd_source *s, const struct nd_gpu *gpus, size_t n_gpus,
		   struct nd_nvidia *ret)
{
	struct nd_nvidia n = { .nodes = count_nodes(s),
			       .control_error = check_node(s, "nvidiactl"),
			       .uvm_error = check_node(s, "nvidia-uvm") };
	int r = scan_gpus(s, gpus, n_gpus, &n);

	if (r < 0) {
		nd_nvidia_deinit(&n);
		return r;
	}
	read_version(s, &n);
	n.present = n.version[0] || n.n_gpus || n.nodes || !n.control_error;
	for (size_t i = 0; i < n_gpus; i++)
		n.present |= !strcmp(gpus[i].driver, "nvidia");
	if (n.present) {
		n.libcuda_loads = nd_libcuda_find(s, n.libcuda, sizeof(n.libcuda));
		check_dma_buf(s, &n);
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
