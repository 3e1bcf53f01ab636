"""What the paper prints: its tables and the numbers in its text, as printed (Ludziejewski et al. 2025)."""

from __future__ import annotations

from scaling_law.paper.published import PRINTED
from scaling_law.size.recipe import PAPER

# Table "Example compute-optimal training configurations": FLOPs → E → (N_act, D) as printed.
COMPUTE_OPTIMAL: dict[float, dict[int, tuple[str, str]]] = {
    1e20: {
        1: ("1.7B", "9.7B"),
        2: ("1.5B", "11.4B"),
        4: ("1.2B", "13.9B"),
        8: ("990M", "17B"),
        16: ("810M", "20.7B"),
        32: ("669M", "24.9B"),
    },
    1e21: {
        1: ("5.7B", "29.3B"),
        2: ("5B", "33B"),
        4: ("4.4B", "38B"),
        8: ("3.8B", "44.3B"),
        16: ("3.3B", "51.2B"),
        32: ("2.85B", "58.4B"),
    },
    1e22: {
        1: ("18.8B", "88.6B"),
        2: ("17.4B", "96B"),
        4: ("15.8B", "105.4B"),
        8: ("14.4B", "115.8B"),
        16: ("13.2B", "126.5B"),
        32: ("12.2B", "136.9B"),
    },
}

# Table "Optimal E": FLOPs → GB → E (32 stands for the printed "≥ 32"); 16k tokens of KV cache, bfloat16.
OPTIMAL_EXPERTS: dict[float, dict[int, int]] = {
    1e21: {24: 16, 80: 32, 640: 32},
    1e22: {24: 4, 80: 16, 640: 32},
    1e23: {24: 1, 80: 8, 640: 32},
    1e24: {24: 1, 80: 1, 640: 16},
}
OPTIMAL_EXPERTS_KV_TOKENS = 16_384

# Table "The fitted coefficients … reduced to the Chinchilla scaling law", rounded to four decimals by the paper's
# macro.
CHINCHILLA: dict[int, tuple[str, str, str, str, str]] = {
    1: ("30.3640", "-0.1817", "53.9838", "-0.1965", "1.3637"),
    2: ("27.7982", "-0.1780", "66.8401", "-0.2065", "1.3637"),
    4: ("24.8462", "-0.1731", "87.7022", "-0.2192", "1.3637"),
    8: ("21.8330", "-0.1676", "119.9126", "-0.2338", "1.3637"),
    16: ("19.0159", "-0.1617", "167.5073", "-0.2494", "1.3637"),
    32: ("16.5424", "-0.1557", "234.6726", "-0.2652", "1.3637"),
}

# Table "Fitted coefficients of our joined formula".
COEFFICIENTS = {name: str(value) for name, value in PRINTED.items()}

# Numbers in the text: where, what, and how it is printed.
FLOPS_PER_TOKEN_SAVED = {2: "36%", 4: "61%"}  # the 1.1B family of d = 1408 and 1152 against the dense d = 1664
FAMILY_WIDTHS = {1: 1664, 2: 1408, 4: 1152}
CAPTION_EXPERTS, CAPTION_DENSE = 16, (1e9, 10e9)  # a dense model of 1B on 10B tokens, matched in FLOPs and memory
CAPTION = {"n_active": "155M", "tokens": "64B", "tokens_per_parameter": "414"}
LR_RULE = dict(zip(("intercept", "slope_n", "slope_e"), map(str, PAPER.learning_rate["paper"]), strict=True))
