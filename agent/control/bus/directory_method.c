/* SPDX-License-Identifier: Apache-2.0 */
/* CheckStoreDirectory: the caller begins a check, and calls again until it has ended. */
#include "agent/control/bus/internal.h"
#include "agent/control/directory/directory.h"
#include "schema/gen/dbus_vtable.h"

int dbus_method_check_store_directory(sd_bus_message *m, void *userdata, sd_bus_error *reterr)
{
	struct bus_conn *c = userdata;
	struct directory *d = c->server->agent->directory;
	struct directory_check k;
	/* without a directory there is nothing to protect */
	int begin = 0, ret = d ? bus_check_change(c, sd_bus_message_get_member(m), reterr) : 0;

	if (ret >= 0)
		ret = sd_bus_message_read(m, "b", &begin);
	if (ret < 0)
		return ret;
	if (!d)
		return sd_bus_reply_method_return(m, "ssb", "none", "", 0);
	if (begin)
		directory_check(d);
	k = directory_checked(d);
	return sd_bus_reply_method_return(m, "ssb", directory_state_name(k.state), k.why,
					  (int)k.pending);
}
