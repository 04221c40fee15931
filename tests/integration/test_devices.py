"""No operation mixes devices, and results stay on the device until they are stored. These tests need no GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from attnaudit.adapters import PooledAttentionAdapter
from attnaudit.adapters.loading import load_model
from attnaudit.adapters.protocol import ModelAdapter
from attnaudit.conformance import full
from attnaudit.data import load, sample
from attnaudit.engine.measuring import measure
from attnaudit.engine.repeated_pass import FirstPass, RepeatedPass
from attnaudit.instances import Dataset, Instance
from tests.pretended_device import OnDevice, pretended_device
from tests.slow_cases import slow_except
from tests.small_models import parts

pytestmark = pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN")
NEEDS = (
    *("prediction", "attention", "permutation", "uniform", "flip", "top_token", "token_probability", "conicity"),
    *("agreement.gradient.meister.inputs", "agreement.gradient.jain_wallace.inputs", "agreement.leave_one_out.hidden"),
    *("agreement.input_x_gradient.inputs", "entropy.gradient.meister.inputs", "influence.hidden", "adversarial.0.01"),
    *("comprehensiveness.deletion", "comprehensiveness.mask", "sufficiency.deletion", "randomised", "ranked_hidden"),
    *(
        "retained.frequent",
        "polarity.mask",
        "normalised_aopc.mask",
        "pointing.held",
        "pointing.live",
        "pointing.shapley.2",
    ),
)
#: A custom adapter without a mask token cannot substitute tokens.
NO_MASK = tuple(need for need in NEEDS if not need.endswith(".mask") and not need.startswith("pointing"))


def rows() -> Dataset:
    return sample(load("movie-reviews"), 3, 0)


def compare(build: Callable[[], ModelAdapter], needs: Sequence[str] = NEEDS) -> None:
    here = measure(build(), rows(), needs, model="m", seed=0)[0]
    adapter = build()
    with pretended_device() as device:
        there = measure(adapter, rows(), needs, model="m", seed=0, device="cuda")[0]
        tried = full(adapter, rows().instances)
    assert device.operations > 1000
    assert sorted(set(device.mixes)) == []
    assert [one.detail for one in tried if one.outcome == "fail"] == []
    assert here.columns == there.columns
    for name in here.scalars:
        near = 0.02 if name.endswith((".tau", ".floor", ".p_value")) else 1e-4
        # Without training, the leave-one-out values of many tokens differ only by rounding, which decides their order.
        near = 0.2 if name.endswith(".gradient_loo") else near
        np.testing.assert_allclose(here.scalars[name], there.scalars[name], atol=near, err_msg=name)


@pytest.mark.slow
def test_the_demo_model() -> None:
    compare(lambda: load_model("demo").adapter)


@pytest.mark.parametrize("outputs", slow_except([1, 3], [3]))
def test_a_custom_model(outputs: int) -> None:
    compare(lambda: PooledAttentionAdapter(**parts(outputs)), NO_MASK)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "t5"])
def test_transformers(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")
    from tests import architectures

    folder = architectures.save(name, tmp_path / "model")
    # Not what goes by the names of parameters: moved here, tied ones are tied no more.
    needs = [need for need in NEEDS if need != "randomised"]
    compare(lambda: load_model(str(folder)).adapter, [*needs, "uniform.everywhere.live"])


@pytest.mark.parametrize("needs", [(), pytest.param(("gradient.meister.inputs",), marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["bert", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_a_batch_waits_for_the_device_a_few_times_however_many_rows_it_has(
    name: str, needs: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check that the model has not changed copies each parameter, and runs rows again. It is left out here."""
    pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")
    from attnaudit.adapters.huggingface import transformer
    from tests import architectures

    monkeypatch.setattr(FirstPass, "repeat", lambda *_, **__: RepeatedPass(rows=0, largest_difference=0.0))
    texts = [f"{'good ' * (1 + number % 5)}film" for number in range(96)]

    def reads(rows: int, batch_tokens: int | None) -> tuple[int, int]:
        instances = tuple(Instance(id=f"{n:02d}", text=text) for n, text in enumerate(texts[:rows]))
        data = Dataset(name="films", source="synthetic", description="", instances=instances)
        adapter = transformer(*architectures.build(name))
        with pretended_device() as device:
            _, record = measure(adapter, data, needs, model="m", seed=0, device="cuda", batch_tokens=batch_tokens)
        assert sorted(set(device.mixes)) == []
        waits = Counter({place: n for place, n in device.reads.items() if "adapters/loading.py" not in place})
        return record.passes["forward"], sum(waits.values())

    assert reads(96, None) == reads(12, None) == (1, reads(12, None)[1])
    one, (batches, several) = reads(96, None)[1], reads(96, 96)
    assert batches > 3
    assert several - one <= (batches - 1) * 16
    assert one <= 20


def test_the_pretended_device_counts_what_waits_for_it() -> None:
    with pretended_device() as device:
        there = torch.ones(3).to("cuda")
        assert not device.reads
        bool(there.sum() > 1)
        there[there > 0]
        there.cpu()
    assert [place.split()[0] for place in sorted(device.reads)] == ["__bool__", "__getitem__", "cpu"]


def test_the_pretended_device_refuses_what_a_real_one_does() -> None:
    with pretended_device() as device:
        there, here = torch.ones(3, device="cuda"), torch.ones(3)
        assert there.is_cuda
        assert not here.is_cuda
        assert isinstance(torch.nn.Linear(2, 1).to("cuda").weight, OnDevice)
        assert isinstance((there.double() * 2).to(here), torch.Tensor)
        there[torch.tensor([0])], there + torch.tensor(2.0), there + here.to(there), there.cpu() + here
        assert device.mixes == []
        refused: list[Callable[[], object]] = [
            lambda: there + here,
            lambda: torch.cat([there, here]),
            lambda: there.gather(0, torch.tensor([1])),
            lambda: here[there.long()],
            lambda: torch.where(there > 0, there, here),
            lambda: here.masked_fill(there > 0, 0.0),
            there.numpy,
        ]
        for number, run in enumerate(refused, start=1):
            run()
            assert len(device.mixes) == number
        places = {mix.partition(" at ")[2].partition(":")[0] for mix in device.mixes}
        assert places == {"tests/integration/test_devices.py"}
