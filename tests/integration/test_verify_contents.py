"""`attnaudit verify` compares models and data by their content where it can read them."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attnaudit.adapters.loading import load_model
from attnaudit.data import load
from tests import architectures
from tests.consistent_runs import NAME, consistent_run, write_record
from tests.integration.test_verify_command import MODEL, ROOT, Verified


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "reports"


def test_models_and_data_are_compared_by_their_content(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = ROOT / "attnaudit" / "models" / "demo"
    texts = reports.parent / "held_out.jsonl"
    texts.write_text('{"text": "good", "label": "positive"}\n{"text": "bad", "label": "negative"}\n', encoding="utf-8")
    run = consistent_run(reports / NAME, models={"any name": load_model(str(checkpoint)).sha256})
    data = msgspec.structs.replace(run.data[0], sha256=load(str(texts)).audited_sha256())
    model_record = msgspec.structs.replace(run.models[0], family=load_model(str(checkpoint)).family)
    write_record(reports / NAME, msgspec.structs.replace(run, models=[model_record], data=[data]))
    for model in (str(checkpoint), "demo", "attnaudit.models.demo_model:model"):
        result = Verified(capsys, "--model", model, "--data", "held_out.jsonl")
        assert result.status == 0, result.out
        assert "compared by name only" not in result.out
    other = msgspec.structs.replace(model_record, family="transformer, bert")
    write_record(reports / NAME, msgspec.structs.replace(run, models=[other], data=[data]))
    (reason,) = Verified(capsys, "--model", "demo", "--data", "held_out.jsonl").reasons()
    assert "recorded the family 'transformer, bert', but the model is of the family 'pooled attention" in reason
    texts.write_text('{"text": "good", "label": "positive"}\n', encoding="utf-8")
    reasons = Verified(capsys, "--model", "demo", "--data", "held_out.jsonl").reasons()
    assert any(reason.startswith("--data held_out.jsonl: ") for reason in reasons)


def test_a_data_folder_with_the_name_of_the_data_set_is_compared_by_its_content(
    reports: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = reports.parent / "reviews"
    folder.mkdir()
    rows = [{"text": f"text {i}", "label": str(i % 2)} for i in range(100)]
    pq.write_table(pa.Table.from_pylist(rows), folder / "part-0.parquet")
    run = consistent_run(reports / NAME)
    data = msgspec.structs.replace(run.data[0], sha256=load("reviews").audited_sha256())
    write_record(reports / NAME, msgspec.structs.replace(run, data=[data]))
    result = Verified(capsys, *MODEL, "--data", "reviews")
    assert (result.status, result.lines[1]) == (0, "compared by name only: release"), result.out
    pq.write_table(pa.Table.from_pylist(rows[1:]), folder / "part-0.parquet")
    reasons = Verified(capsys, *MODEL, "--data", "reviews").reasons()
    assert any(reason.startswith("--data reviews: the run audited no data set with this hash") for reason in reasons)


def test_a_model_with_equal_weights_and_another_vocabulary_is_not_verified(
    reports: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo, other = ROOT / "attnaudit" / "models" / "demo", reports.parent / "other"
    shutil.copytree(demo, other)
    card = other / "attnaudit.json"
    content = msgspec.json.decode(card.read_bytes())
    content["vocabulary"][-2:] = reversed(content["vocabulary"][-2:])
    card.write_bytes(msgspec.json.encode(content))
    run = consistent_run(reports / NAME, models={"demo": load_model("demo").sha256})
    model_record = msgspec.structs.replace(run.models[0], family=load_model("demo").family)
    write_record(reports / NAME, msgspec.structs.replace(run, models=[model_record]))
    assert Verified(capsys, "--model", str(demo)).status == 0
    assert load_model(str(other)).parameters_sha256 == load_model(str(demo)).parameters_sha256
    assert "other" in Verified(capsys, "--model", str(other)).reasons()[0]


@pytest.mark.slow
def test_every_label_of_a_checkpoint_is_compared_by_its_content(
    reports: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"id2label": {0: "toxic", 1: "insult", 2: "threat"}, "label2id": {}}
    folder = architectures.save("bert", Path("tagger"), problem_type="multi_label_classification", **names)
    (folder / "attnaudit.toml").write_text('[target]\nkind = "label"\nname = "toxic"\n', encoding="utf-8")
    sources = ("tagger", "tagger[insult]", "tagger[threat]")
    loaded = {source: load_model(source) for source in sources}
    assert len({model.sha256 for model in loaded.values()}) == 3

    def write_run(*audited: str) -> None:
        run = consistent_run(reports / NAME, models={source: loaded[source].sha256 for source in audited})
        records = [msgspec.structs.replace(one, family=loaded[one.name].family) for one in run.models]
        write_record(reports / NAME, msgspec.structs.replace(run, models=records))

    def verified(*models: str) -> Verified:
        return Verified(capsys, *(word for model in models for word in ("--model", model)))

    write_run("tagger", "tagger[insult]")
    for models in (("tagger", "tagger[insult]"), ("./tagger[insult]", str(folder.resolve()))):
        result = verified(*models)
        assert result.status == 0, result.out
        assert "compared by name only" not in result.out
    assert verified("tagger").reasons()
    assert verified("tagger", "tagger[threat]").reasons()
    listed = '[target]\nkind = "label"\nlabels = ["insult", "threat"]\n'
    (folder / "attnaudit.toml").write_text(listed, encoding="utf-8")
    assert verified("tagger").reasons()
    write_run("tagger[insult]", "tagger[threat]")
    for models in (("tagger",), ("tagger", "tagger[threat]"), ("tagger[threat]", "tagger[insult]")):
        assert verified(*models).status == 0
    architectures.save("bert", folder, problem_type="multi_label_classification", **names, seed=1)
    assert any("tagger[insult]: the run audited no model with this hash" in one for one in verified("tagger").reasons())
    assert len(verified("tagger[insult]", "tagger[threat]").reasons()) == 4
