"""Images of any origin as uint8 greys or RGB; a mode without a defined black and white is rejected.

Transparent images are placed on white, EXIF rotation is applied, 16-bit greys are rounded to 8 bits. Images of several
frames are rejected, and so are 32-bit integers and floats.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from di4c_cli.errors import UserError
from di4c_cli.foreign.regular import open_regular

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
"""What a file may hold whatever its name; Pillow's other decoders are rarely tested, and one starts Ghostscript."""
MAX_PIXELS = 2**26
"""8192 x 8192 pixels need 0.8 GB while they are converted; a sheet of 10 000 CIFAR images has 10 million."""
GREY_MODES = ("1", "L", "LA", "La")
COLOUR_MODES = ("P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV")
DEEP_GREY_MODES = ("I;16", "I;16L", "I;16B", "I;16N")
FIX_IMAGE = "Fix or remove it."
# on odd EXIF and palettes; for the whole process, because `warnings.catch_warnings` would not be safe in threads
warnings.filterwarnings("ignore", module=r"PIL\.")


def open_image(path: Path, channels: int | None = None) -> np.ndarray:
    """uint8 `(H, W)` for one channel or `(H, W, 3)` for three; without `channels`, as the file has it."""
    try:
        with open_regular(path) as file, Image.open(file, formats=FORMATS) as image:
            _check(path, image)
            return _pixels(path, image, channels)
    except UserError:
        raise
    except Image.DecompressionBombError as error:
        raise _too_large(path) from error
    except Exception as error:  # every decoder of Pillow has its own: SyntaxError, struct.error, KeyError, …
        raise UserError(f"{path} is not a readable image.", FIX_IMAGE) from error


def _check(path: Path, image: Image.Image) -> None:
    if image.width * image.height > MAX_PIXELS:
        raise _too_large(path)
    # the second picture of an MPO file, as phones write it, is a preview
    if image.format != "MPO" and getattr(image, "is_animated", False):
        raise UserError(f"{path} has {getattr(image, 'n_frames', 2)} frames.", "Name still images.")


def _too_large(path: Path) -> UserError:
    return UserError(f"{path} has more than {MAX_PIXELS:,} pixels.", "Resize or remove it.")


def _pixels(path: Path, image: Image.Image, channels: int | None) -> np.ndarray:
    # Pillow before version 11.3 gives 16-bit PNGs the mode I, which is 32-bit for other formats
    deep = image.mode in DEEP_GREY_MODES or (image.mode == "I" and image.format == "PNG")
    upright = ImageOps.exif_transpose(image)
    if deep:
        levels = np.asarray(upright).astype(np.int64)
        upright = Image.fromarray(((levels * 255 + 32767) // 65535).astype(np.uint8))
    elif upright.mode not in (*GREY_MODES, *COLOUR_MODES):
        known = "its black and white are not defined"
        raise UserError(f"{path} has pixels of mode {upright.mode}: {known}.", "Convert it to 8-bit greys or RGB.")
    grey = deep or upright.mode in GREY_MODES
    solid = _on_white(upright)
    wanted = "L" if channels == 1 or (channels is None and grey) else "RGB"
    return np.array(solid if solid.mode == wanted else solid.convert(wanted), np.uint8)


def _on_white(image: Image.Image) -> Image.Image:
    """An opaque image; transparent pixels have whatever colour the program that wrote the file left there."""
    premultiplied = {"La": "LA", "RGBa": "RGBA"}.get(image.mode)
    image = image.convert(premultiplied) if premultiplied else image
    if image.mode not in ("LA", "PA", "RGBA") and "transparency" not in image.info:
        return image
    layer = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
