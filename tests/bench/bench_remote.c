/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects of another agent's store, and the same bytes in a region of a client there: GETs, and reads of the region, both by blocking calls
 * of libdray. And GETs of an object of the same size from redis, by one socket.
 *
 *   bench_remote --socket PATH --owner PATH --space NAME --bytes BYTES [--redis PORT]
 *
 * --owner is the other agent. Each side has --bytes of memory, in which the objects lie side by side. Commands:
 *   size BYTES   of an object
 *   put COUNT    objects of this size at the owner, which get, read and check then are about, all at once; the bytes are compared
 *   get N        GETs of all of them
 *   read N       transfers of their bytes
 *   check N      the same, and afterwards the CRC-32C of each object
 *   ask N        the same after a round trip between two bare processes over TCP, as a lookup at the owner takes
 *   redis N      GETs of one of them from redis
 */
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "ctl/ceiling/echo.h"
#include "tests/bench/bench_session.h"

#define OBJECTS_MAX 64
#define FIND_TRIES 100
#define FIND_PAUSE_US 100000
#define QUESTION 64 /* bytes; the answer is a word */

/* One side: the memory where the objects are, or come. */
struct side {
	struct dray *d;
	dray_region region;
	uint8_t *memory;
};

static struct side here, there;
static dray_remote remote;
static uint64_t bytes, size;
static uint32_t count;
static const char *space;
static char keys[OBJECTS_MAX][32];
static struct dray_store_item items[OBJECTS_MAX];
static struct dray_store_range ranges[OBJECTS_MAX];
static struct dray_op ops[OBJECTS_MAX];
static uint32_t sums[OBJECTS_MAX];
static struct ceiling_echo echo = CEILING_ECHO_NULL;
static int redis = -1;
static char *reply;

static struct side side_open(const char *path)
{
	struct side s = { .d = bench_session_open(path, DRAY_OPTION_NO_RECONNECT) };
	uint64_t length;
	void *memory;

	if (dray_region_add_pool(s.d, bytes, DRAY_READ | DRAY_WRITE, 0, &s.region) < 0 ||
	    dray_region_map(s.d, s.region, &memory, &length, NULL) < 0)
		bench_die("%s", dray_last_error(s.d));
	s.memory = memory;
	return s;
}

static unsigned request(const struct side *s, enum dray_store_operation operation)
{
	struct dray_store_batch batch = {
		.space = space, .region = s->region, .items = items, .items_n = count
	};
	struct dray_store_result results[OBJECTS_MAX];
	unsigned wrong = 0;

	if (dray_store(s->d, operation, &batch, results) < 0)
		bench_die("%s", dray_last_error(s->d));
	for (uint32_t i = 0; i < count; i++)
		if (results[i].status != DRAY_STORE_OK &&
		    (operation != DRAY_STORE_PUT || results[i].status != DRAY_STORE_EXISTED))
			wrong = results[i].status;
	return wrong;
}

static void get(void)
{
	unsigned status = request(&here, DRAY_STORE_GET);

	if (status)
		bench_die("a GET has status %u", status);
}

static void read_all(void)
{
	struct dray_transfer t = { .local = here.region,
				   .remote = remote,
				   .direction = DRAY_DIRECTION_READ,
				   .ops = ops,
				   .count = count };

	if (dray_run(here.d, &t, NULL))
		bench_die("%s", dray_last_error(here.d));
}

static void read_and_check(void)
{
	read_all();
	for (uint32_t i = 0; i < count; i++)
		if (dray_checksum(0, here.memory + i * size, size) != sums[i])
			bench_die("other bytes have come");
}

static void ask_read_and_check(void)
{
	if (ceiling_echo_trips(&echo, 1))
		bench_die("the other end of the round trips has ended");
	read_and_check();
}

static void redis_ask(const char *head, const void *value, size_t n, size_t answer)
{
	const char *parts[] = { head, value, "\r\n" };
	const size_t lengths[] = { strlen(head), n, n ? 2 : 0 };

	for (unsigned i = 0; i < 3; i++)
		for (size_t at = 0; at < lengths[i];) {
			ssize_t sent = send(redis, parts[i] + at, lengths[i] - at, MSG_NOSIGNAL);

			if (sent <= 0)
				bench_die_errno("redis");
			at += (size_t)sent;
		}
	for (size_t at = 0; at < answer;) {
		ssize_t got = recv(redis, reply + at, answer - at, 0);

		if (got <= 0)
			bench_die_errno("redis");
		at += (size_t)got;
	}
}

static void redis_put(void)
{
	char head[96];

	snprintf(head, sizeof(head), "*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$%" PRIu64 "\r\n", size);
	redis_ask(head, there.memory, size, strlen("+OK\r\n"));
}

static void redis_get(void)
{
	char head[24];
	int n = snprintf(head, sizeof(head), "$%" PRIu64 "\r\n", size);

	redis_ask("*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n", NULL, 0, (size_t)n + size + 2);
}

static void put(uint64_t n)
{
	if (!n || n > OBJECTS_MAX || !size || size > bytes / n)
		bench_die("%" PRIu64 " objects of %" PRIu64 " bytes do not fit", n, size);
	count = (uint32_t)n;
	for (uint32_t i = 0; i < count; i++) {
		snprintf(keys[i], sizeof(keys[i]), "%" PRIu64 "-%u", size, i);
		ranges[i] = (struct dray_store_range){ .offset = i * size, .length = size };
		items[i] = (struct dray_store_item){ .key = keys[i],
						     .key_length = strlen(keys[i]),
						     .ranges = &ranges[i],
						     .ranges_n = 1 };
		ops[i] = (struct dray_op){ i * size, i * size, size };
		memset(there.memory + i * size, (int)(i + 1 + size / 4096), size);
		sums[i] = dray_checksum(0, there.memory + i * size, size);
	}
	if (request(&there, DRAY_STORE_PUT))
		bench_die("the owner does not take the objects");
	/* an agent that is slow to start, as an emulated one, may not have answered yet */
	for (unsigned tries = 0; request(&here, DRAY_STORE_GET) && tries < FIND_TRIES; tries++)
		usleep(FIND_PAUSE_US);
	if (redis >= 0)
		redis_put();
	for (unsigned way = 0; way < 2; way++) {
		memset(here.memory, 0, count * size);
		if (way)
			get();
		else
			read_all();
		if (memcmp(here.memory, there.memory, count * size) != 0)
			bench_die("other bytes have come");
	}
}

static void run(void (*one)(void), uint64_t n, uint64_t bytes_each)
{
	int64_t began = bench_ns(), cpu = bench_cpu_ns();

	for (uint64_t i = 0; i < n; i++)
		one();
	bench_say("{\"seconds\": %.9f, \"cpu\": %.9f, \"bytes\": %" PRIu64 ", \"n\": %" PRIu64 "}",
		  (double)(bench_ns() - began) / 1e9, (double)(bench_cpu_ns() - cpu) / 1e9,
		  n * bytes_each, n);
}

static void redis_open(uint16_t port)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_port = htons(port),
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int one = 1;

	redis = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (redis < 0 || connect(redis, (struct sockaddr *)&at, sizeof(at)) < 0 ||
	    setsockopt(redis, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) < 0)
		bench_die_errno("redis");
	reply = malloc(bytes + 64);
	if (!reply)
		bench_die_errno("malloc");
}

int main(int argc, char **argv)
{
	static const struct option options[] = { { "socket", required_argument, NULL, 's' },
						 { "owner", required_argument, NULL, 'o' },
						 { "space", required_argument, NULL, 'p' },
						 { "bytes", required_argument, NULL, 'b' },
						 { "redis", required_argument, NULL, 'r' },
						 { 0 } };
	static const struct {
		const char *word;
		void (*one)(void);
	} commands[] = { { "get", get },
			 { "read", read_all },
			 { "check", read_and_check },
			 { "ask", ask_read_and_check },
			 { "redis", redis_get } };
	const char *path = NULL, *owner = NULL;
	struct dray_token token;
	uint16_t port = 0;
	uint64_t n;
	char word[16];
	int o;

	while ((o = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (o == 's')
			path = optarg;
		else if (o == 'o')
			owner = optarg;
		else if (o == 'p')
			space = optarg;
		else if (o == 'b')
			bytes = bench_number(optarg);
		else if (o == 'r')
			port = (uint16_t)bench_number(optarg);
		else
			return 1;
	}
	if (!path || !owner || !space || !bytes)
		bench_die("--socket, --owner, --space and --bytes are needed");
	if (ceiling_echo_open(&echo, CEILING_ECHO_TCP, QUESTION))
		bench_die("no bare round trips over TCP");
	here = side_open(path);
	there = side_open(owner);
	token = bench_session_export(there.d, there.region);
	remote = bench_session_import(here.d, &token);
	if (port)
		redis_open(port);
	bench_say("{\"transport\": \"%s\"}", bench_session_transport(here.d, remote));
	while (bench_command(word, &n)) {
		unsigned i = 0;

		if (!strcmp(word, "size")) {
			size = n;
			continue;
		}
		if (!strcmp(word, "put")) {
			put(n);
			bench_say("{\"objects\": %u}", count);
			continue;
		}
		while (i < 5 && strcmp(word, commands[i].word) != 0)
			i++;
		if (i == 5 || !count || (commands[i].one == redis_get && redis < 0))
			bench_die("%s is no command now", word);
		run(commands[i].one, n, commands[i].one == redis_get ? size : count * size);
	}
	dray_disconnect(here.d);
	dray_disconnect(there.d);
	ceiling_echo_close(&echo);
	return 0;
}
