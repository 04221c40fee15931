"""Compare audits of a public attention MIL model with the model's own forward pass: `python -m benchmarks.public_bags`.

The model is `GatedAttention` of AMLab-Amsterdam/AttentionDeepMIL (Ilse et al. 2018), unchanged. Its weights are not
trained. The bags are scikit-learn's digits, enlarged to 28 × 28 pixels.

Clone the repository first, and give its folder:

    git clone https://github.com/AMLab-Amsterdam/AttentionDeepMIL
    git -C AttentionDeepMIL checkout eb0434ba2795711a45d693d60120ae53532b1b93
    python -m benchmarks.public_bags AttentionDeepMIL
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnaudit.adapters import BagAdapter
from attnaudit.conformance import full
from attnaudit.data import load
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.measuring import measure

SIZES = (2, 5, 10, 20, 30, 40)


def model_of(folder: Path) -> Any:
    """Return the untrained model, with a fixed seed."""
    specification = importlib.util.spec_from_file_location("attention_deep_mil", folder / "model.py")
    if specification is None or specification.loader is None:
        raise SystemExit(f"{folder / 'model.py'} cannot be imported. Give the folder of the clone.")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    torch.manual_seed(0)
    return module.GatedAttention().eval()


def adapter_of(model: Any) -> BagAdapter:
    def encode(vectors: Tensor, _mask: Tensor) -> Tensor:
        pictures = model.feature_extractor_part1(vectors.reshape(-1, 1, 28, 28))
        states: Tensor = model.feature_extractor_part2(pictures.flatten(1))
        return states.unflatten(0, vectors.shape[:2])

    def attend(states: Tensor, allowed: Tensor) -> Tensor:
        scores = model.attention_w(model.attention_V(states) * model.attention_U(states)).squeeze(-1)
        return scores.masked_fill(~allowed, -torch.inf).softmax(-1)

    return BagAdapter(
        encoder=encode,
        attention=attend,
        decoder=model.classifier[0],
        classes=("negative", "positive"),
        modules=(model,),
        features=28 * 28,
    )


def write_bags(folder: Path) -> None:
    """Write bags of enlarged digits."""
    from sklearn.datasets import load_digits

    pictures = torch.from_numpy(load_digits().images).float()[:, None] / 16
    pictures = torch.nn.functional.interpolate(pictures, size=(28, 28), mode="bilinear")
    generator = torch.Generator().manual_seed(0)
    rows = ["file"]
    for number, size in enumerate(SIZES):
        chosen = torch.randint(len(pictures), (size,), generator=generator)
        np.save(folder / f"bag_{number}.npy", pictures[chosen].numpy())
        rows.append(f"bag_{number}.npy")
    (folder / "bags.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")


def largest_differences(model: Any, measured: Measurements) -> dict[str, float]:
    """Return the largest differences between the audit and the model's own `forward`."""
    worst = dict.fromkeys(("logits", "attention", "leave-one-out"), 0.0)
    for i, instance in enumerate(measured.instances):
        bag = torch.from_numpy(np.load(str(instance.file)))
        with torch.no_grad():
            probability, _, weights = model(bag[None])
            without = [model(torch.cat([bag[:t], bag[t + 1 :]])[None])[0] for t in range(len(bag))]
        changes = np.array([abs(float(one - probability)) for one in without])
        pairs = {
            "logits": (measured.vector("logits")[i], probability.double().logit().flatten().numpy()),
            "attention": (measured.vector("attention")[i], weights[0].double().numpy()),
            "leave-one-out": (measured.vector("leave_one_out.inputs.change")[i], changes),
        }
        for name, (ours, theirs) in pairs.items():
            worst[name] = max(worst[name], float(np.abs(ours - theirs).max()))
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", type=Path, help="folder of the clone of AttentionDeepMIL")
    model = model_of(parser.parse_args().clone)
    adapter = adapter_of(model)
    started = time.process_time()
    with TemporaryDirectory(prefix="attnaudit-") as scratch:
        write_bags(Path(scratch))
        data = load(Path(scratch) / "bags.csv")
        outcomes = [one.outcome for one in full(adapter, data.instances)]
        print(f"conformance: {outcomes.count('pass')} pass, {outcomes.count('fail')} fail")
        measured, _ = measure(adapter, data, ("leave_one_out.inputs", "pointing.held"), model="m", seed=0)
        for name, difference in largest_differences(model, measured).items():
            print(f"{name}: largest difference {difference:.1e}")
    print(f"{time.process_time() - started:.0f} CPU seconds")


if __name__ == "__main__":
    main()
