"""Plans on GPUs of a known memory: the micro-batch fits, the next one does not, and train.py takes it."""

import re

import pytest
import yaml

from scaling_law import Architecture, JointLaw, Throughput
from scaling_law.machine.memory import training_memory
from scaling_law.machine.throughput import ModelWork
from scaling_law.planning.budget import Cluster
from scaling_law.planning.placement import RESERVED, DoesNotFit, place
from scaling_law.size.recipe import BatchRamp, RampStage
from training.configuration.reading import from_dict

H100 = Throughput.assumed("h100")


def test_the_largest_micro_batch_that_fits():
    a = Architecture(1536, 8)
    found = place(a, Cluster(8, H100))
    assert (found.sharding, found.gradient_checkpointing) == ("fsdp2", False)
    assert found.memory.total <= 80e9 - RESERVED

    def total(size, sharding):
        settings = {"passes": 512 // (8 * size), "sharding": sharding, "devices": 8}
        return training_memory(a, size, 512, **settings).total

    assert found.memory.total == total(found.micro_batch_sequences, "fsdp2")
    assert total(found.micro_batch_sequences, "ddp") > 80e9 - RESERVED  # else it would not be sharded
    assert total(2 * found.micro_batch_sequences, "fsdp2") > 80e9 - RESERVED or found.micro_batch_sequences == 16


def test_small_models_are_whole_on_each_gpu_and_large_ones_compute_activations_again():
    small = place(Architecture(512, 8), Cluster(8, H100))
    assert (small.micro_batch_sequences, small.sharding) == (16, "ddp")
    assert str(small).endswith("of each GPU, micro-batches of 16 sequences, DDP")
    assert place(Architecture(512), Cluster(1, H100)).sharding == "none"
    large = place(Architecture(3520), Cluster(8, Throughput.assumed("rtx-4090")))
    assert large.gradient_checkpointing
    assert "gradient checkpointing" in str(large)


def test_what_cannot_be_trained_is_refused():
    with pytest.raises(ValueError, match=r"d_model 2048, E = 32 .*cannot be trained on 8 × .* has 78 GB free"):
        place(Architecture(2048, 32), Cluster(8, H100))
    with pytest.raises(ValueError, match="gpus=6 cannot share batches of 128, 256, 512 sequences equally"):
        place(Architecture(512), Cluster(6, H100))
    assert place(Architecture(1728, 32), Cluster(8, Throughput("a GPU", "bf16", {"flops": 1e-14}))) is None
    six = BatchRamp((RampStage(0, 96),), 512)
    assert place(Architecture(512), Cluster(6, H100, ramp=six)).micro_batch_sequences == 16


def test_the_plan_of_a_cluster_is_a_configuration_that_train_py_takes():
    made = JointLaw.published().plan(hours=24, gpus=8, throughput=H100, experts=[8])
    assert made.placement == place(made.architecture, Cluster(8, H100))
    arguments = from_dict(yaml.safe_load(made.to_yaml()))
    assert arguments.run.micro_batch_sequences == made.placement.micro_batch_sequences
    arguments.check_processes(8)
    assert made.to_dict()["placement"]["memory"]["optimizer"] > 0
    assert "placement" not in made.configuration()


def test_an_optimum_names_the_rows_that_cannot_be_trained():
    table = JointLaw.published().optimal(hours=240, gpus=8, throughput=H100, integral=True)
    (note,) = [warning for warning in table.warnings if "training takes more memory" in warning]
    named = [float(e) for e in note.partition(":")[0].removeprefix("E = ").split(", ")]
    for row in table:
        if row.experts in named:
            with pytest.raises(DoesNotFit):
                place(row.architecture, Cluster(8, H100))
        else:
            assert place(row.architecture, Cluster(8, H100))
    assert named == [32]
    small = JointLaw.published().optimal(hours=240, gpus=8, throughput=H100, max_parameters="7B")
    assert not any("more memory" in warning for warning in small.warnings)
    assert JointLaw.published().optimal(hours=72, gpus=6, throughput=H100).best.experts == 32


@pytest.mark.parametrize("experts", [None, [4, 32]])
def test_a_plan_is_the_best_that_the_gpus_can_train(experts):
    """Against every width of every E: the best of those that fit."""
    law, cluster = JointLaw.published(), Cluster(4, H100)
    asked = {"hours": 480, "gpus": 4, "throughput": H100}
    made = law.plan(**asked, experts=experts)
    losses = {}
    for e in experts or (1, 2, 4, 8, 16, 32):
        for d in range(1024, 3072, 64):
            a = Architecture(d, e)
            try:
                place(a, cluster)
            except DoesNotFit:
                break
            tokens = float(cluster.tokens(ModelWork.of(a), 480 * 3600.0))
            losses[e, d] = float(law.loss(a.n_active, tokens, e))
    best = min(losses, key=losses.get)
    assert (made.architecture.experts, made.architecture.d_model) == best
    assert made.placement == place(made.architecture, cluster)
    assert re.match(
        r"E = 32 at its best size \(d_model \d+, .* takes more memory than 4 × NVIDIA H100", made.warnings[0]
    )
    assert any(warning.startswith("best row: N_act") for warning in made.warnings)


def test_a_plan_that_fits_is_the_optimum():
    made = JointLaw.published().plan(hours=72, gpus=8, throughput=H100)
    table = JointLaw.published().optimal(hours=72, gpus=8, throughput=H100, integral=True)
    assert made.architecture == table.best.architecture
    assert not any("takes more memory" in warning for warning in made.warnings)


def test_gpus_without_memory_for_any_model_are_refused():
    tiny = Throughput("NVIDIA L4", "bf16", {"flops": 1e-14}, memory_bytes=2.1e9)
    with pytest.raises(DoesNotFit, match="cannot be trained on 1 × NVIDIA L4"):
        JointLaw.published().plan(hours=24, gpus=1, throughput=tiny)
