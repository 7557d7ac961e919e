"""Checks on arrays for the programs that compare Precis with NumPy."""
import numpy as np


class Mismatch(Exception):
    pass


def expect(condition, *what):
    if not condition:
        raise Mismatch(" ".join(str(w) for w in what))


def expect_close(actual, wanted, relative, absolute, *what):
    actual, wanted = np.asarray(actual, np.float64), np.asarray(wanted, np.float64)
    expect(actual.shape == wanted.shape, *what, "shapes", actual.shape, wanted.shape)
    wrong = ~(np.abs(actual - wanted) <= relative * np.abs(wanted) + absolute)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise Mismatch(f"{' '.join(map(str, what))}: at {at} {actual[at]!r}, reference "
                       f"{wanted[at]!r} ({int(wrong.sum())} of {wrong.size} differ)")
