"""What may be printed to a terminal, wherever it comes from."""

import re

from tasks.secrets import redact

# All that moves the cursor, clears the screen or turns the direction of writing; not the two that
# make lines and columns.
_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def make_harmless(text: str) -> str:
    """Returns a text without secrets, and with the codes that command a terminal spelled out.

    Names of classes and files come from data, and a terminal obeys what is hidden in them.
    """
    return _COMMANDS.sub(lambda found: repr(found[0])[1:-1], redact(text))
