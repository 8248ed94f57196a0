# SPDX-License-Identifier: Apache-2.0
class KVConnectorOutput:
    finished_sending: set[str] | None
    finished_recving: set[str] | None
    failed_recving: set[str] | None
    kv_connector_worker_meta: object

class ECConnectorOutput:
    ec_connector_worker_meta: object
