"""Variables of the environment that the Hub's client reads, checked before it fails over them without their names."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from urllib.parse import urlsplit

from hub.base.errors import InputError

_TIMEOUTS = ("HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")

_SCHEMES = ("http", "https", "socks5", "socks5h")


def check_client_variables(variables: Mapping[str, str] = os.environ) -> None:
    """Raise InputError for a variable with which huggingface_hub cannot even be imported."""
    for name in _TIMEOUTS:
        value = variables.get(name, "0")
        if not value.strip().isdecimal():
            raise InputError(f"{name}: {value!r}; it must be a whole number of seconds")
    _check_address("HF_ENDPOINT", variables.get("HF_ENDPOINT") or "https://huggingface.co", ("http", "https"))


def check_network_variables(variables: Mapping[str, str] = os.environ) -> None:
    """Raise InputError for certificates and proxies of the environment that no request could use."""
    check_client_variables(variables)
    file = variables.get("SSL_CERT_FILE")
    folder = variables.get("SSL_CERT_DIR") or "."
    if file:
        _check_certificates(file)
    elif not os.path.isdir(folder):
        raise InputError(f"SSL_CERT_DIR: {folder} is no folder; name one of certificates, or unset it")
    for name in _PROXIES:
        proxy = variables.get(name) or "http://none"
        _check_address(name, proxy if "://" in proxy else f"http://{proxy}", _SCHEMES)


def check_token(token: str, source: str) -> None:
    """Raise InputError for a token with a character that no token has, such as an invisible one of a copied page."""
    for place, character in enumerate(token, start=1):
        if not "!" <= character <= "~":
            raise InputError(f"{source} holds the character U+{ord(character):04X} at place {place}; paste it again")


def _check_certificates(file: str) -> None:
    if not os.path.exists(file):
        raise InputError(f"SSL_CERT_FILE: {file} does not exist; name a file of certificates, or unset it")
    try:
        ssl.create_default_context(cafile=file)
    except OSError as error:
        raise InputError(f"SSL_CERT_FILE: {file} holds no certificates: {error}") from None


def _check_address(name: str, address: str, schemes: tuple[str, ...]) -> None:
    """Raise InputError for an address without a host, or with a port that is no number or a hidden character."""
    try:
        url = urlsplit(address)
        is_address = url.scheme in schemes and url.hostname and url.port != 0 and address.isprintable()
    except ValueError:
        is_address = False
    if not is_address:
        # It may hold a password.
        address_text = re.sub("//[^/@]*@", "//…@", address)
        raise InputError(f"{name}: {address_text!a}; it must be an address, http://HOST:PORT or https://HOST")
