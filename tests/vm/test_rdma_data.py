# SPDX-License-Identifier: Apache-2.0
"""The tests of working paths, over Soft-RoCE: see tests/integration/test_data.py."""

from test_data import (test_both_directions_and_sessions, test_cancel, test_cancel_in_flight, test_deadline_in_flight,  # noqa: F401
                       test_extents, test_merging, test_notification_after_the_bytes, test_notify_alone,
                       test_one_memfd_many_extents, test_operations, test_remove_in_flight, test_ring_batch,
                       test_sizes_and_alignments, test_source_and_destination_overlap, test_token_of_a_range,
                       test_wait_and_set_words, test_ways_are_equal)
