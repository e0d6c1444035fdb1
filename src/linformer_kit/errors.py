"""The one exception that means: a person gave something that a person can mend."""

from __future__ import annotations


class InputError(ValueError):
    """Bad input: the message is one line that says what, what was expected and what was got.

    It is a `ValueError`, so library users catch it as such; the command line prints the message alone and exits 2.
    """
