"""The state of the page: what is asked, as texts that a person types, that a link carries and that the shell takes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any
from urllib.parse import urlencode

from hub.base.errors import InputError, unknown
from hub.base.fields import Parser, Reader, arguments_of, field
from hub.base.types import Fields
from hub.base.units import format_flops
from scaling_law.law import Law
from scaling_law.machine.gpus import GPUS
from scaling_law.planning.question import RunFields
from scaling_law.size.family import Family
from scaling_law.size.model_configs import released_names

PUBLISHED = "published"
# The law of --runs, which no --law names; the page saves it as a file.
FITTED = "fitted"
LAW_FILE = "scaling_law.json"
FLOPS, HOURS = "flops", "hours"
UNITS = (FLOPS, HOURS)
# The fields of a budget in each unit, and the others that every link names.
BUDGET_FIELDS = {FLOPS: (FLOPS,), HOURS: (HOURS, "gpus", "gpu")}
LINKED = ("unit", "memory", "kv_tokens", "law", "view")
GPU_NAMES = tuple(name.lower().replace(" ", "-") for name in GPUS)
VIEWS = {
    "memory": "Loss against memory",
    "map": "Best E over budget × memory",
    "isoflop": "Loss along the budget",
    "tokens": "Loss against tokens",
}
LIMITS = ("memory", "kv_tokens", "inference_tokens", "like")
# All other fields are texts.
CHOICES = {"unit": UNITS, "gpu": GPU_NAMES, "view": tuple(VIEWS), "like": ("", *released_names())}
# Fields that a command names last.
LAST_OPTIONS = ("experts", *RunFields.__annotations__, "accuracy")
# Characters of a field.
_LONGEST = 200


def check_released(model: str, field: str = "model") -> str:
    """Return the name of a released model whose configuration is shipped. InputError for any other."""
    if model not in released_names():
        raise InputError(unknown(f"{field}=", model[:100], released_names()))
    return model


def _parse_released(like: str, field: str = "like") -> Family:
    """Read the family of a released model whose configuration is shipped. InputError for any other."""
    return Family.read(check_released(like, field))


# Pages and servers read no files.
RELEASED = Annotated[Any, field("Released model whose shape the models have."), Parser(_parse_released)]


@cache
def type_of(name: str) -> Any:
    """Return the type of a field, as `law.optimal` has it."""
    return RELEASED if name == "like" else arguments_of(Law.optimal)[name].annotation


@cache
def _reader(name: str) -> Reader:
    return Reader(type_of(name), reads_text=True)


def parse_field(name: str, text: str) -> Any:
    """Read the text of a field. InputError names the field, the text and what is allowed."""
    return _reader(name)(name, text)


@dataclass(frozen=True)
class Question:
    """Texts such as "1e22", "80GB", "16k", "1,2,4-8"; an empty one sets no limit, and asks for the law's own E.

    `unit` says which budget counts: `flops`, or wall-clock `hours` on so many of a `gpu`, whose speed is estimated.
    """

    unit: str = FLOPS
    flops: str = "1e22"
    hours: str = "168"
    gpus: str = "8"
    gpu: str = "h100"
    memory: str = "80GB"
    kv_tokens: str = "16k"
    inference_tokens: str = ""
    like: str = ""
    experts: str = ""
    sequence_length: str = ""
    batch: str = ""
    accuracy: str = ""
    law: str = PUBLISHED
    view: str = "memory"

    @classmethod
    def of(cls, texts: Mapping[str, str]) -> Question:
        """Read the query of a link; ValueError for names and values that no question has."""
        names = [spec.name for spec in fields(cls)]
        for name, text in texts.items():
            if name not in names:
                raise InputError(unknown("part of a question ", name[:_LONGEST], names))
            if len(text) > _LONGEST:
                raise InputError(f"{name}={text[:20]!r}… is too long: at most {_LONGEST} characters")
            if name in CHOICES and text not in CHOICES[name]:
                raise InputError(unknown(f"{name}=", text, filter(None, CHOICES[name]), suggests=name != "gpu"))
        return cls(**texts)

    @classmethod
    def first(cls, name: str, law: Law) -> Question:
        """Return what the page opens with: for a law of the visitor's runs, ten times the largest of them."""
        ranges = law.conditions.overall if law.conditions else None
        if name == PUBLISHED or ranges is None:
            return cls(law=name)
        return cls(flops=format_flops(10 * ranges.training_flops[1]), memory="", kv_tokens="", law=name)

    def query(self) -> str:
        """Return what follows the ? of a link: the fields that count, so that it asks the same of a later version."""
        names = {*LINKED, *BUDGET_FIELDS[self.unit]}
        texts = {}
        for spec in fields(self):
            text = getattr(self, spec.name)
            if spec.name in names or text != spec.default:
                texts[spec.name] = text
        return urlencode(texts)

    def keywords(self) -> Fields:
        """Return all as keyword arguments of `law.optimal` and `law.plan`. InputError for a text that has no meaning.

        A budget and its GPUs must be there; any other empty text leaves its field out.
        """
        budget = BUDGET_FIELDS[self.unit]
        texts = {name: getattr(self, name).strip() for name in (*budget, *LIMITS, *RunFields.__annotations__)}
        texts["experts"] = self.experts.strip()
        return {name: parse_field(name, text or "0") for name, text in texts.items() if text or name in budget}

    def command(self, has_plan: bool = True) -> str:
        """Write the question for the shell: its optimum, and below it the plan of the run, where there is one."""
        names = (*BUDGET_FIELDS[self.unit], *LIMITS, *LAST_OPTIONS)
        texts = {name: "".join(getattr(self, name).split()) for name in names}
        optimum = write_command("optimal", texts, self.law, "--integral")
        if not has_plan:
            return optimum
        del texts["accuracy"]
        return f"{optimum}\n{write_command('plan', texts, self.law, '-o run.yaml')}"


def write_command(name: str, texts: Mapping[str, str], law: str, ending: str) -> str:
    """Write a question for the shell, with the file of a law that is not the published one."""
    words = [f"scaling-law {name}"]
    for field_name, text in texts.items():
        if text not in ("", "0"):
            words.append(f"--{field_name.replace('_', '-')} {shlex.quote(text)}")
    if law != PUBLISHED:
        words.append(f"--law {shlex.quote(LAW_FILE if law == FITTED else law)}")
    return " ".join([*words, ending])


# A card that serves the model; H100s can train what fits it.
_SMALL = {"memory": "24GB", "kv_tokens": "8k"}
PRESETS: dict[str, Question] = {
    "1e22 FLOPs, served from 80 GB": Question(),
    "1e22 FLOPs, served from one RTX 4090": Question(**_SMALL),
    "1e24 FLOPs, 640 GB, 1T tokens served": Question(
        flops="1e24", memory="640GB", kv_tokens="1M", inference_tokens="1T"
    ),
    "One RTX 4090 for three days": Question(HOURS, hours="72", gpus="1", gpu="rtx-4090", **_SMALL),
    "8 × H100 for a week, served from 24 GB": Question(HOURS, hours="168", gpus="8", **_SMALL),
    "64 × H100 for a month, served from 24 GB": Question(HOURS, hours="720", gpus="64", **_SMALL),
}
