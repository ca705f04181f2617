"""`lmprog.evaluate`: a program on every row, and the metric on what it made of each.

Draws rows as there is room for them, and keeps of a run what an `EvaluatedRow` has; so memory does
not grow by runs. With a checkpoint, a file has the rows that are done, and a file beside it each
run that is not: a process that died goes on with what nobody was asked yet.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, overload

from lmprog.backends.client import running_loop
from lmprog.errors import Cancelled, ProgramError, not_allowed
from lmprog.evaluation.evaluated import Evaluation
from lmprog.evaluation.evaluated_row import (
    EvaluatedRow,
    Prices,
    RowFile,
    RowWork,
    named_by,
    priced,
    run_file,
    work_of,
)
from lmprog.evaluation.rows import (
    MeasuredProgram,
    Metric,
    Row,
    arguments_of,
    as_json,
    metric_name,
    parameters_of,
    plain_metric,
    rows_of,
    scores_of,
)
from lmprog.lang.branches import scope as scopes
from lmprog.lang.branches.scope import RunSettings
from lmprog.lang.ops import threads
from lmprog.lang.ops.sampling import Sampling
from lmprog.lang.runs.executor import Job, awaiting, blocking, execute, open_run
from lmprog.lang.runs.results import Run, stop_runs


@overload
def evaluate(
    program: MeasuredProgram,
    rows: object,
    metric: Metric,
    *,
    stream: Literal[True],
    concurrency: int = ...,
    progress: bool = ...,
    **options: Any,
) -> RowStream: ...
@overload
def evaluate(
    program: MeasuredProgram,
    rows: object,
    metric: Metric,
    *,
    stream: Literal[False] = ...,
    concurrency: int = ...,
    progress: bool = ...,
    **options: Any,
) -> Evaluation: ...
def evaluate(
    program: MeasuredProgram,
    rows: object,
    metric: Metric,
    *,
    stream: bool = False,
    concurrency: int = 64,
    progress: bool = False,
    **options: Any,
) -> Any:
    """Runs `program` on every row and scores what it gives; blocks, unless `stream`: then it gives
    the rows as they end, and their `result` at last.

    `rows`: dicts, dataclasses, a DataFrame, the path of a `.jsonl` or `.csv` file. A row's columns
    go to the program's parameters of these names. `metric`: a function of (value, row), plain or
    async, that gives a bool, a number or a dict of them; a program that judges; or the name of the
    column that the value must equal.

    `on_error`: "collect" counts a row that fails as 0, "raise" ends all. `checkpoint`: a file from
    which the same call goes on. `prices`: by model, for a million tokens: of the prompt, cached,
    generated. `transcripts=False` keeps no texts. All else is a setting of every run; each row has
    a seed of its own, made from `seed` (0).
    """
    loop = EvaluationLoop(
        EvaluationPlan.of(program, rows, metric, options), concurrency, progress=progress
    )
    return RowStream(loop) if stream else loop.perform()


async def aevaluate(
    program: MeasuredProgram,
    rows: object,
    metric: Metric,
    *,
    concurrency: int = 64,
    progress: bool = False,
    **options: Any,
) -> Evaluation:
    """The same without blocking the event loop. Cancelling the task ends all runs."""
    loop = EvaluationLoop(
        EvaluationPlan.of(program, rows, metric, options), concurrency, progress=progress
    )
    return await loop.perform_async()


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """What is evaluated, and how."""

    program: MeasuredProgram
    settings: RunSettings
    rows: Iterable[Row]
    size: int | None
    metric: Metric
    raises: bool
    checkpoint: Path | None
    prices: Mapping[str, Prices]
    transcripts: bool
    seed: int

    @classmethod
    def of(
        cls, program: MeasuredProgram, rows: object, metric: Metric, options: Mapping[str, Any]
    ) -> EvaluationPlan:
        if not isinstance(program, MeasuredProgram):
            allowed = "a function decorated with @lmprog.function"
            raise not_allowed("program", type(program).__name__, allowed)
        rest = dict(options)
        on_error = rest.pop("on_error", "collect")
        if on_error not in ("raise", "collect"):
            raise not_allowed("on_error", on_error, "'raise' or 'collect'")
        checkpoint = rest.pop("checkpoint", None)
        if checkpoint is not None:
            checkpoint = program.using(checkpoint=checkpoint).settings.checkpoint
        given = rest.pop("prices", None) or {}
        transcripts = rest.pop("transcripts", True)
        settings: RunSettings = program.using(**rest).settings
        seed = settings.sampling.given().get("seed")
        found, size = rows_of(rows)
        return cls(
            program,
            settings,
            found,
            size,
            metric,
            on_error == "raise",
            checkpoint,
            {model: Prices(*one) for model, one in given.items()},
            transcripts,
            0 if seed is None else int(seed),
        )

    def origin(self) -> dict[str, Any]:
        """Which evaluation it is, for a checkpoint."""
        said = {**self.settings.as_json(), "seed": self.seed}
        return {
            "program": Job(self.program.function, (), {}).path,
            "bound": as_json(self.program.bound),
            "settings": as_json(said),
            "metric": metric_name(self.metric),
        }


def seed_of_row(seed: int, index: int) -> int:
    """Of the runs of a row, whatever program is run on it: so two programs are compared by row and
    seed.
    """
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 2


class EvaluationLoop:
    """Does a plan once, with at most `concurrency` rows at a time."""

    def __init__(self, plan: EvaluationPlan, concurrency: int, *, progress: bool) -> None:
        if concurrency < 1:
            raise not_allowed("concurrency", concurrency, "at least 1")
        self._plan = plan
        self._concurrency = concurrency if plan.size is None else min(concurrency, plan.size or 1)
        self._scorer = _Scorer(plan)
        self._parameters = parameters_of(plan.program)
        self._upcoming = enumerate(plan.rows)
        self._drawing = threading.Lock()
        self._lock = threading.Lock()  # guards all below
        self._running: set[Run[Any]] = set()
        self._is_stopped = False
        self.done: list[EvaluatedRow] = []
        self.told: Callable[[EvaluatedRow], object] = lambda row: None
        """Told of each row that is done."""
        self.ran: Callable[[], object] = lambda: None
        """Told of the end of each run, before its row is kept."""
        self._file = None if plan.checkpoint is None else RowFile(plan.checkpoint, plan.origin())
        self._bar: Any = None
        self._shows = progress
        self._sum = 0.0

    # --- all of it

    def perform(self) -> Evaluation:
        """Blocks. What leaves it early carries what is done, as its `results`."""
        is_async, is_on_loop = self._is_async, running_loop() is not None
        if is_async and is_on_loop and scopes.current.get() is not None:
            raise ProgramError(
                "inside an async program, write `await lmprog.aevaluate(...)` instead of "
                "`lmprog.evaluate(...)`"
            )
        with self._to_its_end():
            if not is_async:
                self._in_threads()
            elif is_on_loop:  # a notebook's, which is busy with the current cell
                done = threads.start("lmprog-evaluate", asyncio.run, self._on_loop())
                threads.wait([done])
                done.result()
            else:
                asyncio.run(self._on_loop())
        return self.result()

    async def perform_async(self) -> Evaluation:
        with self._to_its_end():
            await self._on_loop()
        return self.result()

    def result(self) -> Evaluation:
        """Of the rows that are done."""
        plan = self._plan
        with self._lock:
            rows = list(self.done)
        name = plan.program.function.__name__
        return Evaluation(name, metric_name(plan.metric), plan.seed, rows)

    def stop(self) -> None:
        """Begins no more rows, cancels those under way, and gives them a moment to end."""
        with self._lock:
            self._is_stopped = True
            running = list(self._running)
        stop_runs(running, "the evaluation was stopped before this row had ended")

    @property
    def _is_async(self) -> bool:
        return inspect.iscoroutinefunction(self._plan.program.function)

    def _to_its_end(self) -> AbstractContextManager[None]:
        return _Ending(self)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        if self._file is not None:
            self._file.close()

    def open_bar(self) -> None:
        if self._shows:
            from tqdm import tqdm

            self._bar = tqdm(total=self._plan.size, desc=self._plan.program.function.__name__)

    def _in_threads(self) -> None:
        def worker() -> None:
            while (item := self._next()) is not None:
                self._do(*item)

        num = self._concurrency
        workers = threads.start_all("lmprog-evaluate", [worker] * num, num)
        threads.wait(workers, FIRST_EXCEPTION)
        for ended in workers:
            if ended.done():
                ended.result()

    async def _on_loop(self) -> None:
        async def worker() -> None:
            while (item := self._next()) is not None:
                await self._do_async(*item)

        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(worker()) for _ in range(self._concurrency)]
        try:
            await asyncio.gather(*tasks)
        finally:
            with self._lock:
                self._is_stopped = True
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # --- a row

    def settings_of(self, index: int) -> RunSettings:
        """Those of a row's run."""
        settings = self._plan.settings
        own = Sampling(seed=seed_of_row(self._plan.seed, index))
        return replace(settings, sampling=own.over(settings.sampling))

    def _next(self) -> tuple[int, Row] | None:
        """The next row that is not done; rows are drawn one after the other, as they are needed."""
        with self._drawing:
            for index, row in self._upcoming:
                if self._is_stopped:
                    return None
                known = None if self._file is None else self._file.known(index, row)
                if known is None:
                    return index, row
                self._take(known)
        return None

    def _begin(self, index: int, row: Row) -> tuple[Job, Run[Any]]:
        """Raises where the row cannot be an argument of the program."""
        plan = self._plan
        kwargs = arguments_of(plan.program, self._parameters, row)
        job = Job(plan.program.function, (), kwargs)
        settings = self.settings_of(index)
        if self._file is not None:
            settings = replace(settings, checkpoint=self._file.run_file(index))
        run = open_run(settings)
        with self._lock:
            self._running.add(run)
            is_stopped = self._is_stopped
        if is_stopped:
            run.scope.cancel(Cancelled("the evaluation was stopped"))
        return job, run

    def _do(self, index: int, row: Row) -> None:
        job, run = self._begin(index, row)
        begun = time.monotonic()
        execute(job, run)
        failed, scored = run.outcome.exception(), _Scored()
        if failed is None:
            try:
                scored = self._scorer.score(index, run.outcome.result(), row, run)
            except Exception as error:  # noqa: BLE001  (the user's metric: its row has failed)
                failed = error
        self._ended(_Ended(index, row, run, time.monotonic() - begun, failed, scored))

    async def _do_async(self, index: int, row: Row) -> None:
        job, run = self._begin(index, row)
        begun = time.monotonic()
        await awaiting(job, run)
        failed, scored = run.outcome.exception(), _Scored()
        if failed is None:
            try:
                scored = await self._scorer.score_async(index, run.outcome.result(), row, run)
            except Exception as error:  # noqa: BLE001  (the user's metric: its row has failed)
                failed = error
        self._ended(_Ended(index, row, run, time.monotonic() - begun, failed, scored))

    def _ended(self, ended: _Ended) -> None:
        """Keeps of a run what a row has. Raises what failed where that ends all."""
        with self._lock:
            self._running.discard(ended.run)
            is_stopped = self._is_stopped
            if ended.failed is not None and self._plan.raises:
                self._is_stopped = True
        if ended.failed is not None and (is_stopped or self._plan.raises):
            if is_stopped:  # it was stopped with all others, and says nothing of the program
                return
            ended.failed.add_note(f"raised by row {ended.index}")
            raise ended.failed
        self.ran()
        row = ended.row_with(self._plan)
        if self._file is not None and ended.failed is None:
            self._file.add(row)
        self._take(row)

    def _take(self, row: EvaluatedRow) -> None:
        with self._lock:
            self.done.append(row)
            self._sum += row.score
            if self._bar is not None:
                self._bar.set_postfix_str(f"score {self._sum / len(self.done):.3f}", refresh=False)
                self._bar.update()
        self.told(row)


class _Ending(AbstractContextManager[None]):
    """However a loop is left, nothing goes on, and what is done is not lost."""

    def __init__(self, loop: EvaluationLoop) -> None:
        self._loop = loop

    def __enter__(self) -> None:
        self._loop.open_bar()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self._loop.stop()
            if getattr(error, "results", None) is None:
                error.results = self._loop.result()  # type: ignore[attr-defined]
        self._loop.close()


class RowStream:
    """The rows of an evaluation as they end: `for row in ...`; `result` is all of them. Who stops
    reading ends the evaluation.
    """

    def __init__(self, loop: EvaluationLoop) -> None:
        self._loop = loop
        self._result: Evaluation | None = None

    @property
    def result(self) -> Evaluation:
        """Reads what is left."""
        for _ in self if self._result is None else ():
            pass
        assert self._result is not None
        return self._result

    def __iter__(self) -> Iterator[EvaluatedRow]:
        if self._result is not None:
            yield from self._result
            return
        ended: queue.SimpleQueue[EvaluatedRow | None] = queue.SimpleQueue()
        self._loop.told = ended.put
        done = threads.start("lmprog-evaluate", self._loop.perform)
        done.add_done_callback(lambda _: ended.put(None))
        try:
            while (row := ended.get()) is not None:
                yield row
            self._result = done.result()
        except BaseException:
            self._loop.stop()
            raise


@dataclass(frozen=True, slots=True)
class _Scored:
    """What the metric said, and what it took."""

    scores: Mapping[str, float] | None = None
    judging: RowWork = field(default_factory=RowWork)


@dataclass(frozen=True, slots=True)
class _Ended:
    """A row whose run has ended."""

    index: int
    row: Row
    run: Run[Any]
    seconds: float
    failed: BaseException | None
    scored: _Scored

    def row_with(self, plan: EvaluationPlan) -> EvaluatedRow:
        work, branches, transcript = work_of(self.run, plan.prices, shown=plan.transcripts)
        failed = self.failed
        while isinstance(failed, BaseExceptionGroup):  # its kind is that of the first
            failed = failed.exceptions[0]
        return EvaluatedRow(
            self.index,
            self.row,
            None if self.run.outcome.exception() is not None else self.run.outcome.result(),
            dict(self.scored.scores or {}),
            "" if failed is None else type(failed).__name__,
            "" if failed is None else str(failed),
            work,
            self.scored.judging,
            round(self.seconds, 6),
            seed_of_row(plan.seed, self.index),
            len(self.run.scope.all_gens()),
            {} if failed is not None else named_by(self.run),
            self.run.num_from_cache,
            branches,
            transcript,
        )


class _Scorer:
    """The metric of a plan. A judge is a run of its own for each row, with the row's seed."""

    def __init__(self, plan: EvaluationPlan) -> None:
        self._plan = plan
        self._name = metric_name(plan.metric)
        self._judge = plan.metric if isinstance(plan.metric, MeasuredProgram) else None
        self._metric = plain_metric(plan.metric) if self._judge is None else None

    def score(self, index: int, value: Any, row: Row, run: Run[Any]) -> _Scored:
        if self._judge is not None:
            job, judging = self._judged_by(self._judge, index, value, row)
            blocking(job, judging)
            return self._verdict(judging)
        assert self._metric is not None
        given = self._metric(value, row, run)
        if inspect.isawaitable(given):
            given = asyncio.run(_awaited(given))
        return _Scored(scores_of(given, self._name))

    async def score_async(self, index: int, value: Any, row: Row, run: Run[Any]) -> _Scored:
        if self._judge is not None:
            job, judging = self._judged_by(self._judge, index, value, row)
            await awaiting(job, judging)
            return self._verdict(judging)
        assert self._metric is not None
        given = self._metric(value, row, run)
        if inspect.isawaitable(given):
            given = await given
        return _Scored(scores_of(given, self._name))

    def _judged_by(
        self, judge: MeasuredProgram, index: int, value: Any, row: Row
    ) -> tuple[Job, Run[Any]]:
        kwargs = arguments_of(judge, parameters_of(judge), row, value=value)
        settings, own = judge.settings, Sampling(seed=seed_of_row(self._plan.seed, index))
        if settings.backend is None:
            settings = replace(settings, backend=self._plan.settings.backend)
        settings = replace(settings, sampling=own.over(settings.sampling))
        if self._plan.checkpoint is not None:
            settings = replace(settings, checkpoint=run_file(self._plan.checkpoint, index, "judge"))
        return Job(judge.function, (), kwargs), open_run(settings)

    def _verdict(self, judging: Run[Any]) -> _Scored:
        scores = scores_of(judging.value, self._name)
        return _Scored(scores, priced(judging.usage_by_model, self._plan.prices))


async def _awaited(given: Any) -> Any:
    return await given
