"""A question as JSON Schema, for programs that check or write one before they ask."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, create_model

from hub.base.fields import arguments_of, for_pydantic, meaning_of
from hub.base.types import Fields
from scaling_law.planning.optimal import optimal

# A question has exactly one of these.
_BUDGETS = ("flops", "hours", "money")


def question_schema() -> Fields:
    """Return the JSON Schema (2020-12) of a question: an object whose members are keywords of `law.optimal`.

    `law.optimal(**question)` answers it, as do `scaling-law optimal` with the members as options, and the explorer's
    API and MCP server with the members as texts.
    """
    fields: Fields = {}
    for name, argument in arguments_of(optimal).items():
        if name not in ("law", "learning_rate_law"):
            described = Field(description=meaning_of(argument.annotation))
            fields[name] = (Annotated[for_pydantic(argument.annotation), described], argument.default)
    model = create_model("Question", __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=True), **fields)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **model.model_json_schema(),
        "oneOf": [{"required": [name]} for name in _BUDGETS],
    }
