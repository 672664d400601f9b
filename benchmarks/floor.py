"""The arithmetic floor: the multiplications that our algorithm cannot do without."""

from benchmarks import contenders

CHUNK_SIZE = 64
HYPERBOLIC = {
    "softmax",
    "softmax, jit_compile=False",
    "softmax, jit_compile=True",
}
OURS = HYPERBOLIC | {"favor+", "relu"}


def seconds(case, matmul_seconds):
    """The time that the case's operations take at the rate of a matrix product.

    Args:
        case: dict, of a contender in `OURS`.
        matmul_seconds: how long the product of two square float32 matrices of
            `contenders.MATMUL_SIZE` took meanwhile.
    """
    return operations(case) / rate(matmul_seconds)


def rate(matmul_seconds):
    """Floating-point operations a second of that product."""
    return 2 * contenders.MATMUL_SIZE**3 / matmul_seconds


def operations(case):
    """Floating-point operations of attention alone, or of the layer around it."""
    M, H = contenders.NUM_RANDOM_FEATURES, contenders.KEY_DIM
    # exp(x) and exp(-x) share one product with the projection matrix
    P = 1 if case["contender"] in HYPERBOLIC else 2
    causal = case["form"] == "causal"
    training = case["step"] == "training"
    C = CHUNK_SIZE if causal else 0
    per_head_and_token = 2 * (P + 2) * M * H + 2 * C * (M + H)
    if training:
        per_head_and_token += 2 * (P + 4 + P) * M * H + 2 * C * (3 * M + 2 * H)
        if causal:
            per_head_and_token += 2 * M * H  # the states once more
    total = case["length"] * contenders.NUM_HEADS * per_head_and_token
    if case["part"] == "layer":
        # query, key, value, output; gradients of input and weights cost twice that
        projections = 4 * 2 * contenders.WIDTH * contenders.NUM_HEADS * H
        total += case["length"] * projections * (3 if training else 1)
    return total
