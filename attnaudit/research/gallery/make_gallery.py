"""Plant and audit the models of the gallery, and write its files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attnaudit.errors import ModelError, invalid_input, nearest
from attnaudit.progress import ProgressCallback
from attnaudit.research.gallery.gallery_pages import gallery_files
from attnaudit.research.gallery.gallery_records import CheckText, Exhibit, Gallery
from attnaudit.research.gallery.measure_exhibits import measure_population, shown_kinds
from attnaudit.research.gallery.paper_exhibits import paper_exhibits
from attnaudit.research.planted.kind import kinds
from attnaudit.research.study.report_files import not_writable, write_files


def make_gallery(
    models: Path,
    *,
    papers: Path,
    only: Sequence[str] | None,
    seed: int,
    jobs: int,
    version: str,
    progress: ProgressCallback | None = None,
) -> Gallery:
    """Plant the models that are not finished yet, audit them, and return the gallery.

    Args:
        models: The folder of the planted models.
        papers: The folder with the results of `attnaudit reproduce`.
        only: The kinds of pooled models and the mechanisms of Transformers to show; None or empty for all of them.
        seed: The seed of samples, permutations and intervals.
        jobs: The number of models to plant at a time.
        version: The version of attnaudit.
        progress: Called after each model, with a line about it as the note. None to report no progress.

    Raises:
        AuditError: A name in `only` is unknown, a model cannot be planted or audited, or a file cannot be read.
    """
    exhibits: list[Exhibit] = []
    wording: dict[str, CheckText] = {}
    for population in _plant(models, only=only, jobs=jobs, progress=progress):
        found, check_texts = measure_population(population, seed=seed, progress=progress)
        exhibits += found
        wording.update((text.check, text) for text in check_texts if text.check not in wording)
    families = {text.family for text in wording.values()}
    return Gallery(
        attnaudit=version,
        seed=seed,
        checks=list(wording.values()),
        exhibits=exhibits,
        papers=paper_exhibits(papers, families),
    )


def write_pages(folder: Path, gallery: Gallery) -> list[Path]:
    """Write the pages and pictures of a gallery, and delete those that no longer belong to it.

    Returns:
        The paths of the written files.

    Raises:
        ReportError: A file cannot be written or deleted.
    """
    files = gallery_files(gallery)
    for path in (*folder.glob("*.md"), *folder.glob("images/*.svg")):
        if path.relative_to(folder).as_posix() not in files:
            try:
                path.unlink()
            except OSError as error:
                raise not_writable(path, error) from error
    try:
        (folder / "images").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise not_writable(folder, error) from error
    return write_files(folder, files)


def _plant(models: Path, *, only: Sequence[str] | None, jobs: int, progress: ProgressCallback | None) -> list[Path]:
    """Plant one model of each kind and circuit, and return the folders of the populations."""
    from attnaudit.research.planted import planted_population
    from attnaudit.research.planted_transformers import transformer_population

    circuits = {plan.mechanism for plan in transformer_population.transformer_plans(quick=True)}
    pooled = {kind.name for kind in kinds().values() if kind.truth != "trend"}
    with invalid_input():
        for name in only or ():
            if name not in circuits | pooled:
                raise ModelError(f"Unknown planted kind '{name}'. {nearest(name, circuits | pooled)}")
    folders = []
    chosen = [name for name in shown_kinds() if not only] or sorted(pooled.intersection(only or ()))
    if chosen:
        folders.append(models / "pooled")
        plans = planted_population.plans(seeds=1, only=chosen)
        planted_population.build(folders[-1], plans, jobs=jobs, progress=progress)
    chosen = sorted(circuits if not only else circuits.intersection(only))
    if chosen:
        folders.append(models / "transformer")
        records = transformer_population.build_transformers(
            folders[-1], quick=True, only=chosen, jobs=jobs, progress=progress
        )
        transformer_population.write_lists(folders[-1], records)
    return folders
