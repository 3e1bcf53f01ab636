"""Warnings that have a short form, so that many of them can be said in one line.

>>> condense([Notice("N 3B is outside the runs", "Extrapolates", "N", "×2.5"), Notice("rates assumed", "assumed")])
'Extrapolates: N ×2.5; assumed'
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Notice(str):
    """A warning with its short form: a `topic`, and in it the `amount` of a `subject`.

    Of several notices of one subject, the one of largest `size` is shown. Without a topic, a line of several warnings
    leaves the notice out, because the answer says it elsewhere.
    """

    topic: str
    subject: str
    amount: str
    size: float

    def __new__(cls, text: str, topic: str = "", subject: str = "", amount: str = "", size: float = 0.0) -> Notice:
        notice = super().__new__(cls, text)
        notice.topic = topic
        notice.subject = subject
        notice.amount = amount
        notice.size = size
        return notice

    def __getnewargs__(self) -> tuple[Any, ...]:
        """Return what a copy is made of."""
        return str(self), self.topic, self.subject, self.amount, self.size


def about(name: str, warning: str, topic: str | None = None) -> str:
    """Say in front of a warning what it is about; a notice keeps its short form, of another topic if one is given."""
    text = f"{name}: {warning}"
    if not isinstance(warning, Notice):
        return text
    if topic is None or not warning.topic:
        topic = warning.topic
    return Notice(text, topic, warning.subject, warning.amount, warning.size)


def condense(warnings: Sequence[str]) -> str:
    """Say the short forms of the notices among warnings in a line, a clause for each topic; "" for none."""
    topics: dict[str, dict[str, Notice]] = {}
    for warning in warnings:
        if isinstance(warning, Notice) and warning.topic:
            subjects = topics.setdefault(warning.topic, {})
            previous = subjects.get(warning.subject)
            if previous is None or warning.size > previous.size:
                subjects[warning.subject] = warning
    amounts = []
    remarks = []
    for topic, subjects in topics.items():
        texts = [f"{subject} {notice.amount}".strip() for subject, notice in subjects.items() if subject]
        if texts:
            amounts.append(f"{topic}: {', '.join(texts)}")
        else:
            remarks.append(topic)
    line = "; ".join([*amounts, *remarks])
    return f"{line[:1].upper()}{line[1:]}"


def brief_lines(warnings: Sequence[str], where: str) -> list[str]:
    """Return what is shown of warnings: those without a short form, and a line for all others.

    The line says how many warnings there are, and `where`. A single warning is shown as it is.
    """
    notices = [warning for warning in warnings if isinstance(warning, Notice)]
    if len(notices) < 2:
        return list(warnings)
    lines = [warning for warning in warnings if not isinstance(warning, Notice)]
    line = condense(notices)
    count = f"{where} has all {len(warnings)} warnings"
    return [*lines, f"{line} ({count})" if line else count]
