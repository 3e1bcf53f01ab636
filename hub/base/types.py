"""Types that stand all over the house under one name."""

from __future__ import annotations

from typing import Any

# Values by the names of their fields: a JSON object, keyword arguments, a row.
Fields = dict[str, Any]
Strings = tuple[str, ...]
