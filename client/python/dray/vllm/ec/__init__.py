# SPDX-License-Identifier: Apache-2.0
"""DrayECConnector: outputs of vision and audio encoders move from the engine that encodes (E) to those that use them (PD).

E's outputs lie in a pool that is shared with the agent. The scheduler side of E assigns their places and lends them; its worker
copies outputs there. The scheduler side of PD has them pulled into a pool of its own, and its workers take them from there. A
pool is a memfd that all processes of an engine map, or memory of the GPU of an engine that is one process (pool_memory.py,
gpu_pool.py), so that no worker talks to an agent.

reader.py, writer.py and hooks.py are what it has in common with DrayECStoreConnector (dray.vllm.ecstore).
"""
