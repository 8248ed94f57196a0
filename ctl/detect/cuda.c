/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "ctl/detect/detect.h"
#include "gpu/loader.h"
#include "gpu/peers.h"

#define CHECK_PLUGIN "gpu-plugin"
#define CHECK_PEERS "gpu-peers"

static void query(struct ctl_cuda *c, const char *path)
{
	const struct gpu_plugin_ops *ops;
	struct dray_err err = DRAY_ERR_NULL;
	struct gpu_plugin *p;

	if (gpu_load(path, &ops, &err) < 0 || ops->open(&p, &err) < 0) {
		snprintf(c->reason, sizeof(c->reason), "%s", err.msg);
		return;
	}
	snprintf(c->driver, sizeof(c->driver), "%s", ops->version(p));
	c->n = ops->devices(p, c->v, GPU_DEVICES_MAX);
	if (c->n > GPU_DEVICES_MAX)
		c->n = GPU_DEVICES_MAX;
	if (!c->n)
		snprintf(c->reason, sizeof(c->reason), "the driver reports no GPU to CUDA");
	ops->close(p);
}

void ctl_cuda_look(struct ctl_cuda *ret, const char *plugin, const struct nd_scan *scan, bool live)
{
	*ret = (struct ctl_cuda){ .n = 0 };
	if (plugin && !strcmp(plugin, "none")) {
		snprintf(ret->reason, sizeof(ret->reason), "not queried: --gpu-plugin none");
	} else if (!live) {
		snprintf(ret->reason, sizeof(ret->reason),
			 "CUDA is not queried for a recorded machine");
	} else if (!plugin && !scan->nvidia.present) {
		snprintf(ret->reason, sizeof(ret->reason), "there is no GPU of NVIDIA's driver");
	} else {
		ret->asked = true;
		gpu_plugin_path(plugin, ret->plugin);
		query(ret, plugin);
	}
}

static bool check_devices(const struct ctl_cuda *c, struct nd_findings *f)
{
	bool good = true, ok = true;

	for (unsigned i = 0; i < c->n && ok; i++) {
		const struct gpu_device_info *d = &c->v[i];

		if (d->usable && (d->ipc || d->vmm))
			continue;
		good = false;
		ok = nd_findings_add(
			f, ND_WARNING, CHECK_PLUGIN, d->uuid,
			d->usable ? "use regions of kind dmabuf, or another driver" :
				    "install a release of dray whose plug-in supports it",
			d->usable ?
				"the driver can open neither cuda_ipc nor cuda_vmm handles on this GPU (compute capability %u.%u)" :
				"the plug-in has no code for compute capability %u.%u",
			d->major, d->minor);
	}
	return ok &&
	       (!good ||
		nd_findings_add(
			f, ND_OK, CHECK_PLUGIN, "", "",
			"%s: %u GPUs; the agent's context takes about 500 MiB of memory on each GPU that it uses",
			c->driver, c->n));
}

/* The distance between two GPUs that do not reach each other suggests the cause. */
static const char *peer_fix(const struct ctl_cuda *c, const struct nd_source *s, unsigned a,
			    unsigned b)
{
	switch (nd_pci_distance(s, c->v[a].bdf, c->v[b].bdf)) {
	case ND_PIX:
	case ND_PXB:
	case ND_PHB:
		return "disable PCIe access control (ACS) on the bridges above them, and disable the IOMMU or set it to passthrough";
	case ND_NODE:
	case ND_SYS:
		break;
	}
	return "they are connected through the processors, which do not forward between these GPUs; choose GPUs below one PCIe switch or with NVLink";
}

static bool check_peers(const struct ctl_cuda *c, const struct nd_source *s, struct nd_findings *f)
{
	unsigned apart = 0, nvlink = 0, pairs = 0, first[2] = { 0, 0 };

	for (unsigned i = 0; i < c->n; i++)
		for (unsigned k = i + 1; k < c->n; k++) {
			enum gpu_link there = gpu_link_of(&c->v[i], i, k);
			enum gpu_link back = gpu_link_of(&c->v[k], k, i);

			pairs++;
			nvlink += there == GPU_LINK_NVLINK && back == GPU_LINK_NVLINK;
			if (there != GPU_LINK_NONE && back != GPU_LINK_NONE)
				continue;
			if (!apart++) {
				first[0] = i;
				first[1] = k;
			}
		}
	if (!pairs)
		return true;
	if (!apart)
		return nd_findings_add(f, ND_OK, CHECK_PEERS, "", "",
				       "all %u GPUs reach each other, %u of %u pairs by NVLink",
				       c->n, nvlink, pairs);
	return nd_findings_add(
		f, ND_WARNING, CHECK_PEERS, "", peer_fix(c, s, first[0], first[1]),
		"%u of %u pairs of GPUs do not reach each other, such as %s and %s; copies between them go through host memory",
		apart, pairs, c->v[first[0]].bdf, c->v[first[1]].bdf);
}

bool ctl_cuda_check(const struct ctl_cuda *c, const struct nd_source *s, struct nd_findings *f)
{
	if (!c->asked)
		return true;
	if (c->reason[0])
		return nd_findings_add(
			f, ND_WARNING, CHECK_PLUGIN, "",
			"without the plug-in, the agent refuses regions of kinds cuda_ipc and cuda_vmm; kind dmabuf only needs RDMA devices",
			"%.239s", c->reason);
	return check_devices(c, f) && check_peers(c, s, f);
}
