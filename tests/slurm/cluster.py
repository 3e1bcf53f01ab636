"""A SLURM cluster of two nodes on this machine, from the distribution's packages: slurm-wlm and munge.

It needs root, but neither systemd nor cgroups: daemons, keys, ports and logs are its own and end with it. Clients find
it by `SLURM_CONF`.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil

from tests.conftest import free_port, wait_for

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "srun")
PATH = f"{os.environ['PATH']}:/usr/sbin"  # where Debian has the daemons
NODES = [platform.node().partition(".")[0]]  # the first has a name that resolves, for torch's rendezvous
NODES += [f"{NODES[0]}-2"]

_CONFIGURATION = """\
ClusterName=test
AuthInfo=socket={folder}/munge/socket
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1,defer
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
ReturnToService=2
SlurmdTimeout=20
MaxArraySize=4
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=120
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2
"""
_NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=1 RealMemory=1000 State=UNKNOWN"


def missing() -> str | None:
    """Why no cluster can be started here; None if it can."""
    if absent := [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]:
        return f"{', '.join(absent)} not installed: apt-get install --no-install-recommends slurm-wlm munge"
    return None if os.geteuid() == 0 else "the daemons of SLURM are started as root"


class Cluster:
    """Two nodes of one core each. The partition `urgent` preempts `all`, after a warning."""

    def __enter__(self) -> Cluster:
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # a short path, for sockets
        self.folder.chmod(0o711)
        self._daemons: dict[str, subprocess.Popen] = {}
        self.environment = {**os.environ, "PATH": PATH, "SLURM_CONF": str(self.folder / "slurm.conf")}
        try:
            self._configure()
            self._start("munged", "--foreground", "--force", "--num-threads=1", *self._munge())
            wait_for("munged", (self.folder / "munge" / "socket").exists)
            self._start("slurmctld", "-D")
            for name in NODES:
                self.start_node(name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self("scancel", "--me")
        for name in NODES:
            self.kill_node(name)
        for daemon in reversed(self._daemons.values()):
            daemon.terminate()
            daemon.wait(timeout=30)
        _kill(self._processes())
        shutil.rmtree(self.folder)

    def __call__(self, *words: str) -> str:
        """The output of a client's command; empty where it fails."""
        done = subprocess.run(words, env=self.environment, text=True, capture_output=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    def start_node(self, name: str) -> None:
        """Power a node on, and wait until it takes jobs."""
        self._start("slurmd", "-D", "-N", name, key=name)
        states = "sinfo", "--noheader", "--nodes", name, "--format=%T"
        wait_for(f"node {name} ({self.folder})", lambda: self(*states).startswith("idle"), timeout=30)

    def kill_node(self, name: str) -> None:
        """Power a node off: its daemon and the processes of its jobs are gone at once."""
        if (daemon := self._daemons.pop(name, None)) is None:
            return
        daemon.kill()
        of_jobs = self._processes(SLURMD_NODENAME=name)
        parents = {process.parent() for process in of_jobs} - {None}
        shepherds = [process for process in parents if process.name() == "slurmstepd"]
        _kill([*shepherds, *of_jobs])  # in this order: a shepherd would report how its job ended
        daemon.wait()

    def job(self, job_id: str, field: str) -> str:
        """A field of `scontrol show job`, such as JobState; empty for a job that is forgotten."""
        words = self("scontrol", "show", "job", job_id).split()
        return dict(word.partition("=")[::2] for word in words).get(field, "")

    def start_again(self, job_id: str, **changes: str) -> None:
        """Start a requeued job, for which SLURM waits two minutes lest its end be taken for that of the new start.

        A node also refuses it in the second in which it was stopped.
        """
        wait_for(f"{job_id} to be requeued", lambda: self.job(job_id, "JobState") == "PENDING")
        wait_for(f"the end of {job_id}", lambda: not self._shepherded(job_id))
        fields = {"StartTime": "now+5", **changes}
        self("scontrol", "update", f"JobId={job_id}", *(f"{name}={value}" for name, value in fields.items()))

    def _configure(self) -> None:
        (self.folder / "munge").mkdir(mode=0o711)
        (self.folder / "state").mkdir()
        (self.folder / "munge" / "key").write_bytes(os.urandom(1024))
        (self.folder / "munge" / "key").chmod(0o400)
        nodes = "\n".join(_NODE.format(name=name, host=NODES[0], port=free_port()) for name in NODES)
        text = _CONFIGURATION.format(folder=self.folder, host=NODES[0], port=free_port(), nodes=nodes)
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nIgnoreSystemd=yes\n")

    def _munge(self) -> list[str]:
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        return [f"--{option}={self.folder}/munge/{name}" for option, name in files.items()]

    def _start(self, *words: str, key: str = "") -> None:
        with open(self.folder / f"{key or words[0]}.out", "ab") as output:
            options = {"stdout": output, "stderr": subprocess.STDOUT, "start_new_session": True}
            self._daemons[key or words[0]] = subprocess.Popen(words, env=self.environment, **options)

    def _processes(self, **variables: str) -> list[psutil.Process]:
        """The cluster's processes with these variables in their environment."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                environment = process.environ()
                wanted = {"SLURM_CONF": self.environment["SLURM_CONF"], **variables}
                if all(environment.get(name) == value for name, value in wanted.items()):
                    found.append(process)
        return found

    def _shepherded(self, job_id: str) -> bool:
        """Whether a node still looks after processes of the job."""
        title = f"slurmstepd: [{self.job(job_id, 'JobId')}."
        titles = ("".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"]))
        return any(found.startswith(title) for found in titles)


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
