"""What each key has open and has used, and whether it may have more.

Places: a key may hold `alpha` times as many as are free, so one key alone gets a fixed share of all
and every other key always finds some (dynamic thresholds, as switches share their buffers). Tokens:
a bucket that fills by `tokens_per_minute`, emptied by what calls really used; a key whose bucket
is empty waits. Bytes that the gateway holds are shared as places are, between keys, or between
addresses where there are no keys. Knows counts; knows neither HTTP nor routes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from lmprog import wire
from lmprog.errors import InvalidParameter, Overloaded
from lmprog.server.options.api_keys import ApiKey


class KeyAccount:
    """One key's account."""

    def __init__(self, key: ApiKey, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.key = key
        self.open_results = 0
        self._tokens: dict[str, tuple[int, int]] = {}
        """Of prompts, and generated, by the served name of the model; "" where none was named."""
        self.refused = 0
        self._level = key.tokens_per_minute or 0.0
        self._filled_at = clock()

    @property
    def name(self) -> str:
        return self.key.name

    @property
    def weight(self) -> float:
        return self.key.weight

    def change(self, key: ApiKey) -> None:
        """The same key with other limits; what it has open and has used stays."""
        self._fill()
        self.key = key
        self._level = min(self._level, key.tokens_per_minute or 0.0)

    def check(self, ops: Sequence[wire.Op]) -> None:
        """Raises InvalidParameter for a priority that the key may not claim."""
        for op in ops:
            if isinstance(op, wire.Generate | wire.Select) and op.priority > self.key.max_priority:
                raise InvalidParameter(
                    f"priority is {op.priority}; this key may claim at most "
                    f"{self.key.max_priority}.",
                    name="priority",
                    value=op.priority,
                )

    @property
    def prompt_tokens(self) -> int:
        return sum(prompt for prompt, _ in self._tokens.values())

    @property
    def generated_tokens(self) -> int:
        return sum(generated for _, generated in self._tokens.values())

    def by_model(self, first: str) -> dict[str, tuple[int, int]]:
        """Tokens of prompts, and generated, by the model; those of none are of the `first`."""
        found = {first: (0, 0)}
        for name, (prompt, generated) in self._tokens.items():
            before = found.get(name or first, (0, 0))
            found[name or first] = before[0] + prompt, before[1] + generated
        return found

    def use(self, prompt: int, generated: int, model: str = "") -> None:
        """These tokens were computed, or found in the cache, for the key."""
        before = self._tokens.get(model, (0, 0))
        self._tokens[model] = before[0] + prompt, before[1] + generated
        self._fill()
        self._level -= prompt + generated

    def seconds_until_tokens(self) -> float:
        """Until its bucket holds something again; 0 where it does, or has no limit."""
        per_minute = self.key.tokens_per_minute
        if per_minute is None:
            return 0.0
        self._fill()
        return 0.0 if self._level > 0 else (1.0 - self._level) * 60.0 / per_minute

    def _fill(self) -> None:
        now, per_minute = self._clock(), self.key.tokens_per_minute
        if per_minute is not None:
            earned = (now - self._filled_at) * per_minute / 60.0
            self._level = min(per_minute, self._level + earned)
        self._filled_at = now


class MemoryPool:
    """Bytes that the gateway holds, and for whom: bodies and what was parsed of them, results and
    texts that wait for their readers, answers being written, stored responses.
    """

    def __init__(self, most: int, share: float = 0.75) -> None:
        """`share` of `most` is what one account may hold while it is alone."""
        self.most = most
        self.most_of_one = int(most * share)
        self._alpha = share / (1.0 - share)
        self._by_account: dict[str, int] = {}
        self.held = 0
        self.reclaims: list[Callable[[str, int], None]] = []
        """Free what an account can do without, until it has room for so much, or nothing is
        left.
        """
        self.parts: list[Callable[[], Iterable[tuple[str, str, int]]]] = [self._unread]
        """Tell of what is held: for which account, of which kind, how many bytes."""
        self.outliving: set[HeldBytes] = set()
        """What outlives its request: answers that are not read."""

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """The accounts for which something is held, and how much."""
        return iter(self._by_account.items())

    def by_kind(self) -> dict[str, dict[str, int]]:
        """Of each account, what is held of each kind. What no part tells of is that of `requests`:
        bodies, and answers that are being made. Counted when it is asked.
        """
        found = {account: {"requests": count} for account, count in self._by_account.items()}
        for part in self.parts:
            for account, kind, count in part():
                if count and account in found:
                    kinds = found[account]
                    kinds[kind] = kinds.get(kind, 0) + count
                    kinds["requests"] -= count
        return found

    def _unread(self) -> Iterator[tuple[str, str, int]]:
        return ((one.account, "answers", one.count) for one in self.outliving)

    def has_room(self, account: str, count: int) -> bool:
        """Whether the account may hold `count` bytes more."""
        own = self._by_account.get(account, 0)
        return own + count <= self._alpha * (self.most - self.held - count)

    def makes_room(self, account: str, count: int) -> bool:
        """The same, after what can be freed for it."""
        if self.has_room(account, count):
            return True
        for reclaim in self.reclaims:
            reclaim(account, count)
        return self.has_room(account, count)

    def add(self, account: str, count: int) -> None:
        """So many more, or fewer, whether there is room or not."""
        self.held += count
        own = self._by_account.get(account, 0) + count
        if own:
            self._by_account[account] = own
        else:
            self._by_account.pop(account, None)


class HeldBytes:
    """What one request holds of the pool."""

    __slots__ = ("_pool", "account", "count")

    def __init__(self, pool: MemoryPool, account: str) -> None:
        self._pool = pool
        self.account = account
        self.count = 0

    @property
    def most(self) -> int:
        """More than this it can never hold."""
        return self._pool.most_of_one

    def take(self, count: int) -> None:
        """So many more. Raises Overloaded where there is no room for them."""
        pool, account = self._pool, self.account
        if not (pool.has_room(account, count) or pool.makes_room(account, count)):
            raise Overloaded(
                f"The server holds {self._pool.held:,} bytes of requests and answers that are "
                f"under way or stored, and may hold {self._pool.most:,}, {self.most:,} of them for "
                f"one client; this needs {count:,} more. Read answers as they come, send less at "
                "once, or try again later."
            )
        self.count += count
        pool.add(account, count)

    def add(self, count: int) -> None:
        """So many more, or fewer, whether there is room or not."""
        self.count += count
        self._pool.add(self.account, count)

    def leave(self) -> None:
        """All is free again. Safe to repeat."""
        self._pool.add(self.account, -self.count)
        self._pool.outliving.discard(self)
        self.count = 0

    def hand_over(self) -> HeldBytes:
        """What is held now outlives the request, until the returned one is left."""
        other = HeldBytes(self._pool, self.account)
        other.count, self.count = self.count, 0
        self._pool.outliving.add(other)
        return other


class KeyAccounts:
    """The accounts of all keys."""

    def __init__(
        self, keys: Iterable[ApiKey], places: int, share: float, clock: Callable[[], float]
    ) -> None:
        """`share` of the `places` is what one key of weight 1 may hold while it is alone."""
        self._places = places
        self._alpha = share / (1.0 - share)
        self._clock = clock
        self._accounts: dict[str, KeyAccount] = {}
        self.load(keys)

    def load(self, keys: Iterable[ApiKey]) -> None:
        """From now on these keys. Who has an account keeps it."""
        before = self._accounts
        self._accounts = {}
        for key in keys:
            account = before.get(key.name)
            if account is None:
                account = KeyAccount(key, self._clock)
            else:
                account.change(key)
            self._accounts[key.name] = account

    @property
    def are_several(self) -> bool:
        """Whether there is anybody to be fair to."""
        return sum(not account.key.is_admin for account in self._accounts.values()) > 1

    def __iter__(self) -> Iterator[KeyAccount]:
        return iter(self._accounts.values())

    def get(self, key: ApiKey) -> KeyAccount | None:
        return self._accounts.get(key.name)

    def most_at_once(self, account: KeyAccount) -> int:
        """Places that the key may hold while it is alone."""
        alpha = self._alpha * account.key.weight
        return int(self._places * alpha / (1.0 + alpha))

    def has_room(self, account: KeyAccount, results: int, open_results: int) -> bool:
        """Whether the key may hold `results` more, of all keys' `open_results`."""
        free = self._places - open_results - results
        return account.open_results + results <= self._alpha * account.key.weight * free
