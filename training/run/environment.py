"""The environment of a run: variables, and switches of torch that the process set before.

The configuration alone decides the model. So whatever else could change it is refused by name or goes into the run
record. Accelerate reads its settings from variables, which its launcher sets from flags and its file: those that
`train.py` cannot carry out are refused, those that change no number are known here, and unknown ones are recorded. A
test walks the variables that the installed Accelerate and transformers read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from operator import attrgetter
from typing import NamedTuple

import torch

from hub.base.errors import InputError
from hub.base.types import Strings
from hub.record.run_record import to_plain
from training.configuration.arguments import ConfigurationError, RunArguments

_OFF = ("", "0", "false", "no", "none", "off")
# Limits of a record's `environment`.
MAX_RECORDED = 64
MAX_CHARACTERS = 300
_NAME = re.compile("[A-Za-z0-9_]{1,100}")
_MPI_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
_FSDP2 = "shard with FSDP2, as training/configs/accelerate/one_node_fsdp2.yaml does"


class Refusal(NamedTuple):
    """The advice for a variable that is refused, and the values with which it asks for nothing."""

    advice: str
    harmless_values: Strings = _OFF


# Variables of Accelerate that are refused. A `*` stands for any letters.
REFUSED = {
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": Refusal(
        "schedule.batch_ramp and run.micro_batch_sequences say how many micro-batches make a step", ("1",)
    ),
    "ACCELERATE_GRADIENT_CLIPPING": Refusal("set optimizer.gradient_clip"),
    "ACCELERATE_MIXED_PRECISION": Refusal(
        "run.precision decides, bf16 or fp32 (accelerate launch --mixed_precision no)", ("no", "bf16")
    ),
    "ACCELERATE_FP8_*": Refusal("set run.precision, bf16 or fp32"),
    "ACCELERATE_DYNAMO_BACKEND": Refusal("run.compile decides (accelerate launch --dynamo_backend no)"),
    "ACCELERATE_USE_DEEPSPEED": Refusal(_FSDP2),
    "ACCELERATE_USE_MEGATRON_LM": Refusal(_FSDP2),
    "ACCELERATE_USE_SAGEMAKER": Refusal("start train.py on each machine, by accelerate launch or torchrun"),
    "FSDP_OFFLOAD_PARAMS": Refusal("train.py keeps weights on their devices; use more of them"),
    "FSDP_ACTIVATION_CHECKPOINTING": Refusal("set run.gradient_checkpointing"),
    "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD": Refusal("set run.gradient_checkpointing"),
    "FSDP_IGNORED_MODULES": Refusal("train.py shards every parameter"),
}

# Variables of Accelerate and transformers for where and how fast a run is trained, for messages, and for choices that
# train.py makes itself.
HARMLESS = (
    # The device, which the record names, and its threads.
    *("ACCELERATE_TORCH_DEVICE", "ACCELERATE_USE_CPU", "ACCELERATE_CPU_AFFINITY", "*_VISIBLE_*", "ZE_AFFINITY_MASK"),
    *("KMP_AFFINITY", "KMP_BLOCKTIME", "*_NUM_THREADS", "PYTORCH_ENABLE_MPS_FALLBACK", "CUDA_HOME", "CUDA_PATH"),
    # The number and the place of the processes.
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "NPROC"),
    *("PMI_*", "OMPI_*", "MV2_*", "MPI_*", "FORK_LAUNCHED", "ACCELERATE_DEBUG_RDV_FILE", "TORCHELASTIC_*"),
    *("NCCL_*", "TORCH_NCCL_*", "TORCH_DISTRIBUTED_*", "TPU_NAME", "PJRT_DEVICE", "PT_HPU_LAZY_MODE"),
    # The mesh and FSDP2: `devices` checks them, or train.py shards by itself.
    *("ACCELERATE_USE_FSDP", "ACCELERATE_USE_PARALLELISM_CONFIG", "ACCELERATE_ALLOW_CP_STANDALONE"),
    *("PARALLELISM_CONFIG_??_*", "PARALLELISM_CONFIG_DP_REPLICATE_SIZE", "PARALLELISM_CONFIG_DP_SHARD_SIZE"),
    *("FSDP_VERSION", "FSDP_SHARDING_STRATEGY", "FSDP_RESHARD_AFTER_FORWARD", "FSDP_AUTO_WRAP_POLICY"),
    *("FSDP_TRANSFORMER_CLS_TO_WRAP", "FSDP_MIN_NUM_PARAMS", "FSDP_BACKWARD_PREFETCH", "FSDP_FORWARD_PREFETCH"),
    *("FSDP_STATE_DICT_TYPE", "FSDP_USE_ORIG_PARAMS", "FSDP_SYNC_MODULE_STATES", "FSDP_CPU_RAM_EFFICIENT_LOADING"),
    # They are read only with variables that are refused: DeepSpeed, Megatron-LM, SageMaker, Dynamo's backend, a TPU.
    *("ACCELERATE_DEEPSPEED_*", "ACCELERATE_CONFIG_DS_FIELDS", "DEEPSPEED_USE_HPU", "MEGATRON_LM_*"),
    *("ACCELERATE_DYNAMO_MODE", "ACCELERATE_DYNAMO_USE_*", "ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE", "AWS_*"),
    *("ACCELERATE_DOWNCAST_BF16", "USE_TORCH_XLA", "XLA_USE_BF16", "XLA_DOWNCAST_BF16"),
    # Placing of models that are loaded, which train.py does not do.
    *("ACCELERATE_BYPASS_DEVICE_MAP", "ACCELERATE_INIT_INCLUDE_BUFFERS"),
    # Messages, trackers and folders.
    *("ACCELERATE_LOG_LEVEL", "ACCELERATE_ENABLE_RICH", "ACCELERATE_DEBUG_MODE", "TORCH_CPP_LOG_LEVEL", "TORCH_LOGS"),
    *("MLFLOW_*", "CLEARML_*", "HF_HOME", "HF_MODULES_CACHE", "XDG_CACHE_HOME", "TORCH_HOME", "*_CACHE_DIR"),
    *("TOKENIZERS_PARALLELISM", "TRANSFORMERS_IS_CI", "TRANSFORMERS_DISABLE_TORCH_CHECK"),
    *("TORCH_SHOW_*", "TRANSFORMERS_VERBOSITY", "TRANSFORMERS_NO_ADVISORY_WARNINGS", "NETWORK_DEBUG_REPORT*"),
    # Memory, and how libraries were built.
    *("PYTORCH_*ALLOC_CONF", "PYTORCH_NVML_BASED_CUDA_CHECK", "PYTORCH_CNDEV_BASED_MLU_CHECK"),
    *("TORCH_CUDA_ARCH_LIST", "TORCH_EXTENSIONS_DIR", "TORCH_VERSION", "PYTORCH_VERSION", "PYTORCH_BUILD_*"),
    *("CUDNN_VERSION", "CUBLAS_VERSION"),
)

# Variables of libraries that multiply, compile or tokenise: precision, kernels and compilation change numbers.
RECORDED = (
    *("ACCELERATE_*", "FSDP_*", "PARALLELISM_CONFIG_*", "TRANSFORMERS_*", "TOKENIZERS_*", "HF_DATASETS_*"),
    *("TORCH*", "PYTORCH_*", "TRITON_*", "XLA_*", "ATEN_*", "NVIDIA_TF32*", "CUBLAS*", "CUDNN_*", "CUTLASS_*"),
    *("MKL_*", "ONEDNN_*", "DNNL_*", "OPENBLAS_*", "HIPBLAS*", "ROCBLAS_*", "MIOPEN_*", "FLASH_ATTENTION_*"),
    *("USE_HUB_KERNELS", "DISABLE_KERNEL_MAPPING", "DISABLE_ADDMM_*", "NPU_FA2_*", "FLA_*"),
)

# Switches of torch -> their values in a fresh process.
_SWITCHES = {
    "get_float32_matmul_precision": ("highest",),
    "backends.cuda.matmul.fp32_precision": ("none", "ieee"),
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction": ("True",),
    "backends.cuda.matmul.allow_fp16_accumulation": ("False",),
    "backends.cudnn.conv.fp32_precision": ("tf32",),
    "backends.cudnn.rnn.fp32_precision": ("tf32",),
    "backends.mkldnn.matmul.fp32_precision": ("none", "ieee"),
    "backends.mkldnn.conv.fp32_precision": ("none", "ieee"),
    "are_deterministic_algorithms_enabled": ("False",),
}
# Switches with which another model, or none, would be trained.
# Each has its only value, and how to return to it.
_REQUIRED_SWITCHES = {
    "get_default_dtype": ("torch.float32", "torch.set_default_dtype(torch.float32)"),
    "get_default_device": ("cpu", "torch.set_default_device(None)"),
    "is_grad_enabled": ("True", "torch.set_grad_enabled(True)"),
    "is_inference_mode_enabled": ("False", "leave torch.inference_mode"),
}


def read_count(name: str) -> int | None:
    """Return the number that a variable holds, None where it is unset or empty. Raises ConfigurationError."""
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    if not text.isdecimal():
        raise ConfigurationError(f"{name}: {text!r}; it must be a whole number")
    return int(text)


def count_launched() -> int:
    """Count the processes that a launcher started.

    Raises ConfigurationError for those of mpirun that were not told where to meet: each would train alone.
    """
    world = read_count("WORLD_SIZE")
    if world is not None:
        return world
    processes = max(read_count(name) or 1 for name in _MPI_SIZES)
    if processes > 1 and not os.environ.get("MASTER_ADDR"):
        raise ConfigurationError(
            f"mpirun: {processes} processes were started, and each would train alone; start them by accelerate launch "
            "or torchrun, or set WORLD_SIZE=1 for a run in each"
        )
    return processes


def answer_to(name: str) -> str | None:
    """Return what happens to a variable: it is refused, harmless or recorded; None if it is of no library here."""
    answers: dict[str, Iterable[str]] = {"refused": REFUSED, "harmless": HARMLESS, "recorded": RECORDED}
    return next((answer for answer, patterns in answers.items() if _find_pattern(name, patterns)), None)


def _find_pattern(name: str, patterns: Iterable[str]) -> str | None:
    return next((pattern for pattern in patterns if fnmatchcase(name, pattern)), None)


def check_environment(run: RunArguments, variables: Mapping[str, str] = os.environ) -> None:
    """Raise ConfigurationError for variables and switches that ask for another training than the configuration's."""
    problems = []
    for name, value in sorted(variables.items()):
        problem = _problem_of_variable(name, value.strip().lower(), run)
        if problem is not None:
            problems.append(problem)
    for path, (only_value, remedy) in _REQUIRED_SWITCHES.items():
        value = _read_switch(path)
        if value != only_value:
            problems.append(f"torch.{path}(): {value}; it must be {only_value}: {remedy}")
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            problems.append(f"torch.is_autocast_enabled({device!r}): True; it must be False: leave torch.autocast")
    if problems:
        raise ConfigurationError("\n".join(problems))


def _problem_of_variable(name: str, value: str, run: RunArguments) -> str | None:
    if name == "ACCELERATE_TORCH_DEVICE" and not _is_device(value):
        return f"{name}: {value}; it must be a device of torch, such as cpu or cuda:1"
    pattern = _find_pattern(name, REFUSED)
    if pattern is None:
        return None
    advice, values = REFUSED[pattern]
    if name == "ACCELERATE_MIXED_PRECISION" and run.precision == "fp32":
        values = ("no",)
    if value in values:
        return None
    choices = "false or unset" if values is _OFF else " or ".join(values)
    return f"{name}: {value}; it must be {choices}: {advice}"


def _is_device(name: str) -> bool:
    try:
        return torch.device(name).type != "meta"
    except RuntimeError:
        return False


def describe_environment(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables of numerical libraries, and the switches of torch that a fresh process has otherwise.

    A path, a secret or a long text is not shown.
    """
    described = {}
    for path, fresh in _SWITCHES.items():
        value = _read_switch(path)
        if value not in fresh:
            described[f"torch.{path}"] = value
    for name, value in sorted(variables.items()):
        if _NAME.fullmatch(name) and answer_to(name) == "recorded":
            described[name] = _mask(value)
    return dict(list(described.items())[:MAX_RECORDED])


def _read_switch(path: str) -> str:
    try:
        value = attrgetter(path)(torch)
        return str(value() if callable(value) else value)
    # Another version of torch lacks the switch, or it was set in two ways.
    except (AttributeError, RuntimeError):
        return "unknown"


def _mask(value: str) -> str:
    """Replace a path, a secret or a long text."""
    try:
        to_plain(value)
    except InputError:
        return "not shown"
    return value if value.isprintable() and 0 < len(value) <= MAX_CHARACTERS else "not shown"
