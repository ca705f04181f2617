"""Planted bugs outside of one runtime's core: fleets, calls of tools, structural tags."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

_FLEET, _CALLS, _TAGS = "fleet/", "tool_calls/", "tool_calls/structural_tags.py"

OUTER_MUTANTS = [
    # --- fleets
    Mutant(
        "a program goes to the shortest prefix",
        "fleet",
        _FLEET + "placement.py",
        "longest = max(matched[index] for index in near)",
        "longest = min(matched[index] for index in near)",
    ),
    Mutant(
        "programs wait while another replica has a free slot",
        "fleet",
        _FLEET + "placement.py",
        "elif has_slots:",
        "elif False:",
    ),
    Mutant(
        "a new prefix goes to the fullest replica",
        "fleet",
        _FLEET + "placement.py",
        "if share <= full]",
        "if share >= full]",
    ),
    Mutant(
        "the memory of prefixes forgets the newest",
        "fleet",
        _FLEET + "placement.py",
        "blocks.popitem(last=False)",
        "blocks.popitem(last=True)",
    ),
    Mutant(
        "a lost replica's prefixes are remembered",
        "fleet",
        _FLEET + "placement.py",
        "            self._clear(1 << replica, key)\n        self._most.pop(replica, None)",
        "            pass\n        self._most.pop(replica, None)",
    ),
    Mutant(
        "salts share prefixes in a fleet",
        "fleet",
        _FLEET + "placement.py",
        "    key, number = _number(salt), int.from_bytes\n",
        '    key, number = _number(""), int.from_bytes\n',
    ),
    Mutant(
        "a moved program streams its text again",
        "fleet",
        _FLEET + "program_log.py",
        "delta.text[skipped:]",
        "delta.text",
    ),
    Mutant(
        "a moved program that goes another way is believed",
        "fleet",
        _FLEET + "program_log.py",
        "            if not streamed.text.startswith(again.text):\n                raise Diverged\n",
        "",
    ),
    Mutant(
        "a failed branch works again after a move",
        "fleet",
        "journal.py",
        "            self._why.setdefault(op.branch, error)\n",
        "            pass\n",
    ),
    # --- calls of tools
    Mutant(
        "a call of an unknown tool is read",
        "tool_calls",
        _CALLS + "stream.py",
        "read is not None and (self._tells_wrong or read[0].name in self._tools)",
        "read is not None",
    ),
    Mutant(
        "white space in a call's form counts",
        "tool_calls",
        _CALLS + "reading.py",
        'r"\\s*" + r"\\s*".join(words) + r"\\s*" if words',
        '"".join(words) if words',
    ),
    Mutant(
        "a string argument is read as a number",
        "tool_calls",
        _CALLS + "reading.py",
        'if isinstance(about, dict) and about.get("type") == "string":',
        'if isinstance(about, dict) and about.get("type") == "number":',
    ),
    Mutant(
        "only the first argument is read",
        "tool_calls",
        _CALLS + "reading.py",
        "        found[key] = value\n",
        "        found.setdefault(key, value)\n        return as_json(found), end\n",
    ),
    # --- structural tags
    Mutant(
        "a tag's text is written again behind its trigger",
        "tags",
        _TAGS,
        "InOrder((*_literal(begin[len(trigger) :]), rest))",
        "InOrder((*_literal(begin), rest))",
    ),
    Mutant(
        "a tag that is required may be missing",
        "tags",
        _TAGS,
        "InOrder((Repeated(tagged, int(at_least_one), None), free))",
        "InOrder((Repeated(tagged, 0, None), free))",
    ),
    Mutant(
        "more tags may follow the only one",
        "tags",
        _TAGS,
        "    if once:\n        return tagged",
        "    if False:\n        return tagged",
    ),
    Mutant(
        "separated tags need no separator",
        "tags",
        _TAGS,
        "more = Repeated(InOrder((*between, one)), 0, 0 if once else None)",
        "more = Repeated(one, 0, 0 if once else None)",
    ),
]
"""In the order of their rooms."""
