"""The declarations of all papers."""

from __future__ import annotations

import pytest

from attnaudit.errors import AuditError
from attnaudit.research.reproduction.corpora import CORPORA, EMBEDDED
from attnaudit.research.reproduction.papers import PAPERS, paper


@pytest.mark.parametrize("name", PAPERS)
def test_numbers_rows_and_checks_of_a_paper_are_consistent(name: str) -> None:
    one = paper(name)
    assert one.name == name
    assert set(one.corpora) <= set(CORPORA)
    for table in one.tables:
        quantities = [quantity.name for quantity in table.quantities]
        assert len(quantities) == len(set(quantities))
        checks = [check for audit in table.audits for check in audit.checks]
        assert all(check.severity == "report" for check in checks)
        for corpora in (one.corpora, (EMBEDDED,)):
            rows = table.rows(corpora)
            assert len({row.name for row in rows}) == len(rows)
            for row in rows:
                assert set(row.paper) <= set(quantities), row.name
                assert bool(row.models) != bool(row.unavailable)
                for plan in row.models.values():
                    plan.check()
        assert not any(row.paper for row in table.rows((EMBEDDED,)))


def test_jain_wallace_has_every_number_that_the_published_code_stores() -> None:
    table = next(one for one in paper("jain-wallace").tables if one.name == "agreement")
    rows = {row.name: row for row in table.rows(paper("jain-wallace").corpora)}
    assert rows["sst/bilstm/additive"].paper["gradient"] == 0.351
    assert rows["20news/average/additive"].paper["leave-one-out"] == 0.721
    assert rows["agnews/bilstm/additive"].paper["gradient class 0"] == 0.419  # Business, which is their class 1
    assert rows["babi-3/cnn/dot"].paper["accuracy"] == 0.288
    assert "gradient" not in rows["imdb/average/dot"].paper  # undefined in the published code
    assert all(row.paper for row in rows.values())


def test_an_unknown_paper_is_reported_with_the_nearest_name() -> None:
    with pytest.raises(AuditError, match="Did you mean 'jain-wallace'"):
        paper("jain-walace")
