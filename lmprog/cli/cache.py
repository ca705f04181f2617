"""`lmprog cache`: the packed weights on disk, listed or deleted."""

from __future__ import annotations

import argparse
import time

from lmprog.weight_cache import LIMIT_VARIABLE, user_cache


def run(given: argparse.Namespace) -> int:
    files = user_cache()
    if given.verb == "clear":
        print(f"{files.clear() / 1e6:,.0f} MB deleted in {files.folder}")
        return 0
    found = files.files()
    for one in found:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.last_used))
        print(f"{one.num_bytes / 1e6:>10,.0f} MB  last used {used}  {one.label}")
    total = sum(one.num_bytes for one in found) / 1e6
    print(f"{total:>10,.0f} MB of at most {files.limit / 1e6:,.0f} ({LIMIT_VARIABLE})")
    print(f"in {files.folder}; `lmprog cache clear` deletes it, which costs time only")
    return 0
