"""The configuration error, apart from the sections, so that tokenising processes need not import them."""

from hub.base.errors import InputError


class ConfigurationError(InputError):
    """The configuration is invalid; the message lists every problem."""
