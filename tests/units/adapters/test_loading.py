from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from attnaudit.adapters import PooledAttentionAdapter
from attnaudit.adapters.loading import LoadedModel, fingerprint, load_model
from attnaudit.errors import AdapterError, AuditError, ModelError
from attnaudit.registry import Registry, models
from tests.small_models import adapter, parts


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "_known", dict(models._known))
    monkeypatch.setattr(models, "_origin", dict(models._origin))


def test_a_registered_model_is_found() -> None:
    models.register("films-lstm")(adapter)
    loaded = load_model("films-lstm")
    assert (loaded.name, loaded.source) == ("films-lstm", "registered model 'films-lstm'")
    assert loaded.parameters == sum(p.numel() for m in adapter().modules for p in m.parameters())


def test_the_hash_follows_the_weights() -> None:
    assert fingerprint(adapter(seed=0)) == fingerprint(adapter(seed=0))
    assert fingerprint(adapter(seed=0))[0] != fingerprint(adapter(seed=1))[0]


def test_the_hash_of_a_model_covers_more_than_its_weights() -> None:
    def sha256(**changes: object) -> str:
        loaded = _loaded(lambda: adapter(**changes))
        assert loaded.parameters_sha256 == fingerprint(adapter())[0]
        return loaded.sha256

    assert sha256() == sha256()
    scaled = parts()["encoder"]
    scaled.scale = 0.5  # type: ignore[attr-defined]
    others = [
        sha256(classes=("positive", "negative")),
        sha256(configuration='{"vocabulary": ["good", "bad"]}'),
        sha256(max_tokens=3),
        sha256(encoder=scaled),
        sha256(encoder=_with_scales(2.0)),
        sha256(encoder=_with_scales(4.0)),
        *(sha256(encoder=_with_settings(Settings(scale))) for scale in (2.0, 4.0)),
        *(sha256(encoder=_with_settings(SimpleNamespace(scale=scale))) for scale in (2.0, 4.0)),
        *(sha256(encoder=_with_settings(frozenset({"a", scale}))) for scale in (2.0, 4.0)),
        *(sha256(encoder=_with_settings([np.int64(scale), Kind.SCALED])) for scale in (2.0, 4.0)),
    ]
    assert len({sha256(), *others}) == 15
    assert sha256(encoder=_with_settings(Settings(2.0))) == sha256(encoder=_with_settings(Settings(2.0)))
    itself = Settings(1.0)
    itself.more = itself
    assert sha256(encoder=_with_settings(itself)) not in others
    assert sha256(encoder=_with_settings(open)) == sha256(encoder=_with_settings({})) == sha256()


@dataclass
class Settings:
    scale: float
    more: object = None
    _calls: int = 0


class Kind(Enum):
    SCALED = "scaled"


def _with_settings(settings: object) -> object:
    """Return an encoder that keeps its settings in an object."""
    encoder = parts()["encoder"]
    encoder.settings = settings  # type: ignore[attr-defined]
    return encoder


def _with_scales(scale: float) -> object:
    """Return an encoder whose scale is in a dict, as in the layers of PEFT."""
    encoder = parts()["encoder"]
    encoder.scaling = {"default": scale}  # type: ignore[attr-defined]
    return encoder


def _loaded(make: Callable[[], object]) -> LoadedModel:
    models._known.pop("films", None)
    models.register("films")(make)
    return load_model("films")


def test_the_hash_is_the_same_if_shared_buffers_become_separate() -> None:
    """As on another device, to which each module moves its own buffers."""
    model = adapter()
    shared = torch.ones(3)
    for module in model.modules[:2]:
        module.register_buffer("scale", shared)
    before, counted = fingerprint(model)
    model.modules[1].register_buffer("scale", shared.clone())
    assert fingerprint(model)[0] == before
    assert counted == fingerprint(adapter())[1] + 3


def test_a_factory_is_found_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_factory_module.py").write_text("from tests.small_models import adapter as make\n")
    monkeypatch.chdir(tmp_path)
    assert load_model("my_factory_module:make").name == "my_factory_module.make"
    with pytest.raises(ModelError, match=r"has no function 'mak'. Did you mean 'make'"):
        load_model("my_factory_module:mak")


def test_an_unknown_name_gets_the_nearest() -> None:
    models.register("films-lstm")(adapter)
    with pytest.raises(ModelError, match="Did you mean 'films-lstm'"):
        load_model("film-lstm")


def test_a_file_is_not_a_model(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ModelError, match=r"this is a file; expected a folder.*not a checkpoint\. Register an adapter"):
        load_model(str(tmp_path / "model.safetensors"))
    (tmp_path / "attnaudit.json").write_text("{}")
    with pytest.raises(ModelError, match="Give the checkpoint folder that contains the file"):
        load_model(str(tmp_path / "model.safetensors"))


def test_a_misspelt_argument_of_an_adapter_gets_the_nearest() -> None:
    models.register("misspelt")(lambda: PooledAttentionAdapter(**parts(), max_token=3))  # type: ignore[arg-type,call-arg]
    with pytest.raises(ModelError, match=r"unexpected keyword argument 'max_token'\. Did you mean 'max_tokens'"):
        load_model("misspelt")


def test_a_string_as_classes_is_refused() -> None:
    made = adapter()
    made._capabilities = replace(made.capabilities, classes="ab")  # type: ignore[arg-type]
    models.register("letters")(lambda: made)
    with pytest.raises(AdapterError, match="classes is the string 'ab'; expected a sequence of names"):
        load_model("letters")


def test_an_unknown_folder_says_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").touch()
    with pytest.raises(ModelError, match=r"not in a known checkpoint format .* contains weights.bin"):
        load_model(str(tmp_path))


def test_a_module_that_cannot_be_imported_is_named() -> None:
    with pytest.raises(ModelError, match="module 'no_such_module_anywhere' cannot be imported: ModuleNotFoundError"):
        load_model("no_such_module_anywhere:make")


def test_a_factory_that_fails_is_named() -> None:
    def broken() -> object:
        raise FileNotFoundError("weights.bin")

    models.register("failing_factory")(broken)
    with pytest.raises(
        ModelError, match=r"the factory raised FileNotFoundError at test_loading.py:[0-9]+ in broken: weights\.bin"
    ):
        load_model("failing_factory")


def test_the_message_of_a_factory_that_fails_ends_in_one_full_stop() -> None:
    def broken() -> object:
        raise RuntimeError("size mismatch for embedding.weight.")

    models.register("mismatched_factory")(broken)
    with pytest.raises(ModelError, match=r"size mismatch for embedding\.weight\.$"):
        load_model("mismatched_factory")


def test_a_factory_that_ends_the_program_has_failed() -> None:
    models.register("ending")(lambda: sys.exit(0))
    with pytest.raises(ModelError, match=r"the factory raised SystemExit at test_loading.py:[0-9]+ in <lambda>: 0"):
        load_model("ending")


def test_something_that_is_no_adapter_lists_what_it_lacks() -> None:
    models.register("text")(lambda: "a string")
    with pytest.raises(AdapterError, match="a str without capabilities, modules, collate, embed, sites, run"):
        load_model("text")


def test_a_missing_method_is_named() -> None:
    class Partial:
        capabilities = adapter().capabilities
        modules = adapter().modules
        collate = embed = sites = run = decode = decoder_weights = None

    models.register("partial")(Partial)
    with pytest.raises(AdapterError, match="a Partial without delete, keep;"):
        load_model("partial")


def test_two_things_under_one_name_are_refused() -> None:
    registry: Registry[object] = Registry("model", "attnaudit.no-such-group")
    registry.register("x")(adapter)
    with pytest.raises(AuditError, match="registered twice"):
        registry.register("x")(test_the_hash_follows_the_weights)


def test_a_name_with_a_slash_is_refused() -> None:
    with pytest.raises(AuditError, match="without spaces, slashes or colons"):
        models.register("a/b")


def test_classes_must_be_text_and_tensors_must_have_numbers() -> None:
    models.register("numbered")(lambda: adapter(2, classes=(0, 1)))
    with pytest.raises(AdapterError, match="the class name 0 is not a string"):
        load_model("numbered")
    empty = adapter(2)
    empty.modules[0].to("meta")
    models.register("empty")(lambda: empty)
    with pytest.raises(AdapterError, match="torch's meta device"):
        load_model("empty")


def test_a_name_that_is_registered_and_a_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models.register("films-lstm")(adapter)
    (tmp_path / "films-lstm").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=r"both a registered model and a folder\. Write --model \./films-lstm for"):
        load_model("films-lstm")
    with pytest.raises(ModelError, match="not in a known checkpoint format"):
        load_model("./films-lstm")


def test_a_folder_that_two_formats_claim_is_refused(tmp_path: Path) -> None:
    (tmp_path / "attnaudit.json").write_text("{}")
    with pytest.raises(ModelError, match='"format" is None'):
        load_model(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ModelError, match=r"several checkpoint formats claim this folder \(reference, transformers\)"):
        load_model(str(tmp_path))


def test_a_pipe_in_a_checkpoint_folder_is_refused_and_not_read(tmp_path: Path) -> None:
    (tmp_path / "attnaudit.json").write_text("{}")
    (tmp_path / "sub").mkdir()
    os.mkfifo(tmp_path / "sub" / "tokenizer.json")
    with pytest.raises(ModelError, match=r"tokenizer\.json: this is a pipe, expected a regular file with the model"):
        load_model(str(tmp_path))
