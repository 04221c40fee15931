"""Wiegreffe & Pinter 2019, "Attention is not not Explanation": four tests of attention that train models anew.

Uniform weights, other seeds, an MLP that is guided by the attention, and a trained adversary, for BiLSTM + additive.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from attnaudit.checks import AdversarialDivergence, UniformFragility
from attnaudit.checks.trained_adversary import SWEEP
from attnaudit.records import Chart, Series
from attnaudit.research.reproduction.compare_models import (
    difference_of,
    jsd_between,
    jsd_by_text,
    over_roles,
    over_roles_by_text,
    statistic_by_text,
    tvd_between,
    tvd_by_text,
)
from attnaudit.research.reproduction.corpora import EMBEDDED, corpus
from attnaudit.research.reproduction.figure_records import Figure
from attnaudit.research.reproduction.model_plans import Plan, jain_wallace
from attnaudit.research.reproduction.paper_figures import violins_by_attention
from attnaudit.research.reproduction.paper_tables import (
    MODEL,
    Audit,
    Models,
    Paper,
    Quantity,
    Reading,
    RowPlan,
    TablePlan,
    accuracy,
    column_of,
    defined,
    f1,
    value_of,
)
from attnaudit.research.reproduction.papers.shared_deviations import HALVED, LONG, SHORT
from attnaudit.research.reproduction.papers.wiegreffe_pinter_claims import CLAIMS

#: λ of the adversary as the published code counts it; the embedded sentences have no published one.
LAMBDA = {"sst": 5.25e-4, "imdb": 8e-4, "agnews": 5e-4, "20news": 5e-4, EMBEDDED: 5e-4}
#: corpus -> accuracy, TVD and JSD of the adversary in table 3 of Wen, Subbalakshmi & Yang 2022
REPEATED = {
    "sst": (0.82, 0.036, 0.316),
    "imdb": (0.90, 0.021, 0.482),
    "agnews": (0.96, 0.009, 0.664),
    "20news": (0.90, 0.037, 0.391),
}
#: Models that differ by their seed alone, the first of which the others are held against.
SEEDS = 8
OTHERS = tuple(f"seed {seed}" for seed in range(1, SEEDS))
NEXT, UNIFORM, TWIN = "next seed", "uniform", "adversary"
GUIDES = {
    "uniform": ("imposed_mlp_uniform", "uniform weights"),
    "learnt": ("mlp", "weights that it learns"),
    "base": ("imposed_mlp", "the BiLSTM's weights"),
    "adversary": ("imposed_mlp_adversary", "the adversary's weights"),
}
SWEPT = {f"λ × {times:g}": times for times in SWEEP}
EXACT = {epsilon: AdversarialDivergence(tvd=epsilon, severity="report") for epsilon in (0.01, 0.05)}
#: Any check that reads attention: it is kept, and compared between models.
ATTENTION = UniformFragility(severity="report")
JSD_LABEL = "JSD, nats (at most ln 2 = 0.693)"


def base(of: str) -> Plan:
    return jain_wallace(of, encoder="bilstm", alignment="additive")


def twin(of: str, times: float = 1.0, *, name: str = "adversary") -> Plan:
    """The adversary of `times` the published λ; their code halves the TVD of one sigmoid output, so λ is doubled."""
    return base(of).made(name, float(f"{2 * LAMBDA[of] * times:.6g}"))


def _rows(
    models: Callable[[str], Mapping[str, Plan]],
    *,
    numbers: Mapping[str, Mapping[str, float]] | None = None,
    once: bool = False,
) -> Callable[[Sequence[str]], list[RowPlan]]:
    def rows(corpora: Sequence[str]) -> list[RowPlan]:
        return [
            RowPlan(
                name=f"{name}/bilstm/additive",
                title=f"{corpus(name).title}, BiLSTM, additive",
                corpus=name,
                models={MODEL: base(name), **models(name)},
                paper=(numbers or {}).get(name, {}),
                once=once,
            )
            for name in corpora
        ]

    return rows


def _guided(of: str) -> dict[str, Plan]:
    return {
        role: twin(of, name=variant) if role == "adversary" else base(of).made(variant)
        for role, (variant, _) in GUIDES.items()
    }


def _swept(of: str) -> dict[str, Plan]:
    swept = {role: twin(of, times, name="twin") for role, times in SWEPT.items()}
    return {**swept, NEXT: base(of).with_seed(1), UNIFORM: base(of).made("uniform")}


def _f1_of(role: str) -> Callable[[Models], Reading]:
    return lambda models: f1(models, of=role)


def _accuracy_of(role: str) -> Callable[[Models], Reading]:
    return lambda models: accuracy(models, of=role)


def _number(name: str, words: str, read: Callable[[Models], Reading]) -> Quantity:
    return Quantity(name=name, words=words, read=read)


def _further(models: Models) -> Reading:
    """Share of texts on which the adversary's attention is further away than that of the next seed."""
    pairs = zip(jsd_by_text(models, TWIN), jsd_by_text(models, NEXT), strict=True)
    known = [a > b for a, b in pairs if a is not None and b is not None]
    return (statistics.fmean(known) if known else None), len(known)


def _violins(row: RowPlan, models: Models) -> list[Figure]:
    exact = f"{EXACT[0.01].column}.jsd"
    audit = models[MODEL].having(exact)
    return [
        violins_by_attention(
            row,
            audit,
            statistic_by_text(jsd_by_text, OTHERS, max)(models),
            name="seeds",
            title="attention from other seeds",
            caption=f"Largest JSD among {len(OTHERS)} models from other seeds",
            x_label=JSD_LABEL,
        ),
        violins_by_attention(
            row,
            audit,
            audit.scalars[exact],
            name="per-text-adversary",
            title="other attention with the same output, sought text by text",
            caption="Largest JSD at TVD ≤ .01 (the adversary of Jain & Wallace 2019)",
            x_label=JSD_LABEL,
        ),
    ]


def _curve(row: RowPlan, models: Models) -> list[Figure]:
    roles = {"trained adversary, over λ": SWEPT, "next seed": [NEXT], "trained with uniform weights": [UNIFORM]}
    lines = {name: _points(models, of) for name, of in roles.items()}
    lines["per-text adversary, TVD ≤ .01 and .05"] = _exact(models)
    return [
        Figure(
            name="curve",
            row=row.name,
            title=f"{row.title}: how far attention goes, and the output with it",
            caption="Means over the test texts, each model against the plain one. Up and to the left: other attention "
            f"with the same output. λ is {SWEEP[0]:g} to {SWEEP[-1]:g} times that of the table above.",
            chart=Chart(
                title="JSD by TVD",
                x_label="mean TVD of the output",
                y_label=f"mean {JSD_LABEL}",
                kind="line",
                series=[
                    Series(name=name, x=[x for x, _ in line], y=[y for _, y in line]) for name, line in lines.items()
                ],
            ),
        )
    ]


def _points(models: Models, roles: Iterable[str]) -> list[tuple[float, float]]:
    """(TVD, JSD) of each role to the model, by TVD, where both are defined."""
    found = [(tvd_between(role)(models)[0], jsd_between(role)(models)[0]) for role in roles]
    return sorted((tvd, jsd) for tvd, jsd in found if tvd is not None and jsd is not None)


def _exact(models: Models) -> list[tuple[float, float]]:
    """(TVD, JSD) of the adversary that is sought text by text, by ε, where one was found."""
    found = [[defined(models[MODEL], f"{one.column}.{what}") for what in ("tvd", "jsd")] for one in EXACT.values()]
    return [(statistics.fmean(tvd), statistics.fmean(jsd)) for tvd, jsd in found if tvd and jsd]


PAPER = Paper(
    name="wiegreffe-pinter",
    title="Attention is not not Explanation",
    citation="Sarah Wiegreffe and Yuval Pinter. EMNLP-IJCNLP 2019.",
    corpora=("sst", "imdb", "agnews", "20news"),
    deviations=(
        "The epoch is chosen on dev alone: by F1, for adversaries by their loss.",
        "The paper's clinical data sets (Diabetes, Anemia) are not open, and left out.",
        "The paper's own numbers do not stand beside ours; where numbers do, the table says whose they are.",
    ),
    claims=CLAIMS,
    tables=(
        TablePlan(
            name="uniform",
            title="Attention against uniform weights, both trained so",
            source="test 1, table 2",
            rows=_rows(lambda of: {UNIFORM: base(of).made("uniform")}),
            quantities=(
                _number("f1", "F1, attention", _f1_of(MODEL)),
                _number("f1 uniform", "F1, uniform weights", _f1_of(UNIFORM)),
                _number("gain", "… what attention adds to F1", difference_of(_f1_of(MODEL), _f1_of(UNIFORM))),
                _number("accuracy", "accuracy, attention", _accuracy_of(MODEL)),
                _number("accuracy uniform", "accuracy, uniform weights", _accuracy_of(UNIFORM)),
            ),
            audits=(),
        ),
        TablePlan(
            name="seeds",
            title="Attention of models that differ by their seed alone",
            source="test 2, figure 3, which has no numbers",
            rows=_rows(lambda of: {role: base(of).with_seed(seed) for seed, role in enumerate(OTHERS, 1)}, once=True),
            quantities=(
                _number(
                    "jsd",
                    f"JSD to the first seed, mean over {len(OTHERS)} other seeds",
                    over_roles_by_text(jsd_by_text, OTHERS, statistics.fmean),
                ),
                _number("jsd largest", "… largest of a text, mean", over_roles_by_text(jsd_by_text, OTHERS, max)),
                _number("jsd least seed", "… of the nearest seed", over_roles(jsd_between, OTHERS, min)),
                _number("jsd most seed", "… of the furthest seed", over_roles(jsd_between, OTHERS, max)),
                _number(
                    "tvd",
                    "TVD of the output, mean over seeds",
                    over_roles_by_text(tvd_by_text, OTHERS, statistics.fmean),
                ),
                _number(
                    "f1",
                    f"F1, mean over {SEEDS} seeds",
                    over_roles(_f1_of, (MODEL, *OTHERS), statistics.fmean),
                ),
                _number(
                    "f1 std",
                    "… standard deviation",
                    over_roles(_f1_of, (MODEL, *OTHERS), statistics.stdev),
                ),
                _number(
                    "jsd per text",
                    "beside it: largest JSD at TVD ≤ .01, sought text by text",
                    value_of(EXACT[0.01].id),
                ),
            ),
            audits=(
                Audit(checks=(ATTENTION,), tokens=("attention",)),
                Audit(checks=(EXACT[0.01],), tokens=("attention",), roles=(MODEL,)),
            ),
            figures=_violins,
            deviations=(f"One row is {SEEDS} models, of which the first is held against the others.",),
        ),
        TablePlan(
            name="guided-mlp",
            title="An MLP without context, guided by attention",
            source="test 3, table 3",
            rows=_rows(_guided),
            quantities=(
                *(_number(f"f1 {role}", f"F1, {words}", _f1_of(role)) for role, (_, words) in GUIDES.items()),
                *(
                    _number(
                        f"gain {role}",
                        f"F1, the BiLSTM's weights less {words}",
                        difference_of(_f1_of("base"), _f1_of(role)),
                    )
                    for role, words in (
                        ("uniform", "uniform ones"),
                        ("learnt", "its own"),
                        ("adversary", "the other's"),
                    )
                ),
                _number("f1", "F1 of the BiLSTM itself", _f1_of(MODEL)),
            ),
            audits=(),
        ),
        TablePlan(
            name="adversary",
            title="An adversary trained to answer alike with other attention",
            source="test 4, table 4; the numbers are those of Wen, Subbalakshmi & Yang 2022, table 3, who repeat it "
            "with the same λ",
            rows=_rows(
                lambda of: {TWIN: twin(of), NEXT: base(of).with_seed(1)},
                numbers={
                    name: dict(zip(("accuracy adversary", "tvd", "jsd"), row, strict=True))
                    for name, row in REPEATED.items()
                },
            ),
            quantities=(
                _number("f1", "F1, model", _f1_of(MODEL)),
                _number("f1 adversary", "F1, adversary", _f1_of(TWIN)),
                _number("accuracy", "accuracy, model", _accuracy_of(MODEL)),
                _number("accuracy adversary", "accuracy, adversary", _accuracy_of(TWIN)),
                _number("tvd", "TVD of the output, mean", tvd_between(TWIN)),
                _number("jsd", "JSD of the attention, mean", jsd_between(TWIN)),
                _number("tvd seed", "TVD of the next seed", tvd_between(NEXT)),
                _number("jsd seed", "JSD of the next seed", jsd_between(NEXT)),
                _number("further", "share of texts further away than the next seed", _further),
                _number(
                    "jsd per text",
                    "largest JSD at TVD ≤ .01, sought text by text",
                    value_of(EXACT[0.01].id),
                ),
            ),
            audits=(
                Audit(checks=(ATTENTION,), tokens=("attention",)),
                Audit(checks=(EXACT[0.01],), tokens=("attention",), roles=(MODEL,)),
            ),
            deviations=(
                "λ is twice that of the published code, which halves the TVD of one sigmoid output: "
                + "; ".join(f"{corpus(name).title} 2 × {LAMBDA[name]:g}" for name in REPEATED)
                + ".",
                HALVED,
                LONG,
            ),
        ),
        TablePlan(
            name="curve",
            title="JSD by TVD over λ",
            source="test 4, figure 5, which has no numbers",
            rows=_rows(_swept),
            quantities=tuple(
                quantity
                for role in (*SWEPT, NEXT, UNIFORM)
                for quantity in (
                    _number(f"tvd {role}", f"TVD, {role}", tvd_between(role)),
                    _number(f"jsd {role}", f"JSD, {role}", jsd_between(role)),
                )
            )
            + tuple(
                _number(
                    f"{what} per text {epsilon:g}",
                    f"{what.upper()}, per-text adversary, TVD ≤ {epsilon:g}",
                    column_of(f"{check.column}.{what}", statistics.fmean),
                )
                for epsilon, check in EXACT.items()
                for what in ("tvd", "jsd")
            ),
            audits=(
                Audit(checks=(ATTENTION,), tokens=("attention",)),
                Audit(checks=tuple(EXACT.values()), tokens=("attention",), roles=(MODEL,)),
            ),
            figures=_curve,
            deviations=("λ is a multiple of that of the table above.", SHORT),
        ),
    ),
)
