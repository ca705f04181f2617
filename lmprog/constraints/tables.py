"""Disk cache for arrays that depend only on this Python's Unicode version; computing them is slow.

Knows files and integer arrays; does not know their meaning.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import unicodedata
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from lmprog.native import cache_folder

log = logging.getLogger("lmprog")

Made = Callable[[], NDArray[np.int32]]


def kept(name: str, make: Made) -> NDArray[np.int32]:
    """The flat table called `name`, read from the cache folder or computed and stored there."""
    python = ".".join(map(str, sys.version_info[:3]))
    path = cache_folder() / "unicode" / f"{name}-{python}-{unicodedata.unidata_version}.npy"
    if path.exists():
        try:
            found = np.load(path)
            if found.dtype == np.int32 and found.ndim == 1:
                return np.ascontiguousarray(found)
            log.warning("the table %s is not one; it is made anew", path.name)
        except (OSError, ValueError, EOFError) as error:
            log.warning("the table %s cannot be read (%s); it is made anew", path.name, error)
    made = np.ascontiguousarray(make().ravel(), np.int32)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".npy", delete=False) as out:
            np.save(out, made)
        os.replace(out.name, path)  # atomic: other processes see a complete file or none
    except OSError as error:
        log.warning("the table %s could not be written to %s: %s", name, path.parent, error)
    return made
