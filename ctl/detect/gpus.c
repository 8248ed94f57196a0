/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/detect/gpus.h"

#include <string.h>

#include "ctl/render/human.h"
#include "ctl/render/table.h"
#include "gpu/peers.h"

#define LINE_BYTES 256

/* --- for people ---------------------------------------------------------------------------------------------- */

/* "mlx5_0 PIX, mlx5_1 SYS" */
static void preferred(const struct nd_scan *scan, size_t gpu, char *buf, size_t n)
{
	size_t at = 0;

	buf[0] = '\0';
	for (size_t i = 0; i < scan->topology.n_pairs && at < n; i++) {
		const struct nd_affinity *a = &scan->topology.pairs[i];

		if (a->gpu == gpu && a->preferred)
			at += (size_t)snprintf(
				buf + at, n - at, "%s%s %s%s", at ? ", " : "",
				scan->devices.v[a->device].name, nd_distance_name(a->distance),
				a->spread ? " (its first choice is another GPU's)" : "");
	}
}

static void node_cell(struct ctl_table *t, const struct nd_nvidia_gpu *g)
{
	if (!g)
		ctl_table_cell(t, "");
	else
		ctl_table_add(t, nd_nvidia_node_text(g->node_error),
			      g->node_error ? CTL_MOOD_NONE : CTL_MOOD_GOOD);
}

static int functions(struct ctl *c, const struct nd_scan *scan)
{
	static const char *const titles[] = { "GPU",    "NAME",  "NUMA", "DRIVER",
					      "DEVICE", "RNICS", NULL };
	struct ctl_table t = CTL_TABLE_NULL;
	char text[LINE_BYTES];

	ctl_table_head(&t, titles);
	for (size_t i = 0; i < scan->topology.n_gpus; i++) {
		const struct nd_gpu *g = &scan->topology.gpus[i];
		const struct nd_nvidia_gpu *known = nd_nvidia_by_bdf(&scan->nvidia, g->bdf);

		ctl_table_cell(&t, g->bdf);
		ctl_table_cell(&t, known ? known->name : "");
		snprintf(text, sizeof(text), "%d", g->numa);
		ctl_table_cell(&t, g->numa < 0 ? "" : text);
		ctl_table_cell(&t, g->driver);
		node_cell(&t, known);
		preferred(scan, i, text, sizeof(text));
		ctl_table_cell(&t, text);
	}
	for (size_t i = 0; i < scan->nvidia.n_gpus; i++) {
		const struct nd_nvidia_gpu *g = &scan->nvidia.gpus[i];

		if (g->in_sysfs)
			continue;
		ctl_table_cell(&t, g->bdf);
		ctl_table_cell(&t, g->name);
		ctl_table_cell(&t, "");
		ctl_table_cell(&t, "nvidia");
		node_cell(&t, g);
		ctl_table_cell(&t, "not known: it is hidden from /sys");
	}
	return ctl_table_finish(&t, c->out, c->color);
}

static void driver(struct ctl *c, const struct nd_nvidia *n)
{
	fprintf(c->out, "DMA-BUF of GPU memory: %s%s\n", n->dma_buf ? "yes, " : "no, ",
		n->dma_buf_reason);
	if (!n->libcuda[0])
		fputs("libcuda.so.1: not here\n", c->out);
	else
		fprintf(c->out, "libcuda.so.1: %s%s\n", n->libcuda,
			n->libcuda_loads ? "" : ", where the loader does not look");
}

/* "cuda_ipc cuda_vmm" */
static const char *kinds(const struct gpu_device_info *d, char *buf, size_t n)
{
	if (!d->usable)
		return "none: the plug-in has no code for it";
	snprintf(buf, n, "%s%s%s", d->ipc ? "cuda_ipc" : "", d->ipc && d->vmm ? " " : "",
		 d->vmm ? "cuda_vmm" : "");
	return buf;
}

static int devices(struct ctl *c, const struct ctl_cuda *cuda)
{
	static const char *const titles[] = { "CUDA",    "GPU",   "UUID",    "MEMORY", "SMS",
					      "COMPUTE", "KINDS", "DMA-BUF", "PEERS",  NULL };
	struct ctl_table t = CTL_TABLE_NULL;
	char text[LINE_BYTES], size[CTL_HUMAN_BYTES], peers[GPU_PEERS_BYTES];

	fprintf(c->out, "CUDA: %s\n", cuda->driver);
	ctl_table_head(&t, titles);
	for (unsigned i = 0; i < cuda->n; i++) {
		const struct gpu_device_info *d = &cuda->v[i];

		snprintf(text, sizeof(text), "%u", i);
		ctl_table_cell(&t, text);
		ctl_table_cell(&t, d->bdf);
		ctl_table_cell(&t, d->uuid);
		ctl_table_cell(&t, ctl_show_size(d->memory, size));
		snprintf(text, sizeof(text), "%u", d->multiprocessors);
		ctl_table_cell(&t, text);
		snprintf(text, sizeof(text), "%u.%u", d->major, d->minor);
		ctl_table_cell(&t, text);
		ctl_table_cell(&t, kinds(d, text, sizeof(text)));
		ctl_table_cell(&t, d->dmabuf ? "yes" : "no");
		ctl_table_cell(&t, gpu_peers_text(d, i, peers));
	}
	return ctl_table_finish(&t, c->out, c->color);
}

int ctl_detect_gpus_text(struct ctl *c, const struct nd_scan *scan, const struct ctl_cuda *cuda)
{
	bool any = scan->topology.n_gpus || scan->nvidia.n_gpus;
	int r = 0;

	if (any || scan->nvidia.present || cuda->asked)
		fputc('\n', c->out);
	if (any)
		r = functions(c, scan);
	if (scan->nvidia.present)
		driver(c, &scan->nvidia);
	if (cuda->n && (any || scan->nvidia.present))
		fputc('\n', c->out);
	if (r >= 0 && cuda->n)
		r = devices(c, cuda);
	else if (cuda->asked)
		fprintf(c->out, "CUDA: not used: %s\n", cuda->reason);
	return r;
}

/* --- JSON ----------------------------------------------------------------------------------------------------- */

static void rnics(struct ctl_json *j, const struct nd_scan *scan, size_t gpu)
{
	ctl_json_array(j, "rnics");
	for (size_t i = 0; i < scan->topology.n_pairs; i++) {
		const struct nd_affinity *a = &scan->topology.pairs[i];

		if (a->gpu != gpu)
			continue;
		ctl_json_object(j, NULL);
		ctl_json_string(j, "device", scan->devices.v[a->device].name);
		ctl_json_string(j, "distance", nd_distance_name(a->distance));
		ctl_json_bool(j, "preferred", a->preferred);
		ctl_json_bool(j, "spread", a->spread);
		ctl_json_end(j);
	}
	ctl_json_end(j);
}

static void gpus(struct ctl_json *j, const struct nd_scan *scan)
{
	char text[16];

	ctl_json_array(j, "gpus");
	for (size_t i = 0; i < scan->topology.n_gpus; i++) {
		const struct nd_gpu *g = &scan->topology.gpus[i];
		const struct nd_nvidia_gpu *known = nd_nvidia_by_bdf(&scan->nvidia, g->bdf);

		ctl_json_object(j, NULL);
		ctl_json_string(j, "pci", g->bdf);
		snprintf(text, sizeof(text), "%04x:%04x", g->vendor, g->device);
		ctl_json_string(j, "id", text);
		snprintf(text, sizeof(text), "%06x", g->class);
		ctl_json_string(j, "class", text);
		ctl_json_string(j, "driver", g->driver);
		ctl_json_int(j, "numa", g->numa);
		ctl_json_string(j, "uuid", known ? known->uuid : "");
		ctl_json_string(j, "name", known ? known->name : "");
		ctl_json_bool(j, "dma_buf", known && scan->nvidia.dma_buf);
		rnics(j, scan, i);
		ctl_json_end(j);
	}
	ctl_json_end(j);
}

static void driver_json(struct ctl_json *j, const struct nd_nvidia *n)
{
	ctl_json_object(j, "gpu_driver");
	ctl_json_bool(j, "present", n->present);
	ctl_json_string(j, "version", n->version);
	ctl_json_bool(j, "open_modules", n->open_modules);
	ctl_json_bool(j, "dma_buf", n->dma_buf);
	ctl_json_string(j, "dma_buf_reason", n->dma_buf_reason);
	ctl_json_string(j, "nvidiactl", nd_nvidia_node_text(n->control_error));
	ctl_json_string(j, "nvidia_uvm", nd_nvidia_node_text(n->uvm_error));
	ctl_json_string(j, "libcuda", n->libcuda);
	ctl_json_bool(j, "libcuda_loads", n->libcuda_loads);
	ctl_json_array(j, "gpus");
	for (size_t i = 0; i < n->n_gpus; i++) {
		ctl_json_object(j, NULL);
		ctl_json_string(j, "pci", n->gpus[i].bdf);
		ctl_json_string(j, "uuid", n->gpus[i].uuid);
		ctl_json_string(j, "name", n->gpus[i].name);
		ctl_json_int(j, "minor", n->gpus[i].minor);
		ctl_json_string(j, "node", nd_nvidia_node_text(n->gpus[i].node_error));
		ctl_json_bool(j, "in_sysfs", n->gpus[i].in_sysfs);
		ctl_json_end(j);
	}
	ctl_json_end(j);
	ctl_json_end(j);
}

static void device_json(struct ctl_json *j, const struct ctl_cuda *cuda, unsigned index)
{
	const struct gpu_device_info *d = &cuda->v[index];
	char text[32];

	ctl_json_object(j, NULL);
	ctl_json_string(j, "uuid", d->uuid);
	ctl_json_string(j, "pci", d->bdf);
	ctl_json_string(j, "name", d->name);
	ctl_json_uint(j, "memory", d->memory);
	ctl_json_uint(j, "multiprocessors", d->multiprocessors);
	snprintf(text, sizeof(text), "%u.%u", d->major, d->minor);
	ctl_json_string(j, "compute", text);
	ctl_json_bool(j, "usable", d->usable);
	ctl_json_bool(j, "dma_buf", d->dmabuf);
	ctl_json_bool(j, "cuda_ipc", d->ipc);
	ctl_json_bool(j, "cuda_vmm", d->vmm);
	ctl_json_bool(j, "rdma_ordered", d->rdma_ordered);
	ctl_json_array(j, "peers");
	for (unsigned k = 0; k < cuda->n; k++)
		ctl_json_string(j, NULL, gpu_link_name(gpu_link_of(d, index, k)));
	ctl_json_end(j);
	ctl_json_end(j);
}

void ctl_detect_gpus_json(struct ctl_json *j, const struct nd_scan *scan,
			  const struct ctl_cuda *cuda)
{
	gpus(j, scan);
	ctl_json_uint(j, "hidden_gpus", scan->topology.hidden_gpus);
	driver_json(j, &scan->nvidia);
	ctl_json_object(j, "cuda");
	ctl_json_string(j, "plugin", cuda->plugin);
	ctl_json_string(j, "driver", cuda->driver);
	ctl_json_string(j, "reason", cuda->reason);
	ctl_json_array(j, "devices");
	for (unsigned i = 0; i < cuda->n; i++)
		device_json(j, cuda, i);
	ctl_json_end(j);
	ctl_json_end(j);
}
