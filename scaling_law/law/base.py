"""A law that can be asked: the formula with its questions as methods, its files, and the registry of kinds.

`fit`, law files and the shelf make the kinds that are registered here; docs/adding_a_law.md adds another.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from numpy.typing import ArrayLike

import hub  # lazy: its rooms are imported when a law is read from the Hub
from hub.base import strict_json
from hub.base.errors import InputError, unknown
from scaling_law.formulas import Conditions, Formula
from scaling_law.formulas.learning_rate import LearningRateLaw
from scaling_law.law_files import FILE_NAME, FORMAT, VERSION, law_to_dict, push_law
from scaling_law.planning.break_even import TOKENS_RANGE, BreakEven, break_even
from scaling_law.planning.budget import QuestionFields
from scaling_law.planning.design import Candidates, Design, Target, next_runs
from scaling_law.planning.inverse import Reached, reach
from scaling_law.planning.limits import Quantity
from scaling_law.planning.optimal_table import OptimalTable, optimal
from scaling_law.planning.optimum import ComputeOptimum, compute_optimal
from scaling_law.planning.plan import Plan, plan
from scaling_law.planning.speedup import EffectiveSpeedup, Model, speedup
from scaling_law.size.recipe import PAPER, BatchRamp, RampStage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Unpack

LawT = TypeVar("LawT", bound="Law")


class Law(Formula):
    """A fitted law: a formula with coefficients, which answers the questions below.

    A kind of law adds `name`, `formula` and `form` (see `Formula`), from which all of its answers follow.
    """

    # ------------------------------------------------------------------ questions

    def optimal(
        self,
        flops: Quantity | None = None,
        experts: ArrayLike | None = None,
        *,
        integral: bool = False,
        decode_batch: float | None = None,
        learning_rate_law: LearningRateLaw | None = None,
        batch_ramp: BatchRamp | None = None,
        force: bool = False,
        accuracy: str | Sequence[str] = (),
        **question: Unpack[QuestionFields],
    ) -> OptimalTable:
        """The best model for each E under compute and memory limits, and the best of all.

        Args:
            flops: of training (6 N_act D) and inference (2 N_act D_inf); a number or text such as "1e22".
            hours, money: of training, instead of flops, on `gpus` GPUs; money by a `price` per GPU-hour.
            gpu, mfu, throughput: how fast they train: a GPU such as "h100", by rates of public runs or an MFU that is
                given; or a `Throughput` or throughput.json.
            decode_batch: with these, also the cost of serving so many sequences at once (`machine.serving`), which
                hold `kv_tokens` together.
            experts: one E or several; None asks for those of `default_experts`.
            integral: only architectures that exist, d_model = 64 n_blocks = 64 n_heads.
            learning_rate_law: None asks that of the public grids at the level of the paper inside of its range, and
                the paper's own outside, with a warning.
            batch_ramp: its last batch goes into learning-rate laws that have a batch, its batches into step times;
                None: the paper's.
            force: compare answers beyond the range guard, too.
            accuracy: tasks whose accuracy to expect at each loss: "arc_easy,hellaswag" (docs/planning.md#accuracy).
            question: the fields of `Limits`: memory="80GB" and so on.

        ValueError where nothing fits, the law has no optimum, or not exactly one budget is given; ExtrapolationError
        where no answer is within the range guard. Ludziejewski et al. 2025, Section "Compute and Memory Optimality".
        """
        return optimal(
            self,
            flops,
            experts,
            integral=integral,
            decode_batch=decode_batch,
            learning_rate_law=learning_rate_law,
            batch_ramp=batch_ramp,
            force=force,
            accuracy=accuracy,
            **question,
        )

    def compute_optimal(
        self, flops: ArrayLike, experts: ArrayLike | None = None, *, force: bool = False
    ) -> ComputeOptimum:
        """Compute-optimal N_act, D and loss for each E and budget: arrays of shape flops.shape + experts.shape.

        ValueError where the law has no optimum; ExtrapolationError for an answer beyond the range guard, unless
        `force`.
        """
        return compute_optimal(self, flops, experts, force=force)

    def plan(
        self,
        flops: Quantity | None = None,
        experts: ArrayLike | None = None,
        *,
        branches: int = 1,
        sequence_length: int = PAPER.sequence_length,
        batch_ramp: Sequence[RampStage] = PAPER.batch_ramp,
        learning_rate_law: LearningRateLaw | None = None,
        force: bool = False,
        **question: Unpack[QuestionFields],
    ) -> Plan:
        """The run of the best architecture that exists for a budget; budget, experts and limits as in `law.optimal`,
        `granularity` and `shared_ratio` too.

        `branches` is how many measurements the trunk gives: the full run, half of it, a quarter, … Without `gpus` and
        a `gpu` or `throughput`, which go with flops, too, GPU-hours are those of compute on H100s. A budget of hours
        or money is that of the full run alone. A model that does not fit those GPUs is replaced by the widest of its E
        that does, or by another E, with a warning. Errors as `optimal`, and ValueError where no model can be trained.
        """
        return plan(
            self,
            flops,
            experts,
            branches=branches,
            sequence_length=sequence_length,
            batch_ramp=batch_ramp,
            learning_rate_law=learning_rate_law,
            force=force,
            **question,
        )

    def reach(
        self,
        loss: ArrayLike,
        experts: ArrayLike | None = None,
        *,
        flops: Quantity | None = None,
        force: bool = False,
        **question: Unpack[QuestionFields],
    ) -> Reached:
        """The cheapest budget whose best model with E experts reaches `loss`, for each E (None: the law's own); or,
        given a budget, the least memory (weights and KV cache) with which it does.

        The budget is of `flops`, hours or money, as in `optimal`; with a `gpu` or `throughput` and no budget, the
        answer is the fewest hours on `gpus` GPUs, and their price. ExtrapolationError where all answers for a loss
        are beyond the guard, unless `force`.
        """
        return reach(self, loss, experts, flops=flops, force=force, **question)

    def speedup(
        self,
        a: Model,
        b: Model = 1.0,
        *,
        flops: Quantity | None = None,
        tokens: Quantity | None = None,
        force: bool = False,
        **question: Unpack[QuestionFields],
    ) -> EffectiveSpeedup:
        """How many times a's compute and tokens model b needs for a's loss, with 95 % of the law's draws.

        Args:
            a, b: an E, which stands for its compute-optimal model, or an `Architecture`.
            flops: that a spends (6 N_act D), a number or text such as "1e22"; or, for an architecture, its `tokens`.
            question: `gpu` or `throughput` with `gpus`, for hours, too (the best size is still that of least FLOPs);
                `granularity`, `shared_ratio` and `vocab_size` of the models that an E stands for: as in `law.optimal`.

        An E as b answers at its best size and at a's N_act, an architecture at its own. ValueError for a law without
        tokens and unless exactly one of flops and tokens is given; ExtrapolationError where a is beyond the range
        guard, unless `force`.
        """
        return speedup(self, a, b, flops=flops, tokens=tokens, force=force, **question)

    def break_even(
        self,
        n_active: ArrayLike,
        experts: ArrayLike | None = None,
        *,
        between: tuple[float, float] = TOKENS_RANGE,
        force: bool = False,
    ) -> BreakEven:
        """Token count at which an MoE overtakes the dense model of equal N_act (experts None: the law's own above 1).

        D is searched in `between`: ask the law of a small sweep no further than its runs reach.
        ValueError for a law that does not depend on N_act, D and E, and for E of 1 or less; ExtrapolationError where
        an answer lies beyond the law's range guard, unless `force`.
        """
        return break_even(self, n_active, experts, between=between, force=force)

    def next_runs(
        self,
        answer: Target,
        flops: Quantity,
        candidates: Candidates | None = None,
        *,
        noise: float | None = None,
        max_runs: int = 24,
        warmup_tokens: float | None = None,
        force: bool = False,
    ) -> Design:
        """The runs to train with a budget of `flops` so that `answer` becomes most certain.

        Args:
            law: a fitted law with at least 30 draws (`result.bootstrap(...).law`).
            answer: any function of a law, such as `log_optimal_parameters(1e22)`.
            candidates: default `candidate_grid(flops / 4)` with the law's vocabulary.
            noise: standard deviation of ln L of one run; default the law's RMSE over the mean predicted loss.
            warmup_tokens: default that of the fitted runs, where their records say it. No run is proposed whose decay
                (its last fifth) would begin before the warm-up ends; 0 allows all.

        ValueError for a budget that affords no candidate, too few draws, and an answer that most draws do not have;
        ExtrapolationError for one of this module's answers that lies beyond the law's range guard, unless `force`.
        """
        return next_runs(
            self, answer, flops, candidates, noise, max_runs=max_runs, warmup_tokens=warmup_tokens, force=force
        )

    # ------------------------------------------------------------------ files

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write `scaling_law.json` (coefficients at full precision, conditions, draws) into `folder`; its path."""
        return strict_json.write(Path(folder) / FILE_NAME, FORMAT, VERSION, law_to_dict(self))

    def push_to_hub(
        self, repo: str, *, token: str | None = None, private: bool = False, license: str | None = None
    ) -> str:
        """Push the law, its card and its figures to the main branch of the Hub repo "owner/name", in one commit.

        Returns the commit's sha. The card names a licence only if one is given. `hub.HubError` for what the Hub
        refuses.
        """
        return push_law(self, repo, token=token, private=private, license=license)

    @classmethod
    def from_pretrained(cls: type[LawT], source: str | Path, revision: str | None = None) -> LawT:
        """Read a law from a folder, a scaling_law.json, or a Hub repo "owner/name" (only if no such path exists).

        FileNotFoundError where there is none of these, ValueError where it holds no law, or one of another kind.
        """
        path = Path(source)
        try:
            content = path.read_bytes() if path.is_file() else hub.read_file(source, FILE_NAME, revision)
        except hub.NotFoundError as error:
            what = f"neither a folder or Hub repo with a {FILE_NAME}, nor a law's file ({error})"
            raise FileNotFoundError(f"{source}: {what}") from None
        data = strict_json.loads(content, what=str(source), max_bytes=strict_json.MAX_FILE_BYTES)
        law = law_from_dict(data, str(source))
        if not isinstance(law, cls):
            raise InputError(f"{source}: holds a {type(law).__name__}, not a {cls.__name__}")
        return law


LAWS: dict[str, type[Law]] = {}


def register(kind: type[LawT]) -> type[LawT]:
    """Class decorator: `fit` and law files then know the class by its `name`.

    ValueError if the name is missing or taken, or if the fields are not the coefficients of the form.
    """
    registered = LAWS.get(kind.name, kind)
    if not kind.name or (registered.__module__, registered.__qualname__) != (kind.__module__, kind.__qualname__):
        raise InputError(f"{kind.__name__}.name={kind.name!r} must be set and unique; taken: {sorted(LAWS)}")
    wanted = kind.form.coefficients
    if kind.form.terms and sorted(wanted) != sorted(kind.coefficient_names()):
        fields_of = ", ".join(kind.coefficient_names())
        raise InputError(f"{kind.__name__}: its fields ({fields_of}) must be those of its form ({', '.join(wanted)})")
    LAWS[kind.name] = kind
    return kind


def law_from_dict(data: Any, source: str = "law") -> Law:
    """Read what `law_to_dict` made; ValueError naming `source` and the field for anything else."""
    data = strict_json.checked(data, FORMAT, VERSION, source)
    kind = LAWS.get(str(data.get("law")))
    if kind is None:
        raise InputError(f"{source}: {unknown('law=', data.get('law'), sorted(LAWS))}")
    options: dict[str, Any] = {name: data[name] for name in ("experts", "draws") if data.get(name) is not None}
    try:
        if data.get("conditions") is not None:
            options["conditions"] = Conditions.from_dict(data["conditions"])
        if data.get("laws") is not None:
            options["laws"] = [law_from_dict(one, f"{source}: laws") for one in data["laws"]]
        return kind(**data["coefficients"], **options)
    except (KeyError, TypeError):
        raise InputError(f"{source}: coefficients must be exactly {list(kind.coefficient_names())}") from None
    except ValueError as error:
        raise InputError(f"{source}: {error}") from None
