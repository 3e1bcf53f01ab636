"""The loopback Hub's Jobs and the buckets that they mount: a job is a process on this machine, a bucket a folder.

A specification is held to what `huggingface_hub.run_job` can send. A job waits until `JobServer.start`.
"""

from __future__ import annotations

import os
import subprocess
from datetime import datetime, timezone
from pathlib import Path

from tests.hub.loopback_api import endpoint
from tests.hub.loopback_state import Refused

HARDWARE = {"cpu-basic": (0, 0.000167), "a10g-small": (1, 0.0167), "a100x4": (4, 0.1667)}  # GPUs, dollars a minute
_FIELDS = {
    "command": list, "arguments": list, "environment": dict, "flavor": str, "dockerImage": str, "spaceId": str,
    "timeoutSeconds": int, "labels": dict, "secrets": dict, "volumes": list, "attempts": int,
}  # fmt: skip
_ENDED = ("COMPLETED", "CANCELED", "ERROR")


class JobServer:
    """The jobs of all namespaces, and the folders of the buckets."""

    def __init__(self):
        self.jobs: dict[str, dict] = {}
        self.specifications: dict[str, dict] = {}
        self.buckets: dict[str, Path] = {}
        self.processes: dict[str, subprocess.Popen] = {}

    def create(self, namespace, asked):
        for name, value in asked.items():
            if not isinstance(value, _FIELDS.get(name, ())):
                raise Refused(400, f"{name}: {value!r} is not allowed")
        if asked["flavor"] not in HARDWARE:
            raise Refused(400, f"flavor: {asked['flavor']!r} is none of {', '.join(HARDWARE)}")
        if not asked["command"] or ("dockerImage" in asked) == ("spaceId" in asked):
            raise Refused(400, "a job has a command, and either an image or a Space")
        for name, value in {**asked["environment"], **asked.get("labels", {})}.items():
            if not isinstance(value, str):
                raise Refused(400, f"{name} is no text")
        for volume in asked.get("volumes", []):
            if volume["type"] == "bucket" and volume["source"] not in self.buckets:
                raise Refused(404, f"there is no bucket {volume['source']}")
        job_id = f"{len(self.jobs):024x}"
        shown = {name: value for name, value in asked.items() if name != "secrets"}
        self.specifications[job_id] = asked
        self.jobs[job_id] = {
            **shown, "id": job_id, "createdAt": _now(), "status": {"stage": "SCHEDULING", "message": None},
            "owner": {"id": "0" * 24, "name": namespace, "type": "org"}, "namespace": namespace,
            "durations": {"schedulingSecs": 1, "runningSecs": None, "totalSecs": 1},
        }  # fmt: skip
        return self.jobs[job_id]

    def of(self, namespace, job_id):
        job = self.jobs.get(job_id)
        if job is None or job["namespace"] != namespace:
            raise Refused(404, "Job not found")
        if (process := self.processes.get(job_id)) and job["status"]["stage"] == "RUNNING":
            if (ended := process.poll()) is not None:
                job["status"] = {"stage": "ERROR" if ended else "COMPLETED", "message": None}
            job["durations"] = {"schedulingSecs": 1, "runningSecs": 3600, "totalSecs": 3601}  # an hour, for its price
        return job

    def start(self, job_id, **environment):
        """Run a job's command here; a path below the place where a bucket is mounted is one in the bucket's folder."""
        asked = self.specifications[job_id]
        places = {volume["mountPath"]: str(self.buckets[volume["source"]]) for volume in asked["volumes"]}

        def here(text):
            for there, folder in places.items():
                text = text.replace(f"{there}/", f"{folder}/")
            return text

        variables = {**os.environ, **environment, **asked["environment"], **asked.get("secrets", {})}
        command = [here(word) for word in asked["command"]]
        self.processes[job_id] = process = subprocess.Popen(
            command, env={name: here(value) for name, value in variables.items()}
        )
        self.jobs[job_id]["status"]["stage"] = "RUNNING"
        return process


def _now():
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.000Z")


@endpoint("jobs-hardware", "/api/jobs/hardware")
def hardware(call):
    return call.json(
        [
            {
                "name": name, "prettyName": name, "cpu": "2 vCPU", "ram": "16 GB", "ephemeralStorage": "20 GB",
                "accelerator": {"type": "gpu", "model": "A", "quantity": f"{gpus}", "vram": "80", "manufacturer": "N"}
                if gpus else None,
                "unitCostMicroUSD": round(price * 1e6), "unitCostUSD": price, "unitLabel": "minute",
            }
            for name, (gpus, price) in HARDWARE.items()
        ]
    )  # fmt: skip


@endpoint("jobs", "/api/jobs/(?P<namespace>[^/]+)")
def jobs(call, namespace):
    call.writer(namespace)
    if call.request.method == "POST":
        return call.json(call.hub.jobs.create(namespace, call.request.json()))
    wanted = dict(label.split("=", 1) for label in call.request.query.get("label", []))
    of_namespace = [job for job, of in call.hub.jobs.jobs.items() if of["namespace"] == namespace]
    listed = [call.hub.jobs.of(namespace, job) for job in reversed(of_namespace)]  # the newest first
    return call.page([job for job in listed if wanted.items() <= job.get("labels", {}).items()])


@endpoint("job", "/api/jobs/(?P<namespace>[^/]+)/(?P<job>[^/]+)")
def inspect(call, namespace, job):
    call.writer(namespace)
    return call.json(call.hub.jobs.of(namespace, job))


@endpoint("job-cancel", "/api/jobs/(?P<namespace>[^/]+)/(?P<job>[^/]+)/cancel")
def cancel(call, namespace, job):
    call.writer(namespace)
    found = call.hub.jobs.of(namespace, job)
    if process := call.hub.jobs.processes.get(job):
        process.terminate()
    if found["status"]["stage"] not in _ENDED:
        found["status"] = {"stage": "CANCELED", "message": None}
    return call.json({})


@endpoint("bucket", "/api/buckets/(?P<bucket>[^/]+/[^/]+)")
def bucket_info(call, bucket):
    files = [path for path in _folder(call, bucket).rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    about = {"id": bucket, "private": True, "createdAt": _now(), "size": size, "totalFiles": len(files)}
    return call.json(about)


@endpoint("bucket-tree", "/api/buckets/(?P<bucket>[^/]+/[^/]+)/tree(?:/(?P<prefix>.+))?")
def bucket_tree(call, bucket, prefix=""):
    folder = _folder(call, bucket)
    files = sorted(path for path in (folder / prefix).rglob("*") if path.is_file())
    return call.page([_item(folder, path) for path in files])


@endpoint("bucket-paths", "/api/buckets/(?P<bucket>[^/]+/[^/]+)/paths-info")
def bucket_paths(call, bucket):
    folder = _folder(call, bucket)
    files = [folder / path for path in call.request.json()["paths"]]
    return call.json([_item(folder, path) for path in files if path.is_file()])


@endpoint("bucket-file", "/buckets/(?P<bucket>[^/]+/[^/]+)/resolve/(?P<path>.+)")
def bucket_file(call, bucket, path):
    file = _folder(call, bucket) / path
    if not file.is_file():
        raise Refused(404, "Entry not found", "EntryNotFound")
    return call.ranged(file.read_bytes(), {"Accept-Ranges": "bytes"})


def _folder(call, bucket):
    call.writer(bucket.split("/")[0])
    if bucket not in call.hub.jobs.buckets:
        raise Refused(404, "Bucket not found")
    return call.hub.jobs.buckets[bucket]


def _item(folder, path):
    return {
        "type": "file", "path": path.relative_to(folder).as_posix(), "size": path.stat().st_size, "xetHash": "0" * 64,
        "mtime": _now(), "uploadedAt": _now(),
    }  # fmt: skip
