"""Whether a page is worth storing or loading: measured seconds of the store against those of
computing its tokens again, and how often a page that was stored comes back.

Now and then the other way is taken, so that what it costs is measured again. Knows costs and
counts; knows no tree and no store.
"""

from __future__ import annotations

from collections.abc import Callable

from lmprog.runtime.tier.page_store import PageCosts

DECLINED_IN_TURN = 64
"""One in so many decisions against storing or loading is taken the other way."""
ASSUMED_PAGES = 256.0
"""As many pages count as stored, and loaded once each, before any were."""
REMEMBERED_PAGES = 2048
"""Pages stored after which what was counted before weighs half."""


class PageWorth:
    """`cost_per_token` says how many seconds computing a token takes, as measured so far."""

    def __init__(self, cost_per_token: Callable[[], float]) -> None:
        self.cost_per_token = cost_per_token
        self._recent_stored = self._recent_loaded = ASSUMED_PAGES
        self._num_declined = 0

    @property
    def chance_of_return(self) -> float:
        """How often a page that is stored is loaded."""
        return self._recent_loaded / self._recent_stored

    def count_stored(self, num_pages: int) -> None:
        past = 0.5 ** (num_pages / REMEMBERED_PAGES)
        self._recent_stored = self._recent_stored * past + num_pages
        self._recent_loaded *= past

    def count_loaded(self, num_pages: int) -> None:
        self._recent_loaded += num_pages

    def pays_to_store(
        self, num_tokens: int, num_pages: int, costs: PageCosts, returns: float
    ) -> bool:
        """`returns`: how often these pages are expected to come back."""
        saved = returns * (num_tokens * self.cost_per_token() - num_pages * costs.load)
        return self._is_worth(saved, num_pages * costs.store)

    def pays_to_load(self, num_tokens: int, num_pages: int, costs: PageCosts) -> bool:
        """Before any token was computed nothing speaks against what was worth storing."""
        cost = self.cost_per_token()
        return cost <= 0.0 or self._is_worth(num_tokens * cost, num_pages * costs.load)

    def _is_worth(self, saved: float, cost: float) -> bool:
        if saved >= cost:
            return True
        self._num_declined += 1
        return self._num_declined % DECLINED_IN_TURN == 0
