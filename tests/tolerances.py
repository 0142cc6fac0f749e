"""Numeric tolerances of the tests, each named by what causes the error that it allows."""

# -- Kullback-Leibler divergences against exact arithmetic: the promise of the families, not a measurement.

# A matrix of divergences is one matrix product: its rounding is relative to the row, whose size its median tells.
KL_MATRIX_PRODUCT = 1e-9
# Entries below this part of their row's median would drown in that rounding, so they are computed again pair by pair.
KL_RECOMPUTED_BELOW = 1e-6
# What the stable formula for one pair promises, relative to the divergence itself,
KL_PAIRWISE = 1e-8
# down to divergences at which the components are the same for every purpose.
KL_INDISTINGUISHABLE = 1e-12

# -- Closed forms in float64.

# A few thousand roundings of 1e-16 in sums of like-sized terms, or one well-conditioned Cholesky factorisation.
ROUNDING = 1e-12
# A log-ratio near zero is the difference of two logarithms (or digammas) of size ten, each rounded.
LOGARITHM = 1e-14
# Where the formula itself amplifies rounding (kappa m m' taken out of a natural parameter, far from the origin), the
# result may err as much as if every input had moved by a few units in the last place: so many steps, generously.
NEIGHBOURS = 30.0
# Newton iterations, stopped when their step is of this size.
ROOT_FINDING = 1e-8
# Divided differences in fifty digits with a step of 1e-15: the error is the square of the step, times curvature.
EXACT_DIFFERENCES = 1e-20

# -- Comparisons with other methods of calculation.

# The minimum of a smooth function is flat: its place is known only to the root of the rounding in its values.
FLAT_MINIMUM = 1e-5
# scipy.linalg.sqrtm and nested square roots of covariances of condition below 1e3.
MATRIX_ROOT = 1e-9
# The fixed point of the Wasserstein barycenter stops at a change of 1e-6 in the Frobenius norm.
FIXED_POINT = 1e-5
# Adaptive quadrature asks for this accuracy.
QUADRATURE = 1e-7
# A Monte-Carlo mean with a fixed seed lies within so many standard errors: one failure in 1.7 million honest draws.
STANDARD_ERRORS = 5.0

# -- Fusion methods.

# A conic solver stops at a gap of 1e-8, relative to the terms of its objective.
CONVEX_SOLVER = 1e-7
# Descent from many starts may stop at a matching that no change of one site's improves, a little above the best.
LOCAL_OPTIMUM = 0.02
# An objective is a sum of divergences from one matrix product each, some of which nearly cancel: it may seem to rise.
DESCENT = 1e-10
# A textbook update from pooled data sums the same few thousand numbers in another order, minus means of size ten.
CONJUGATE_UPDATE = 1e-9
# scikit-learn's variational mixtures stop when the bound rises by less than 1e-3, and add 1e-6 to every variance.
VARIATIONAL_BOUND = 1e-2

# -- Adapters.

# scikit-learn's topic models use a digamma of their own, and documents are iterated on until they change little.
DIGAMMA_OF_SCIKIT_LEARN = 1e-8
# gensim works in single precision by default: 6e-8 of each number, summed over some ten words or topics.
SINGLE_PRECISION = 1e-6
# Proportions of documents that single precision iterated on until they changed by 1e-9.
LIBRARY_DOCUMENT_STEP = 1e-5

# -- The number of components.

# Heterogeneity is estimated from some hundred copies: a variance of so many draws is known to 13 %, three times over.
PLANTED = 0.4
# The search for heterogeneity stops within some thousandths of its maximum, so sureness repeats to this much.
CALIBRATION = 2e-3

# -- Sparse Gaussian processes.

# Kernel matrices at close inducing inputs have a condition of up to 1e8, by which rounding grows.
CLOSE_INDUCING_INPUTS = 1e-8
# Noise of 1e-6 on inducing values, beside a process that has none.
JITTERED = 1e-5
# GPyTorch adds jitter to predictive variances, of 1e-6 or what the model says.
GPYTORCH_JITTER = 1e-5
# Central differences of fourth order with steps of 1e-3.
DIFFERENCES = 1e-6

# -- Golden records.

# Another processor or version of linear algebra rounds otherwise, and iterations that end at a relative change of 1e-6
# end elsewhere. Relative to the sum of the absolute values of an array.
GOLDEN_ROUNDING = 1e-5
# What is zero but for rounding: residuals, and how much copies differ that are the same.
GOLDEN_NOTHING = 1e-8
