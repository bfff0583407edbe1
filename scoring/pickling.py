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


def portable(function: Callable, reward_name: str) -> Any:
    """(module, file, name) of a function. A partial or an object that can be called is pickled as it is.

    Raises pickle.PicklingError for a function that another process could not find.
    """
    if not inspect.isfunction(function):
        return function
    module, file, name = function.__module__, function.__code__.co_filename, function.__qualname__
    in_notebook = module == "__main__" and not hasattr(sys.modules["__main__"], "__file__")
    changed = module in sys.modules and "<" not in name and found((module, file, name)).__code__ != function.__code__
    if "<" in name or in_notebook or changed:
        why = "its function is a lambda, is inside another function or a notebook, or is not what its file now has"
        way = "Write it at the top level of a file, such as the my_rewards.py of notebook 02."
        raise pickle.PicklingError(f"{reward_name} cannot be pickled: {why}. {way}")
    return module, file, name


def found(function: Any) -> Callable:
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
