"""The numbers of Meister et al. 2021: tables 1, 2, 3, 5 and 6, and the weights of its adversaries."""

from __future__ import annotations

from collections.abc import Mapping

from attnaudit.research.reproduction.corpora import EMBEDDED

CORPORA = ("imdb", "20news", "sst")
#: Models as (encoder, alignment).
BILSTM, TRANSFORMER = ("bilstm", "additive"), ("transformer", "dot")
SOFTMAX, SPARSEMAX = "softmax", "sparsemax"
#: The measures of importance that attention is compared with in table 6, and the place where each is computed.
MEASURES = ("gradient inputs", "leave-one-out inputs", "gradient hidden", "leave-one-out hidden")

#: Corpus -> λ of the adversary's loss in Wiegreffe & Pinter 2019. Their code halves the TVD, so
#: `meister_models.adversaries` doubles λ.
ADVERSARY = {"sst": 5.25e-4, "imdb": 8e-4, "20news": 5e-4, EMBEDDED: 5.25e-4}
#: Last part of a row's name -> factor by which λ of the adversary's loss is multiplied.
FACTORS = {"λ": 1, "10λ": 10, "100λ": 100}

#: (encoder, alignment, ...) -> name of a quantity -> corpus -> number in the paper.
Numbers = Mapping[tuple[str, ...], Mapping[str, Mapping[str, float]]]


def _by_corpus(*numbers: float) -> dict[str, float]:
    return dict(zip(CORPORA, numbers, strict=True))


#: Table 3, for the softmax models.
ACCURACY = {BILSTM: _by_corpus(0.90, 0.91, 0.82), TRANSFORMER: _by_corpus(0.89, 0.91, 0.79)}
#: Table 1.
INFLUENCES: Numbers = {
    (*model, projection): {"entropy": _by_corpus(*mean), "entropy std": _by_corpus(*std)}
    for model, projection, mean, std in (
        (BILSTM, SOFTMAX, (0.71, 0.75, 0.93), (0.09, 0.12, 0.05)),
        (BILSTM, SPARSEMAX, (0.72, 0.68, 0.91), (0.10, 0.12, 0.07)),
        (TRANSFORMER, SOFTMAX, (0.76, 0.48, 0.73), (0.08, 0.06, 0.09)),
        (TRANSFORMER, SPARSEMAX, (0.72, 0.46, 0.63), (0.09, 0.06, 0.08)),
    )
}
#: Table 2. The paper does not say whether its τ is computed over models or over texts. Its number is therefore compared
#: with both.
TRENDS: Numbers = {
    model: {"means": _by_corpus(*found), "texts": _by_corpus(*found)}
    for model, found in ((BILSTM, (-0.935, -0.675, -0.866)), (TRANSFORMER, (-0.830, -0.409, -0.810)))
}
#: Table 5.
ADVERSARIES: Numbers = {
    model: {name: _by_corpus(*found) for name, found in zip(("jsd frozen", "accuracy frozen", "jsd unfrozen",
    "accuracy unfrozen"), rows, strict=True)} | {"accuracy base": ACCURACY[model]}
    for model, rows in (
        (BILSTM, ((0.67, 0.67, 0.62), (0.76, 0.78, 0.76), (0.67, 0.67, 0.61), (0.90, 0.91, 0.82))),
        (TRANSFORMER, ((0.62, 0.62, 0.57), (0.71, 0.87, 0.76), (0.64, 0.62, 0.57), (0.87, 0.92, 0.78))),
    )
}  # fmt: skip
#: Table 6: means and standard deviations for gradient and leave-one-out, at the inputs (upper half of the table) and at
#: the hidden states (lower half).
AGREED: Numbers = {
    (*model, projection): {
        name: _by_corpus(*found)
        for name, found in zip(
            (part for measure in MEASURES for part in (measure, f"{measure} std")),
            rows,
            strict=True,
        )
    }
    | ({"accuracy": ACCURACY[model]} if projection == SOFTMAX else {})
    for model, projection, rows in (
        (BILSTM, SOFTMAX, (
            (0.36, 0.24, 0.25), (0.12, 0.24, 0.28), (0.31, 0.17, 0.35), (0.08, 0.17, 0.18),
            (0.77, 0.78, 0.80), (0.05, 0.15, 0.13), (0.79, 0.70, 0.49), (0.05, 0.19, 0.17),
        )),
        (BILSTM, SPARSEMAX, (
            (0.31, 0.25, 0.45), (0.08, 0.13, 0.13), (0.25, 0.23, 0.34), (0.06, 0.09, 0.15),
            (0.98, 0.98, 0.97), (0.02, 0.06, 0.06), (0.98, 0.99, 0.98), (0.02, 0.01, 0.04),
        )),
        (TRANSFORMER, SOFTMAX, (
            (0.67, 0.54, 0.72), (0.08, 0.11, 0.11), (0.20, 0.05, 0.33), (0.10, 0.10, 0.20),
            (0.76, 0.62, 0.89), (0.04, 0.13, 0.07), (0.10, 0.05, 0.16), (0.07, 0.11, 0.18),
        )),
        (TRANSFORMER, SPARSEMAX, (
            (0.44, 0.47, 0.67), (0.08, 0.10, 0.12), (0.21, 0.14, 0.30), (0.09, 0.15, 0.23),
            (0.92, 0.76, 0.88), (0.05, 0.15, 0.11), (0.19, 0.15, 0.25), (0.09, 0.16, 0.23),
        )),
    )
}  # fmt: skip
