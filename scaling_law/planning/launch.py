"""The line that starts a plan's run: `accelerate launch` with the file, processes and machines of its layout."""

from __future__ import annotations

import shlex

from scaling_law.machine.gpus import find_gpu
from scaling_law.machine.layout import Placement
from scaling_law.planning.budget import Cluster

# A folder of a checkout, as train.py is a file of it.
FILES = "training/configs/accelerate"
RENDEZVOUS = "--machine_rank $RANK --main_process_ip $ADDRESS --main_process_port 29500"


def launch_line(config: str, placement: Placement | None, cluster: Cluster | None) -> str:
    """The line for `config` on these GPUs; without a layout, that of whatever `accelerate config` has set up.

    On several machines it is started on each, with its RANK and the ADDRESS of the first in the environment.
    """
    train = f"train.py --config {shlex.quote(config)}"
    if placement is None or cluster is None:
        return f"accelerate launch {train}"
    machines = count_machines(cluster)
    words = [f"accelerate launch --config_file {FILES}/{_file(placement, machines)}"]
    if cluster.gpus > 1:
        words.append(f"--num_processes {cluster.gpus}")
    if machines > 1:
        words.append(f"--num_machines {machines} {RENDEZVOUS}")
    if placement.dp > 1 and placement.sharding == "fsdp2":
        words.append(f"--parallelism_config_dp_replicate_size {placement.dp}")
        words.append(f"--parallelism_config_dp_shard_size {placement.fsdp}")
    if placement.sharding == "fsdp2" and not placement.reshard:
        words.append("--fsdp_reshard_after_forward false")
    return " ".join([*words, train])


def count_machines(cluster: Cluster) -> int:
    """Return the fewest machines that have the GPUs, each with equally many of them."""
    sheet = find_gpu(cluster.throughput.device)
    size = (sheet.machine if sheet else None) or cluster.throughput.node
    return next(count for count in range(-(-cluster.gpus // size), cluster.gpus + 1) if cluster.gpus % count == 0)


def _file(placement: Placement, machines: int) -> str:
    """The configuration of Accelerate for this layout."""
    if placement.sharding == "none":
        return "single_gpu.yaml"
    where = "one_node" if machines == 1 else "multi_node"
    if placement.sharding == "ddp":
        return f"{where}_ddp.yaml"
    return "multi_node_hsdp.yaml" if placement.dp > 1 else f"{where}_fsdp2.yaml"
