"""A TPU slice of a GKE cluster: a JobSet with one pod for each of its nodes, for kubectl apply.

GKE gives the pods TPU_WORKER_ID and TPU_WORKER_HOSTNAMES, by which jax.distributed finds the processes. A pod that
fails or is preempted restarts the whole job, which resumes the run. The key of the run is a Secret of the job's name,
with a new one for each launch.
"""

from __future__ import annotations

import secrets
from typing import Any

import yaml

from launch.command import Job, Launch, check_lasts
from scope_jax.config import LaunchSection
from scope_jax.config.slices import SLICES
from scope_jax.multihost.signing import KEY


def launch(job: Job, section: LaunchSection) -> Launch:
    """The manifest, for the cluster under the name that `gcloud container clusters get-credentials` gives it."""
    gke = section.gke_jobset
    assert gke is not None  # checked by the section
    check_lasts(job, gke.volumes.values(), "launch.gke_jobset.volumes")
    context = f"gke_{gke.project}_{gke.location}_{gke.cluster}"
    text = yaml.safe_dump_all([secret(job, section), manifest(job, section)], sort_keys=False, width=1000)
    return Launch(text.rstrip("\n"), ("kubectl", f"--context={context}", "apply", "--filename=-"))


def secret(job: Job, section: LaunchSection) -> dict[str, Any]:
    """The Secret with the key of the run, as plain data."""
    gke = section.gke_jobset
    assert gke is not None
    metadata = {"name": _name(job), "namespace": gke.namespace}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {KEY: secrets.token_hex()}}


def manifest(job: Job, section: LaunchSection) -> dict[str, Any]:
    """The JobSet as plain data."""
    gke = section.gke_jobset
    assert gke is not None
    kind = SLICES[gke.tpu_type]
    labels = {} if gke.queue is None else {"labels": {"kueue.x-k8s.io/queue-name": gke.queue}}
    work = {
        "parallelism": kind.nodes,
        "completions": kind.nodes,
        "backoffLimit": 0,  # a failed pod fails its job, and the policy below restarts all
        "template": {"spec": _pod(job, section)},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": _name(job),
            "namespace": gke.namespace,
            **labels,
            "annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"},
        },
        "spec": {
            "failurePolicy": {"maxRestarts": gke.max_restarts},
            "replicatedJobs": [{"name": "slice", "replicas": 1, "template": {"spec": work}}],
        },
    }


def _name(job: Job) -> str:
    return job.name if job.name[0].isalpha() else f"run-{job.name}"  # a service of this name needs a letter first


def _pod(job: Job, section: LaunchSection) -> dict[str, Any]:
    gke = section.gke_jobset
    assert gke is not None
    kind = SLICES[gke.tpu_type]
    nodes = {
        "cloud.google.com/gke-tpu-accelerator": kind.accelerator,
        "cloud.google.com/gke-tpu-topology": kind.topology,
    }
    container: dict[str, Any] = {
        "name": "scope-jax",
        "image": gke.image,
        "command": [_literal(word) for word in job.words("scope-jax")],
        "env": [{"name": key, "value": _literal(value)} for key, value in section.environment.items()],
        "envFrom": [{"secretRef": {"name": _name(job)}}],
        "ports": [{"containerPort": 8471}, {"containerPort": 8482}],  # libtpu; the coordinator of jax.distributed
        "securityContext": {"privileged": True},
        "resources": {"limits": {"google.com/tpu": kind.chips_per_node}},
        "volumeMounts": [{"name": claim, "mountPath": path} for claim, path in gke.volumes.items()],
    }
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": gke.grace,
        "nodeSelector": nodes | ({"cloud.google.com/gke-spot": "true"} if gke.spot else {}),
        "containers": [{key: value for key, value in container.items() if value != []}],
    }
    if gke.service_account is not None:
        pod["serviceAccountName"] = gke.service_account
    if gke.volumes:
        pod["volumes"] = [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in gke.volumes]
    return pod


def _literal(text: str) -> str:
    """The text as Kubernetes passes it on unchanged: in commands and variables it reads $(NAME) as a reference and $$
    as $."""
    return text.replace("$", "$$")
