/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/detect/detect.h"

#include "ctl/render/human.h"
#include "ctl/render/table.h"
#include "gpu/peers.h"

#define LINE_BYTES 256

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
				a->spread ? " (its best RNIC is the first choice of another GPU)" :
					    "");
	}
}

static void node_cell(struct ctl_table *t, const struct nd_nvidia_gpu *g)
{
	if (!g)
		ctl_table_add(t, "", CTL_MOOD_NONE);
	else
		ctl_table_add(t, nd_nvidia_node_text(g->node_error),
			      g->node_error ? CTL_MOOD_NONE : CTL_MOOD_GOOD);
}

static int functions(struct ctl *c, const struct nd_scan *scan)
{
	struct ctl_table t = CTL_TABLE_NULL;
	char text[LINE_BYTES];

	ctl_table_head(&t, "GPU", "NAME", "NUMA", "DRIVER", "DEVICE", "RNICS");
	for (size_t i = 0; i < scan->topology.n_gpus; i++) {
		const struct nd_gpu *g = &scan->topology.gpus[i];
		const struct nd_nvidia_gpu *known = nd_nvidia_by_bdf(&scan->nvidia, g->bdf);

		snprintf(text, sizeof(text), "%d", g->numa);
		ctl_table_cells(&t, g->bdf, known ? known->name : "", g->numa < 0 ? "" : text,
				g->driver);
		node_cell(&t, known);
		preferred(scan, i, text, sizeof(text));
		ctl_table_cells(&t, text);
	}
	for (size_t i = 0; i < scan->nvidia.n_gpus; i++) {
		const struct nd_nvidia_gpu *g = &scan->nvidia.gpus[i];

		if (g->in_sysfs)
			continue;
		ctl_table_cells(&t, g->bdf, g->name, "", "nvidia");
		node_cell(&t, g);
		ctl_table_cells(&t, "unknown: the GPU is hidden from /sys");
	}
	return ctl_table_finish(&t, c->out, c->color);
}

static void driver(struct ctl *c, const struct nd_nvidia *n)
{
	fprintf(c->out, "DMA-BUF of GPU memory: %s%s\n", n->dma_buf ? "yes, " : "no, ",
		n->dma_buf_reason);
	if (!n->libcuda[0])
		fputs("libcuda.so.1: not found\n", c->out);
	else
		fprintf(c->out, "libcuda.so.1: %s%s\n", n->libcuda,
			n->libcuda_loads ? "" : ", outside the search path of the loader");
}

/* "cuda_ipc cuda_vmm" */
static const char *kinds(const struct gpu_device_info *d, char *buf, size_t n)
{
	if (!d->usable)
		return "none: the plug-in has no code for this GPU";
	snprintf(buf, n, "%s%s%s", d->ipc ? "cuda_ipc" : "", d->ipc && d->vmm ? " " : "",
		 d->vmm ? "cuda_vmm" : "");
	return buf;
}

static int devices(struct ctl *c, const struct ctl_cuda *cuda)
{
	struct ctl_table t = CTL_TABLE_NULL;
	char index[16], sms[16], compute[32], text[LINE_BYTES];
	char peers[GPU_PEERS_BYTES];

	fprintf(c->out, "CUDA: %s\n", cuda->driver);
	ctl_table_head(&t, "CUDA", "GPU", "UUID", "MEMORY", "SMS", "COMPUTE", "KINDS", "DMA-BUF",
		       "PEERS");
	for (unsigned i = 0; i < cuda->n; i++) {
		const struct gpu_device_info *d = &cuda->v[i];

		snprintf(index, sizeof(index), "%u", i);
		snprintf(sms, sizeof(sms), "%u", d->multiprocessors);
		snprintf(compute, sizeof(compute), "%u.%u", d->major, d->minor);
		ctl_table_cells(&t, index, d->bdf, d->uuid, ctl_size(d->memory), sms, compute,
				kinds(d, text, sizeof(text)), d->dmabuf ? "yes" : "no",
				gpu_peers_text(d, i, peers));
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

static void gpus_json(struct ctl_json *j, const struct nd_scan *scan)
{
	const struct nd_topology *t = &scan->topology;
	char id[16], class[16];

	ctl_json_array(j, "gpus");
	for (size_t i = 0; i < t->n_gpus; i++) {
		const struct nd_gpu *g = &t->gpus[i];
		const struct nd_nvidia_gpu *known = nd_nvidia_by_bdf(&scan->nvidia, g->bdf);

		snprintf(id, sizeof(id), "%04x:%04x", g->vendor, g->device);
		snprintf(class, sizeof(class), "%06x", g->class);
		ctl_json_object(j, NULL);
		ctl_json_add(j, J_TEXT("pci", g->bdf), J_TEXT("id", id), J_TEXT("class", class),
			     J_TEXT("driver", g->driver), J_INT("numa", g->numa),
			     J_TEXT("uuid", known ? known->uuid : ""),
			     J_TEXT("name", known ? known->name : ""),
			     J_BOOL("dma_buf", known && scan->nvidia.dma_buf));
		ctl_json_array(j, "rnics");
		for (size_t k = 0; k < t->n_pairs; k++) {
			const struct nd_affinity *a = &t->pairs[k];

			if (a->gpu == i)
				ctl_json_record(j, NULL,
						J_TEXT("device", scan->devices.v[a->device].name),
						J_TEXT("distance", nd_distance_name(a->distance)),
						J_BOOL("preferred", a->preferred),
						J_BOOL("spread", a->spread));
		}
		ctl_json_end(j);
		ctl_json_end(j);
	}
	ctl_json_end(j);
}

static void driver_json(struct ctl_json *j, const struct nd_nvidia *n)
{
	ctl_json_object(j, "gpu_driver");
	ctl_json_add(j, J_BOOL("present", n->present), J_TEXT("version", n->version),
		     J_BOOL("open_modules", n->open_modules), J_BOOL("dma_buf", n->dma_buf),
		     J_TEXT("dma_buf_reason", n->dma_buf_reason),
		     J_TEXT("nvidiactl", nd_nvidia_node_text(n->control_error)),
		     J_TEXT("nvidia_uvm", nd_nvidia_node_text(n->uvm_error)),
		     J_TEXT("libcuda", n->libcuda), J_BOOL("libcuda_loads", n->libcuda_loads));
	ctl_json_array(j, "gpus");
	for (size_t i = 0; i < n->n_gpus; i++) {
		const struct nd_nvidia_gpu *g = &n->gpus[i];

		ctl_json_record(j, NULL, J_TEXT("pci", g->bdf), J_TEXT("uuid", g->uuid),
				J_TEXT("name", g->name), J_INT("minor", g->minor),
				J_TEXT("node", nd_nvidia_node_text(g->node_error)),
				J_BOOL("in_sysfs", g->in_sysfs));
	}
	ctl_json_end(j);
	ctl_json_end(j);
}

static void device_json(struct ctl_json *j, const struct ctl_cuda *cuda, unsigned index)
{
	const struct gpu_device_info *d = &cuda->v[index];
	char compute[32];

	snprintf(compute, sizeof(compute), "%u.%u", d->major, d->minor);
	ctl_json_object(j, NULL);
	ctl_json_add(j, J_TEXT("uuid", d->uuid), J_TEXT("pci", d->bdf), J_TEXT("name", d->name),
		     J_UINT("memory", d->memory), J_UINT("multiprocessors", d->multiprocessors),
		     J_TEXT("compute", compute), J_BOOL("usable", d->usable),
		     J_BOOL("dma_buf", d->dmabuf), J_BOOL("cuda_ipc", d->ipc),
		     J_BOOL("cuda_vmm", d->vmm), J_BOOL("rdma_ordered", d->rdma_ordered));
	ctl_json_array(j, "peers");
	for (unsigned k = 0; k < cuda->n; k++)
		ctl_json_add(j, J_TEXT(NULL, gpu_link_name(gpu_link_of(d, index, k))));
	ctl_json_end(j);
	ctl_json_end(j);
}

void ctl_detect_gpus_json(struct ctl_json *j, const struct nd_scan *scan,
			  const struct ctl_cuda *cuda)
{
	gpus_json(j, scan);
	ctl_json_add(j, J_UINT("hidden_gpus", scan->topology.hidden_gpus));
	driver_json(j, &scan->nvidia);
	ctl_json_object(j, "cuda");
	ctl_json_add(j, J_TEXT("plugin", cuda->plugin), J_TEXT("driver", cuda->driver),
		     J_TEXT("reason", cuda->reason));
	ctl_json_array(j, "devices");
	for (unsigned i = 0; i < cuda->n; i++)
		device_json(j, cuda, i);
	ctl_json_end(j);
	ctl_json_end(j);
}
