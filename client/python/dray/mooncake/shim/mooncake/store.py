# SPDX-License-Identifier: Apache-2.0
"""mooncake.store, carried out by dray."""

from dray.mooncake.store import BufferHandle, MooncakeDistributedStore, ObjectDataType, ReplicaDescriptor, ReplicaStatus, ReplicateConfig, SoftPinAction

__all__ = ["BufferHandle", "MooncakeDistributedStore", "ObjectDataType", "ReplicaDescriptor", "ReplicaStatus", "ReplicateConfig", "SoftPinAction"]
