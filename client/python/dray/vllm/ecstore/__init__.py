# SPDX-License-Identifier: Apache-2.0
"""DrayECStoreConnector: outputs of encoders in the store of the agent, put by engines that encode (E), and taken by those that use them.

E's scheduler side puts outputs from E's pool, and E's request ends when they are there. The scheduler side of PD gets them into its
own pool. Pools, workers and hooks are those of DrayECConnector (dray.vllm.ec).
"""
