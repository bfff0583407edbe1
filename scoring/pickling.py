"""How a reward is pickled, so that a spawned process can compute it: its function goes by name."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import pickle
import sys
from collections.abc import Callable
from typing import Any


class ByName:
    """A function as another process finds it: by its module, its name there, and the module's file."""

    def __init__(self, function: Callable, reward_name: str) -> None:
        self.module, self.name = function.__module__, function.__qualname__
        self.file = function.__code__.co_filename
        why = None
        if "<" in self.name:
            why = "is a lambda or stands inside another function"
        elif self.module == "__main__" and not hasattr(sys.modules["__main__"], "__file__"):
            why = "is defined in a notebook"
        elif self.module in sys.modules and self.find().__code__ != function.__code__:
            why = f"is not what {self.module} now calls {self.name}"
        if why:
            raise pickle.PicklingError(
                f"{reward_name} cannot be pickled: its function {why}. Another process finds it only "
                "at the top level of a file, such as the my_rewards.py that notebook 02 writes."
            )

    def find(self) -> Callable:
        """The function; where its name stands for a reward, the function in that."""
        try:
            module = sys.modules.get(self.module) or importlib.import_module(self.module)
        except ModuleNotFoundError:  # notebook 03 reads my_rewards.py from a folder that is not on the path
            spec = importlib.util.spec_from_file_location(self.module, self.file)
            module = sys.modules[self.module] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        found = functools.reduce(getattr, self.name.split("."), module)
        return getattr(found, "function", found)


def portable(function: Callable, reward_name: str) -> Any:
    """What to pickle in place of a function; a partial or an object that can be called is pickled as it is.

    Raises pickle.PicklingError for a function that another process could not find.
    """
    if isinstance(function, functools.partial):
        portable(function.func, reward_name)
    return ByName(function, reward_name) if inspect.isfunction(function) else function


def found(function: Any) -> Callable:
    """The function that was pickled by `portable`."""
    return function.find() if isinstance(function, ByName) else function
