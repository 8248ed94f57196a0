/* SPDX-License-Identifier: Apache-2.0 */
/* The lists of the interface, with the columns of their tables. */
#include "ctl/bus/list.h"
#include "lib/cleanup.h"

#define LIST(method, noun, name, columns)                                   \
	{                                                                   \
		DRAY_DBUS_METHOD_##method, noun, dray_dbus_##name##_fields, \
			DRAY_ARRAY_SIZE(dray_dbus_##name##_fields), columns \
	}

const struct ctl_list ctl_list_sessions =
	LIST(LIST_SESSIONS, "sessions", session,
	     "session name group uid pid worker regions remotes tokens ring age_ns");

const struct ctl_list ctl_list_regions =
	LIST(LIST_REGIONS, "regions", region,
	     "region name session kind access extents length tokens grants state GPU=device rdma");

const struct ctl_list ctl_list_peers =
	LIST(LIST_PEERS, "peers", peer,
	     "segment AGENT=agent_id state FOR=since_ns HEARD=heartbeat_age_ns PATH=transport "
	     "streams rails grants imports reason");

const struct ctl_list ctl_list_rails =
	LIST(LIST_RAILS, "rails", rail,
	     "device port LINK=state rail STATE=rail_state rate mtu netdev numa INDEX=gid_index "
	     "gid reason");

const struct ctl_list ctl_list_paths =
	LIST(LIST_PATHS, "paths", path,
	     "segment device port gid to_gid mtu state QPS=queue_pairs SENT=sent_bytes "
	     "RECEIVED=received_bytes retries reason");

const struct ctl_list ctl_list_gpus =
	LIST(LIST_GPUS, "gpus", gpu,
	     "GPU=index name uuid PCI=bdf state memory CONTEXT=context_bytes regions bytes "
	     "SMS=multiprocessors DMA-BUF=dmabuf peers reason");

const struct ctl_list ctl_list_transfers =
	LIST(LIST_TRANSFERS, "transfers", transfer,
	     "session request direction class PATH=transport GPU=gpu_path state OPS=operations "
	     "bytes DONE=bytes_done slices age_ns left_ns");

const struct ctl_list ctl_list_ended =
	LIST(LIST_ENDED_TRANSFERS, "ended_transfers", ended_transfer,
	     "ago_ns session request segment direction PATH=transport GPU=gpu_path status "
	     "OPS=operations bytes TOOK=duration_ns queued_ns moved_ns");

const struct ctl_list ctl_list_events =
	LIST(LIST_EVENTS, "events", event, "time_ns kind subject FROM=old TO=new reason");

const struct ctl_list ctl_list_segments =
	LIST(LIST_SEGMENTS, "segments", segment,
	     "segment state FOR=since_ns preferred local verified sources probe latency_ns "
	     "USED=allocated capacity reason");

const struct ctl_list ctl_list_candidates = LIST(LIST_CANDIDATES, "candidates", candidate,
						 "rank segment preference state chosen reason");

const struct ctl_list ctl_list_hints =
	LIST(LIST_HINTS, "hints", hint, "scope segment source uid score age_ns left_ns counts");

const struct ctl_list ctl_list_variables =
	LIST(LIST_ENVIRONMENT, "variables", variable, "profile name value reason");

const struct ctl_list ctl_list_settings = LIST(DUMP_CONFIG, "settings", setting, "key value");

const struct ctl_list ctl_list_origins =
	LIST(DUMP_CONFIG, "settings", setting, "key value RELOADS=reload origin");
