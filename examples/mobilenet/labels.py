"""Names of the 1,000 ImageNet classes."""

from __future__ import annotations

import functools
import json

from examples.models.fetch import fetch

CLASSES = 1000


@functools.cache
def labels() -> tuple[str, ...]:
    """Class index -> its first name.  Downloads the list on first use; raises FetchError."""
    names = json.loads(fetch("imagenet-names").read_text(encoding="utf-8"))
    return tuple(names[str(i)].split(", ")[0] for i in range(CLASSES))
