"""Published laws as their papers have them, for `scaling_law.law.shelf`.

No number here is from memory: `source` names where each was read, and `evidence` what that is: the text of the
"paper", the authors' "code", or a "secondary" report by others. What could not be found is left out.
"""

from __future__ import annotations

from math import exp
from typing import Any

from scaling_law.formulas.answers import Allocation, EfficiencyLeverage, PowerLaw, TrainingRates
from scaling_law.law import (
    ChinchillaLaw,
    ClarkLaw,
    FiveFactorLaw,
    GranularityLaw,
    JointLaw,
    KaplanLaw,
    SaturationLaw,
    SparsityLaw,
)
from scaling_law.law.publication import PublishedLaw
from scaling_law.size.architecture import VOCAB_SIZE

PETAFLOP_DAY = 8.64e19


def _chinchilla(a: float, alpha: float, b: float, beta: float, e: float) -> ChinchillaLaw:
    """E + A / N^α + B / D^β, as Hoffmann et al. write it."""
    return ChinchillaLaw(a, -alpha, b, -beta, e)


def _powers(size_name: str, size: tuple[float, float], tokens: tuple[float, float], **loss: Any) -> Allocation:
    """Allocation of (scale, exponent of C) of size and tokens."""
    laws = (PowerLaw(scale, {"flops": exponent}) for scale, exponent in (size, tokens))
    return Allocation(size_name, *laws, **loss)


def _along_6nd(scale: float, exponent: float) -> Allocation:
    """N = scale · C^exponent and D = C / (6 N)."""
    return _powers("n_active", (scale, exponent), (1.0 / (6.0 * scale), 1.0 - exponent))


_KAPLAN: dict[str, Any] = {
    "authors": "Kaplan et al.",
    "year": 2020,
    "arxiv": "2001.08361",
    "evidence": "paper",
    "parameters": "without vocabulary and positional embeddings, 12 n_layer d_model²",
    "corpus": "WebText2",
    "tokenizer": "BPE of 50,257",
    "loss": "nats per token, mean over a context of 1,024",
    "vocab_size": VOCAB_SIZE,
}
_HOFFMANN: dict[str, Any] = {
    "authors": "Hoffmann et al.",
    "year": 2022,
    "arxiv": "2203.15556",
    "evidence": "paper",
    "parameters": "total with embeddings (dense)",
    "flops": "6ND; its own count, with embeddings and attention, is 0.99 to 1.10 of it (Table A4)",
    "corpus": "MassiveText",
    "tokenizer": "SentencePiece of 32,000",
    "loss": "nats per token, smoothed training loss",
    "vocab_size": 32_000,
}
_HOFFMANN_RUNS: dict[str, Any] = {"ranges": {"n_active": (70e6, 16e9), "tokens": (5e9, 500e9)}}
_CLARK: dict[str, Any] = {
    "authors": "Clark et al.",
    "year": 2022,
    "arxiv": "2202.01169",
    "equation": "log₁₀ L = a·log₁₀ N + b·log₁₀ Ê + c·log₁₀ N·log₁₀ Ê + d",
    "source": "equation and counting: github.com/google-deepmind/scaling_laws_for_routing @ 42da0c3, example.ipynb; "
    "coefficients, three decimals: two readings of Table 3 by others. Their rounding costs up to 1.5 % of loss",
    "evidence": "secondary",
    "kind": ClarkLaw,
    "parameters": "active without vocabulary, with relative positions: n_blocks (5 d h k + 8 d² + 4 d)",
    "flops": "none: every run has the same tokens, 130B as reported",
    "loss": "nats per token, held out",
    "ranges": {"n_active_non_embedding": (16_527_360, 1_308_819_456), "experts": (1, 512)},
}
_KRAJEWSKI: dict[str, Any] = {
    "authors": "Krajewski et al.",
    "year": 2024,
    "arxiv": "2402.07871",
    "equation": "L = c + (g/G^γ + a)/N^α + b/D^β",
    "evidence": "paper",
    "kind": GranularityLaw,
    "parameters": "total without embeddings and router, d² (8 E + 4) n_blocks; G = d_ff / d_expert",
    "flops": "(72 d² + 14 d E G) D n_blocks: routing counts, embedding and head do not (Eq. 10)",
    "corpus": "C4",
    "tokenizer": "GPT-2's, 50,257",
    "loss": "nats per token, smoothed training loss",
    "vocab_size": VOCAB_SIZE,
}
_TIAN: dict[str, Any] = {
    "authors": "Tian et al.",
    "year": 2025,
    "arxiv": "2507.17702",
    "evidence": "paper",
    "parameters": "M, non-embedding FLOPs per token of a forward pass",
    "flops": "C = M·D without embeddings (Eq. 2; its Appendix C has three forward passes with the head)",
    "corpus": "Ling's own, multilingual",
    "tokenizer": "BPE of 126,464",
    "vocab_size": 126_464,
}
LITERATURE: tuple[PublishedLaw, ...] = (
    PublishedLaw(
        name="kaplan",
        part="Eq. 1.5, Table 2",
        equation="L = [(N_c/N)^(α_N/α_D) + D_c/D]^α_D",
        source="arxiv.org/abs/2001.08361, full text",
        make=lambda: KaplanLaw.of(alpha_n=0.076, alpha_d=0.103, n_c=6.4e13, d_c=1.8e13),
        kind=KaplanLaw,
        flops="not 6ND: D is a dataset that may be repeated until early stopping",
        ranges={"n_active_non_embedding": (768, 1.5e9), "tokens": (22e6, 23e9)},
        **_KAPLAN,
    ),
    PublishedLaw(
        name="kaplan_optimum",
        part="Table 6",
        equation="N = 1.3e9·C_min^0.73, D = 2e10·C_min^0.27, C_min in PF-days",
        source="arxiv.org/abs/2001.08361, full text; C = 2 C_min gives the 4.68B at 1e21 FLOPs that Hoffmann et al. "
        "(Appendix D.4) read in it",
        make=lambda: _powers(
            "n_active_non_embedding",
            (1.3e9 / (2 * PETAFLOP_DAY) ** 0.73, 0.73),
            (2e10 / (2 * PETAFLOP_DAY) ** 0.27, 0.27),
        ),
        kind=Allocation,
        flops="6ND at the critical batch size, which is 2 C_min",
        **_KAPLAN,
    ),
    PublishedLaw(
        name="chinchilla",
        part="approach 3 (Eq. 10) in full precision",
        equation="L = E + A/N^α + B/D^β",
        source="arxiv.org/abs/2203.15556, full text; full precision (of its LaTeX source) from "
        "github.com/epoch-research/analyzing-chinchilla @ 9225883, data_analysis.ipynb cell 16",
        make=lambda: _chinchilla(exp(6.0073404), 0.33917084, exp(6.0179186), 0.2849083, exp(0.5267228)),
        kind=ChinchillaLaw,
        **_HOFFMANN,
        **_HOFFMANN_RUNS,
    ),
    PublishedLaw(
        name="chinchilla_printed",
        part="approach 3 (Eq. 10) as printed",
        equation="L = 1.69 + 406.4/N^0.34 + 410.7/D^0.28",
        source="arxiv.org/abs/2203.15556, full text; so rounded, its optima are biased (Besiroglu et al. 2024)",
        make=lambda: _chinchilla(406.4, 0.34, 410.7, 0.28, 1.69),
        kind=ChinchillaLaw,
        **_HOFFMANN,
        **_HOFFMANN_RUNS,
    ),
    PublishedLaw(
        name="chinchilla_approach1",
        part="approach 1, Table 3",
        equation="N ∝ C^0.50",
        source="arxiv.org/abs/2203.15556, full text: the least-squares line through the nine rows of Table 3 in "
        "logarithms, since no prefactor is printed",
        make=lambda: _along_6nd(0.09915893230794971, 0.4980986857771881),
        kind=Allocation,
        **_HOFFMANN,
    ),
    PublishedLaw(
        name="chinchilla_approach2",
        part="approach 2, Table A3",
        equation="N ∝ C^0.49",
        source="arxiv.org/abs/2203.15556, full text: the least-squares line through the nine rows of Table A3 in "
        "logarithms, since no prefactor is printed",
        make=lambda: _along_6nd(0.1448770518112787, 0.48994161286254634),
        kind=Allocation,
        ranges={"flops": (6e18, 3e21)},
        **_HOFFMANN,
    ),
    PublishedLaw(
        name="besiroglu",
        part="refit of Hoffmann et al., in full precision",
        equation="L = 1.8172 + 482.01/N^0.3478 + 2085.43/D^0.3658",
        source="github.com/epoch-research/analyzing-chinchilla @ 9225883, data_analysis.ipynb cell 24, whose "
        "E = 1.8169 the paper prints as 1.8172",
        make=lambda: _chinchilla(
            exp(6.177955975826981),
            0.34781302903942635,
            exp(7.6427323622433505),
            0.3658541172951044,
            exp(0.5971119597824348),
        ),
        kind=ChinchillaLaw,
        ranges={"n_active": (57.3e6, 16.18e9), "tokens": (818.7e6, 317.8e9), "tokens_per_parameter": (0.4564, 341.1)},
        n_runs=240,
        **_HOFFMANN | {"authors": "Besiroglu et al.", "year": 2024, "arxiv": "2404.10102", "evidence": "code"},
    ),
    PublishedLaw(
        name="clark_sbase",
        part="Eq. 1, Table 3: S-BASE",
        make=lambda: ClarkLaw.of(-0.082, -0.108, 0.009, 1.104, 1.847, 314.478),
        **_CLARK,
    ),
    PublishedLaw(
        name="clark_rl",
        part="Eq. 1, Table 3: RL-R",
        make=lambda: ClarkLaw.of(-0.083, -0.126, 0.012, 1.111, 1.880, 469.982),
        **_CLARK,
    ),
    PublishedLaw(
        name="clark_hash",
        part="Eq. 1, Table 3: HASH",
        make=lambda: ClarkLaw.of(-0.087, -0.136, 0.012, 1.157, 4.175, 477.741),
        **_CLARK,
    ),
    PublishedLaw(
        name="krajewski",
        part="Eq. 9, Table 1: E = 64",
        source="arxiv.org/abs/2402.07871, full text; its printed digits predict losses 0.01 to 0.02 below its Table 2",
        make=lambda: GranularityLaw(g=2.1, gamma=0.58, a=18.1, alpha=0.115, b=30.8, beta=0.147, c=0.47),
        ranges={
            "n_total_non_embedding": (129e6, 3.7e9),
            "tokens": (16e9, 130e9),
            "granularity": (1, 16),
            "experts": (64, 64),
        },
        **_KRAJEWSKI,
    ),
    PublishedLaw(
        name="krajewski_e16",
        part="Eq. 9, Table 8: E = 16",
        source="arxiv.org/abs/2402.07871, full text",
        make=lambda: GranularityLaw(g=1.18, gamma=0.986, a=19.64, alpha=0.124, b=57.07, beta=0.169, c=0.472),
        ranges={"tokens": (8e9, 66e9), "experts": (16, 16)},
        **_KRAJEWSKI,
    ),
    PublishedLaw(
        name="abnar",
        authors="Abnar et al.",
        year=2025,
        arxiv="2501.12370",
        part="Eq. 6, Table 3",
        equation="L = a/N^α + b/D^β + c/(1−S)^λ + d/((1−S)^δ·N^γ) + e",
        source="equation: arxiv.org/abs/2501.12370, full text without Appendix F; coefficients: two agreeing readings "
        "of its Table 3 by others",
        evidence="secondary",
        make=lambda: SparsityLaw(
            a=16612.50,
            alpha=0.5962,
            b=5455.67,
            beta=0.3954,
            c=0.4598,
            lambda_=-0.1666,
            d=17.26,
            delta=0.1603,
            gamma=0.1595,
            e=0.94,
        ),
        kind=SparsityLaw,
        loss="cross-entropy of pretraining; its unit is not stated",
        parameters="total with embeddings; S = (E − K)/E of the routed experts, density = 1 − S",
        flops="6 N_active D",
        corpus="RedPajama v1",
        tokenizer="GPT-NeoX's, 50,432",
        vocab_size=50_432,
        ranges={"density": (0.05, 1.0)},
    ),
    PublishedLaw(
        name="ludziejewski",
        authors="Ludziejewski et al.",
        year=2025,
        arxiv="2502.05172",
        part="Eq. 5 in full precision",
        equation=JointLaw.formula,
        source="arxiv.org/abs/2502.05172 and its LaTeX source: scaling_law.formulas.published",
        evidence="paper",
        make=lambda: JointLaw.published(),
        kind=JointLaw,
        parameters="active with embedding and head",
        flops="6ND",
        corpus="FineWeb-Edu",
        loss="nats per token, training loss",
        tokenizer="GPT-2's, 50,257",
        vocab_size=VOCAB_SIZE,
    ),
    PublishedLaw(
        name="muennighoff",
        authors="Muennighoff et al.",
        year=2023,
        arxiv="2305.16264",
        part="Appendix B, with effective_tokens and effective_parameters for repeated data",
        equation="L = E + A/N'^α + B/D'^β, α = β",
        source="github.com/huggingface/datablations @ 1370131, README.md (Parametric Fit); the losses are those of "
        "Hoffmann et al. on C4, read off their figure: trust the trend, not the value",
        evidence="code",
        make=lambda: _chinchilla(exp(6.255414), 0.3526596, exp(7.3049974), 0.3526596, exp(0.6254804)),
        kind=ChinchillaLaw,
        parameters="total with embeddings (dense)",
        flops="6ND, D with repetitions",
        corpus="C4",
        loss="nats per token, held out",
        tokenizer="GPT-2's, 50,257 (R*); Hoffmann et al.'s, 32,000 (the rest)",
        ranges={"n_active": (7_098_752, 8.67e9), "tokens": (1e8, 900e9)},
        n_runs=182,
    ),
    PublishedLaw(
        name="yun",
        authors="Yun et al.",
        year=2024,
        arxiv="2404.02852",
        part="Eq. 4",
        equation="log L = log(A/N^α + B/Ê^β + C/D^γ + F) + d·log N·log Ê",
        source="arxiv.org/abs/2404.02852, full text",
        evidence="paper",
        make=None,
        kind=SaturationLaw,
        parameters="those of the dense model whose blocks get experts, without embeddings",
        flops="6ND",
        corpus="SlimPajama",
        loss="nats per token, held out",
        ranges={"n_active_non_embedding": (81_395_712, 679_477_248), "tokens": (2.5e9, 20e9), "experts": (1, 32)},
    ),
    PublishedLaw(
        name="hunyuan",
        authors="Zhao et al.",
        year=2025,
        arxiv="2509.23678",
        part="the joint law of five factors",
        equation=FiveFactorLaw.formula,
        source="a survey's transcription of equation and coefficients, from which the paper's four stated optima "
        "follow (G 6.78, S 0.31, N_a/N 40 % at 30B and 22 % at 671B)",
        evidence="secondary",
        make=lambda: FiveFactorLaw(
            e=0.1577,
            f=7.2446,
            m=5.1395,
            n=-3.2363,
            k=0.0013,
            h=0.0450,
            a=38.051,
            alpha=0.2383,
            b=27129.05,
            beta=0.4694,
            c=31.096,
            epsilon=1.8182,
        ),
        kind=FiveFactorLaw,
        parameters="total and active; with or without embeddings is not stated",
    ),
    PublishedLaw(
        name="hunyuan_large",
        authors="Hunyuan-Large",
        year=2024,
        arxiv="2411.02265",
        part="compute-optimal MoE",
        equation="N = 5.9e-3·C_min^0.5305, D = 3.2·C_min^0.50",
        source="three agreeing notes by others; its stated optimum, 58.1B active and 5.6T tokens, follows",
        evidence="secondary",
        make=lambda: _powers("n_active", (5.9e-3, 0.5305), (3.2, 0.50)),
        kind=Allocation,
        parameters="active; with or without embeddings is not stated",
        flops="C_min = C/(1 + B/B_crit), with C ≈ 9.59 ND + 2.3e8 D",
    ),
    PublishedLaw(
        name="ling",
        part="Eq. 13, Table 2",
        equation="EL = Â^(α + γ (log G)² + β log G), α = a + d·log C",
        source="arxiv.org/abs/2507.17702, full text; the bases of the logarithms, 2 for G and 10 for C, are inferred",
        make=lambda: EfficiencyLeverage(
            a=1.23, d=-7.61e-2, gamma=1.67e-2, beta=-1.17e-1, a_start=1.63e-2, a_max=5.28e16
        ),
        kind=EfficiencyLeverage,
        ranges={"activation_ratio": (0.008, 1.0), "granularity": (2, 16), "flops": (3e18, 3e20)},
        **_TIAN,
    ),
    PublishedLaw(
        name="ling_optimum",
        part="Table 1: MoE, A = 7.8 %, G = 2",
        equation="M = 0.1915·C^0.5095, D = 5.2232·C^0.4905",
        source="arxiv.org/abs/2507.17702, full text",
        make=lambda: _powers("flops_per_token", (0.1915, 0.5095), (5.2232, 0.4905)),
        kind=Allocation,
        ranges={"flops": (1e18, 3e20)},
        **_TIAN,
    ),
    PublishedLaw(
        name="ling_optimum_dense",
        part="Table 1: dense",
        equation="M = 0.0655·C^0.5422, D = 15.2582·C^0.4578",
        source="arxiv.org/abs/2507.17702, full text",
        make=lambda: _powers("flops_per_token", (0.0655, 0.5422), (15.2582, 0.4578)),
        kind=Allocation,
        ranges={"flops": (1e18, 3e20)},
        **_TIAN,
    ),
    PublishedLaw(
        name="ling_rates",
        part="Eq. 3: MoE, A = 7.8 %, G = 2",
        equation="η = 1.1576·C^−0.1529, B = 0.0694·C^0.3644",
        source="arxiv.org/abs/2507.17702, full text",
        make=lambda: TrainingRates(PowerLaw(1.1576, {"flops": -0.1529}), PowerLaw(0.0694, {"flops": 0.3644})),
        kind=TrainingRates,
        ranges={"flops": (3e17, 3e20)},
        **_TIAN,
    ),
    PublishedLaw(
        name="step_law",
        authors="Step Law",
        year=2025,
        arxiv="2503.04715",
        part="Eq. 1, Table 2",
        equation="η = 1.79·N^−0.713·D^0.307, B = 0.58·D^0.571",
        source="quotations of version 7 by others; github.com/step-law/steplaw @ efbab63, code/fit_tool.py",
        evidence="secondary",
        make=lambda: TrainingRates(
            PowerLaw(1.79, {"n_total_non_embedding": -0.713, "tokens": 0.307}), PowerLaw(0.58, {"tokens": 0.571})
        ),
        kind=TrainingRates,
        parameters="total without embeddings",
        flops="none",
        ranges={"n_total_non_embedding": (60e6, 1e9), "tokens": (2e9, 100e9)},
    ),
    PublishedLaw(
        name="marin",
        authors="Marin",
        year=2026,
        arxiv=None,
        part="isoFLOP fits of the MoE recipe v16: 64 routed experts, top-4, 1 shared",
        equation="N = 1.09e-2·C^0.535, D = 16.0·C^0.464, L = 1.6 + 95.18·C^−0.0941",
        source="github.com/marin-community/marin @ 0433136, experiments/grug/moe/README.md",
        evidence="code",
        make=lambda: _powers(
            "n_active_non_embedding",
            (1.09e-2, 0.535),
            (16.0, 0.464),
            loss=PowerLaw(95.18, {"flops": -0.0941}, floor=1.6),
        ),
        kind=Allocation,
        parameters="active; without embeddings is inferred from 6ND = C",
        flops="three forward passes without the head",
        corpus="Marin's mixture",
        loss="macro loss on Paloma",
        ranges={"flops": (1e18, 3e20)},
    ),
)
