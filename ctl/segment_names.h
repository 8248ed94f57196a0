/* SPDX-License-Identifier: Apache-2.0 */
/* Members of dev.dray.Agent1 about segments, hints and the environment. */
#ifndef DRAY_CTL_SEGMENT_NAMES_H
#define DRAY_CTL_SEGMENT_NAMES_H

#include "schema/gen/dbus.h"

#define DRAY_DBUS_METHOD_LIST_SEGMENTS "ListSegments"
#define DRAY_DBUS_METHOD_LIST_CANDIDATES "ListCandidates"
#define DRAY_DBUS_METHOD_LIST_HINTS "ListHints"
#define DRAY_DBUS_METHOD_SET_HINT "SetHint"
#define DRAY_DBUS_METHOD_FORGET_HINTS "ForgetHints"
#define DRAY_DBUS_METHOD_LIST_ENVIRONMENT "ListEnvironment"
#define DRAY_DBUS_SIGNAL_SEGMENT_CHANGED "SegmentChanged"
#define DRAY_DBUS_SIGNAL_PREFERRED_CHANGED "PreferredChanged"

#endif
