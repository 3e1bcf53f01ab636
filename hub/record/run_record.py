"""The run record: one training run as a JSON object, with the only definition of its schema.

Names follow the paper (arXiv 2502.05172): N_act is `n_active`, N is `n_total`, E is `experts`, D is `tokens`. A record
may be a stranger's: sizes are bounded, numbers finite, and paths, e-mail addresses and access tokens refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, ValidationError, model_validator

from hub.base import atomic, strict_json
from hub.base.errors import FilesError, InputError, RecordError, problem_lines, redact, secret_in
from hub.base.paths import local_path
from hub.base.strict_json import SCHEMA_VERSION
from hub.base.types import Fields

# Bounds of an unknown field: characters of a text, entries of a list or object, and levels of nesting.
MAX_TEXT = 4000
_MAX_ITEMS = 4096
_MAX_DEPTH = 12
# Problems of a record that its error names.
_MAX_PROBLEMS = 20

# An absolute path at the start of a text or after a separator: /a/b, ~/a, C:\a, \\host\a, file:/a. "tokens/s",
# "and/or" and "https://host/x" are none of these.
_PATH = re.compile(
    r"""^/[^\s/] | (?:^|[\s"'=:;,(\[<>|])(?:/[^\s/]+/[^\s] | ~[A-Za-z0-9_-]*/) | (?<![A-Za-z])[A-Za-z]:[\\/]
    | \\\\[A-Za-z0-9] | \bfile:/""",
    re.VERBOSE,
)
# Starts at a word's beginning and is bounded, so that a long text costs no more than its length.
_EMAIL = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})*\.[A-Za-z]{2}")
Status = Literal["final", "intermediate", "diverged"]

# A name goes into repository and branch names, so it takes their alphabet; 64 leaves room for "-d4096-E32".
NAME_PATTERN = r"^[A-Za-z0-9]+(?:(?:[.-]|_+)[A-Za-z0-9]+)*$"
REPO_PATTERN = r"^(?:[A-Za-z0-9][A-Za-z0-9._-]*/)?[A-Za-z0-9][A-Za-z0-9._-]*$"
Name = Annotated[str, Field(max_length=64, pattern=NAME_PATTERN)]
Line = Annotated[str, Field(min_length=1, max_length=300, pattern=r"^[^\x00-\x1f\x7f]*$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
CommitId = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
WeightsFile = Annotated[str, Field(max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\.safetensors$")]


def _number(value: Any) -> Any:
    """Accept real numbers only: no booleans, no texts that happen to hold digits."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError("must be a number")
    return int(value) if isinstance(value, float) and value.is_integer() else value


_Number = BeforeValidator(_number)
Count = Annotated[int, _Number, Field(ge=0, le=10**18)]
PositiveCount = Annotated[int, _Number, Field(ge=1, le=10**18)]
Width = Annotated[int, _Number, Field(ge=1, le=1 << 24)]
Real = Annotated[float, _Number, Field(allow_inf_nan=False, ge=0.0, le=1e40)]
Loss = Annotated[float, _Number, Field(allow_inf_nan=False, ge=0.0, le=1e4)]
Fraction = Annotated[float, _Number, Field(allow_inf_nan=False, ge=0.0, le=1.0)]
Integer = Annotated[int, _Number, Field(ge=-(1 << 63), lt=1 << 63)]


class _Part(BaseModel):
    """A part of a record, or the record: frozen, and unknown fields are kept."""

    model_config = ConfigDict(frozen=True, extra="allow", str_strip_whitespace=False, protected_namespaces=())


class BatchRampStage(_Part):
    """A stage of the batch ramp: `sequences` per global batch, from `from_tokens` trained tokens on."""

    from_tokens: Count
    sequences: PositiveCount


class Schedule(_Part):
    """The learning-rate and batch schedule; lengths in tokens, rates as multipliers of the gradient step."""

    horizon_tokens: PositiveCount
    warmup_tokens: Count
    decay_tokens: Count
    batch_ramp: tuple[BatchRampStage, ...] = Field(max_length=256)
    peak_learning_rate: Real
    learning_rate_law: Line


class OptimizerSettings(_Part):
    """The optimizer by name and its numbers; `gradient_clip_norm` null means no clipping.

    `weight_decay_on`: "all" parameters, or only "matrices" (no norms, biases and router); null is not known. "muon" is
    Muon for the hidden matrices, with `muon_…` its peak rate, momentum and scaling by shape, and AdamW for the rest,
    at the schedule's peak; records of other optimizers lack these fields.
    """

    name: Line
    beta1: Fraction
    beta2: Fraction
    epsilon: Real
    weight_decay: Real
    weight_decay_on: Literal["all", "matrices"] | None = None
    gradient_clip_norm: Real | None
    muon_learning_rate: Real | None = None
    muon_momentum: Fraction | None = None
    muon_adjust_lr: Line | None = None


class DatasetReference(_Part):
    """A dataset by its id (of the Hub, or a plain name), commit and content fingerprint (null: not known)."""

    id: Line
    revision: Line | None = None
    fingerprint: Line | None


class TokenizerReference(_Part):
    """A tokenizer by its id (of the Hub, or a plain name) and content fingerprint (null: not known)."""

    id: Line
    fingerprint: Line | None


class RunRecord(_Part):
    """One training run, or one intermediate checkpoint of it. Unknown fields are kept; null is not known.

    Units: `n_active`, `n_total` in parameters (embedding and head counted, router and norms not, as in the paper);
    whatever ends in `tokens`, and `sequence_length`, in tokens; losses in nats per token, without auxiliary losses;
    `training_flops` and `mfu`, a fraction, are of three forward passes' matrix products, with attention without the
    causal half, as torch counts them on the class (`flops_count` "class"); of ours, `training_flops` are the paper's
    6 N_act D, and `mfu` is of such products by formula ("formula"; null, before these counts: of 6 FLOPs per
    multiplied weight).
    `expert_load_max_over_mean` is 1 when experts are evenly loaded.

    `train_loss` is the mean over the last `train_loss_window_tokens` (0: not known); `eval_loss` is held-out and
    dropless, with the standard error of a mean over documents like the `eval_documents` that `eval_data` describes. Of
    a run with `status="diverged"`, losses that are not finite are stored as null; `stopped` says why an "intermediate"
    one was ended before its horizon. In training an expert takes
    `capacity_factor` times its balanced share of each `capacity_group_tokens` consecutive tokens (0: no limit,
    dropless); the balance loss is counted over the same groups. `micro_batch_sequences` are those of one device, and
    `expert_parallel` devices divide the experts, `tensor_parallel` ones heads and inner widths.
    `environment` has settings of the training process outside its configuration that may change numbers: variables of
    numerical libraries and switches of torch, by name; null: none, or not known.
    `step_seconds` is the median of the last steps, at the last batch size; `peak_memory_bytes` is that of the tensors
    of one GPU, or of a whole process on a CPU.

    A model of another class than ours has its `model_type` in transformers, `experts` routed experts, of which
    `experts_per_token` are active, and the variables of its architecture (`scaling_law.Architecture.variables`);
    `experts_equivalent` is the E of laws of top-1 models; `balance_bias_rate` is the change of an expert's selection
    bias in a step, where such biases balance experts. Records of our class lack these fields (`OF_A_CLASS`).

    Raises RecordError with each offending field, its value and what is allowed.
    """

    schema_version: PositiveCount = SCHEMA_VERSION
    run_id: Name
    sweep: Name
    parent_run_id: Name | None = None
    branch_point_tokens: Count | None = None
    status: Status
    stopped: Line | None = None

    d_model: Width
    n_blocks: Width
    n_heads: Width
    n_kv_heads: Width | None = None
    experts: Annotated[int, _Number, Field(ge=1, le=1 << 16)]
    vocab_size: Width
    sequence_length: Width
    n_active: PositiveCount
    n_total: PositiveCount

    model_type: Annotated[str, Field(max_length=40, pattern=NAME_PATTERN)] | None = None
    experts_per_token: PositiveCount | None = None
    d_expert: Width | None = None
    shared_experts: Count | None = None
    dense_blocks: Count | None = None
    experts_equivalent: Real | None = None
    granularity: Real | None = None
    density: Fraction | None = None
    activation_ratio: Fraction | None = None
    shared_ratio: Fraction | None = None
    n_active_non_embedding: PositiveCount | None = None
    n_total_non_embedding: PositiveCount | None = None

    tokens: Count
    unique_tokens: Count | None = None
    epochs: Real | None = None
    steps: Count

    train_loss: Loss | None
    train_loss_window_tokens: Count
    eval_loss: Loss | None = None
    eval_loss_standard_error: Loss | None = None
    eval_tokens: Count | None = None
    eval_documents: Count | None = None
    eval_data: Line | None = None
    drop_rate: Fraction | None = None
    expert_load_max_over_mean: Real | None = None

    schedule: Schedule
    optimizer: OptimizerSettings
    micro_batch_sequences: PositiveCount | None = None
    gradient_checkpointing: StrictBool | None = None
    compile: StrictBool | None = None
    expert_parallel: PositiveCount | None = None
    tensor_parallel: PositiveCount | None = None
    capacity_factor: Real | None = None
    capacity_group_tokens: PositiveCount | None = None
    balance_loss_coefficient: Real | None = None
    z_loss_coefficient: Real | None = None
    balance_bias_rate: Real | None = None
    initialization: Line | None = None
    final_norm: StrictBool | None = None
    seed: Integer | None
    precision: Line
    attention_precision: Line | None = None
    dataset: DatasetReference
    data_order: Line | None = None
    tokenizer: TokenizerReference

    training_flops: Real
    flops_count: Literal["class", "formula"] | None = None
    tokens_per_second: Real | None
    mfu: Real | None = None
    step_seconds: Real | None = None
    peak_memory_bytes: Count | None = None
    hardware: Line | None
    wall_time_seconds: Real | None

    versions: Annotated[dict[Line, Line], Field(max_length=64)]
    environment: Annotated[dict[Line, Line], Field(max_length=64)] | None = None
    code_commit: Annotated[str, Field(pattern=r"^[0-9a-f]{7,64}(?:[-+]dirty)?$")] | None = None
    weights_sha256: Annotated[dict[WeightsFile, Sha256], Field(max_length=1000)] | None = None
    repo: Annotated[str, Field(max_length=160, pattern=REPO_PATTERN)] | None = None
    branch: Annotated[str, Field(max_length=120, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] | None = None
    commit: CommitId | None = None

    def __init__(self, /, **fields: Any) -> None:
        run_id = fields.get("run_id")
        label = f"the record of run {run_id[:64]!r}" if isinstance(run_id, str) else "the record"
        version = fields.get("schema_version", SCHEMA_VERSION)
        strict_json.check_version({"schema_version": version}, SCHEMA_VERSION, redact(label))
        try:
            super().__init__(**fields)
        except ValidationError as error:
            lines: list[str] = []
            for problem in error.errors(include_url=False):
                lines += problem_lines(problem)
            problems = "; ".join(lines[:_MAX_PROBLEMS])
            raise RecordError(redact(f"{label} is not valid: {problems}")) from None

    @model_validator(mode="before")
    @classmethod
    def _only_plain_values(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("status") == "diverged":
            data = dict(data)
            for name in ("train_loss", "eval_loss", "eval_loss_standard_error"):
                if _is_not_finite(data.get(name)):
                    data[name] = None
        return to_plain(data)

    @model_validator(mode="after")
    def _consistent(self) -> RunRecord:
        problems = _find_contradictions(self)
        if problems:
            raise InputError("\n".join(problems))
        # Without its spaces it is more than half as long, and faster to write.
        is_small = 2 * len(self.model_dump_json()) < strict_json.MAX_RECORD_BYTES
        if not is_small and len(self.to_json().encode()) > strict_json.MAX_RECORD_BYTES:
            raise InputError(f"the record is larger than {strict_json.MAX_RECORD_BYTES:,} bytes as JSON")
        return self

    @classmethod
    def from_dict(cls, fields: Any, *, what: str = "run record") -> RunRecord:
        """Validate a mapping, e.g. a parsed JSON object; `what` names the source in the error."""
        if not isinstance(fields, dict):
            raise RecordError(f"{what}: a {type(fields).__name__}, allowed is an object with a record's fields")
        try:
            return cls(**fields)
        except RecordError as error:
            raise type(error)(f"{what}: {error}") from None

    @classmethod
    def from_json(cls, text: str | bytes, *, what: str = "run record") -> RunRecord:
        """Parse and validate strict JSON text."""
        return cls.from_dict(strict_json.loads(text, what=what), what=what)

    @classmethod
    def load(cls, path: str | Path) -> RunRecord:
        """Read a `run.json`, or the one in the folder `path`; FilesError if there is none."""
        file = local_path(path)
        if file.is_dir():
            file = file / "run.json"
        try:
            with file.open("rb") as reader:
                content = reader.read(strict_json.MAX_RECORD_BYTES + 1)
        except OSError as error:
            raise FilesError(f"cannot read the run record {file}: {error.strerror}") from None
        return cls.from_json(content, what=str(file))

    def save(self, path: str | Path) -> Path:
        """Write `run.json` into the folder `path` (or to `path` itself if it ends in .json), atomically."""
        file = local_path(path)
        if file.suffix != ".json":
            file = file / "run.json"
        atomic.write_bytes(file, self.to_json(indent=2).encode() + b"\n")
        return file

    def to_dict(self) -> Fields:
        """Return the record as plain JSON values, unknown fields included, in the schema's order."""
        fields = self.model_dump(mode="json")
        fields["optimizer"] = _without_nulls(fields["optimizer"], _MUON_FIELDS)
        return _without_nulls(fields, _OMITTED_WHERE_NULL)

    def to_json(self, *, indent: int | None = None) -> str:
        """Return the record as strict JSON text."""
        return strict_json.dumps(self.to_dict(), indent=indent)

    def replaced(self, **changes: Any) -> RunRecord:
        """Return a validated copy with some fields changed."""
        return type(self)(**{**self.to_dict(), **changes})


_NAMES = list(RunRecord.model_fields)
OF_A_CLASS = frozenset(_NAMES[_NAMES.index("model_type") : _NAMES.index("tokens")])
# Records without these fields, and of another optimizer, are as they were before the fields existed.
_OMITTED_WHERE_NULL = OF_A_CLASS | {"n_kv_heads", "balance_bias_rate", "stopped", "environment"}
_MUON_FIELDS = frozenset(name for name in OptimizerSettings.model_fields if name.startswith("muon_"))


def _without_nulls(fields: Fields, names: frozenset[str]) -> Fields:
    """Leave out those of the named fields that are null."""
    return {name: value for name, value in fields.items() if value is not None or name not in names}


def type_of(annotation: Any) -> type:
    """Return the type of a field's values that are not null: int of `Annotated[int, …] | None`, str of a Literal."""
    if get_origin(annotation) is Literal:
        return type(get_args(annotation)[0])
    if get_origin(annotation) in (Annotated, Union, UnionType):
        return next(type_of(member) for member in get_args(annotation) if member is not type(None))
    # The origin is that of dict[…] and tuple[…]; a class has none.
    return get_origin(annotation) or annotation


def _is_not_finite(value: Any) -> bool:
    if hasattr(value, "item"):
        value = value.item()
    return isinstance(value, float) and not -1e300 < value < 1e300


def _find_contradictions(record: RunRecord) -> list[str]:
    """List the fields that cannot be true together, which no single field shows."""
    problems = []
    class_fields = {name for name in OF_A_CLASS if getattr(record, name) is not None}
    if not class_fields and record.d_model % record.n_heads:
        problems.append(f"n_heads is {record.n_heads}, allowed are divisors of d_model {record.d_model}")
    if class_fields and class_fields != OF_A_CLASS:
        missing = ", ".join(sorted(OF_A_CLASS - class_fields))
        problems.append(f"{missing} missing, required with one of the others")
    if record.n_total < record.n_active:
        problems.append(f"n_total is {record.n_total}, allowed is at least n_active {record.n_active}")
    # Classes may have tables that are looked up, which no token multiplies.
    if record.experts == 1 and record.n_total != record.n_active and not class_fields:
        problems.append(f"n_total is {record.n_total}, allowed with experts 1 is n_active {record.n_active}")
    if record.train_loss is None and record.status != "diverged" and record.train_loss_window_tokens:
        problems.append('train_loss is null, allowed only with status "diverged" or train_loss_window_tokens 0')
    branch_point = record.branch_point_tokens
    if branch_point is not None and record.parent_run_id is None:
        problems.append("branch_point_tokens is set without a parent_run_id")
    if branch_point is not None and branch_point > record.tokens:
        problems.append(f"branch_point_tokens is {branch_point}, allowed is at most {record.tokens}")
    stages = [stage.from_tokens for stage in record.schedule.batch_ramp]
    if stages != sorted(set(stages)):
        problems.append("schedule.batch_ramp is not in increasing order of from_tokens")
    return problems


def to_plain(value: Any, name: str = "") -> Any:
    """Turn a value into plain JSON values: numpy scalars into Python's, tuples into lists, models into objects.

    Raises ValueError, which names the field and repeats no secret, for what JSON lacks, a number that is not finite,
    and a text with a secret, an absolute path or an e-mail address.
    """
    try:
        return _to_plain(value, _MAX_DEPTH)
    except InputError as error:
        raise InputError(redact(f"{name}{error}".lstrip("."))) from None


def _to_plain(value: Any, depth: int) -> Any:
    """Turn a value into plain JSON values; the error begins with the names inside of it that lead to the problem."""
    kind = type(value)
    if kind is str:
        problem = _find_private_text(value)
        if problem:
            raise InputError(f": {problem}")
        return value
    if value is None or kind is bool:
        return value
    if kind in (int, float):
        if not (math.isfinite(value) if kind is float else abs(value) < 10**30):
            raise InputError(f": {str(value)[:40]} is not a finite number of at most 30 digits; null is allowed")
        return value
    # numpy's float64 is a float, too.
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return _to_plain(value.item(), depth)
    if hasattr(value, "model_dump"):
        return _to_plain(value.model_dump(), depth)
    for plain_type in (str, int, float):
        if isinstance(value, plain_type):
            return _to_plain(plain_type(value), depth)
    if not isinstance(value, (dict, list, tuple)):
        raise InputError(f": a value of type {kind.__name__}, allowed are numbers, texts, lists, objects and null")
    if depth == 0 or len(value) > _MAX_ITEMS:
        raise InputError(f": nested deeper than {_MAX_DEPTH} levels, or more than {_MAX_ITEMS} entries")
    is_object = isinstance(value, dict)
    items: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, dict) else enumerate(value)
    plain: dict[Any, Any] = {}
    for key, item in items:
        if is_object:
            _check_key(key)
        try:
            plain[key] = _to_plain(item, depth - 1)
        except InputError as error:
            place = f".{key[:80]}" if is_object else f"[{key}]"
            raise InputError(f"{place}{error}") from None
    return plain if is_object else [*plain.values()]


def _check_key(key: Any) -> None:
    """Raise InputError for a key of an object that may not be a field's name."""
    if not isinstance(key, str):
        raise InputError(": field names must be strings")
    problem = _find_private_text(key)
    if problem:
        raise InputError(f".{key[:40]} (the field's name): {problem}")


# Cached, since most texts of a table occur in many of its rows.
@lru_cache(maxsize=4096)
def _find_private_text(text: str) -> str | None:
    """Say why a record may not hold a text: its length, a secret, a path or an address; None if it may."""
    if len(text) > MAX_TEXT:
        return f"a text of {len(text):,} characters, allowed are {MAX_TEXT:,}"
    secret = secret_in(text)
    if secret:
        return f"holds what looks like {secret}; a record must not have one"
    if _PATH.search(text):
        return f"{text[:80]!r} holds an absolute path; a record names files relative to nothing"
    if _EMAIL.search(text):
        return f"{text[:80]!r} holds an e-mail address; a record names no person"
    if any(0xD800 <= ord(character) <= 0xDFFF for character in text):
        return "holds half a surrogate pair, which is not a text that UTF-8 can write"
    return None
