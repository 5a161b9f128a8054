"""How far one record moves C G: the largest sum X[s, t] <g_s, g_t> over gradients and participation, X = C^T C.

`elliptope` takes the largest over gradients of norm at most 1 on one pattern, `patterns` over all patterns of a
participation, from X as an array; `encoder_bounds` from the bands, coefficients or inverse of an encoder, by a rule for
each kind of patterns (`mfdl_solvers.pattern_sets`). Bounds are computed from both sides and include rounding.
"""
