/* SPDX-License-Identifier: Apache-2.0 */
/* The text on which GPUs reach each other, and doctor's findings from the plug-in's answers. */
#include "gpu/peers.h"

#include <stdio.h>
#include <string.h>

#include "ctl/detect/detect.h"
#include "tests/unit/cm.h"

static const char *text(unsigned index, uint32_t peers, uint32_t nvlink)
{
	static char buf[GPU_PEERS_BYTES];

	return gpu_peers_text(&(struct gpu_device_info){ .peers = peers, .nvlink = nvlink }, index,
			      buf);
}

static void words(void **state)
{
	assert_string_equal(text(0, 0, 0), "none");
	assert_string_equal(text(0, 0xfe, 0xfe), "NVLink 1-7");
	assert_string_equal(text(3, 0xff, 0xff), "NVLink 0-2,4-7");
	assert_string_equal(text(1, 0xd, 0x4), "NVLink 2; PCIe 0,3");
	assert_string_equal(text(0, 0x80000002, 0), "PCIe 1,31");
	/* a link without peer access does not count */
	assert_string_equal(text(0, 0, 0xff), "none");
	/* the longest text: every other one, half by each kind */
	assert_true(strlen(text(31, 0x55555555, 0x55550000)) + 1 < GPU_PEERS_BYTES);
}

static void links(void **state)
{
	const struct gpu_device_info d = { .peers = 6, .nvlink = 4 };

	assert_string_equal(gpu_link_name(gpu_link_of(&d, 0, 0)), "self");
	assert_string_equal(gpu_link_name(gpu_link_of(&d, 0, 1)), "pcie");
	assert_string_equal(gpu_link_name(gpu_link_of(&d, 0, 2)), "nvlink");
	assert_string_equal(gpu_link_name(gpu_link_of(&d, 0, 3)), "none");
	assert_string_equal(gpu_link_name(gpu_link_of(&d, 0, 99)), "none");
}

/* Each device of the machine is usable, unless the test says otherwise. */
static void machine(struct ctl_cuda *c, unsigned n)
{
	*c = (struct ctl_cuda){ .asked = true, .driver = "CUDA 13.0", .n = n };
	for (unsigned i = 0; i < n; i++) {
		c->v[i] = (struct gpu_device_info){ .usable = true,
						    .ipc = true,
						    .vmm = true,
						    .major = 9,
						    .peers = ((1u << n) - 1) & ~(1u << i) };
		snprintf(c->v[i].uuid, sizeof(c->v[i].uuid), "GPU-%u", i);
		snprintf(c->v[i].bdf, sizeof(c->v[i].bdf), "0000:%02x:00.0", i + 1);
	}
}

static struct nd_findings check(const struct ctl_cuda *c)
{
	struct nd_findings f = { 0 };

	assert_true(ctl_cuda_check(c, &ND_SOURCE_LIVE, &f));
	return f;
}

static void no_findings(void **state)
{
	struct ctl_cuda c;
	struct nd_findings f;

	machine(&c, 4);
	f = check(&c);
	assert_int_equal(f.n, 2);
	assert_int_equal(f.v[0].severity, ND_OK);
	assert_non_null(strstr(f.v[0].text, "CUDA 13.0: 4 GPUs"));
	assert_int_equal(f.v[1].severity, ND_OK);
	assert_non_null(strstr(f.v[1].text, "0 of 6 pairs by NVLink"));
	nd_findings_deinit(&f);
	c.asked = false;
	f = check(&c);
	assert_int_equal(f.n, 0);
}

static void findings(void **state)
{
	struct ctl_cuda c;
	struct nd_findings f;

	machine(&c, 3);
	c.v[1].usable = false;
	c.v[2].ipc = c.v[2].vmm = false;
	/* 0 reaches 2, but 2 does not reach 0 */
	c.v[2].peers = 2;
	f = check(&c);
	assert_int_equal(f.n, 3);
	assert_string_equal(f.v[0].about, "GPU-1");
	assert_non_null(strstr(f.v[0].text, "no code for compute capability 9.0"));
	assert_string_equal(f.v[1].about, "GPU-2");
	assert_string_equal(f.v[2].check, "gpu-peers");
	assert_int_equal(f.v[2].severity, ND_WARNING);
	assert_non_null(strstr(f.v[2].text, "1 of 3 pairs"));
	assert_non_null(strstr(f.v[2].text, "0000:01:00.0 and 0000:03:00.0"));
	assert_true(*f.v[2].fix);
	nd_findings_deinit(&f);
	snprintf(c.reason, sizeof(c.reason), "no driver");
	f = check(&c);
	assert_int_equal(f.n, 1);
	assert_string_equal(f.v[0].text, "no driver");
	nd_findings_deinit(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(words),
		cmocka_unit_test(links),
		cmocka_unit_test(no_findings),
		cmocka_unit_test(findings),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
