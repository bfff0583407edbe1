"""The reward contract: a score for one completion becomes a TRL reward function, and its scores are checked."""

from __future__ import annotations

import ast
import asyncio
import difflib
import functools
import hashlib
import importlib.util
import inspect
import logging
import math
import os
import pickle
import re
import sys
import textwrap
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any

from scoring.batch import BY_TRL, Batch, Messages, count_tokens
from scoring.errors import InputError, UserError, error_place

logger = logging.getLogger("rewards")


class RewardError(UserError, RuntimeError):
    """A reward function is broken: it raised, or returned something that is not a score."""


class RewardFailure(Exception):
    """Raise it in a reward that cannot say anything now (a service is down): neutral, counted and logged."""


class MissingColumnError(InputError):
    """A reward function needs a data-set column that is not there."""


NEUTRAL = (RewardFailure, TimeoutError, ConnectionError)  # failures of the surroundings; all else is a bug
NEUTRAL_NAMES = {"ConnectionError", "Timeout", "TimeoutException", "TimeoutExpired", "NetworkError", "URLError"}
NEUTRAL_NAMES |= {"APIConnectionError"}  # of HTTP clients and subprocess, for the same
REGISTRY: dict[str, RewardFunction] = {}  # the rewards of rewards.py by name; the tests audit each
NOT_COLUMNS = {"prompt", "prompts", "completion", "completions", *BY_TRL}


def is_failure(error: BaseException) -> bool:
    """Whether an exception says that nothing can be known now, and not that the reward is broken."""
    names = {cls.__name__ for cls in type(error).__mro__}
    return isinstance(error, NEUTRAL) or bool(names & NEUTRAL_NAMES and "HTTPError" not in names)


def register(function: RewardFunction) -> RewardFunction:
    """Decorator: puts a reward of another file beside those of rewards.py. Raises ValueError where the name is taken."""
    if REGISTRY.setdefault(function.__name__, function) is not function:
        raise ValueError(f"there is a reward {function.__name__!r} already: choose another name")
    return function


class RewardFunction:
    """A reward in TRL's signature, made by `@reward` from the score of one completion or of one group.

    Completions with the same prompt in a call are a group: make the batch of each device divisible by the group's size.
    `columns` are the data-set columns it cannot do without, `optional` further columns and settings with their defaults,
    and `failures` counts the completions that it could not score.
    """

    for_chats = False  # whether `score` turns a text into a chat message, as training on chats does

    def __init__(
        self, function: Callable, low: float, high: float, claims: bool | None, example: Any = None, name: str = ""
    ) -> None:
        if not low <= high:
            raise InputError(f"the range [{low}, {high}] is empty")
        self.function, self.low, self.high, self.failures = function, float(low), float(high), 0
        self.example, self.options = example or {}, {}
        self.__name__ = name or callable_name(function)
        self.__doc__, self.__wrapped__ = inspect.getdoc(function), function
        self.__module__ = getattr(function, "__module__", __name__)
        parameters = self._parameters()
        needed = {n for n, p in parameters.items() if p.default is p.empty}
        self.columns = tuple(n for n in parameters if n in needed - NOT_COLUMNS)
        self.optional = {n: p.default for n, p in parameters.items() if n not in needed | NOT_COLUMNS}
        self.claims_by_guess = claims is None
        self.claims_correctness = "answer" in self.columns if claims is None else claims
        settings = [n for n in self.optional if parameters[n].kind is inspect.Parameter.KEYWORD_ONLY]
        self._names = tuple(n for n in self._names if n not in settings)  # the rest is filled from the data
        self._estimates = "completion_ids" in needed

    def _parameters(self) -> dict[str, inspect.Parameter]:
        parameters = inspect.signature(self.function).parameters
        kinds = {p.kind for p in parameters.values()}
        self.groupwise, wrong = "completions" in parameters, ""
        if kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}:
            wrong = "name the columns as parameters, without * and ** (for a function in TRL's signature use `adopt`)"
        elif self.groupwise == ("completion" in parameters):
            wrong = "needs a parameter named 'completion' (the text to score) or 'completions' (the texts of one group)"
            wrong += "; it has: " + (", ".join(parameters) or "none")
        elif "prompts" in parameters or inspect.Parameter.POSITIONAL_ONLY in kinds:
            wrong = "parameters are filled by name: write 'prompt' instead of 'prompts', and no '/'"
        elif self.groupwise and inspect.iscoroutinefunction(self.function):
            wrong = "a group-wise reward cannot be async"
        if wrong:
            raise TypeError(f"{self.__name__}: {wrong}")
        self._names = tuple(n for n in parameters if n not in ("completion", "completions"))
        return dict(parameters)

    def __repr__(self) -> str:
        columns = ", ".join(self.columns) or "none"
        return f"<reward {self.__name__} in [{self.low:g}, {self.high:g}], columns: {columns}>"

    @property
    def purpose(self) -> str:
        """The first sentence of its docstring."""
        return re.split(r"(?<=[.?!])\s", " ".join((self.__doc__ or "").split()), maxsplit=1)[0]

    def renamed(self, name: str, **changed: Any) -> RewardFunction:
        """The same reward under another metric name, and with other attributes; its failures are counted anew."""
        other = object.__new__(type(self))
        vars(other).update(vars(self) | {"__name__": name, "failures": 0} | changed)
        return other

    def with_options(self, name: str | None = None, **options: Any) -> RewardFunction:
        """The same reward with other settings, under a name of its own, so that the two metrics stay apart.

        >>> length_reward.with_options(shortest=10, longest=40).__name__
        'length_reward[shortest=10,longest=40]'

        Raises TypeError for an option that the reward does not have.
        """
        for option in options.keys() - self.optional.keys():
            raise TypeError(f"{self.__name__} has no option {option!r}; it has: {', '.join(self.optional) or 'none'}")
        options = {**self.options, **options}
        return self.renamed(name or name_with(callable_name(self.function), options), options=options)

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in vars(self).items() if name != "loaded"}  # modules of this process
        own = state.keys() & {"function", "__wrapped__"}  # a combination has none of its own
        return state | {name: portable(self.function, self.__name__) for name in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        own = state.keys() & {"function", "__wrapped__"}
        vars(self).update(state | {name: found_again(state[name]) for name in own})

    def score(self, completion: str | Messages, prompt: Any = None, **columns: Any) -> float | None:
        """The score of one completion (for a group-wise reward, of a group of one).

        Raises MissingColumnError for a column that is not given, RewardError for a function that is broken, and the
        failure itself (RewardFailure, TimeoutError, ConnectionError) where it cannot say anything now.
        """
        if self.for_chats and isinstance(completion, str) and not isinstance(prompt, str):
            completion = [{"role": "assistant", "content": completion}]
            prompt = prompt or [{"role": "user", "content": ""}]
        prompt = "" if prompt is None else prompt
        rows = {name: value if name in BY_TRL[1:] else [value] for name, value in columns.items()}
        (value,) = self.checked_values(Batch.of([prompt], [completion], rows))
        if isinstance(value, Exception):
            raise value
        return value

    def __call__(self, prompts: Sequence, completions: Sequence, **columns: Any) -> list[float | None]:
        """TRL's call: one prompt, completion and column value a row; one score a row comes back."""
        batch = Batch.of(prompts, completions, columns)
        values = self.checked_values(batch)
        return self._neutral(values, batch) if any(isinstance(value, Exception) for value in values) else values

    def checked_values(self, batch: Batch) -> list:
        """One score in range, None or failure (see `is_failure`) a completion."""
        self.check_columns(batch.columns)
        for name in (*self._names, *self.columns):
            values = batch.columns.get(name, batch.texts)
            if isinstance(values, str) or not hasattr(values, "__len__") or len(values) != len(batch.texts):
                needs = f"the column {name!r} needs one value for each of {len(batch.texts)} completions"
                raise ValueError(f"{self.__name__}: {needs}")
        values = self.values(batch)
        if values and all(value is None for value in values) and never_returns(self.function):
            told = f"{self.__name__} returned nothing for all {len(values)} completions: its code has no `return`"
            raise RewardError(f"{told} with a score. Write `return` before the score.")
        return [self._checked(value, text) for value, text in zip(values, batch.texts, strict=True)]

    def check_columns(self, available: Iterable[str]) -> None:
        """Raises MissingColumnError, naming what is missing, unless every needed column is there."""
        available = set(available)
        if missing := [name for name in self.columns if name not in available]:
            there, names = sorted(available - NOT_COLUMNS), ", ".join(map(repr, missing))
            near = "".join(f" Did you mean {name!r}?" for name in difflib.get_close_matches(missing[0], there, 1))
            told = f"{self.__name__} needs the data-set column {names}; there are: {', '.join(there) or 'none'}.{near}"
            raise MissingColumnError(f"{told} Rename the column in 01_prepare_data, or give the parameter a default.")

    def values(self, batch: Batch) -> list:
        """What the function says of each completion, unchecked; a failure stands for itself."""
        rows_of_calls = batch.groups(self._names) if self.groupwise else [(i,) for i in range(len(batch.texts))]
        extra: dict[str, list] = {}  # columns for TRL's log_extra
        calls = self._calls(batch, rows_of_calls, extra)

        async def gather() -> list:
            return await asyncio.gather(*(self.function(**arguments) for arguments in calls), return_exceptions=True)

        is_async = inspect.iscoroutinefunction(self.function)
        results = run_in_background(gather()) if is_async else map(self._attempt, calls)
        found: list = [None] * len(batch.texts)
        for rows, result in zip(rows_of_calls, results):
            if isinstance(result, BaseException):
                if not is_failure(result):
                    raise self._broken(result, batch.texts[rows[0]]) from result
                result = [result] * len(rows)
            elif not self.groupwise:
                result = [result]
            else:
                result = result.tolist() if hasattr(result, "tolist") else result  # numpy's and torch's too
                if not isinstance(result, Sequence) or isinstance(result, str) or len(result) != len(rows):
                    wanted = f"one score for each of the {len(rows)} completions of a group"
                    hint = ". Is its `return` missing?" if result is None else ""
                    raise RewardError(f"{self.__name__} must return {wanted}, not {shortened(result)}{hint}")
            for i, value in zip(rows, result):
                found[i] = value
        for column, values in extra.items() if "log_extra" in batch.from_trl else ():
            batch.from_trl["log_extra"](column, values)
        return found

    def _calls(self, batch: Batch, rows_of_calls: Sequence, extra: dict[str, list]) -> Iterator[dict[str, Any]]:
        """The arguments of each call of the function, for one completion or one group."""
        names, ids = set(self._names), batch.columns.get("completion_ids")
        if ids is None and self._estimates:
            ids = [range(count_tokens(text, None)) for text in batch.texts]
        each = {"completions" if self.groupwise else "completion": batch.texts}  # of each completion, also in a group
        each |= {"completion_ids": ids} if ids is not None and "completion_ids" in names else {}
        filled = names & batch.columns.keys() - self.options.keys() - set(BY_TRL)
        columns = {n: batch.columns[n] for n in filled} | ({"prompt": batch.prompts} if "prompt" in names else {})
        columns |= {} if self.groupwise else each
        given = {"trainer_state": None, "log_metric": lambda name, value: None, **batch.from_trl}
        same = self.options | {n: given[n] for n in ("trainer_state", "log_metric") if n in names}

        def put(rows: Sequence[int], column: str, value: Any) -> None:
            values = extra.setdefault(column, [None] * len(batch.texts))
            for i, one in zip(rows, value if self.groupwise else [value], strict=True):
                values[i] = one

        for rows in rows_of_calls:
            arguments = {n: values[rows[0]] for n, values in columns.items()}
            if self.groupwise:
                arguments |= {n: [values[i] for i in rows] for n, values in each.items()}
            if "log_extra" in names:
                arguments["log_extra"] = functools.partial(put, rows)
            yield arguments | same

    def _attempt(self, arguments: dict[str, Any]) -> Any:
        try:
            return self.function(**arguments)
        except Exception as error:
            return error

    def _broken(self, error: BaseException, text: str) -> RewardError:
        lines = [f"{self.__name__} raised {type(error).__name__}: {error}", f"on the completion {shortened(text)}"]
        code = getattr(self.function, "__code__", None)
        place = error_place(error, code)
        lines += [f"in {place}"] * bool(place)
        if place and self.__module__ != "rewards":
            lines.append("Correct that line, and run its cell and the next ones again.")
        return RewardError("\n".join(lines))

    def _checked(self, value: Any, text: str) -> float | Exception | None:
        if type(value) is float and -math.inf < self.low <= value <= self.high < math.inf:  # as nearly all are
            return value
        if value is None or isinstance(value, Exception):
            return value
        try:
            number = math.nan if isinstance(value, (str, bytes)) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        bound = min(self.high, max(self.low, number))
        if math.isfinite(number) and abs(number - bound) <= 1e-9 * max(1.0, abs(number)):  # of rounding, not of meaning
            return bound
        wanted = f"which is not a finite number in [{self.low:g}, {self.high:g}]\nfor the completion {shortened(text)}"
        raise RewardError(f"{self.__name__} returned {shortened(value)}, {wanted}\n{self._advice(value, number)}")

    def _advice(self, value: Any, number: float) -> str:
        """What to do about a value that is no score."""
        if math.isfinite(number):
            range_ = f"low={min(self.low, number):g}, high={max(self.high, number):g})"
            way = (
                f"adopt({self.__name__}, {range_}" if self.for_chats else f"@reward({range_} on the line above its def"
            )
            return f"If that score is meant, declare the range: write {way}."
        if isinstance(value, (str, bytes)) or not hasattr(value, "__len__") or self.groupwise or self.for_chats:
            return "Return one finite number for each completion."
        group = "To score a whole group at once, name the parameter `completions`"
        return f"Return one number: the function is called with one completion at a time. {group}, and return a list."

    def _neutral(self, values: list, batch: Batch) -> list[float | None]:
        """The scores with each failure replaced by the mean of its group: no push in any direction."""
        errors = [value for value in values if isinstance(value, Exception)]
        for rows in batch.groups():
            scored = [values[i] for i in rows if isinstance(values[i], float)]
            mean = sum(scored) / len(scored) if scored else None
            for i in rows:
                values[i] = mean if isinstance(values[i], Exception) else values[i]
        self.failures += len(errors)
        batch.from_trl.get("log_metric", lambda *_: None)(f"{self.__name__}/failed", len(errors))
        told = f"{len(errors)} of {len(values)} completions, which get the mean of their group; the first"
        first = f"{type(errors[0]).__name__}: {shortened(str(errors[0]))}"
        logger.warning(f"{self.__name__} could not score {told}: {first}")
        return values


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
        function: takes `completion` (str) and returns its score, or takes `completions` (the texts of one group) and
            returns a list of scores. Further parameters are filled by name: `prompt`, any data-set column,
            `completion_ids`, `trainer_state`, `log_metric(name, value)` and `log_extra(column, value)`. Those after
            `*` never come from the data. A function for one completion may be `async`: a batch then runs concurrently.
        low, high: the range of its scores; a score outside raises RewardError.
        claims_correctness: whether the best score says "the answer is right"; by default where `answer` is needed.
        example: a row for the audit, where yours lack its columns; the answer `right` deserves the best score.
    """
    make = functools.partial(RewardFunction, low=low, high=high, claims=claims_correctness, example=example)
    return make if function is None else make(function)


def never_returns(function: Callable) -> bool:
    """Whether the source of a function has no `return` with a value; False where there is no source."""
    try:
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, TypeError, ValueError, SyntaxError):
        return False
    inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)  # whose `return` is another one
    if not isinstance(definition, inner):  # a lambda
        return False
    todo = list(definition.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Return) and node.value is not None or isinstance(node, ast.Raise):
            return False
        todo += [] if isinstance(node, inner) else ast.iter_child_nodes(node)
    return True


def callable_name(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)


def name_with(name: str, options: dict[str, Any]) -> str:
    """A metric name that keeps two settings of one function apart, for columns and file names alike."""
    settings = ",".join(f"{key}={value}" for key, value in options.items())
    if not re.fullmatch(r"[\w.,=+-]{1,60}", settings):
        settings = hashlib.sha256(repr(options).encode()).hexdigest()[:8]
    return f"{name}[{settings}]"


def shortened(value: Any, longest: int = 300) -> str:
    """A value's repr, cut; characters that cannot be printed are escaped."""
    text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text)} characters)"


@functools.cache
def background_loop() -> asyncio.AbstractEventLoop:
    """One event loop in a thread of its own, for async rewards: the loops of Jupyter and TRL are busy."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="rewards", daemon=True).start()
    return loop


if hasattr(os, "register_at_fork"):  # a forked child does not have its parent's thread
    os.register_at_fork(after_in_child=background_loop.cache_clear)


def run_in_background(coroutine: Coroutine) -> Any:
    """The result of a coroutine. Raises RuntimeError inside the loop, where an async reward would wait for itself."""
    if threading.current_thread().name == "rewards":
        coroutine.close()
        raise RuntimeError("an async reward cannot call another one: await its `function` instead")
    future = asyncio.run_coroutine_threadsafe(coroutine, background_loop())
    try:
        return future.result()
    except BaseException:  # Ctrl-C: the rest of the batch is not wanted any more
        future.cancel()
        raise


def portable(function: Callable, reward_name: str) -> Any:
    """What is pickled for a function: its module, file and name. A partial or a callable object is pickled as it is."""
    if not inspect.isfunction(function):
        return function
    there = function.__module__, function.__code__.co_filename, function.__qualname__
    module, _, name = there
    in_notebook = module == "__main__" and not hasattr(sys.modules["__main__"], "__file__")
    if in_notebook or "<" in name or module in sys.modules and found_again(there).__code__ != function.__code__:
        why = "its function is a lambda, is inside another function or a notebook, or is not what its file now has"
        way = "Write it at the top level of a file, such as the my_rewards.py of notebook 02."
        raise pickle.PicklingError(f"{reward_name} cannot be pickled: {why}. {way}")
    return there


def found_again(function: Any) -> Callable:
    """The function that `portable` named; where the name stands for a reward, the function in that."""
    if not isinstance(function, tuple):
        return function
    name, file, path = function
    try:
        module = sys.modules.get(name) or importlib.import_module(name)
    except ModuleNotFoundError:  # notebook 03 reads my_rewards.py from a folder that is not on the path
        spec = importlib.util.spec_from_file_location(name, file)
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    value = functools.reduce(getattr, path.split("."), module)
    return getattr(value, "function", value)
