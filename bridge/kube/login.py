"""Where a cluster is and who we are there, as the official client reads it.

It knows kubeconfigs, plugins and rotating tokens of service accounts.
"""

from __future__ import annotations

from pathlib import Path

from kubernetes import config
from kubernetes.client import ApiClient, Configuration
from kubernetes.config.config_exception import ConfigException
from yaml import YAMLError

from journal.errors import HeadroomError


class ClusterUnavailable(HeadroomError):  # noqa: N818 - says what is the case
    """A cluster does not answer, or not to us: what waits for it goes on waiting."""

    code = "cluster_unavailable"


def log_in(*, kubeconfig: Path | None, context: str, is_in_pod: bool, threads: int) -> ApiClient:
    """Return a client of a cluster; nothing is sent.

    Args:
        kubeconfig: That file; the usual one when left out.
        context: One of the file's; empty is its current one.
        is_in_pod: It is the cluster of the pod that we run in.
        threads: Connections to keep.

    Raises:
        ClusterUnavailable: The file cannot be read, or we are in no pod.
    """
    configuration = Configuration()
    try:
        if is_in_pod:
            config.load_incluster_config(  # type: ignore[no-untyped-call]  # theirs
                client_configuration=configuration
            )
        else:
            config.load_kube_config(  # type: ignore[no-untyped-call]  # theirs
                None if kubeconfig is None else str(kubeconfig),
                context=context or None,
                client_configuration=configuration,
                persist_config=False,
            )
    except (ConfigException, YAMLError, OSError, ValueError) as error:
        raise ClusterUnavailable(f"no way to the cluster: {error}") from error
    configuration.connection_pool_maxsize = threads
    configuration.retries = False  # whoever asks has one deadline, and waits longer each time
    return ApiClient(configuration)
