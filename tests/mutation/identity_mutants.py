"""Planted bugs in what keeps models apart: fleets, pages on disk, packed weights."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

_PAGES = "runtime/engine/kept_pages.py"
_WEIGHTS = "runtime/engine/native/packing.py"

IDENTITY_MUTANTS = [
    Mutant(
        "a replica with another model joins",
        "fingerprint",
        "fleet/model_lines.py",
        "            elif not difference:\n",
        "            elif difference is not None:\n",
    ),
    Mutant(
        "a replica with another adapter of one name joins",
        "fingerprint",
        "wire/replies.py",
        "return self.fingerprint.parts | adapters",
        "return self.fingerprint.parts | dict.fromkeys(adapters, 1)",
    ),
    Mutant(
        "programs wait for a model that nobody has",
        "fingerprint",
        "fleet/fleet_channel.py",
        "                self._router.strand(name, self._lines.no_such_model(name))\n",
        "                pass\n",
    ),
    Mutant(
        "a program goes on when its fleet has taken another model",
        "fingerprint",
        "fleet/fleet_channel.py",
        "                self._router.give_up_all(name, error)\n",
        "",
    ),
    Mutant(
        "a fingerprint has no tokenizer",
        "fingerprint",
        "runtime/engine/model/checkpoint_digests.py",
        "            tokenizer=_tokenizer_digest(location, eos_ids),\n",
        "",
    ),
    Mutant(
        "the weights of a fingerprint are the model's name",
        "fingerprint",
        "runtime/engine/model/checkpoint_digests.py",
        "            weights=digests.weights,\n",
        "            weights=self._model,\n",
    ),
    Mutant(
        "a stopped run goes on with another model of the name",
        "replaced models",
        "lang/checkpoints/checkpoint_file.py",
        "if now.get(name, part) != part]",
        "if name not in now]",
    ),
    Mutant(
        "a program over HTTP does not say with which model it has begun",
        "replaced models",
        "backends/blackbox/transcript.py",
        "PiecesPrompt(self.pieces, self.fingerprint)",
        "PiecesPrompt(self.pieces)",
    ),
    Mutant(
        "answers of a model that replaced another are kept as the other's",
        "replaced models",
        "backends/caching.py",
        "if self._asks.welcome.fingerprint != self.info.fingerprint:",
        "if self._asks is None:",
    ),
    Mutant(
        "pages of another model are believed",
        "pages on disk",
        _PAGES,
        "facts = (made_by_parts, engine.computed_by,",
        "facts = (engine.computed_by,",
    ),
    Mutant(
        "pages that other kernels made are believed",
        "pages on disk",
        _PAGES,
        "facts = (made_by_parts, engine.computed_by,",
        "facts = (made_by_parts,",
    ),
    Mutant(
        "packed weights of another shape serve",
        "packed weights",
        _WEIGHTS,
        "*(repr(layout.shape), layout.weight_type,",
        "*(layout.weight_type,",
    ),
    Mutant(
        "packed weights of another quantization serve",
        "packed weights",
        _WEIGHTS,
        "        repr(read_quantization(read_config(location))),\n",
        "",
    ),
    Mutant(
        "packed weights of another content serve",
        "packed weights",
        _WEIGHTS,
        "*(_packing_digest(layout.weight_type), *weight_digests(location)),",
        "_packing_digest(layout.weight_type),",
    ),
]
"""In the order of a model's life: who has it, what is kept of it."""
