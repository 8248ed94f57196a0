/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A minimal inference engine: a process with memory on GPUs and on the host, a session with an agent, regions,
 * tokens and transfers. It reads commands, one a line, and answers each with a line of JSON, which is
 * {"error": text, "code": name} on failure. It needs no CUDA toolkit, and no driver until a command uses a GPU.
 *
 *   devices                          lists the driver's devices
 *   connect SOCKET [GPU]             opens the session, and announces the GPU
 *   alloc KIND BYTES DEVICE          allocates memory; kinds: memfd, cuda_ipc, cuda_vmm, dmabuf
 *   free MEMORY
 *   region MEMORY:OFFSET:LENGTH...   registers extents, in this order, until all of them are open
 *   early MEMORY:OFFSET:LENGTH...    the same until the agent has taken them
 *   describe MEMORY:OFFSET:LENGTH... the same from device pointers, by libdray's helpers
 *   pool BYTES                       makes a region in memory of the agent
 *   remove REGION
 *   fill REGION SEED [OFFSET LENGTH] writes a pattern
 *   check REGION SEED OTHER OPS here|there
 *                                    checks the pattern of fill, and the remote's pattern OTHER where operations wrote
 *   export REGION                    returns a token
 *   import TOKEN                     returns a remote
 *   release REMOTE
 *   run REGION REMOTE read|write OPS TOTAL BATCH DEPTH [latency]
 *                                    runs TOTAL operations; 0: until the next command, such as stop
 *   stop
 *   trip REGION REMOTE read|write OPS COUNT [latency]
 *   hold REGION REMOTE read|write OPS BATCH DEPTH TELL_AT
 *   words SOURCE TARGET REMOTE BYTES ROUNDS driver|libdray
 *   handles MEMORY...                returns the legacy CUDA IPC handles of memory
 *   bare DEVICE HANDLE...            opens them without an agent, and closes them
 *   memory DEVICE                    returns free and total memory of a GPU
 *   watch DEVICE FREE MILLISECONDS   waits until this much memory is free
 *
 * OPS is a file of 24-byte records, as in bench.h.
 */
#include "tests/gpu/engine.h"

#include <fcntl.h>

static struct engine engine;

bool engine_fail(struct engine *e, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(e->why, sizeof(e->why), format, args);
	va_end(args);
	return false;
}

bool engine_refused(struct engine *e, const char *what, int rc)
{
	snprintf(e->code, sizeof(e->code), "%s", dray_strerrorname(rc));
	return engine_fail(e, "%s: %s: %s", what, e->code, dray_last_error(e->d));
}

bool engine_ended(struct engine *e, const struct dray_completion *c)
{
	snprintf(e->code, sizeof(e->code), "%s", dray_strerrorname(c->status));
	return engine_fail(e, "transfer: %s: %s", e->code, c->message);
}

const char *engine_quote(const char *text, char *buf, size_t n)
{
	size_t at = 0;

	for (; *text && at + 3 < n; text++) {
		if (*text == '"' || *text == '\\')
			buf[at++] = '\\';
		buf[at++] = (unsigned char)*text < ' ' ? ' ' : *text;
	}
	buf[at] = 0;
	return buf;
}

const char *engine_transport(unsigned transport)
{
	static const char *const names[] = { "none", "local", "tcp", "rdma", "gpu" };

	return transport < sizeof(names) / sizeof(names[0]) ? names[transport] : "newer";
}

/* --- memory and regions ----------------------------------------------------------------------- */

struct region *engine_region(struct engine *e, const char *name)
{
	uint64_t i = bench_number(name);

	if (i < ENGINE_REGIONS && e->regions[i].id.id)
		return &e->regions[i];
	engine_fail(e, "no region %s", name);
	return NULL;
}

static struct memory *extent_memory(struct engine *e, struct region *r, unsigned i)
{
	return r->pool ? &r->own : &e->memories[r->extents[i].memory];
}

cuda_address engine_address(struct engine *e, const struct region *r)
{
	const struct memory *m = r->n == 1 && !r->pool ? &e->memories[r->extents[0].memory] : NULL;

	if (m && m->address)
		return m->address + r->extents[0].offset;
	engine_fail(e, "the region is not one extent of GPU memory");
	return 0;
}

bool engine_write(struct engine *e, struct region *r, uint64_t at, const uint8_t *from,
		  uint64_t bytes)
{
	for (unsigned i = 0; i < r->n && bytes; i++) {
		const struct extent *x = &r->extents[i];
		uint64_t n = x->length > at ? x->length - at : 0;

		n = n < bytes ? n : bytes;
		if (n && !memory_write(extent_memory(e, r, i), &e->cuda, x->offset + at, from, n,
				       e->why, sizeof(e->why)))
			return false;
		at = at > x->length ? at - x->length : 0;
		from += n;
		bytes -= n;
	}
	return true;
}

bool engine_read(struct engine *e, struct region *r, uint64_t at, uint8_t *to, uint64_t bytes)
{
	for (unsigned i = 0; i < r->n && bytes; i++) {
		const struct extent *x = &r->extents[i];
		uint64_t n = x->length > at ? x->length - at : 0;

		n = n < bytes ? n : bytes;
		if (n && !memory_read(extent_memory(e, r, i), &e->cuda, x->offset + at, to, n,
				      e->why, sizeof(e->why)))
			return false;
		at = at > x->length ? at - x->length : 0;
		to += n;
		bytes -= n;
	}
	return true;
}

static bool do_alloc(struct engine *e, char **argv, unsigned argc)
{
	unsigned i = 0;

	if (argc != 3)
		return engine_fail(e, "alloc KIND BYTES DEVICE");
	while (i < ENGINE_MEMORIES && e->memories[i].bytes)
		i++;
	if (i == ENGINE_MEMORIES)
		return engine_fail(e, "too many allocations");
	if (!memory_alloc(&e->memories[i], &e->cuda, argv[0], bench_number(argv[1]),
			  (int)bench_number(argv[2]), e->why, sizeof(e->why)))
		return false;
	bench_say("{\"memory\": %u}", i);
	return true;
}

static bool do_free(struct engine *e, char **argv, unsigned argc)
{
	uint64_t i = argc == 1 ? bench_number(argv[0]) : ENGINE_MEMORIES;

	if (i >= ENGINE_MEMORIES || !e->memories[i].bytes)
		return engine_fail(e, "no such memory");
	memory_free(&e->memories[i], &e->cuda);
	bench_say("{}");
	return true;
}

static struct region *region_slot(struct engine *e, unsigned *ret)
{
	unsigned i = 0;

	while (i < ENGINE_REGIONS && e->regions[i].id.id)
		i++;
	if (i == ENGINE_REGIONS) {
		engine_fail(e, "too many regions");
		return NULL;
	}
	*ret = i;
	return &e->regions[i];
}

/* MEMORY:OFFSET:LENGTH */
static bool extent_parse(struct engine *e, char *text, struct extent *ret)
{
	char *rest = NULL, *memory = strtok_r(text, ":", &rest),
	     *offset = strtok_r(NULL, ":", &rest);

	if (!memory || !offset || !*rest)
		return engine_fail(e, "an extent is MEMORY:OFFSET:LENGTH");
	ret->memory = (unsigned)bench_number(memory);
	ret->offset = bench_number(offset);
	ret->length = bench_number(rest);
	if (ret->memory >= ENGINE_MEMORIES || !e->memories[ret->memory].bytes)
		return engine_fail(e, "no memory %u", ret->memory);
	return true;
}

static void region_forget(struct region *r)
{
	free(r->extents);
	*r = (struct region){ 0 };
}

static bool region_add(struct engine *e, struct region *r, unsigned int flags)
{
	struct dray_extent *v = calloc(r->n, sizeof(*v));
	struct dray_region_spec spec = {
		.name = "engine",
		.access = DRAY_READ | DRAY_WRITE,
		.flags = flags,
		.extents = v,
		.extents_n = r->n,
	};
	int rc;

	if (!v)
		bench_die_errno("calloc");
	for (unsigned i = 0; i < r->n; i++) {
		const struct memory *m = &e->memories[r->extents[i].memory];

		v[i].kind = memory_region_kind(m);
		v[i].fd = m->fd;
		v[i].offset = r->extents[i].offset;
		v[i].length = r->extents[i].length;
		if (v[i].kind == DRAY_KIND_CUDA_IPC)
			v[i].handle = m->handle;
		if (m->device_name[0])
			spec.device = m->device_name;
		r->bytes += v[i].length;
	}
	rc = dray_region_add(e->d, &spec, &r->id);
	free(v);
	return !rc || engine_refused(e, "region", rc);
}

static bool region_register(struct engine *e, struct region *r)
{
	return region_add(e, r, DRAY_REGION_WAIT);
}

static bool region_early(struct engine *e, struct region *r)
{
	return region_add(e, r, 0);
}

/* Registers the extents by their device pointers. */
static bool region_describe(struct engine *e, struct region *r)
{
	struct dray_region_spec spec = { .name = "described",
					 .access = DRAY_READ | DRAY_WRITE,
					 .flags = DRAY_REGION_WAIT };
	struct dray_cuda_range *v = calloc(r->n, sizeof(*v));
	int rc;

	if (!v)
		bench_die_errno("calloc");
	for (unsigned i = 0; i < r->n; i++) {
		v[i].address = e->memories[r->extents[i].memory].address + r->extents[i].offset;
		v[i].length = r->extents[i].length;
		r->bytes += v[i].length;
	}
	rc = dray_cuda_region_add(e->d, &spec, v, r->n, NULL, 0, &r->id);
	free(v);
	return !rc || engine_refused(e, "describe", rc);
}

static bool region_make(struct engine *e, char **argv, unsigned argc,
			bool (*add)(struct engine *e, struct region *r))
{
	unsigned slot = 0;
	struct region *r = region_slot(e, &slot);
	int64_t began;

	if (!r || !argc)
		return r ? engine_fail(e, "MEMORY:OFFSET:LENGTH...") : false;
	r->extents = calloc(argc, sizeof(*r->extents));
	if (!r->extents)
		bench_die_errno("calloc");
	for (r->n = 0; r->n < argc; r->n++)
		if (!extent_parse(e, argv[r->n], &r->extents[r->n]))
			break;
	began = bench_ns();
	if (r->n < argc || !add(e, r)) {
		region_forget(r);
		return false;
	}
	bench_say("{\"region\": %u, \"bytes\": %" PRIu64 ", \"ns\": %" PRId64 "}", slot, r->bytes,
		  bench_ns() - began);
	return true;
}

static bool do_region(struct engine *e, char **argv, unsigned argc)
{
	return region_make(e, argv, argc, region_register);
}

static bool do_early(struct engine *e, char **argv, unsigned argc)
{
	return region_make(e, argv, argc, region_early);
}

static bool do_describe(struct engine *e, char **argv, unsigned argc)
{
	return region_make(e, argv, argc, region_describe);
}

static bool do_pool(struct engine *e, char **argv, unsigned argc)
{
	unsigned slot = 0;
	struct region *r = region_slot(e, &slot);
	uint64_t bytes = argc == 1 ? bench_number(argv[0]) : 0;
	void *address = NULL;
	int rc;

	if (!r || !bytes)
		return r ? engine_fail(e, "pool BYTES") : false;
	rc = dray_region_add_pool(e->d, bytes, DRAY_READ | DRAY_WRITE, 0, &r->id);
	if (!rc)
		rc = dray_region_map(e->d, r->id, &address, &bytes, NULL);
	if (rc)
		return engine_refused(e, "pool", rc);
	r->extents = calloc(1, sizeof(*r->extents));
	if (!r->extents)
		bench_die_errno("calloc");
	r->pool = true;
	r->n = 1;
	r->bytes = r->extents[0].length = bytes;
	r->own = (struct memory){ .kind = MEMORY_HOST, .bytes = bytes, .fd = -1, .host = address };
	bench_say("{\"region\": %u, \"bytes\": %" PRIu64 "}", slot, bytes);
	return true;
}

static bool do_remove(struct engine *e, char **argv, unsigned argc)
{
	struct region *r = argc == 1 ? engine_region(e, argv[0]) : NULL;
	int64_t began = bench_ns();
	int rc;

	if (!r)
		return false;
	rc = dray_region_remove(e->d, r->id);
	region_forget(r);
	if (rc)
		return engine_refused(e, "remove", rc);
	bench_say("{\"ns\": %" PRId64 "}", bench_ns() - began);
	return true;
}

/* --- session ---------------------------------------------------------------------------------- */

static bool do_connect(struct engine *e, char **argv, unsigned argc)
{
	struct dray_options options = { .socket = argv[0],
					.gpu = argc == 2 ? argv[1] : NULL,
					.name = "engine",
					.arena_bytes = UINT64_C(16) << 20,
					.flags = DRAY_OPTION_NO_RECONNECT |
						 (argc == 2 ? DRAY_OPTION_GPU : 0) };

	if (argc != 1 && argc != 2)
		return engine_fail(e, "connect SOCKET [GPU]");
	if (dray_connect(&options, &e->d, e->why, sizeof(e->why)))
		return false;
	bench_say("{}");
	return true;
}

static bool do_export(struct engine *e, char **argv, unsigned argc)
{
	struct region *r = argc == 1 ? engine_region(e, argv[0]) : NULL;
	struct dray_token token;
	int rc;

	if (!r)
		return false;
	rc = dray_region_export(e->d, r->id, NULL, &token);
	if (rc)
		return engine_refused(e, "export", rc);
	bench_say("{\"token\": \"%s\"}", token.text);
	return true;
}

static bool do_import(struct engine *e, char **argv, unsigned argc)
{
	struct dray_remote_info info;
	struct dray_token token;
	dray_remote remote;
	int rc;

	if (argc != 1 || dray_token_parse(argv[0], &token))
		return engine_fail(e, "import TOKEN");
	rc = dray_remote_import(e->d, &token, 0, &remote);
	if (!rc)
		rc = dray_remote_get_info(e->d, remote, &info);
	if (rc)
		return engine_refused(e, "import", rc);
	bench_say("{\"remote\": %" PRIu64 ", \"transport\": \"%s\"}", remote.id,
		  engine_transport(info.transport));
	return true;
}

static bool do_release(struct engine *e, char **argv, unsigned argc)
{
	int rc;

	if (argc != 1)
		return engine_fail(e, "release REMOTE");
	rc = dray_remote_release(e->d, (dray_remote){ bench_number(argv[0]) });
	if (rc)
		return engine_refused(e, "release", rc);
	bench_say("{}");
	return true;
}

/* --- commands --------------------------------------------------------------------------------- */

bool engine_ops(struct engine *e, const char *path, struct bench_ops *ret)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return engine_fail(e, "%s: %s", path, strerror(errno));
	*ret = bench_ops_map(fd);
	close(fd);
	return true;
}

void engine_ops_close(struct bench_ops ops)
{
	munmap((void *)(uintptr_t)ops.v, ops.n * sizeof(struct bench_op));
}

static bool do_stop(struct engine *e, char **argv, unsigned argc)
{
	(void)e;
	(void)argv;
	(void)argc;
	bench_say("{}");
	return true;
}

static const struct command {
	const char *word;
	bool (*fn)(struct engine *e, char **argv, unsigned argc);
	bool session; /* the command needs a session */
} commands[] = {
	{ "devices", engine_devices, false },
	{ "connect", do_connect, false },
	{ "alloc", do_alloc, false },
	{ "free", do_free, false },
	{ "region", do_region, true },
	{ "early", do_early, true },
	{ "describe", do_describe, true },
	{ "pool", do_pool, true },
	{ "remove", do_remove, true },
	{ "fill", engine_fill, true },
	{ "check", engine_check, true },
	{ "export", do_export, true },
	{ "import", do_import, true },
	{ "release", do_release, true },
	{ "run", engine_run, true },
	{ "trip", engine_trip, true },
	{ "hold", engine_hold, true },
	{ "words", engine_words, true },
	{ "handles", engine_handles, false },
	{ "bare", engine_bare, false },
	{ "memory", engine_free_memory, false },
	{ "watch", engine_watch, false },
	{ "stop", do_stop, false },
};

static bool obey(struct engine *e, char **argv, unsigned argc)
{
	for (unsigned i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		if (strcmp(commands[i].word, argv[0]) != 0)
			continue;
		if (commands[i].session && !e->d)
			return engine_fail(e, "connect first");
		return commands[i].fn(e, argv + 1, argc - 1);
	}
	return engine_fail(e, "no command %s", argv[0]);
}

int main(void)
{
	char *line = NULL, *argv[ENGINE_EXTENTS + 2], why[2 * ENGINE_WHY];
	size_t room = 0;

	while (getline(&line, &room, stdin) > 0) {
		char *rest = NULL;
		unsigned argc = 0;

		for (char *word = strtok_r(line, " \n", &rest); word && argc < ENGINE_EXTENTS + 1;
		     word = strtok_r(NULL, " \n", &rest))
			argv[argc++] = word;
		argv[argc] = NULL;
		engine.code[0] = 0;
		if (argc && !obey(&engine, argv, argc))
			bench_say("{\"error\": \"%s\", \"code\": \"%s\"}",
				  engine_quote(engine.why, why, sizeof(why)), engine.code);
	}
	free(line);
	if (engine.d)
		dray_disconnect(engine.d);
	for (unsigned i = 0; i < ENGINE_REGIONS; i++)
		region_forget(&engine.regions[i]);
	for (unsigned i = 0; i < ENGINE_MEMORIES; i++)
		if (engine.memories[i].bytes)
			memory_free(&engine.memories[i], &engine.cuda);
	return 0;
}
