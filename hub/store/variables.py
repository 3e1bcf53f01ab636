"""Variables of the environment that the Hub's client reads, checked before it fails over them without their names."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from hub.base.errors import InputError

_TIMEOUTS = ("HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_SCHEMES = ("http", "https", "socks5", "socks5h")


def check_client_variables(variables: Mapping[str, str] = os.environ) -> None:
    """Raise InputError for a variable with which huggingface_hub cannot even be imported."""
    for name in _TIMEOUTS:
        value = variables.get(name, "").strip()
        if name in variables and not re.fullmatch(r"[+-]?\d+", value):
            raise InputError(f"{name}: {value!r}; it must be a whole number of seconds")
    endpoint = variables.get("HF_ENDPOINT", "")
    problem = _address_problem(endpoint, ("http", "https")) if endpoint else ""
    if problem:
        raise InputError(f"HF_ENDPOINT: {endpoint!r} {problem}; it must be the address of a Hub, https://HOST")


def check_network_variables(variables: Mapping[str, str] = os.environ) -> None:
    """Raise InputError for certificates and proxies of the environment that no request could use."""
    check_client_variables(variables)
    file = variables.get("SSL_CERT_FILE", "")
    folder = variables.get("SSL_CERT_DIR", "")
    if file:
        _check_certificates("SSL_CERT_FILE", Path(file))
    elif folder and not Path(folder).is_dir():
        raise InputError(f"SSL_CERT_DIR: {folder} is no folder; name one of certificates, or unset it")
    for name in [*_PROXIES, *map(str.lower, _PROXIES)]:
        proxy = variables.get(name, "")
        if proxy:
            _check_proxy(name, proxy)


def check_token(token: str, source: str) -> None:
    """Raise InputError for a token with a character that no token has, such as an invisible one of a copied page."""
    for place, character in enumerate(token, start=1):
        if not "!" <= character <= "~":
            raise InputError(f"{source} holds the character U+{ord(character):04X} at place {place}; paste it again")


def _check_certificates(name: str, file: Path) -> None:
    if not file.exists():
        raise InputError(f"{name}: {file} does not exist; name a file of certificates, or unset it")
    try:
        ssl.create_default_context(cafile=file)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"{name}: {file} holds no certificates: {reason}; name another file, or unset it") from None


def _check_proxy(name: str, proxy: str) -> None:
    address = proxy if "://" in proxy else f"http://{proxy}"
    # It may hold a password.
    shown = re.sub("//[^/@]*@", "//…@", proxy)
    problem = _address_problem(address, _SCHEMES)
    if problem:
        raise InputError(f"{name}: {shown!r} {problem}; it must be http://HOST:PORT, or be unset")
    if address.startswith("socks") and find_spec("socksio") is None:
        raise InputError(f"{name}: {shown!r} needs the package socksio, which is not installed")


def _address_problem(address: str, schemes: tuple[str, ...]) -> str:
    """Say what is wrong with an address; "" for nothing."""
    hidden = [character for character in address if character.isspace() or not character.isprintable()]
    if hidden:
        return f"holds the character U+{ord(hidden[0]):04X}"
    try:
        parts = urlsplit(address)
        has_port = parts.port is None or parts.port > 0
    except ValueError as error:
        return f"is no address ({error})"
    if parts.scheme not in schemes:
        return "does not begin with http:// or https://"
    return "" if parts.hostname and has_port else "names no host"
