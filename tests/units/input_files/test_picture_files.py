"""Pictures that a row names, and the errors for invalid ones."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from attnaudit.errors import DataError
from attnaudit.input_files import read_picture
from attnaudit.input_files.named_file import find_file
from attnaudit.instances import Instance

PIXELS = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)


def read(path: Path) -> Image.Image:
    found = find_file(path.name, path.parent, "rows.csv:2: column 'file'")
    return read_picture(Instance(id="a", text=path.name, file=found.path, file_sha256=found.sha256, where="rows.csv:2"))


def test_pixels_of_a_png_file(tmp_path: Path) -> None:
    Image.fromarray(PIXELS).save(tmp_path / "a.PNG")
    picture = read(tmp_path / "a.PNG")
    assert (picture.mode, picture.size) == ("RGB", (3, 2))
    assert np.array_equal(np.asarray(picture), PIXELS)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1", "CMYK"])
def test_other_modes_become_rgb(tmp_path: Path, mode: str) -> None:
    name = "a.jpg" if mode == "CMYK" else "a.png"
    Image.fromarray(PIXELS).convert(mode).save(tmp_path / name)
    assert read(tmp_path / name).mode == "RGB"


def test_the_orientation_of_a_photograph(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees
    Image.fromarray(PIXELS).save(tmp_path / "a.jpg", exif=exif)
    assert read(tmp_path / "a.jpg").size == (2, 3)


def test_more_than_8_bits_are_refused(tmp_path: Path) -> None:
    Image.fromarray(PIXELS[..., 0].astype(np.uint16)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match=r"rows.csv:2: column 'file': .*a.png has the mode 'I.*8 bits per channel"):
        read(tmp_path / "a.png")


def test_truncated_and_other_files(tmp_path: Path) -> None:
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (50, 50, 3), dtype=np.uint8)).save(tmp_path / "a.png")
    (tmp_path / "a.png").write_bytes((tmp_path / "a.png").read_bytes()[:2000])
    with pytest.raises(DataError, match=r"rows.csv:2: column 'file': .*a.png is not a complete picture"):
        read(tmp_path / "a.png")
    Image.fromarray(PIXELS).save(tmp_path / "b.gif")
    (tmp_path / "b.gif").rename(tmp_path / "b.png")
    with pytest.raises(DataError, match=r"b.png is not a PNG or JPEG picture"):
        read(tmp_path / "b.png")


def test_too_many_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.fromarray(PIXELS).save(tmp_path / "a.png")
    for limit in (4, 2):  # Pillow warns above the limit, and refuses above twice the limit
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with pytest.raises(DataError, match=r"a.png has too many pixels"):
            read(tmp_path / "a.png")


def test_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.fromarray(PIXELS).save(tmp_path / "a.png")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match=r'needs Pillow. Install it with: pip install "attnaudit\[images\]"'):
        read(tmp_path / "a.png")
