"""Code in a completion: finding it, parsing it, and the sandbox that runs it."""

import ast
import functools
import os
import re
import warnings
from typing import Any

from scoring import formats
from scoring.answers import final_text
from scoring.batch import question_text

FENCED = re.compile(r"^([ \t]*)```([^\n]*)\n(.*?)(?:^[ \t]*```+[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
PYTHON_NAMES = {"py", "python", "python3", "ipython"}
CODE_START = re.compile(r"(?:def |class |async def |import |from |@|return |[ \t]+\S)")
DEFINITION = re.compile(r"(?:def |class |async def |import |from |@)")
KEYWORDS = r"(?:def|class|async|import|from|if|for|while|with|try|except|finally|else|elif)\b"
CODE_LINE = re.compile(rf"[ \t]|{KEYWORDS}|[@#)\]}}]|[\w., ]+=|$")
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
LONGEST_CODE = 100_000  # characters of an answer without fences that are tried as code
MOST_BEFORE, LONGEST_HELPER = 8, 10_000  # blocks before the function that may hold its helpers, characters of one
MOST_STARTS = 5  # lines of prose that look like the start of code, before the search for code among prose ends


def extract_code(completion: str, entry_point: str | None = None) -> str | None:
    """The Python code of a chat answer, or None.

    It is looked for in the answer block, which must hold nothing else, or outside the reasoning. Of several fenced
    blocks the last counts that defines the entry point, with imports and helpers of blocks before it, else the last
    marked as Python, else the last. Without fences it is the whole text where that is code, else its part that is.

    >>> extract_code("Here it is:\\n```python\\ndef f():\\n    return 1\\n```")
    'def f():\\n    return 1\\n'
    >>> extract_code("You can use a loop.") is None
    True
    """
    completion = completion.removeprefix("\ufeff")
    answered = formats.FORMAT.find_answer(completion) is not None
    text = final_text(completion) if answered else formats.FORMAT.outside(completion)
    if not answered and any(len(mark) > 1 and mark in text for mark in formats.FORMAT.marks):
        return None  # several answers, or one that is never closed: it has not answered
    if blocks := fenced_blocks(text):
        defining = [i for i, (_, code) in enumerate(blocks) if entry_point and defines(code, entry_point)]
        if defining:
            last = defining[-1]
            before = [code for name, code in blocks[max(0, last - MOST_BEFORE) : last] if name in ("", *PYTHON_NAMES)]
            return "".join([*(code for code in before if is_preparation(code, entry_point)), blocks[last][1]])
        python = [code for name, code in blocks if name in PYTHON_NAMES]
        return (python or [code for _, code in blocks])[-1]
    text = text.rstrip() if answered else text
    if len(text) > LONGEST_CODE:
        return None
    if (CODE_START.match(text.lstrip("\r\n")) or entry_point and defines(text, entry_point)) and is_python(text):
        return text
    return None if answered else code_among_prose(text, entry_point)


def defines(code: str, entry_point: str) -> bool:
    """Whether a line of the code begins the definition of that name."""
    name = re.escape(entry_point)
    return bool(re.search(rf"^(?:async\s+)?(?:def|class)\s+{name}\b|^{name}\s*=", code, re.MULTILINE))


def is_preparation(code: str, entry_point: str) -> bool:
    """Whether the code is nothing but imports and definitions of other names."""
    tree = parse_python(code) if len(code) <= LONGEST_HELPER else None
    kinds, nodes = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef), tree.body if tree else [None]
    return all(isinstance(node, kinds) and getattr(node, "name", "") != entry_point for node in nodes)


def code_among_prose(text: str, entry_point: str | None = None) -> str | None:
    """The last run of lines that is a module with a definition in it; with a name, the last that defines it."""
    lines, found, tried, i = text.splitlines(), [], 0, 0
    while i < len(lines) and tried < MOST_STARTS:
        begin, i = i, i + 1
        if DEFINITION.match(lines[begin]):
            end = next((j for j in range(i, len(lines)) if not CODE_LINE.match(lines[j])), len(lines))
            code, tried = "\n".join(lines[begin:end]).rstrip() + "\n", tried + 1
            if ("def " in code or "class " in code) and is_python(code):
                found.append(code)
                i = end
    named = [code for code in found if entry_point and defines(code, entry_point)]
    return (named or found or [None])[-1]


def fenced_blocks(text: str) -> list[tuple[str, str]]:
    """(language, content) of each fenced block, also of one that is never closed, indented as far as its fence."""
    blocks = []
    for margin, name, code in FENCED.findall(text.replace("\r\n", "\n")):
        code = re.sub(r"^[^\S\n]*```.*\n?", "", code, flags=re.MULTILINE)  # "``` Done." closes no block, and is no code
        code = re.sub(rf"^ {{0,{len(margin)}}}", "", code, flags=re.MULTILINE)
        blocks.append(((name.strip("`").split() or [""])[0].casefold(), code if code.endswith("\n") else f"{code}\n"))
    return blocks


def is_python(text: str) -> bool:
    """Whether the text parses, by itself or as the body of a function."""
    from sandbox import bodies

    return parse_python(text) is not None or any(parse_python(source) for source in bodies("def f():\n", text))


def parse_python(source: str) -> ast.Module | None:
    """The syntax tree, or None for what is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # of a model's odd escapes, no news for the reader
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def function_prompt(prompt: Any, entry_point: str, code_prompt: Any = None) -> str:
    """The function to complete: the column `code_prompt`, else the code in the prompt's last user message."""
    if isinstance(code_prompt, str):
        return code_prompt
    text = question_text(prompt)
    if parse_python(text) is not None:
        return text
    fenced = [code for _, code in fenced_blocks(text) if defines(code, entry_point)]
    return (fenced or [code_among_prose(text, entry_point) or text])[-1]


def returns_a_value(node: ast.AST, entry_point: str) -> bool:
    """Whether this is the function of that name, with a value to return or yield in it (or a lambda of that name)."""
    if isinstance(node, ast.Assign):
        names = [getattr(target, "id", None) for target in node.targets]
        return isinstance(node.value, ast.Lambda) and entry_point in names
    if getattr(node, "name", None) != entry_point:
        return False
    parts = list(ast.iter_child_nodes(node))
    while parts:  # without the functions and classes within it, whose values are their own
        part = parts.pop()
        if isinstance(part, (ast.Return, ast.Yield, ast.YieldFrom)) and part.value is not None:
            return True
        parts += [] if isinstance(part, SCOPES) else ast.iter_child_nodes(part)
    return False


@functools.cache
def default_sandbox() -> Any:
    """The sandbox of `code_reward`, opened once a process. Raises sandbox.SandboxUnavailable."""
    from sandbox import Sandbox

    return Sandbox()


if hasattr(os, "register_at_fork"):  # a forked child has no claim on its parent's sandbox
    os.register_at_fork(after_in_child=default_sandbox.cache_clear)

CHECKS = "    assert candidate(2) == 4\n    assert candidate(-3) == -6\n    assert candidate(0) == 0\n"
DOUBLE = {  # a small problem in HumanEval's form, for the audit, the tests and notebook 06
    "code_prompt": 'def double(n):\n    """Return n doubled."""\n',
    "test": f"def check(candidate):\n{CHECKS}",
    "entry_point": "double",
    "right": "def double(n):\n    return 2 * n",
}
