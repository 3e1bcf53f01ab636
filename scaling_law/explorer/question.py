"""The state of the page: what is asked, as texts that a person types, that a link carries and that the shell takes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import urlencode

from hub.plain.units import format_bytes, format_flops, parse_bytes, parse_context, parse_count, parse_experts
from scaling_law.formulas import ChinchillaForm, Law

PUBLISHED = "published"
FITTED, YOURS = "fitted", "your upload"  # laws that no --law names yet
VIEWS = {
    "memory": "Loss against memory",
    "map": "Best E over budget × memory",
    "isoflop": "Loss along the budget",
    "tokens": "Loss against tokens",
}
_LONGEST = 200  # characters of a field


@dataclass(frozen=True)
class Question:
    """Texts such as "1e22", "80GB", "16k", "1,2,4-8"; an empty one sets no limit, and asks for the law's own E."""

    flops: str = "1e22"
    memory: str = "80GB"
    kv_tokens: str = "16k"
    inference_tokens: str = ""
    experts: str = ""
    law: str = PUBLISHED
    view: str = "memory"

    @classmethod
    def of(cls, texts: Mapping[str, str]) -> Question:
        """From the query of a link; ValueError for names and values that no question has."""
        known = [own.name for own in fields(cls)]
        if unknown := [name for name in texts if name not in known]:
            raise ValueError(f"{unknown[0][:_LONGEST]!r} is no part of a question: {', '.join(known)}")
        for name, text in texts.items():
            if len(text) > _LONGEST:
                raise ValueError(f"{name}={text[:20]!r}… is too long: at most {_LONGEST} characters")
        if texts.get("view", "memory") not in VIEWS:
            raise ValueError(f"view={texts['view']!r} must be one of {', '.join(VIEWS)}")
        return cls(**texts)

    @classmethod
    def first(cls, name: str, law: Law) -> Question:
        """What the page opens with under this law: for one of a visitor's runs, ten times the largest of them."""
        known = law.conditions.overall if law.conditions else None
        if name == PUBLISHED or known is None:
            return cls(law=name)
        return cls(format_flops(10 * known.training_flops[1]), memory="", kv_tokens="", law=name)

    def query(self) -> str:
        """What follows the ? of a link: the fields that differ from the first question."""
        first = Question()
        return urlencode(
            {own.name: v for own in fields(self) if (v := getattr(self, own.name)) != getattr(first, own.name)}
        )

    @property
    def budget(self) -> float:
        """Training FLOPs (and inference, if tokens are served)."""
        return parse_count(self.flops or "0", "flops")

    def limits(self) -> dict[str, Any]:
        """Keyword arguments of `law.optimal`. ValueError names the field, the text and what is allowed."""
        return {
            "max_memory_bytes": parse_bytes(self.memory, "memory") if self.memory else None,
            "kv_cache_tokens": parse_context(self.kv_tokens or "0", "kv_tokens"),
            "inference_tokens": parse_count(self.inference_tokens or "0", "inference_tokens"),
        }

    def asked_experts(self) -> list[int] | None:
        return parse_experts(self.experts, "experts") if self.experts.strip() else None

    def command(self, law: Law) -> str:
        """The same question in the shell: a plan where the law allows one, else its optimum."""
        names = {"flops": "--flops", "memory": "--memory", "kv_tokens": "--kv-tokens"}
        names |= {"inference_tokens": "--inference-tokens", "experts": "--experts"}
        given = {flag: "".join(getattr(self, name).split()) for name, flag in names.items()}
        given["--law"] = "" if self.law == PUBLISHED else "FOLDER" if self.law in (FITTED, YOURS) else self.law
        words = [word for flag, text in given.items() if text not in ("", "0") for word in (flag, shlex.quote(text))]
        kind = ["plan", *words, "-o", "run.yaml"] if isinstance(law, ChinchillaForm) else ["optimal", *words]
        return " ".join(["scaling-law", *kind])


def of_log_flops(value: float) -> str:
    """The text of a slider's log10."""
    return format_flops(10.0**value)


def of_log_bytes(value: float) -> str:
    return format_bytes(10.0**value).replace(" ", "")


_H100_WEEK = 989e12 * 0.4 * 7 * 86_400  # FLOPs of an H100 in bf16 at 40 % of its peak, as `plan` counts
PRESETS: dict[str, Question] = {
    "1e22 FLOPs, 80 GB": Question(),
    "1e22 FLOPs, one RTX 4090 (24 GB)": Question(memory="24GB", kv_tokens="8k"),
    "8 × H100 for a week, 80 GB": Question(flops=format_flops(8 * _H100_WEEK)),
    "512 × H100 for a month, 640 GB, 1T served": Question(
        flops=format_flops(512 * _H100_WEEK * 30 / 7), memory="640GB", kv_tokens="1M", inference_tokens="1T"
    ),
}
