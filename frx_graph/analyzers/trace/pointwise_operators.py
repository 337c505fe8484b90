"""Pointwise operators of ATen, as torch tags them (2.15), with the most arguments that an overload takes.

A trace names operators and lists their arguments, `out` among them; a reader of traces has no torch to ask.
"""

from __future__ import annotations

_BY_ARGUMENTS = {
    1: (
        "_conj_physical abs acos acos_ acosh acosh_ angle asin asin_ asinh asinh_ atan atan_ atanh atanh_ "
        "bitwise_not bitwise_not_ ceil ceil_ conj_physical conj_physical_ cos cos_ cosh cosh_ deg2rad deg2rad_ "
        "digamma digamma_ erf erf_ erfc erfc_ erfinv erfinv_ exp exp2 exp2_ exp_ expm1 expm1_ floor floor_ frac "
        "frac_ frexp hardsigmoid hardsigmoid_ i0 i0_ isfinite isinf isnan isneginf isposinf lgamma lgamma_ log10 "
        "log10_ log1p log1p_ log2 log2_ log_ logical_not logical_not_ mish neg neg_ positive rad2deg rad2deg_ "
        "reciprocal reciprocal_ relu relu6 relu_ rsqrt rsqrt_ selu selu_ sgn sgn_ sigmoid sigmoid_ sign sign_ "
        "signbit silu silu_ sin sin_ sinc sinc_ sinh sinh_ special_airy_ai special_bessel_j0 special_bessel_j1 "
        "special_bessel_y0 special_bessel_y1 special_entr special_erfcx special_i0e special_i1 special_i1e "
        "special_log_ndtr special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0 "
        "special_modified_bessel_k1 special_ndtri special_scaled_modified_bessel_k0 "
        "special_scaled_modified_bessel_k1 special_spherical_bessel_j0 sqrt sqrt_ square square_ tan tan_ tanh "
        "tanh_ trunc trunc_"
    ),
    2: (
        "atan2 atan2_ bitwise_and bitwise_and_ bitwise_left_shift bitwise_left_shift_ bitwise_or bitwise_or_ "
        "bitwise_right_shift bitwise_right_shift_ bitwise_xor bitwise_xor_ celu celu_ clamp_max clamp_max_ "
        "clamp_min clamp_min_ clone copysign eq equal float_power float_power_ fmax fmin fmod fmod_ gcd ge gelu gt "
        "hardshrink heaviside hypot hypot_ igamma igamma_ igammac igammac_ lcm ldexp ldexp_ le leaky_relu "
        "leaky_relu_ log logaddexp logaddexp2 logical_and logical_and_ logical_or logical_or_ logical_xor "
        "logical_xor_ logit logit_ lt maximum minimum mul mul_ mvlgamma mvlgamma_ ne nextafter nextafter_ polygamma "
        "polygamma_ pow pow_ remainder remainder_ round round_ sigmoid_backward silu_backward softshrink "
        "special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v "
        "special_chebyshev_polynomial_w special_hermite_polynomial_h special_hermite_polynomial_he "
        "special_laguerre_polynomial_l special_legendre_polynomial_p special_shifted_chebyshev_polynomial_t "
        "special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v "
        "special_shifted_chebyshev_polynomial_w special_xlog1py special_zeta tanh_backward true_divide xlogy xlogy_"
    ),
    3: (
        "add add_ clamp clamp_ clip clip_ div div_ gelu_backward hardtanh hardtanh_ lerp lerp_ logit_backward "
        "masked_fill max min native_dropout_backward rsub softplus sub sub_ threshold threshold_backward where"
    ),
    4: ("addcdiv addcdiv_ addcmul addcmul_ elu elu_ nan_to_num nan_to_num_"),
    5: ("rrelu"),
}

POINTWISE_ARGUMENTS = {name: count for count, names in _BY_ARGUMENTS.items() for name in names.split()}
"""Name, without the namespace, to the number of arguments; `out` is not counted."""
