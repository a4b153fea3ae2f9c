"""Who writes Hypervisor objects: an operator and a node agent, at a real API server."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from kubernetes import client, config

from config.launcher.processes import wait_until
from tests.bridge.hypervisor_objects import DEFINITION, Json
from tests.kube.server import Cluster

PATIENCE_SECONDS = 60.0
KIND = ("kvm.cloud.sap", "v1", "hypervisors")


class Objects:
    """The Hypervisor objects of a cluster, as their operator writes them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._client: Any = config.new_client_from_config(  # type: ignore[no-untyped-call]  # theirs
            str(cluster.kubeconfig)
        )
        self._api: Any = client.CustomObjectsApi(self._client)

    def define(self) -> None:
        definitions: Any = client.ApiextensionsV1Api(self._client)
        known = [one.metadata.name for one in definitions.list_custom_resource_definition().items]
        if DEFINITION["metadata"]["name"] not in known:
            definitions.create_custom_resource_definition(deepcopy(DEFINITION))
        awaited(self._is_served)
        for body in self._api.list_cluster_custom_object(*KIND)["items"]:
            self.delete(body["metadata"]["name"])

    def _is_served(self) -> bool:
        try:
            self._api.list_cluster_custom_object(*KIND)
        except client.ApiException:
            return False
        return True

    def put(self, body: Json) -> None:
        name = body["metadata"]["name"]
        try:
            self._api.create_cluster_custom_object(*KIND, deepcopy(body))
        except client.ApiException as error:
            if error.status != 409:
                raise
            self._api.patch_cluster_custom_object(*KIND, name, {"spec": body["spec"]})
        self.say(name, **body["status"])

    def say(self, name: str, **status: Any) -> None:
        self._api.patch_cluster_custom_object_status(*KIND, name, {"status": status})

    def get(self, name: str) -> Json:
        found: Json = self._api.get_cluster_custom_object(*KIND, name)
        return found

    def names(self) -> list[str]:
        listed = self._api.list_cluster_custom_object(*KIND)["items"]
        return sorted(body["metadata"]["name"] for body in listed)

    def delete(self, name: str) -> None:
        self._api.delete_cluster_custom_object(*KIND, name)

    def close(self) -> None:
        self._client.close()


def awaited(is_true: Callable[[], bool], *, seconds: float = PATIENCE_SECONDS) -> None:
    assert wait_until(is_true, seconds), "it never came true"
