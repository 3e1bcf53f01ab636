"""Variables of the environment, checked before a library fails over one without its name."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hub.base.errors import InputError

PORT = r"(6553[0-5]|655[0-2]\d|65[0-4]\d\d|6[0-4]\d{3}|[0-5]?\d{1,4})"
_HOST = rf"([^\s/@]*@)?([\w.-]+|\[[\da-f:.]+\])(:{PORT})?(/[!-~]*)?"
_ADDRESS = "an address, http://HOST:PORT or https://HOST"


class Kind(NamedTuple):
    """Variables whose values are alike: patterns of their names and of the values, and what is allowed in words."""

    names: str
    values: str
    allowed: str


# The Hub's client cannot even be imported with another one.
ENDPOINT = Kind("HF_ENDPOINT", f"(https?://{_HOST})?", _ADDRESS)
_PROXY = Kind("(?i:(https?|all)_proxy)", f"(((https?|socks5h?)://)?{_HOST})?", _ADDRESS)


def check(kinds: Sequence[Kind], variables: Mapping[str, str] = os.environ) -> None:
    """Raise InputError that names the variables of these kinds with a value that is not allowed, a line for each."""
    problems = []
    for name, value in sorted(variables.items()):
        for kind in kinds:
            if re.fullmatch(kind.names, name) and not re.fullmatch(kind.values, value.strip(), re.IGNORECASE):
                # It may hold a password.
                public_value = re.sub("//[^/@]*@", "//…@", value)
                problems.append(f"{name}: {public_value!a}; it must be {kind.allowed}")
    if problems:
        raise InputError("\n".join(problems))


def check_network(token: str, variables: Mapping[str, str] = os.environ) -> None:
    """Raise InputError for addresses, certificates and a token with which no request can be sent."""
    check([ENDPOINT, _PROXY], variables)
    file = variables.get("SSL_CERT_FILE")
    try:
        if file:
            ssl.create_default_context(cafile=file)
    except OSError as error:
        problem = f"holds no certificates ({error})" if os.path.exists(file or "") else "does not exist"
        raise InputError(f"SSL_CERT_FILE: {file} {problem}; name a file of certificates, or unset it") from None
    # Copied from a page, a token may have an invisible one.
    other_character = re.search("[^!-~]", token)
    if other_character:
        source = "HF_TOKEN" if token in variables.get("HF_TOKEN", "") else "the token"
        place = f"the character U+{ord(other_character[0]):04X} at place {other_character.end()}"
        raise InputError(f"{source} holds {place}; paste it again")
