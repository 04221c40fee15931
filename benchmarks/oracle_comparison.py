"""Compare attnaudit's measurements with stored outputs of Jain & Wallace's published code, on the same weights.

    python benchmarks/oracle_comparison.py FOLDER [--data TOKENS.json] [--limit N]

FOLDER contains model.pt, config.json and outputs.npz. The token ids are read from the file given with --data, or from
FOLDER/../data/<data>.json without this option. The script prints one line per quantity. It exits with status 1 if any
quantity differs by more than is allowed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from attnaudit.engine.batches.attention_view import AttentionView
from attnaudit.engine.batches.batch import Batch
from attnaudit.engine.batches.logits import probabilities
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.measuring import measure
from attnaudit.metrics import jensen_shannon, kendall_tau_b, total_variation
from benchmarks.jain_wallace import load_adapter, load_data

EPSILONS = (0.01, 0.05)
#: The number of starts of the stored search for adversarial attention.
RESTARTS = 5
NEEDS = (
    "gradient.jain_wallace.inputs",
    "leave_one_out.inputs",
    "agreement.gradient.jain_wallace.inputs",
    *(f"adversarial.{epsilon}" for epsilon in EPSILONS),
)
#: The largest number of tokens in a batch. The results do not depend on it.
BATCH_TOKENS = 8192


@dataclass(frozen=True)
class Line:
    """One comparison.

    Attributes:
        quantity: The name of the compared quantity.
        difference: The largest difference that was found.
        allowed: The largest difference that is allowed.
        note: An additional text to print.
    """

    quantity: str
    difference: float
    allowed: float
    note: str = ""

    @property
    def agrees(self) -> bool:
        return self.difference <= self.allowed


class Stored:
    """The arrays in outputs.npz, split by instance. An instance has L tokens. The first is SOS, and the last is EOS."""

    def __init__(self, path: Path) -> None:
        with np.load(path) as arrays:
            self.arrays = {name: arrays[name] for name in arrays.files}
        self.lengths: NDArray[np.int64] = self.arrays["lengths"]
        self.offsets: NDArray[np.int64] = self.arrays["offsets"]

    def __len__(self) -> int:
        return len(self.lengths)

    def ragged(self, name: str, i: int) -> NDArray[np.float64]:
        """Return the (L,) values of an array for instance i."""
        return self.arrays[name][self.offsets[i] : self.offsets[i + 1]].astype(np.float64)

    def blocks(self, name: str, i: int, count: int) -> NDArray[np.float64]:
        """Return the (count, L) values of an array for instance i. The array stores them as count·L numbers."""
        flat = self.arrays[name][count * self.offsets[i] : count * self.offsets[i + 1]]
        return flat.reshape(count, self.lengths[i])


def _attention_view(adapter: object, instances: Sequence[object], places: Sequence[int]) -> AttentionView:
    batch = Batch(
        adapter,  # type: ignore[arg-type]
        [instances[i] for i in places],  # type: ignore[misc]
        places,
        seed=0,
        keep_graph=True,
        budget=BATCH_TOKENS,
        pass_counts=Counter(),
    )
    return AttentionView(batch)


def _worst(differences: list[NDArray[np.float64]]) -> float:
    return max(float(np.abs(d).max()) for d in differences if d.size)


def _tau(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    rows = torch.from_numpy(np.stack([x, y]))
    return float(kendall_tau_b(rows[:1], rows[1:], torch.ones(1, len(x), dtype=torch.bool)))


def compare(folder: Path, data: Path, limit: int | None = None) -> tuple[list[Line], Measurements]:
    """Compare all quantities of one model.

    Args:
        folder: The folder of the model.
        data: The file of token ids.
        limit: The number of instances to compare. None for all of them.

    Returns:
        The comparisons, and the measurements of attnaudit.
    """
    stored = Stored(folder / "outputs.npz")
    count = min(limit or len(stored), len(stored))
    chosen = [int(i) for i in stored.arrays["test_index"][:count]]
    dataset, vocabulary = load_data(data, chosen)
    adapter = load_adapter(folder, vocabulary)
    measurements, _ = measure(adapter, dataset, NEEDS, model=folder.name, seed=0, batch_tokens=BATCH_TOKENS)

    prediction, attention, gradient, permuted, medians, divergence = [], [], [], [], [], []
    searches = np.full((2, count, RESTARTS), np.nan)
    order = sorted(range(count), key=lambda i: stored.lengths[i])
    while order:
        take = max(1, BATCH_TOKENS // int(stored.lengths[order[-1]]))
        places, order = order[-take:], order[:-take]
        view = _attention_view(adapter, measurements.instances, places)
        raw = (view.gradient_attention_detached[0] * view.embeddings["text"].detach()).sum(-1).abs()
        shares = (raw / (raw * view.inputs.mask["text"]).sum(1, keepdim=True)).numpy()
        outputs = view.probabilities[:, 1].numpy()
        weights = view.token_scores.numpy()
        searched = np.zeros((len(places), RESTARTS, weights.shape[1]))
        permutations = np.tile(np.arange(weights.shape[1]), (len(places), 100, 1))
        for b, i in enumerate(places):
            length = stored.lengths[i]
            prediction.append(outputs[b] - stored.arrays["pred"][i : i + 1])
            attention.append(weights[b, :length] - stored.ragged("attn", i))
            gradient.append(shares[b, :length] - stored.ragged("grad_XxE[X]_norm", i))
            permutations[b, :, :length] = stored.blocks("perm_index", i, 100)
            searched[b, :, :length] = stored.blocks("adv_attn", i, RESTARTS)
        moved = torch.from_numpy(np.take_along_axis(weights[:, None, :].repeat(100, 1), permutations, axis=2))
        under = probabilities(view.decode(moved[:, :, None]))[..., 1].numpy()
        for b, i in enumerate(places):
            permuted.append(under[b] - stored.arrays["perm_outputs"][i])
            median = np.median(np.abs(under[b] - outputs[b]))
            medians.append(np.array([median - stored.arrays["perm_median_diff"][i]]))

        tried = torch.from_numpy(searched)
        tried = tried / tried.sum(-1, keepdim=True)
        output = probabilities(view.decode(tried[:, :, None]))
        searches[0, places] = jensen_shannon(
            tried, view.attention[:, None, :].expand_as(tried), view.real[:, None, :].expand_as(tried)
        ).numpy()
        searches[1, places] = total_variation(output, view.probabilities[:, None, :].expand_as(output)).numpy()
        divergence.append((searches[0, places] - stored.arrays["adv_jsd"][places]).ravel())

    change = measurements.vector("leave_one_out.inputs.change")
    deletion = [
        change[i] - np.abs(stored.ragged("loo_outputs", i)[1:-1] - float(stored.arrays["pred"][i]))
        for i in range(count)
        if stored.lengths[i] > 3
    ]
    stored_tau = stored.arrays["tau_attn_grad"][:count]
    taus = np.array(
        [_tau(stored.ragged("attn", i)[1:-1], stored.ragged("grad_XxE[X]_norm", i)[1:-1]) for i in range(count)]
    )
    recomputed = measurements.scalar("agreement.gradient.jain_wallace.inputs.tau")
    tau_gaps = np.abs(recomputed - stored_tau)
    lines = [
        Line("prediction", _worst(prediction), 1e-5),
        Line("attention", _worst(attention), 1e-5),
        Line("gradient importance", _worst(gradient), 1e-5),
        Line("leave-one-out", _worst(deletion), 1e-5),
        Line("stored permutations", _worst(permuted), 1e-5),
        Line("median over permutations", _worst(medians), 1e-5),
        Line("JSD of the stored searches", _worst(divergence), 1e-5),
        Line("τ-b, stored arrays", float(np.nanmax(np.abs(taus - stored_tau))), 1e-9),
        Line(
            "τ-b, recomputed (mean)",
            abs(float(np.nanmean(recomputed) - np.nanmean(stored_tau))),
            1e-4,
            f"{int((tau_gaps > 1e-9).sum())} of {count} instances differ, by at most {np.nanmax(tau_gaps):.4f}",
        ),
    ]
    for epsilon in EPSILONS:
        exact = measurements.scalar(f"adversarial.{epsilon}.jsd")
        best = np.where(searches[1] <= epsilon, searches[0], -np.inf).max(axis=1)
        feasible = np.isfinite(best)
        means = f"mean exact JSD {np.nanmean(exact):.4f}, " + (
            f"mean searched {best[feasible].mean():.4f} (feasible on {int(feasible.sum())} of {count})"
            if feasible.any()
            else "no feasible search"
        )
        above = float((best - exact)[feasible].max()) if feasible.any() else 0.0
        lines.append(Line(f"searched above exact, ε={epsilon}", above, 1e-9, means))
        over = float(np.nanmax(measurements.scalar(f"adversarial.{epsilon}.tvd")) - epsilon)
        lines.append(Line(f"TVD above ε through the model, ε={epsilon}", over, 1e-6))
    return lines, measurements


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path, help="file of token ids (default: FOLDER/../data/<data>.json)")
    parser.add_argument("--limit", type=int, help="compare only the first N instances")
    options = parser.parse_args(arguments)
    for name in ("model.pt", "outputs.npz", "config.json"):
        if not (options.folder / name).is_file():
            parser.error(f"{options.folder / name} is missing. Expected model.pt, outputs.npz and config.json.")
    config = json.loads((options.folder / "config.json").read_text())
    data = options.data or options.folder.parent / "data" / f"{config['data']}.json"
    if not data.is_file():
        parser.error(f"{data} is missing. Give the file of token ids with --data.")
    started = time.perf_counter()
    lines, measurements = compare(options.folder, data, options.limit)
    print(f"{options.folder.name}: {len(measurements)} instances of {data.stem}, {config['attention']} attention")
    for line in lines:
        verdict = "agrees" if line.agrees else "DISAGREES"
        print(
            f"  {line.quantity:<42} {line.difference:>10.2e}  (at most {line.allowed:.0e})  "
            f"{verdict}  {line.note}".rstrip()
        )
    print(f"  {time.perf_counter() - started:.1f} s")
    return 0 if all(line.agrees for line in lines) else 1


if __name__ == "__main__":
    raise SystemExit(main())
