"""Deviations from the paper are listed once, and with the setting that they concern if settings differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from attnaudit.research.reproduction.pages.deviations import HEADING, deviations
from attnaudit.research.reproduction.pages.paper_pages import html, markdown
from attnaudit.research.reproduction.pages.paper_summary import summary
from attnaudit.research.reproduction.paper_report import Reproduction, Row, Table, WordVectors
from tests.units.research.reproduction.pages.report_with_figures import PROVENANCE, line, reproduction

ROW = Row(
    name="imdb/a",
    title="A",
    corpus="imdb",
    lines=[line("accuracy", paper=None, values=[0.5, 0.5])],
    provenance=PROVENANCE,
)


def with_tables(of_tables: Mapping[str, Sequence[str]], *, empty: Sequence[str] = ()) -> Reproduction:
    """Return a report with these deviations of its tables. The tables in `empty` have no numbers."""
    tables = [
        Table(
            name=name,
            title=name.title(),
            source="table 1",
            deviations=list(texts),
            rows=[] if name in empty else [ROW],
            figures=[],
        )
        for name, texts in of_tables.items()
    ]
    return msgspec.structs.replace(reproduction(), tables=tables)


def with_vectors(one: Reproduction) -> Reproduction:
    return msgspec.structs.replace(one, vectors=WordVectors(name="made", sha256="0", width=2))


def test_a_deviation_of_all_tables_is_listed_once_and_others_at_their_tables() -> None:
    one = with_tables({"first": ["Everywhere.", "Here."], "second": ["Everywhere."], "third": []}, empty=["third"])
    found = deviations([one])
    assert found.shared == ["Everywhere."]
    assert found.of_table == {"first": ["Here."]}
    assert not found.of_report
    for text in (markdown(one), html({"one": one}), summary(one, width=100)):
        assert text.count("Everywhere.") == text.count("Here.") == 1
        assert text.rindex(HEADING) < text.index("Everywhere.") < text.index("Here.")


def test_a_deviation_about_a_corpus_is_listed_once_even_if_only_some_tables_have_the_corpus() -> None:
    about = ["IMDb: shortened.", "IMDb/2: kept.", "SNLI: shortened."]
    one = with_tables({"first": about, "second": []})
    assert deviations([one]).shared == ["IMDb: shortened."]
    assert deviations([one]).of_table == {"first": about[1:]}


def test_a_deviation_of_some_settings_names_them() -> None:
    random = with_tables({"first": ["Random.", "Both.", "IMDb: cut."], "second": ["Random.", "Both."]})
    vectors = with_vectors(with_tables({"first": ["Both.", "IMDb: cut.", "Own."], "second": ["Both."]}))
    found = deviations([random, vectors])
    assert found.shared == ["Random. (Embeddings: random.)", "Both.", "IMDb: cut."]
    assert found.of_report == {(1, "first"): ["Own."]}
    page = html({"random": random, "vectors": vectors})
    assert page.count("<li>Own.</li>") == page.count("<li>Both.</li>") == 1


def test_a_deviation_of_one_table_in_every_setting_is_listed_once() -> None:
    random = with_tables({"first": ["Here."], "second": []})
    found = deviations([random, with_vectors(random)])
    assert found.of_table == {"first": ["Here."]}
    assert not found.shared
    assert not found.of_report
