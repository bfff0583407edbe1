"""The process that compares expressions with math-verify: lines of JSON in and out, for scoring/mathematics.py.

Decimals become exact fractions before the comparison, and two equal numbers must agree to 100 digits. math-verify alone
rounds to 6 decimals, so that 1.414214 would be the square root of 2.
"""

import json
import logging
import signal
import sys

from math_verify import parse, verify
from sympy import Basic, Expr, Float, MatrixBase, Rational

HAS_TIMER = hasattr(signal, "setitimer")  # not on Windows, where the parent kills what takes too long


class OutOfTime(BaseException):
    """No Exception, because sympy and math-verify catch those."""


def raise_out_of_time(*_):
    raise OutOfTime


def answer(gold, given, time_limit):
    """Whether both are equal; None where that takes more than `time_limit` seconds."""
    try:
        if HAS_TIMER:  # it counts the work of this process: a busy machine changes no verdict
            signal.signal(signal.SIGPROF, raise_out_of_time)
            signal.setitimer(signal.ITIMER_PROF, time_limit)
        return any(bool(equal(a, b)) for a in read(gold) for b in read(given))
    except OutOfTime:
        return None
    except Exception:
        return False
    finally:
        if HAS_TIMER:
            signal.setitimer(signal.ITIMER_PROF, 0)


def read(text):
    found = parse(f"${text}$", parsing_timeout=None) or parse(text, parsing_timeout=None)
    found = [item.as_immutable() if isinstance(item, MatrixBase) else item for item in found]
    found = [item for item in found if isinstance(item, Basic)]
    return [item.xreplace({n: Rational(str(n)) for n in item.atoms(Float)}) for item in found]


def equal(gold, given):
    if not verify([gold], [given], timeout_seconds=None):
        return False
    if isinstance(gold, Expr) and isinstance(given, Expr) and gold.is_number and given.is_number:
        a, b = gold.doit(), given.doit()
        if a.is_Rational and b.is_Rational:
            return a == b
        return abs((a - b).evalf(120)) <= abs(a.evalf(20)) * Rational(1, 10**100)
    return True


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))  # bytes
    except (ImportError, ValueError, OSError):  # on Windows, or under a lower limit
        pass
    sys.set_int_max_str_digits(0)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(*json.loads(line))), flush=True)
