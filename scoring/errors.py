"""Errors that a person can correct: a notebook shows what is wrong, where, and what to do, before any traceback."""

import textwrap
import traceback
from pathlib import Path
from types import CodeType

CORRECT = "Correct that line"  # the begin of the advice where a cell is run; training has advice of its own


class UserError(Exception):
    """Something that the person at the notebook can correct, and that its message tells completely.

    A notebook shows the message alone. `%tb` shows the whole traceback.
    """

    def _render_traceback_(self) -> list[str]:  # IPython asks for it, and `%tb` too
        if any(frame.f_code.co_name == "tb" for frame, _ in traceback.walk_stack(None)):
            return [part.rstrip("\n") for part in traceback.format_exception(self)]
        lines = f"{type(self).__name__}: {self}".splitlines()  # which Jupyter would break in the middle of words
        wrapped = [textwrap.fill(line, 96, break_long_words=False, break_on_hyphens=False) for line in lines]
        return [*wrapped, "", "Run %tb in a new cell to see the whole traceback."]


class InputError(UserError, ValueError):
    """A value or a file of the person's cannot be used."""


def error_place(error: BaseException, code: CodeType | None = None, file: Path | None = None) -> str:
    """Where an error arose, as `my_rewards.py, line 7: x = 1 / 0`: in the file of a function's code, or in `file`.

    Without either, or where the error passed through neither, it is "".
    """
    wanted = str(file) if file else code.co_filename if code else ""
    if isinstance(error, SyntaxError) and error.filename == wanted:
        return f"{Path(wanted).name}, line {error.lineno}: {(error.text or '').strip()}".removesuffix(": ")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == wanted]
    if not frames:
        return ""
    name = Path(wanted).name if Path(wanted).exists() else "the cell that defines it"
    return f"{name}, line {frames[-1].lineno}: {frames[-1].line}".removesuffix(": ")
