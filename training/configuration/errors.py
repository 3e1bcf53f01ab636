"""The error of a configuration, apart from its sections: who tokenises raises it and reads no configuration."""

from hub.base.errors import InputError


class ConfigurationError(InputError):
    """The configuration is invalid; the message lists every problem."""
