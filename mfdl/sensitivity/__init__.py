"""How far one record moves C G: the largest sum X[s, t] <g_s, g_t> over gradients and participation, X = C^T C.

`elliptope` takes the largest over gradients of norm at most 1 on one pattern, `patterns` over all patterns of a
participation (`families` where there are many), from X as an array; `toeplitz` and `banded` (with `chains`) from the
coefficients or bands of C. Bounds of both sides, none of rounding. `factorization.sensitivity` asks them of encoders
with structure, `privacy.sensitivity` of views.
"""
