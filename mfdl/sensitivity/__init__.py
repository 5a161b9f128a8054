"""How far one record moves C G: the largest sum X[s, t] <g_s, g_t> over gradients and participation, X = C^T C.

`elliptope` takes the largest over gradients of norm at most 1 on one pattern, `patterns` over all patterns of a
participation, from X as an array; `banded_bounds` from the bands or coefficients of C, by a rule
for each kind of patterns (`mfdl_solvers.pattern_sets`). Bounds are computed from both sides and include rounding.
`encoder_bounds` applies them to encoders with structure, `privacy.gram_sensitivity` to views.
"""
