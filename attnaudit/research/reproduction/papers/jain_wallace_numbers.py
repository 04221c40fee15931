"""The numbers of Jain & Wallace 2019 for every available corpus, every encoder and both kinds of attention.

The published code (https://github.com/successar/AttentionExplanation, commit 425a89a) stores them in its folder
`graph_outputs`: accuracy in `evaluate`, τ-b with gradient × input in `GradientPval_kendalltau`, τ-b with leave-one-out
in `pyxc-pyc_pval_kendalltau`, and τ-b between the two in `CorrStats_kendalltau`. None stands for an empty cell.
"""

from __future__ import annotations

from collections.abc import Iterator

_NAMES = (
    "accuracy",
    "gradient",
    "gradient std",
    "gradient significant",
    "leave-one-out",
    "leave-one-out std",
    "leave-one-out significant",
    "importance",
)
#: (corpus, encoder, alignment) -> numbers in the order of _NAMES.
_OVERALL: dict[tuple[str, str, str], tuple[float | None, ...]] = {
    ("sst", "bilstm", "additive"): (0.808, 0.351, 0.211, 0.49, 0.291, 0.191, 0.36, 0.656),
    ("sst", "bilstm", "dot"): (0.823, 0.073, 0.205, 0.09, 0.064, 0.2, 0.07, 0.708),
    ("sst", "average", "additive"): (0.807, 0.606, 0.201, 0.85, 0.623, 0.155, 0.88, 0.558),
    ("sst", "average", "dot"): (0.799, 0.347, 0.217, 0.5, 0.314, 0.175, 0.42, 0.661),
    ("sst", "cnn", "additive"): (0.823, 0.477, 0.167, 0.75, 0.352, 0.175, 0.51, 0.488),
    ("sst", "cnn", "dot"): (0.812, 0.24, 0.196, 0.25, 0.215, 0.193, 0.21, 0.636),
    ("imdb", "bilstm", "additive"): (0.898, 0.437, 0.061, 1.0, 0.341, 0.07, 0.99, 0.517),
    ("imdb", "bilstm", "dot"): (0.885, 0.122, 0.063, 0.62, 0.092, 0.071, 0.45, 0.602),
    ("imdb", "average", "additive"): (0.883, 0.675, 0.05, 1.0, 0.576, 0.098, 1.0, 0.639),
    ("imdb", "average", "dot"): (0.866, None, None, 0.84, 0.201, 0.083, 0.87, None),
    ("imdb", "cnn", "additive"): (0.901, 0.452, 0.054, 1.0, 0.295, 0.057, 0.98, 0.513),
    ("imdb", "cnn", "dot"): (0.894, 0.346, 0.067, 0.99, 0.365, 0.066, 0.99, 0.595),
    ("agnews", "bilstm", "additive"): (0.958, 0.389, 0.134, 0.86, 0.367, 0.15, 0.8, 0.612),
    ("agnews", "bilstm", "dot"): (0.962, 0.305, 0.15, 0.69, 0.175, 0.127, 0.31, 0.456),
    ("agnews", "average", "additive"): (0.954, 0.77, 0.071, 1.0, 0.507, 0.13, 0.97, 0.494),
    ("agnews", "average", "dot"): (0.956, 0.638, 0.107, 1.0, 0.461, 0.2, 0.84, 0.445),
    ("agnews", "cnn", "additive"): (0.958, 0.491, 0.106, 0.98, 0.36, 0.125, 0.83, 0.462),
    ("agnews", "cnn", "dot"): (0.956, 0.391, 0.118, 0.88, 0.367, 0.115, 0.86, 0.421),
    ("20news", "bilstm", "additive"): (0.922, 0.13, 0.206, 0.48, 0.123, 0.189, 0.44, 0.534),
    ("20news", "bilstm", "dot"): (0.936, 0.132, 0.156, 0.48, 0.067, 0.154, 0.38, 0.499),
    ("20news", "average", "additive"): (0.913, 0.772, 0.078, 1.0, 0.721, 0.137, 0.99, 0.622),
    ("20news", "average", "dot"): (0.927, 0.036, 0.167, 0.31, -0.175, 0.23, 0.71, 0.352),
    ("20news", "cnn", "additive"): (0.913, 0.446, 0.125, 0.94, 0.322, 0.13, 0.85, 0.549),
    ("20news", "cnn", "dot"): (0.938, None, None, 0.42, 0.185, 0.116, 0.61, None),
    ("snli", "bilstm", "additive"): (0.779, 0.314, 0.216, 0.37, 0.29, 0.237, 0.35, 0.24),
    ("snli", "bilstm", "dot"): (0.766, 0.116, 0.235, 0.11, 0.156, 0.238, 0.13, 0.31),
    ("snli", "average", "additive"): (0.75, 0.582, 0.185, 0.8, 0.593, 0.189, 0.81, 0.587),
    ("snli", "average", "dot"): (0.753, 0.5, 0.182, 0.7, 0.527, 0.18, 0.75, 0.434),
    ("snli", "cnn", "additive"): (0.775, 0.235, 0.236, 0.25, 0.264, 0.227, 0.29, 0.34),
    ("snli", "cnn", "dot"): (0.779, 0.271, 0.222, 0.3, 0.288, 0.212, 0.32, 0.294),
    ("babi-1", "bilstm", "additive"): (1.0, 0.251, 0.156, 0.55, 0.16, 0.141, 0.28, 0.499),
    ("babi-1", "bilstm", "dot"): (0.998, 0.437, 0.155, 0.83, 0.422, 0.132, 0.8, 0.413),
    ("babi-1", "average", "additive"): (0.436, 0.717, 0.119, 0.99, 0.735, 0.099, 0.99, 0.691),
    ("babi-1", "average", "dot"): (0.43, 0.713, 0.136, 0.99, 0.817, 0.135, 0.98, 0.684),
    ("babi-1", "cnn", "additive"): (0.887, 0.245, 0.141, 0.51, 0.16, 0.127, 0.23, 0.304),
    ("babi-1", "cnn", "dot"): (0.889, 0.169, 0.125, 0.27, 0.11, 0.128, 0.13, 0.548),
    ("babi-2", "bilstm", "additive"): (0.653, -0.017, 0.137, 0.27, -0.014, 0.134, 0.27, 0.437),
    ("babi-2", "bilstm", "dot"): (0.427, 0.17, 0.147, 0.57, 0.22, 0.135, 0.68, 0.28),
    ("babi-2", "average", "additive"): (0.167, 0.678, 0.057, 1.0, 0.647, 0.065, 1.0, 0.474),
    ("babi-2", "average", "dot"): (0.314, 0.6, 0.179, 0.99, 0.886, 0.067, 1.0, 0.575),
    ("babi-2", "cnn", "additive"): (0.333, 0.181, 0.079, 0.66, 0.186, 0.074, 0.71, 0.375),
    ("babi-2", "cnn", "dot"): (0.34, 0.152, 0.077, 0.53, 0.244, 0.062, 0.88, 0.414),
    ("babi-3", "bilstm", "additive"): (0.643, 0.239, 0.113, 0.87, 0.256, 0.104, 0.89, 0.499),
    ("babi-3", "bilstm", "dot"): (0.515, 0.299, 0.148, 0.89, 0.342, 0.152, 0.92, 0.395),
    ("babi-3", "average", "additive"): (0.32, 0.607, 0.127, 1.0, 0.725, 0.092, 1.0, 0.546),
    ("babi-3", "average", "dot"): (0.316, 0.48, 0.137, 1.0, 0.748, 0.067, 1.0, 0.411),
    ("babi-3", "cnn", "additive"): (0.294, 0.18, 0.058, 0.91, 0.178, 0.049, 0.91, 0.465),
    ("babi-3", "cnn", "dot"): (0.288, 0.014, 0.054, 0.12, 0.082, 0.053, 0.44, 0.525),
}
#: (corpus, encoder, alignment) -> mean τ-b with gradient × input by predicted class, and the same with leave-one-out.
#: The classes are in the order of our corpora.
_BY_CLASS: dict[tuple[str, str, str], tuple[tuple[float | None, ...], tuple[float | None, ...]]] = {
    ("sst", "bilstm", "additive"): ((0.343, 0.364), (0.272, 0.323)),
    ("sst", "bilstm", "dot"): ((0.085, 0.06), (0.055, 0.074)),
    ("sst", "average", "additive"): ((0.611, 0.6), (0.606, 0.642)),
    ("sst", "average", "dot"): ((0.39, 0.283), (0.33, 0.29)),
    ("sst", "cnn", "additive"): ((0.478, 0.476), (0.338, 0.365)),
    ("sst", "cnn", "dot"): ((0.202, 0.284), (0.204, 0.228)),
    ("imdb", "bilstm", "additive"): ((0.442, 0.432), (0.341, 0.341)),
    ("imdb", "bilstm", "dot"): ((0.122, 0.123), (0.111, 0.069)),
    ("imdb", "average", "additive"): ((0.674, 0.675), (0.537, 0.616)),
    ("imdb", "average", "dot"): ((0.213, None), (0.147, 0.243)),
    ("imdb", "cnn", "additive"): ((0.437, 0.468), (0.287, 0.303)),
    ("imdb", "cnn", "dot"): ((0.36, 0.332), (0.383, 0.348)),
    ("agnews", "bilstm", "additive"): ((0.419, 0.358), (0.43, 0.302)),
    ("agnews", "bilstm", "dot"): ((0.341, 0.268), (0.172, 0.178)),
    ("agnews", "average", "additive"): ((0.759, 0.782), (0.526, 0.488)),
    ("agnews", "average", "dot"): ((0.618, 0.659), (0.613, 0.303)),
    ("agnews", "cnn", "additive"): ((0.468, 0.515), (0.33, 0.39)),
    ("agnews", "cnn", "dot"): ((0.393, 0.388), (0.374, 0.36)),
    ("20news", "bilstm", "additive"): ((0.066, 0.21), (0.064, 0.195)),
    ("20news", "bilstm", "dot"): ((0.117, 0.148), (0.074, 0.058)),
    ("20news", "average", "additive"): ((0.787, 0.754), (0.635, 0.823)),
    ("20news", "average", "dot"): ((-0.034, 0.106), (-0.272, -0.078)),
    ("20news", "cnn", "additive"): ((0.522, 0.354), (0.384, 0.246)),
    ("20news", "cnn", "dot"): ((0.009, None), (0.163, 0.209)),
    ("snli", "bilstm", "additive"): ((0.326, 0.307, 0.306), (0.364, 0.336, 0.158)),
    ("snli", "bilstm", "dot"): ((0.119, 0.114, 0.113), (0.19, 0.148, 0.124)),
    ("snli", "average", "additive"): ((0.585, 0.574, 0.588), (0.583, 0.597, 0.601)),
    ("snli", "average", "dot"): ((0.489, 0.495, 0.518), (0.522, 0.537, 0.525)),
    ("snli", "cnn", "additive"): ((0.282, 0.213, 0.199), (0.283, 0.28, 0.227)),
    ("snli", "cnn", "dot"): ((0.268, 0.269, 0.276), (0.284, 0.31, 0.273)),
}
#: The same for the standard deviation over texts.
_STD_BY_CLASS: dict[tuple[str, str, str], tuple[tuple[float | None, ...], tuple[float | None, ...]]] = {
    ("sst", "bilstm", "additive"): ((0.211, 0.21), (0.188, 0.192)),
    ("sst", "bilstm", "dot"): ((0.195, 0.215), (0.188, 0.213)),
    ("sst", "average", "additive"): ((0.197, 0.206), (0.156, 0.151)),
    ("sst", "average", "dot"): ((0.212, 0.208), (0.18, 0.165)),
    ("sst", "cnn", "additive"): ((0.169, 0.165), (0.18, 0.168)),
    ("sst", "cnn", "dot"): ((0.192, 0.191), (0.192, 0.193)),
    ("imdb", "bilstm", "additive"): ((0.057, 0.065), (0.065, 0.074)),
    ("imdb", "bilstm", "dot"): ((0.059, 0.066), (0.066, 0.069)),
    ("imdb", "average", "additive"): ((0.049, 0.051), (0.099, 0.08)),
    ("imdb", "average", "dot"): ((0.067, None), (0.062, 0.072)),
    ("imdb", "cnn", "additive"): ((0.05, 0.053), (0.056, 0.057)),
    ("imdb", "cnn", "dot"): ((0.066, 0.065), (0.061, 0.066)),
    ("agnews", "bilstm", "additive"): ((0.129, 0.132), (0.139, 0.131)),
    ("agnews", "bilstm", "dot"): ((0.153, 0.136), (0.108, 0.143)),
    ("agnews", "average", "additive"): ((0.067, 0.073), (0.124, 0.133)),
    ("agnews", "average", "dot"): ((0.108, 0.101), (0.101, 0.148)),
    ("agnews", "cnn", "additive"): ((0.099, 0.109), (0.124, 0.119)),
    ("agnews", "cnn", "dot"): ((0.116, 0.121), (0.108, 0.122)),
    ("20news", "bilstm", "additive"): ((0.166, 0.223), (0.154, 0.202)),
    ("20news", "bilstm", "dot"): ((0.145, 0.166), (0.12, 0.185)),
    ("20news", "average", "additive"): ((0.072, 0.08), (0.1, 0.099)),
    ("20news", "average", "dot"): ((0.151, 0.153), (0.102, 0.277)),
    ("20news", "cnn", "additive"): ((0.091, 0.096), (0.11, 0.112)),
    ("20news", "cnn", "dot"): ((0.108, None), (0.098, 0.128)),
    ("snli", "bilstm", "additive"): ((0.209, 0.214, 0.226), (0.194, 0.204, 0.258)),
    ("snli", "bilstm", "dot"): ((0.238, 0.231, 0.234), (0.238, 0.234, 0.236)),
    ("snli", "average", "additive"): ((0.186, 0.188, 0.181), (0.197, 0.186, 0.183)),
    ("snli", "average", "dot"): ((0.177, 0.187, 0.18), (0.178, 0.185, 0.176)),
    ("snli", "cnn", "additive"): ((0.22, 0.237, 0.244), (0.219, 0.226, 0.234)),
    ("snli", "cnn", "dot"): ((0.222, 0.222, 0.222), (0.208, 0.205, 0.222)),
}
#: The same for the share of texts with p ≤ .05.
_SIGNIFICANT_BY_CLASS: dict[tuple[str, str, str], tuple[tuple[float | None, ...], tuple[float | None, ...]]] = {
    ("sst", "bilstm", "additive"): ((0.48, 0.49), (0.33, 0.4)),
    ("sst", "bilstm", "dot"): ((0.09, 0.08), (0.07, 0.08)),
    ("sst", "average", "additive"): ((0.87, 0.83), (0.87, 0.89)),
    ("sst", "average", "dot"): ((0.59, 0.37), (0.46, 0.36)),
    ("sst", "cnn", "additive"): ((0.75, 0.75), (0.48, 0.53)),
    ("sst", "cnn", "dot"): ((0.2, 0.32), (0.21, 0.2)),
    ("imdb", "bilstm", "additive"): ((1.0, 1.0), (1.0, 0.99)),
    ("imdb", "bilstm", "dot"): ((0.62, 0.61), (0.57, 0.3)),
    ("imdb", "average", "additive"): ((1.0, 1.0), (1.0, 1.0)),
    ("imdb", "average", "dot"): ((0.93, 0.77), (0.75, 0.96)),
    ("imdb", "cnn", "additive"): ((1.0, 1.0), (0.98, 0.99)),
    ("imdb", "cnn", "dot"): ((1.0, 0.99), (1.0, 0.99)),
    ("agnews", "bilstm", "additive"): ((0.9, 0.82), (0.91, 0.69)),
    ("agnews", "bilstm", "dot"): ((0.75, 0.63), (0.26, 0.37)),
    ("agnews", "average", "additive"): ((1.0, 1.0), (0.98, 0.96)),
    ("agnews", "average", "dot"): ((0.99, 1.0), (1.0, 0.67)),
    ("agnews", "cnn", "additive"): ((0.97, 0.98), (0.78, 0.89)),
    ("agnews", "cnn", "dot"): ((0.89, 0.87), (0.88, 0.84)),
    ("20news", "bilstm", "additive"): ((0.37, 0.61), (0.29, 0.62)),
    ("20news", "bilstm", "dot"): ((0.45, 0.5), (0.32, 0.45)),
    ("20news", "average", "additive"): ((1.0, 1.0), (0.98, 1.0)),
    ("20news", "average", "dot"): ((0.24, 0.38), (0.8, 0.61)),
    ("20news", "cnn", "additive"): ((0.96, 0.91), (0.9, 0.78)),
    ("20news", "cnn", "dot"): ((0.1, 0.75), (0.58, 0.63)),
    ("snli", "bilstm", "additive"): ((0.38, 0.36, 0.36), (0.44, 0.4, 0.2)),
    ("snli", "bilstm", "dot"): ((0.11, 0.11, 0.1), (0.16, 0.13, 0.11)),
    ("snli", "average", "additive"): ((0.8, 0.8, 0.8), (0.79, 0.82, 0.83)),
    ("snli", "average", "dot"): ((0.68, 0.7, 0.73), (0.75, 0.77, 0.74)),
    ("snli", "cnn", "additive"): ((0.31, 0.21, 0.22), (0.3, 0.31, 0.26)),
    ("snli", "cnn", "dot"): ((0.29, 0.3, 0.31), (0.3, 0.37, 0.31)),
}


def _numbers(key: tuple[str, str, str]) -> Iterator[tuple[str, float]]:
    for name, number in zip(_NAMES, _OVERALL[key], strict=True):
        if number is not None:
            yield name, number
    for suffix, numbers in (("", _BY_CLASS), (" std", _STD_BY_CLASS), (" significant", _SIGNIFICANT_BY_CLASS)):
        for name, by_class in zip(("gradient", "leave-one-out"), numbers.get(key, ()), strict=False):
            for index, number in enumerate(by_class):
                if number is not None:
                    yield f"{name} class {index}{suffix}", number


#: (corpus, encoder, alignment) -> name of a quantity -> number.
NUMBERS = {key: dict(_numbers(key)) for key in _OVERALL}
