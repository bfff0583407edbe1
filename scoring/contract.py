"""The reward contract: a score for one completion becomes a TRL reward function, and its scores are checked."""

from __future__ import annotations

import asyncio
import difflib
import functools
import hashlib
import inspect
import logging
import math
import os
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from scoring import formats

logger = logging.getLogger("rewards")
Score = float | int | bool | None


class RewardError(RuntimeError):
    """A reward function is broken: it raised, or returned something that is not a score."""


class RewardFailure(Exception):
    """Raise it in a reward that cannot say anything now (a service is down): neutral, counted and logged."""


class MissingColumnError(ValueError):
    """A reward function needs a data-set column that is not there."""


NEUTRAL = (RewardFailure, TimeoutError, ConnectionError)  # failures of the surroundings; all else is a bug
# and those of HTTP clients and subprocess, whose classes are no subclasses of these
NEUTRAL_NAMES = {
    "ConnectionError",
    "Timeout",
    "TimeoutException",
    "TimeoutExpired",
    "NetworkError",
    "APIConnectionError",
    "URLError",
}
BY_TRL = ("completion_ids", "trainer_state", "log_extra", "log_metric")  # what TRL gives besides the columns
NOT_COLUMNS = {"prompt", "prompts", "completion", "completions", *BY_TRL}


def is_failure(error: BaseException) -> bool:
    """Whether an exception says that nothing can be known now, and not that the reward is broken."""
    names = {cls.__name__ for cls in type(error).__mro__}
    return isinstance(error, NEUTRAL) or bool(names & NEUTRAL_NAMES and "HTTPError" not in names)


def completion_text(completion: str | Sequence[dict[str, Any]]) -> str:
    """The text of a completion, given as a string or as chat messages; what tools said in between is left out."""
    if isinstance(completion, str):
        return completion
    own = (message for message in completion if message.get("role", "assistant") == "assistant")
    return "".join(message_text(message.get("content")) for message in own)


def message_text(content: Any) -> str:
    """The text of a message's content: a string, a list of content parts, or nothing (a tool call)."""
    if isinstance(content, (list, tuple)):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def assistant_prefix(prompt: str | Sequence[dict[str, Any]]) -> str:
    """What the prompt already put into the assistant's mouth, which the completion then lacks.

    >>> assistant_prefix([{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "<think>"}])
    '<think>'
    >>> assistant_prefix("Question: 2 + 2? <think>\\n")
    '<think>\\n'
    """
    if isinstance(prompt, str):
        opening = formats.FORMAT.opening
        return prompt[prompt.rindex(opening) :] if opening and prompt.rstrip().endswith(opening) else ""
    last = prompt[-1] if prompt else {}
    return message_text(last.get("content")) if last.get("role") == "assistant" else ""


@dataclass(slots=True)
class Batch:
    """What TRL hands to a reward at one step. All sequences have one entry a completion."""

    prompts: Sequence
    completions: Sequence
    texts: list[str]  # of the completions, with what the prompt had already begun
    columns: dict[str, Sequence]
    from_trl: dict[str, Any]

    @classmethod
    def of(cls, prompts: Sequence, completions: Sequence, columns: dict[str, Any]) -> Batch:
        if isinstance(completions, str):
            raise ValueError(
                "a reward is called with lists, as TRL does; for one completion use .score(text, column=value)"
            )
        if len(prompts) != len(completions):
            raise ValueError(f"there are {len(prompts)} prompts for {len(completions)} completions")
        texts = [assistant_prefix(p) + completion_text(c) for p, c in zip(prompts, completions)]
        from_trl = {name: columns[name] for name in BY_TRL[1:] if columns.get(name) is not None}
        return cls(prompts, completions, texts, {k: v for k, v in columns.items() if k not in from_trl}, from_trl)

    def groups(self, names: Iterable[str] = ()) -> list[list[int]]:
        """The rows of each group: those with the same prompt (and the same values of the named columns).

        Not the same row numbers in a row: a batch in another order has the same groups.
        """
        found: dict[str, list[int]] = {}
        columns = [self.columns[name] for name in names if name in self.columns and name not in BY_TRL]
        for i, prompt in enumerate(self.prompts):
            found.setdefault(repr((prompt, [values[i] for values in columns])), []).append(i)
        return list(found.values())


class RewardFunction:
    """A reward in TRL's signature, made by `@reward` from the score of one completion or of one group.

    A group is what shares a prompt in the call. Where several processes train, each scores its own
    part of the batch: make the batch of a device divisible by the group's size.

    Attributes:
        columns: names of the data-set columns it cannot do without.
        optional: further columns that it uses where they are there, with their defaults.
        settings: keyword-only parameters with their defaults: never a column, changed by `with_options`.
        low, high: the range of its scores.
        claims_correctness: whether the best score is meant to say "this is right" (the audit then insists).
        example: columns and, as `right`, an answer that deserves the best score, for the audit.
        failures: how many completions it could not score so far.
    """

    def __init__(
        self,
        function: Callable,
        low: float = 0.0,
        high: float = 1.0,
        *,
        claims_correctness: bool | None = None,
        example: dict[str, Any] | None = None,
        options: dict[str, Any] | None = None,
        name: str | None = None,
    ) -> None:
        if not low <= high or math.isnan(low) or math.isnan(high):
            raise ValueError(f"the range [{low}, {high}] is empty")
        self.function, self.low, self.high, self.failures = function, float(low), float(high), 0
        self.example, self.options = example or {}, options or {}
        self.__name__ = name or callable_name(function)
        self.__doc__, self.__wrapped__ = inspect.getdoc(function), function
        self.__module__ = getattr(function, "__module__", __name__)
        parameters = self._parameters()
        settings = {
            n: p.default for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY and p.default is not p.empty
        }
        self.settings = {n: default for n, default in settings.items() if n not in NOT_COLUMNS}
        needed = {n for n, p in parameters.items() if p.default is p.empty and n not in self.options}
        self.columns = tuple(n for n in parameters if n in needed and n not in NOT_COLUMNS)
        self.claims_by_guess = claims_correctness is None
        self.claims_correctness = "answer" in self.columns if claims_correctness is None else claims_correctness
        fixed = needed | NOT_COLUMNS | self.settings.keys() | self.options.keys()
        self.optional = {n: p.default for n, p in parameters.items() if n not in fixed}
        self._names = tuple(n for n in self._names if n not in self.settings)
        self._estimates = "completion_ids" in needed

    def _parameters(self) -> dict[str, inspect.Parameter]:
        parameters = inspect.signature(self.function).parameters
        if any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in parameters.values()):
            raise TypeError(
                f"{self.__name__}: name the columns it needs as parameters instead of * or ** "
                "(a function in TRL's own signature goes through `adopt` instead of `@reward`)"
            )
        if ("completion" in parameters) == ("completions" in parameters):
            raise TypeError(
                f"{self.__name__} needs a parameter named 'completion' (the text to score) "
                "or 'completions' (the texts of one group); it has: " + (", ".join(parameters) or "none")
            )
        if "prompts" in parameters or any(p.kind is p.POSITIONAL_ONLY for p in parameters.values()):
            raise TypeError(
                f"{self.__name__}: parameters are filled by name, one value each: 'prompt' instead of 'prompts', and no '/'"
            )
        self.groupwise = "completions" in parameters
        if self.groupwise and inspect.iscoroutinefunction(self.function):
            raise TypeError(f"{self.__name__}: a group-wise reward cannot be async")
        self._names = tuple(n for n in parameters if n not in ("completion", "completions"))
        return dict(parameters)

    def __repr__(self) -> str:
        return (
            f"<reward {self.__name__} in [{self.low:g}, {self.high:g}], columns: {', '.join(self.columns) or 'none'}>"
        )

    @property
    def purpose(self) -> str:
        """The first sentence of its docstring."""
        return re.split(r"(?<=[.?!])\s", " ".join((self.__doc__ or "").split()), maxsplit=1)[0]

    # ------------------------------------------------------------- making variants

    def _copy(self, **changes: Any) -> RewardFunction:
        same = dict(
            low=self.low,
            high=self.high,
            claims_correctness=None if self.claims_by_guess else self.claims_correctness,
            example=self.example,
            options=self.options,
            name=self.__name__,
        )
        return type(self)(self.function, **{**same, **changes})

    def with_options(self, name: str | None = None, **options: Any) -> RewardFunction:
        """The same reward with other settings, under a name of its own, so that its metric does not merge with the first.

        >>> length_reward.with_options(shortest=10, longest=40).__name__
        'length_reward[shortest=10,longest=40]'

        Raises:
            TypeError: for an option that the reward does not have.
        """
        have = {**self.optional, **self.settings, **self.options}
        unknown = [option for option in options if option not in have]
        if unknown:
            raise TypeError(f"{self.__name__} has no option {unknown[0]!r}; it has: {', '.join(have) or 'none'}")
        options = {**self.options, **options}
        return self._copy(options=options, name=name or name_with(callable_name(self.function), options))

    # ------------------------------------------------------------- checks

    def check_columns(self, available: Iterable[str]) -> None:
        """Raises MissingColumnError, naming what is missing, unless every needed column is there."""
        available = set(available)
        missing = [name for name in self.columns if name not in available]
        if not missing:
            return
        there = sorted(available - NOT_COLUMNS)
        near = difflib.get_close_matches(missing[0], there, 1)
        raise MissingColumnError(
            f"{self.__name__} needs the data-set column {', '.join(map(repr, missing))}; "
            f"there are: {', '.join(there) or 'none'}."
            + (f" Did you mean {near[0]!r}?" if near else "")
            + " Rename the column in 01_prepare_data, or give the parameter a default."
        )

    def _checked(self, value: Any, text: str) -> float | None:
        if type(value) is float and self.low <= value <= self.high and math.isfinite(value):
            return value
        if value is None or isinstance(value, Exception):
            return value
        try:
            number = math.nan if isinstance(value, (str, bytes)) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        slack = 1e-9 * max(1.0, abs(number)) if math.isfinite(number) else 0.0  # of rounding, not of meaning
        if not math.isfinite(number) or not self.low - slack <= number <= self.high + slack:
            raise RewardError(
                f"{self.__name__} returned {shortened(value)}, which is not a finite number in "
                f"[{self.low:g}, {self.high:g}], for the completion {shortened(text)}"
            )
        return min(self.high, max(self.low, number))

    def _broken(self, error: Exception, text: str) -> RewardError:
        return RewardError(
            f"{self.__name__} raised {type(error).__name__}: {error}\non the completion {shortened(text)}"
        )

    # ------------------------------------------------------------- scoring

    def score(self, completion: str | Sequence[dict[str, Any]], prompt: Any = "", **columns: Any) -> float | None:
        """The score of one completion (for a group-wise reward, of a group of one).

        Raises:
            MissingColumnError: where a needed column is not given.
            RewardError: where the function is broken.
            RewardFailure, TimeoutError, ConnectionError: where it cannot say anything now.
        """
        rows = {name: value if name in BY_TRL[1:] else [value] for name, value in columns.items()}
        (value,) = self._checked_values(Batch.of([prompt], [completion], rows))
        if isinstance(value, Exception):
            raise value
        return value

    def __call__(self, prompts: Sequence, completions: Sequence, **columns: Any) -> list[float | None]:
        """TRL's call: one prompt, completion and column value a row; one score a row comes back."""
        batch = Batch.of(prompts, completions, columns)
        values = self._checked_values(batch)
        return self._neutral(values, batch) if any(isinstance(value, Exception) for value in values) else values

    def _checked_values(self, batch: Batch) -> list:
        self.check_columns(batch.columns)
        for name in (*self._names, *self.columns):
            values = batch.columns.get(name, batch.texts)
            if isinstance(values, str) or not hasattr(values, "__len__") or len(values) != len(batch.texts):
                raise ValueError(
                    f"{self.__name__}: the column {name!r} needs one value for each of {len(batch.texts)} completions"
                )
        values = self.values(batch)
        return [self._checked(value, text) for value, text in zip(values, batch.texts, strict=True)]

    def values(self, batch: Batch) -> list:
        """Unchecked scores, one a completion; a failure (see `is_failure`) stands for itself."""
        if self.groupwise:
            return self._group_values(batch)
        extra = Extra(batch, groupwise=False)
        per_row = {n: batch.columns[n] for n in self._names if n in batch.columns and n not in self.options}
        if self._estimates and "completion_ids" not in per_row:
            per_row["completion_ids"] = [range(count_tokens(text, None)) for text in batch.texts]
        if "prompt" in self._names:
            per_row["prompt"] = batch.prompts
        if inspect.iscoroutinefunction(self.function):
            calls = [{"completion": t} | {n: v[i] for n, v in per_row.items()} for i, t in enumerate(batch.texts)]
            found = self._async_values([kwargs | self._same_for_all(batch, extra, i) for i, kwargs in enumerate(calls)])
            extra.flush()
            return found
        found, function, shared = [], self.function, self._same_for_all(batch, extra)
        for i, text in enumerate(batch.texts):
            extra.rows = (i,)
            try:
                found.append(function(completion=text, **{n: v[i] for n, v in per_row.items()}, **shared))
            except Exception as error:
                if not is_failure(error):
                    raise self._broken(error, text) from error
                found.append(error)
        extra.flush()
        return found

    def _group_values(self, batch: Batch) -> list:
        extra, found = Extra(batch, groupwise=True), [None] * len(batch.texts)
        for rows in batch.groups(self._names):
            extra.rows, texts = rows, [batch.texts[i] for i in rows]
            fixed = {*self.options, *BY_TRL}
            given = {n: batch.columns[n][rows[0]] for n in self._names if n in batch.columns and n not in fixed}
            if "completion_ids" in self._names and "completion_ids" in batch.columns:
                given["completion_ids"] = [batch.columns["completion_ids"][i] for i in rows]
            elif self._estimates:
                given["completion_ids"] = [range(count_tokens(text, None)) for text in texts]
            if "prompt" in self._names:
                given["prompt"] = batch.prompts[rows[0]]
            try:
                values = self.function(completions=texts, **given, **self._same_for_all(batch, extra))
            except Exception as error:
                if not is_failure(error):
                    raise self._broken(error, texts[0]) from error
                values = [error] * len(rows)
            values = values.tolist() if hasattr(values, "tolist") else values  # numpy's and torch's too
            if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != len(rows):
                raise RewardError(
                    f"{self.__name__} must return one score for each of the {len(rows)} completions of a group, "
                    f"not {shortened(values)}"
                )
            for i, value in zip(rows, values):
                found[i] = value
        extra.flush()
        return found

    def _same_for_all(self, batch: Batch, extra: Extra, row: int | None = None) -> dict[str, Any]:
        """The options, and what of TRL's own the function asks for by name."""
        given = dict(self.options)
        if "trainer_state" in self._names:
            given["trainer_state"] = batch.from_trl.get("trainer_state")
        if "log_metric" in self._names:
            given["log_metric"] = batch.from_trl.get("log_metric", lambda name, value: None)
        if "log_extra" in self._names:
            given["log_extra"] = extra if row is None else lambda column, value: extra.put((row,), column, [value])
        return given

    def _async_values(self, calls: list[dict[str, Any]]) -> list:
        async def all_of_them() -> list:
            return await asyncio.gather(*(self.function(**kwargs) for kwargs in calls), return_exceptions=True)

        found = run_in_background(all_of_them())
        for kwargs, value in zip(calls, found):
            if isinstance(value, BaseException) and not is_failure(value):
                raise self._broken(value, kwargs["completion"]) from value
        return found

    def _neutral(self, values: list, batch: Batch) -> list[float | None]:
        """The scores with each failure replaced by the mean of its group: no push in any direction."""
        errors = [value for value in values if isinstance(value, Exception)]
        for rows in batch.groups():
            scored = [values[i] for i in rows if values[i] is not None and not isinstance(values[i], Exception)]
            mean = sum(scored) / len(scored) if scored else None
            for i in rows:
                values[i] = mean if isinstance(values[i], Exception) else values[i]
        self.failures += len(errors)
        batch.from_trl.get("log_metric", lambda *_: None)(f"{self.__name__}/failed", len(errors))
        logger.warning(
            "%s could not score %d of %d completions, which get the mean of their group; the first: %s: %s",
            self.__name__,
            len(errors),
            len(values),
            type(errors[0]).__name__,
            shortened(str(errors[0])),
        )
        return values


class Extra:
    """TRL's `log_extra` for a function that sees one completion (gives a value) or one group (gives a list)."""

    def __init__(self, batch: Batch, groupwise: bool) -> None:
        self.batch, self.groupwise, self.rows, self.columns = batch, groupwise, (), {}

    def put(self, rows: Sequence[int], column: str, values: Sequence) -> None:
        column_values = self.columns.setdefault(column, [None] * len(self.batch.texts))
        for i, value in zip(rows, values, strict=True):
            column_values[i] = value

    def __call__(self, column: str, given: Any) -> None:
        self.put(self.rows, column, given if self.groupwise else [given])

    def flush(self) -> None:
        log_extra = self.batch.from_trl.get("log_extra")
        for column, values in self.columns.items() if log_extra else ():
            log_extra(column, values)


def reward(
    function: Callable | None = None,
    *,
    low: float = 0.0,
    high: float = 1.0,
    claims_correctness: bool | None = None,
    example: dict[str, Any] | None = None,
) -> Any:
    """Decorator: makes a TRL reward function of the score of one completion, or of one group.

    Args:
        function: takes `completion` (str) and returns its score, or takes `completions` (the list of
            texts of one group) and returns a list of scores; and by name `prompt`, any data-set
            column, `completion_ids`, `trainer_state`, `log_metric(name, value)` and
            `log_extra(column, value)`. A parameter with a default is a column that may be missing;
            one behind a `*` is a setting, which no column overrules. A function for one completion
            may be `async`: then a whole batch runs concurrently.
        low, high: the range of its scores; a score outside raises RewardError.
        claims_correctness: whether the best score is meant to say "the answer is right". By default it is
            where the function cannot do without the column `answer`.
        example: a row for the audit, where yours lack its columns; `right` is an answer that deserves
            the best score.
    """
    make = functools.partial(RewardFunction, low=low, high=high, claims_correctness=claims_correctness, example=example)
    return make if function is None else make(function)


def callable_name(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)


def name_with(name: str, options: dict[str, Any]) -> str:
    """A metric name that tells two settings of one function apart, for columns and file names alike."""
    told = ",".join(f"{key}={value}" for key, value in options.items())
    if re.fullmatch(r"[\w.,=+-]{1,60}", told):
        return f"{name}[{told}]"
    return f"{name}[{hashlib.sha256(repr(options).encode()).hexdigest()[:8]}]"


def shortened(value: Any, longest: int = 300) -> str:
    text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text)} characters)"


_LOOP: list[asyncio.AbstractEventLoop] = []
_LOCK = threading.Lock()


def run_in_background(coroutine: Any) -> Any:
    """The result of a coroutine, run in a loop of its own thread: Jupyter's and TRL's loops are busy.

    Raises RuntimeError inside that loop: an async reward that waited for another would wait for itself.
    """
    with _LOCK:
        if not _LOOP:
            _LOOP.append(asyncio.new_event_loop())
            threading.Thread(target=_LOOP[0].run_forever, name="rewards", daemon=True).start()
    if threading.current_thread().name == "rewards":
        coroutine.close()
        raise RuntimeError("an async reward cannot call another one: await its `function` instead")
    future = asyncio.run_coroutine_threadsafe(coroutine, _LOOP[0])
    try:
        return future.result()
    except BaseException:  # Ctrl-C: the rest of the batch is not wanted any more
        future.cancel()
        raise


def _after_fork() -> None:
    """A forked child has neither its parent's threads nor a claim on its processes, and must not inherit held locks."""
    global _LOCK
    _LOCK = threading.Lock()
    _LOOP.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

REGISTRY: dict[str, RewardFunction] = {}  # every reward here, by name; `make test` audits each


def register(function: RewardFunction) -> RewardFunction:
    """Decorator: puts a reward into the registry, which tables and the audit are made from.

    Raises ValueError where the name is taken.
    """
    if REGISTRY.get(function.__name__, function) is not function:
        raise ValueError(f"there is a reward {function.__name__!r} already: choose another name")
    REGISTRY[function.__name__] = function
    return function


def registry_table() -> str:
    """The registry as a Markdown table: name, range, needed columns, purpose."""
    lines = ["| reward | range | columns | purpose |", "|---|---|---|---|"]
    for name, function in REGISTRY.items():
        columns = ", ".join(f"`{column}`" for column in function.columns) or "–"
        lines.append(f"| `{name}` | {function.low:g} to {function.high:g} | {columns} | {function.purpose} |")
    return "\n".join(lines)


def count_tokens(completion: str, completion_ids: Sequence[int] | None) -> int:
    """The completion's length in tokens: of its ids where they are given, else about one in four bytes."""
    if completion_ids is not None and (len(completion_ids) or not completion):
        return len(completion_ids)
    return -(-len(completion.encode("utf-8", "surrogatepass")) // 4)


def question_text(prompt: str | Sequence[dict[str, Any]]) -> str:
    """The prompt itself, or its last user message."""
    if isinstance(prompt, str):
        return prompt
    return message_text(
        next((message.get("content") for message in reversed(prompt) if message.get("role") == "user"), "")
    )
