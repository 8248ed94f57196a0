/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of GPUs, their driver, and the parts of it in this container. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "netdetect/doctor/internal.h"

/* The initial PID namespace (PROC_PID_INIT_INO of include/linux/proc_ns.h). */
#define FIRST_PID_NAMESPACE "pid:[4026531836]"

void nd_check_gpus(struct examination *x)
{
	const struct nd_topology *t = &x->scan->topology;

	if (t->hidden_gpus)
		nd_finding(
			x, ND_WARNING, "",
			"mount the host's /sys into the container, or run with hostNetwork",
			"%u GPUs of the driver are not in this /sys, so the RNICs near them are unknown",
			t->hidden_gpus);
	else if (t->n_gpus)
		nd_finding_ok(x, "all %zu GPUs are in /sys", t->n_gpus);
	else
		nd_finding_ok(x, "no GPUs");
}

/* Opens the node, because its mode does not show whether the device cgroup allows access. */
static int try_open(struct examination *x, const char *name, int error)
{
	char path[ND_PATH_MAX];
	int fd dray_auto_close = -1;

	if (error || !nd_is_live(x->s))
		return error;
	/* non-blocking, so that the driver wakes a sleeping GPU up on a thread of its own */
	fd = open(nd_path(x->s, path, "/dev/%s", name), O_RDWR | O_NONBLOCK | O_CLOEXEC);
	return fd < 0 ? errno : 0;
}

/* consequence: appended to the finding. */
static bool check_node(struct examination *x, const char *name, int error, const char *consequence)
{
	error = try_open(x, name, error);
	if (!error)
		return true;
	nd_finding(
		x, ND_WARNING, name,
		error == ENOENT ?
			"give the container the node; on the host nvidia-modprobe makes it" :
		error == EPERM ?
			"the device cgroup refuses it: let the NVIDIA container toolkit or the device plug-in give the container its GPUs" :
		error == EACCES ? "run as a user or group that the node's mode allows" :
				  "read the kernel log, and run nvidia-smi on the host",
		"/dev/%s %s%s%s", name,
		error == ENOENT ? "is " : "does not open: ", nd_nvidia_node_text(error),
		consequence);
	return false;
}

void nd_check_gpu_nodes(struct examination *x)
{
	const struct nd_nvidia *n = &x->scan->nvidia;
	size_t here = 0, missing = 0;
	bool good = true;
	char name[32];

	if (!n->present)
		return;
	if (!n->nodes) {
		nd_finding(
			x, ND_WARNING, "",
			"give the container the GPUs of its engine: NVIDIA_VISIBLE_DEVICES and the runtime class nvidia, or --gpus",
			"no device node of a GPU (/dev/nvidia0 and so on) is here, so CUDA finds no GPU; regions of kind dmabuf need none");
		return;
	}
	good &= check_node(x, "nvidiactl", n->control_error, "; CUDA needs it to start");
	good &= check_node(x, "nvidia-uvm", n->uvm_error, "; CUDA needs it to start");
	for (size_t i = 0; i < n->n_gpus; i++) {
		int error = n->gpus[i].node_error;

		snprintf(name, sizeof(name), "nvidia%d", n->gpus[i].minor);
		missing += error == ENOENT;
		if (error == ENODATA || error == ENOENT)
			continue;
		here++;
		good &= check_node(x, name, error, "");
	}
	if (missing)
		nd_finding(x, ND_INFO, "",
			   "if engines use other GPUs, give the agent's container the same ones",
			   "%zu of the driver's %zu GPUs have their device nodes here", here,
			   n->n_gpus);
	else if (good)
		nd_finding_ok(x, "the device nodes of %u GPUs are here", n->nodes);
}

void nd_check_gpu_driver(struct examination *x)
{
	const struct nd_nvidia *n = &x->scan->nvidia;
	const char *slash = strrchr(n->libcuda, '/');
	char fix[sizeof(((struct nd_finding *)0)->fix)];

	if (!n->present)
		return;
	if (!slash) {
		nd_finding(
			x, ND_WARNING, "",
			"in a container the NVIDIA container toolkit mounts it: NVIDIA_DRIVER_CAPABILITIES=compute,utility; otherwise install the driver's libcuda1",
			"libcuda.so.1 is not here: GPU memory works with kind dmabuf only");
	} else if (!n->libcuda_loads) {
		snprintf(
			fix, sizeof(fix),
			"set LD_LIBRARY_PATH=%.*s, or add the folder to the configuration of ldconfig",
			(int)(slash - n->libcuda), n->libcuda);
		nd_finding(x, ND_WARNING, "", fix, "%s is where the loader does not look",
			   n->libcuda);
	} else {
		nd_finding_ok(x, "driver %s%s, %s", *n->version ? n->version : "of unknown version",
			      !*n->version    ? "" :
			      n->open_modules ? " (open kernel modules)" :
						" (closed kernel modules)",
			      n->libcuda);
	}
}

void nd_check_gpu_direct(struct examination *x)
{
	const struct nd_nvidia *n = &x->scan->nvidia;
	char path[ND_PATH_MAX];
	bool peermem;

	if (!x->scan->devices.n || !n->present)
		return;
	if (n->dma_buf) {
		nd_finding_ok(x,
			      "the GPU driver exports DMA-BUF: RNICs can register GPU memory (%s)",
			      n->dma_buf_reason);
		return;
	}
	peermem = access(nd_path(x->s, path, "/sys/module/nvidia_peermem"), F_OK) == 0;
	nd_finding(
		x, ND_WARNING, "", "use the driver's open kernel modules on Linux 5.12 or later",
		"RNICs cannot register GPU memory, so transfers from and to GPUs are staged: %s%s",
		n->dma_buf_reason, peermem ? "; nvidia-peermem is not used" : "");
}

void nd_check_gpu_handles(struct examination *x)
{
	char target[ND_PATH_MAX];

	if (!x->scan->nvidia.present || nd_skipped(x))
		return;
	if (nd_read_link(x->s, target, "/proc/self/ns/pid") && !strcmp(target, FIRST_PID_NAMESPACE))
		nd_finding_ok(
			x,
			"this is the PID namespace of the host: engines in it can use cuda_ipc, engines in containers cuda_vmm or dmabuf");
	else
		nd_finding(
			x, ND_INFO, "",
			"use kind cuda_vmm or dmabuf, or shareProcessNamespace: true in the pod (--pid=container:NAME)",
			"this PID namespace is not the host's: CUDA opens cuda_ipc handles only of engines in the same namespace");
}
