"""GPUs by name and by description: the numbers of data sheets, and no suggestion of another device."""

import pytest

from hub.base.tables import as_text
from scaling_law import Architecture, JointLaw, Throughput, scale_out
from scaling_law.machine import GPUS
from scaling_law.machine.gpus import describe_memory, find_gpu, named_gpu, parse_memory

SHEETS = {  # dense FLOP/s of the matrix units, bytes/s and bytes of memory, bytes/s to the others of a node
    "h20": (148e12, 4.0e12, 96e9, 450e9),
    "a800": (312e12, 2.039e12, 80e9, 200e9),
    "v100": (125e12, 0.9e12, 32e9, 150e9),
    "mi350x": (2.3e15, 8.0e12, 288e9, 448e9),
    "tpu-v5p": (459e12, 2.765e12, 95e9, 600e9),
    "trainium-2": (667e12, 2.9e12, 96 * 2**30, 640e9),
}


@pytest.mark.parametrize("name", SHEETS)
def test_the_numbers_of_data_sheets(name):
    gpu = named_gpu(name)
    assert (gpu.peak_flops, gpu.bandwidth, gpu.memory_bytes, gpu.link) == SHEETS[name]
    assert gpu.source
    assert Throughput.assumed(name).memory_bytes == gpu.memory_bytes


def test_every_gpu_is_found_by_its_key_by_its_name_and_by_a_drivers():
    for key, gpu in GPUS.items():
        for name in (key, key.lower().replace(" ", "-"), key.replace(" ", ""), gpu.name):
            assert named_gpu(name) == gpu, name
    drivers = {
        "NVIDIA H20": "H20",
        "NVIDIA A800-SXM4-80GB": "A800",
        "Tesla V100-SXM2-16GB": "V100 16GB",
        "Tesla V100-PCIE-32GB": "V100 PCIe",
        "AMD Instinct MI350X": "MI350X",
    }
    for name, key in drivers.items():
        assert find_gpu(name) == GPUS[key]


@pytest.mark.parametrize("name", ["h10", "h30", "h200x", "a80", "v10", "l40", "mi350", "tpu-v5e", "trainium", ""])
def test_no_other_device_is_suggested(name):
    """One digit is a factor of six in speed; the message lists all, and how to describe any other."""
    with pytest.raises(ValueError, match=f"gpu={name!r} is unknown; there are gb300, ") as refused:
        named_gpu(name)
    assert "did you mean" not in str(refused.value)
    assert 'by its peak and memory, "peak=148T,memory=96GB"' in str(refused.value)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("4090", "RTX 4090"),
        ("3090", "RTX 3090"),
        ("RTX3090", "RTX 3090"),
        ("5090", "RTX 5090"),
        ("a6000", "RTX A6000"),
    ],
)
def test_a_consumer_card_is_called_by_its_number(name, key):
    assert named_gpu(name) == GPUS[key]
    assert find_gpu(GPUS[key].name) == GPUS[key]


def test_a_v100_computes_in_fp16():
    throughput = Throughput.assumed("v100")
    assert throughput.precision == "fp16"
    assert throughput.warnings(Architecture(512))[0].endswith("train.py has no fp16: other engines take them")
    with pytest.raises(ValueError, match=r"precision='bf16': NVIDIA V100 SXM 32GB computes in fp16"):
        Throughput.assumed("v100", precision="bf16")
    best = JointLaw.published().optimal(hours=24, gpus=8, gpu="v100")
    assert "(fp16, assumed)" in str(best)
    assert "(bf16, assumed)" in str(JointLaw.published().optimal(hours=24, gpus=8, gpu="a100"))
    assert GPUS["RTX 3090"].precisions == ("bf16",)
    assert GPUS["RTX 5090"].precisions == ("bf16", "fp8", "fp4")


def test_what_step_times_rest_on_is_said():
    (v100,) = Throughput.assumed("v100").warnings(Architecture(512))
    assert "by its data sheet (its peak is of fp16: it has no bf16)" in v100
    for name in ("tpu-v5p", "trainium2"):
        (warning,) = Throughput.assumed(name, mfu=0.4).warnings(Architecture(512))
        assert "(train.py does not run on it)" in warning
    (known,) = Throughput.assumed("h100").warnings(Architecture(512))
    assert known.endswith("steps of train.py on an H100 and of torchtitan, by its data sheet")
    (public,) = Throughput.assumed("h100", engine="megatron").warnings(Architecture(512))
    assert public.endswith("public runs and benchmarks of 18 labs, by its data sheet")


def test_a_device_is_described_by_its_peak_and_memory():
    """With all of an H20 given, all answers are the H20's; what is not given is assumed, and said."""
    h20 = "peak=148T, memory=96GB, bandwidth=4TB/s, link=450GB/s"
    described, listed = named_gpu(h20), GPUS["H20"]
    assert described[1:4] == listed[1:4]
    assert (described.link, described.node, find_gpu(described.name)) == (450e9, 8, described)
    model = Architecture(1024, 8)
    (one,), (other,) = (scale_out(model, [64], gpu).rows for gpu in (h20, "h20"))
    assert one == other
    law = JointLaw.published()
    answers = [law.optimal(hours=24, gpus=8, gpu=gpu, experts=[8]).best for gpu in (h20, "H20")]
    assert answers[0].loss == answers[1].loss
    short = named_gpu("peak=989T,memory=80GB")
    assert short.bandwidth == pytest.approx(3.35e12)  # as an H100
    assert short.link == 63e9
    assert short.precisions == ("bf16",)
    (warning,) = Throughput.assumed(short.name).warnings(model)
    assert (
        "assumed: 3.35 TB/s of memory (as many FLOPs per byte as an H100), 63 GB/s between GPUs of a node" in warning
    )
    (given,) = Throughput.assumed(h20).warnings(model)
    assert "by the peak and links that are given" in given


WRONG = {
    "peak=148,memory=96GB": "a peak of 148 FLOP/s is too low: did you mean peak=148T?",
    "peak=148T,memory=96": "memory '96' is 96 bytes: did you mean 96GB?",
    "peak=148T": "memory is missing; write it as in 'peak=148T,memory=96GB'",
    "memory=96GB": "peak is missing",
    "peak=much,memory=96GB": "peak 'much' is not a quantity",
    "peak=148T,memory=0GB": "memory must be positive",
    "peak=148T,memory=96GB,node=1.5": "node must be a whole number of GPUs",
    "peak=148T,memory=96GB,price=2": "'price' is unknown; there are peak, memory, bandwidth, link, node",
    "=": "'' is unknown; there are peak,",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_description_is_named(text):
    with pytest.raises(ValueError, match=f"^gpu={text!r}: ") as refused:
        named_gpu(text)
    assert WRONG[text] in str(refused.value)


@pytest.mark.parametrize(
    ("text", "memory", "description"),
    [
        ("24GB", 24e9, "24 GB"),
        ("rtx4090", 0.9 * 24e9, "21.6 GB (0.9 of 1 × NVIDIA GeForce RTX 4090)"),
        ("2xh100", 0.9 * 160e9, "144 GB (0.9 of 2 × NVIDIA H100 SXM)"),
        ("8 × A100-40GB", 0.9 * 320e9, "288 GB (0.9 of 8 × NVIDIA A100 SXM 40GB)"),
        (24e9, 24e9, "24 GB"),
    ],
)
def test_memory_is_bytes_or_what_gpus_have_for_a_model_that_they_serve(text, memory, description):
    assert parse_memory(text) == pytest.approx(memory)
    assert describe_memory(parse_memory(text)) == description


@pytest.mark.parametrize("text", ["4090", "a lot", "2xtoaster", "x", ""])
def test_text_that_names_neither_bytes_nor_gpus_is_refused_as_bytes(text):
    with pytest.raises(ValueError, match=f"memory={text!r} is"):
        parse_memory(text)


def test_an_answer_says_which_gpus_its_memory_is_of():
    law = JointLaw.published()
    answer = law.optimal(1e21, memory="2xh100", experts=[1, 8])
    assert "≤ 144 GB (0.9 of 2 × NVIDIA H100 SXM)" in as_text(answer)
    assert answer.best == law.optimal(1e21, memory=144e9, experts=[1, 8]).best
    with pytest.raises(ValueError, match="memory='0xh100'"):
        law.optimal(1e21, memory="0xh100")
