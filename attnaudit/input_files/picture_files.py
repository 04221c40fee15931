"""Pictures in .png and .jpg files. Reading them needs Pillow."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from attnaudit.errors import DataError
from attnaudit.input_files.file_contents import contents_of, place
from attnaudit.instances import Instance

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".png", ".jpg", ".jpeg")
#: Modes with more than 8 bits per channel. Pillow would clip them instead of scaling them.
_DEEP_MODES = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")


def read_picture(instance: Instance) -> Image:
    """Read the picture of an instance as an RGB image, turned as its EXIF orientation says.

    Raises:
        DataError: The file has changed since the data were loaded, or is not a valid picture. Or Pillow is not
            installed. The message names the row and the file.
    """
    return parse_picture(contents_of(instance), Path(str(instance.file)), place(instance))


def parse_picture(content: bytes, path: Path, where: str) -> Image:
    """Convert the contents of a picture file (see `read_picture`).

    Args:
        content: The contents.
        path: The file.
        where: The row and the column that name the file, for messages.

    Raises:
        DataError: The contents are invalid, or Pillow is not installed.
    """
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError as error:
        raise DataError(
            f'{where}: reading pictures needs Pillow. Install it with: pip install "attnaudit[images]"'
        ) from error
    at = f"{where}: {path}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            picture = Image.open(io.BytesIO(content), formats=("PNG", "JPEG"))
            if picture.mode in _DEEP_MODES:
                raise DataError(
                    f"{at} has the mode '{picture.mode}', with more than 8 bits per channel. Scale it to 8 bits per "
                    "channel as your model expects, and save it again."
                )
            return ImageOps.exif_transpose(picture).convert("RGB")
    except UnidentifiedImageError as error:
        raise DataError(f"{at} is not a PNG or JPEG picture. Convert the file, or correct the row.") from error
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise DataError(f"{at} has too many pixels: {error} Make the picture smaller.") from error
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{at} is not a complete picture: {error}. Write the file again.") from error
