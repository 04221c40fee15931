"""Replace erased units by randomly drawn units of other rows, instead of by a fixed baseline.

The rows that give their units are the *donors*. They are fixed when an adapter is built, so the same unit of the same
row gets the same replacements in any batch, in any process and in any order of the rows.

Shapes: B rows, T units, P places, R donors, n units of a donor, d features.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnaudit.adapters.protocol import TEXT, Inputs
from attnaudit.errors import AdapterError, DataError
from attnaudit.instances import Instance

#: Keys of `Inputs.extra`: (B, 1, 2) the key of the row and the number of its own contents among the donors, or -1; and
#: (B, T) which replacement an erased unit gets. The latter is 0 for all other units.
ROW, REPLACED_BY = "row of the draws", "replaced by"
#: The largest number of draws.
MOST_DRAWS = 1000
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_INCREMENT = 0x9E3779B97F4A7C15


@dataclass(frozen=True, kw_only=True)
class InDistribution:
    """Replaces an erased unit by a unit of another row.

    An erased patch or frame is replaced by the unit at the same place of the other row. The units of a bag have no
    places, so an erased unit of a bag is replaced by any unit of the other row. The row is drawn at random, `draws`
    times, and the probabilities of the classes are averaged over the draws. A row is never its own donor.

    Attributes:
        donors: The rows that give their units. Each row names a file. The order does not matter, and rows with the same
            contents count once.
        draws: How often each unit is drawn.
        seed: The seed of the draws.

    Raises:
        AdapterError: There are fewer than two donors, or `draws` or `seed` is invalid.
    """

    donors: Sequence[Instance]
    draws: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.donors, Sequence) or not all(isinstance(one, Instance) for one in self.donors):
            raise AdapterError(
                "InDistribution: donors must be a sequence of rows, such as "
                f"donors=attnaudit.data.load(path).instances; got {type(self.donors).__name__}."
            )
        if len(self.donors) < 2:
            raise AdapterError(
                f"InDistribution has {len(self.donors)} donors; expected at least 2, because a row is never its own "
                "donor. Give rows of the training data: donors=attnaudit.data.load(path).instances."
            )
        if not _is_whole(self.draws) or not 2 <= self.draws <= MOST_DRAWS:
            raise AdapterError(
                f"InDistribution: draws is {self.draws!r}; expected a whole number from 2 to {MOST_DRAWS}."
            )
        if not _is_whole(self.seed) or not 0 <= self.seed < 2**32:
            raise AdapterError(f"InDistribution: seed is {self.seed!r}; expected a whole number from 0 to 2**32 - 1.")


@contextmanager
def reading_donors() -> Iterator[None]:
    """Inside the context, files of donors are read. An error says that the file belongs to a donor.

    Donors are part of the model, so an unusable donor is an error of the model and not of the data.

    Raises:
        AdapterError: A file is invalid or does not fit the model.
    """
    try:
        yield
    except DataError as error:
        raise AdapterError(f"InDistribution: a donor cannot be used. {error}") from error


def donors_of(adapter: object) -> Donors | None:
    """Return the donors of a model adapter; None if it has none."""
    found = getattr(adapter, "donors", None)
    return found if isinstance(found, Donors) else None


def _is_whole(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


class Donors:
    """The contents of the donors, and the draws among them.

    Attributes:
        values: The R different contents, in the order of their hashes: the vectors of a bag (n, d), or the values that
            a model reads from a picture or a recording.
        draws: How often each unit is drawn.
        digest: A hash of all contents.
    """

    def __init__(self, chosen: InDistribution, values: Sequence[Tensor]) -> None:
        """Prepare the draws.

        Args:
            chosen: The donors, the number of draws and the seed.
            values: The contents of the donors.

        Raises:
            AdapterError: Fewer than two donors have different contents.
        """
        by_hash = {content_hash(one): one for one in values}
        if len(by_hash) < 2:
            raise AdapterError(
                "InDistribution: all donors have the same contents; expected at least two donors with different ones."
            )
        self._numbers = {name: number for number, name in enumerate(sorted(by_hash))}
        self.values = tuple(by_hash[name] for name in self._numbers)
        self.draws, self.seed = chosen.draws, chosen.seed
        self.digest = hashlib.sha256("".join(self._numbers).encode()).hexdigest()
        self.set_places(np.ones((len(by_hash), 1), dtype=np.bool_))

    def set_places(self, has_unit: NDArray[np.bool_]) -> None:
        """Set which donors have a unit at which place, as a mask (R, P).

        By default, there is a single place, and all donors have a unit there.
        """
        self._order = np.argsort(~has_unit, axis=0, kind="stable").T  # (P, R) donors with a unit first
        self._counts = has_unit.sum(0)  # (P,)
        ranks = np.cumsum(has_unit, axis=0) - 1
        self._ranks = np.where(has_unit, ranks, -1).T  # (P, R) number of a donor among those with a unit

    @property
    def configuration(self) -> dict[str, Any]:
        """The settings that determine the replacements. The hash of the model includes them."""
        return {"donors": self.digest, "draws": self.draws, "seed": self.seed}

    @property
    def settings_hash(self) -> str:
        """The SHA-256 hash of `configuration`."""
        return hashlib.sha256(json.dumps(self.configuration, sort_keys=True).encode()).hexdigest()

    def description(self, unit: str, replacement: str) -> str:
        """Describe the replacement in sentences for reports.

        Args:
            unit: The unit, such as "patch".
            replacement: The unit of the other row, such as "the patch at the same place".
        """
        return (
            f"An erased {unit} is replaced by {replacement} of another row, drawn at random from {len(self.values)} "
            f"donor rows. Probabilities are means over {self.draws} draws (seed {self.seed}, hash of the donors "
            f"{self.digest[:12]})."
        )

    def row_entry(self, instances: Sequence[Instance], values: Sequence[Tensor], device: torch.device) -> Tensor:
        """Return the entry `ROW` (B, 1, 2) of `Inputs.extra` for rows with these contents."""
        keys = [int.from_bytes(hashlib.blake2b(one.id.encode(), digest_size=7).digest(), "big") for one in instances]
        own = [self._numbers.get(content_hash(one), -1) for one in values]
        return torch.tensor([keys, own], dtype=torch.long, device=device).T[:, None].contiguous()

    def require_places(self, instance: Instance, row: Tensor, places: Sequence[int]) -> None:
        """Check that another donor has a unit at each place of a row.

        Args:
            instance: The row, for the message.
            row: (1, 2) the entry `ROW` of the row.
            places: The places of its units.

        Raises:
            AdapterError: No donor has a unit at one of the places.
        """
        own = int(row[0, 1])
        for place in places:
            known = place < len(self._counts)
            if not known or self._counts[place] - (own >= 0 and self._ranks[place, own] >= 0) < 1:
                raise AdapterError(
                    f"InDistribution: no donor has a unit at place {place + 1}, so this unit of the row "
                    f"{instance.where or instance.id} cannot be replaced. Add donors that are at least as long as the "
                    "longest row."
                )

    def drawn(self, inputs: Inputs, places: Tensor, draw: int, positions: Tensor | None = None) -> Tensor:
        """Draw a donor for each unit.

        Args:
            inputs: The batch, with the entry `ROW`.
            places: (B, T) place of each unit. Places outside the known ones get donor 0.
            draw: Number of the draw, from 0.
            positions: (B, T) numbers that distinguish the units of a row; None to use the places.

        Returns:
            (B, T) numbers of donors.
        """
        entries, at = inputs.extra[ROW][:, 0].cpu().numpy(), places.cpu().numpy()
        own = entries[:, 1:]
        inside = (at >= 0) & (at < len(self._counts))
        known = np.where(inside, at, 0)
        rank = np.where(own >= 0, self._ranks[known, np.maximum(own, 0)], -1)
        others = np.maximum(self._counts[known] - (rank >= 0), 1)
        numbers = at if positions is None else positions.cpu().numpy()
        index = (self.random(entries[:, :1], numbers, draw, 0) % others.astype(np.uint64)).astype(np.int64)
        index += (rank >= 0) & (index >= rank)
        found = self._order[known, np.minimum(index, self._order.shape[1] - 1)]
        return torch.from_numpy(np.where(inside, found, 0)).to(places.device)

    def drawn_units(self, inputs: Inputs, draw: int) -> Tensor:
        """Draw a unit of a donor for each unit of a bag.

        Returns:
            (B, T) numbers of units. The units of all donors are numbered consecutively, in the order of `values`.
        """
        shape = inputs.ids[TEXT].shape
        positions = torch.arange(shape[1], device=inputs.ids[TEXT].device).expand(shape)
        donors = self.drawn(inputs, torch.zeros_like(positions), draw, positions).cpu().numpy()
        counts = np.array([len(one) for one in self.values])
        starts = np.cumsum(counts) - counts
        keys = inputs.extra[ROW][:, 0, :1].cpu().numpy()
        units = self.random(keys, positions.cpu().numpy(), draw, 1) % counts[donors].astype(np.uint64)
        return torch.from_numpy(starts[donors] + units.astype(np.int64)).to(positions.device)

    def random(
        self, keys: NDArray[np.int64], positions: NDArray[np.int64], draw: int, purpose: int
    ) -> NDArray[np.uint64]:
        """Return random numbers (B, T) that depend only on the seed, the key of the row, the position and the draw."""
        state = np.full(positions.shape, self.seed, dtype=np.uint64)
        for part in (keys, positions, np.array(draw), np.array(purpose)):
            state = _mixed(state ^ np.asarray(part).astype(np.uint64))
        return state


def content_hash(values: Tensor) -> str:
    """Return a hash of the shape and the numbers of a tensor."""
    content = values.detach().float().cpu().contiguous()
    return hashlib.sha256(repr(tuple(content.shape)).encode() + content.numpy().tobytes()).hexdigest()


def _mixed(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply one step of the generator SplitMix64 (Steele, Lea & Flood 2014) to each number."""
    with np.errstate(over="ignore"):
        state = state + np.uint64(_INCREMENT)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(_MULTIPLIERS[0])
        state = (state ^ (state >> np.uint64(27))) * np.uint64(_MULTIPLIERS[1])
        return state ^ (state >> np.uint64(31))
