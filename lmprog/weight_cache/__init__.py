"""Packed weights kept on disk, by their content: mapped by every process that needs them.

`packed_files` is the folder of them, `digests` what a file's content is, known without reading it
again. Knows files; knows no model and no numbers.
"""

from lmprog.weight_cache.digests import content_digest, content_digests, file_identity
from lmprog.weight_cache.packed_files import (
    LIMIT_VARIABLE,
    Draft,
    PackedFile,
    PackedFiles,
    user_cache,
)

__all__ = [
    "LIMIT_VARIABLE",
    "Draft",
    "PackedFile",
    "PackedFiles",
    "content_digest",
    "content_digests",
    "file_identity",
    "user_cache",
]
