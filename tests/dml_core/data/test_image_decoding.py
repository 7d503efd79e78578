"""Tests of decoding image bytes."""

import contextlib
import io
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dml_core.data import image_decoding
from dml_core.data.image_decoding import BadImage, decode_image

PHOTO = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)


def encode(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def png_header(width: int, height: int) -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n"
        + head
        + chunk(b"IDAT", zlib.compress(b"\0" * 64))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM"])
def test_lossless_formats_give_the_exact_pixels(kind):
    assert np.array_equal(decode_image(encode(Image.fromarray(PHOTO), kind), color="rgb"), PHOTO)


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "GIF", "JPEG2000"])
def test_other_formats_give_the_shape(kind):
    pixels = decode_image(encode(Image.fromarray(PHOTO), kind), color="rgb")
    assert pixels.shape == (60, 80, 3)
    assert pixels.dtype == np.uint8


def test_gray_has_one_channel_and_rgb_of_gray_has_three_equal_ones():
    content = encode(Image.fromarray(PHOTO[:, :, 0]))
    assert np.array_equal(decode_image(content, color="gray"), PHOTO[:, :, :1])
    rgb = decode_image(content, color="rgb")
    assert np.array_equal(rgb, np.repeat(PHOTO[:, :, :1], 3, axis=2))


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_sixteen_bit_gray_is_scaled_and_not_clipped(kind):
    # 65535 -> 255, 32768 -> 127.5 (up), 257 -> 1, 300 -> 1.17: clipping would give 255 for all.
    deep = np.array([[0, 65535, 32768], [257, 300, 514]], dtype=np.uint16)
    gray = decode_image(encode(Image.fromarray(deep), kind), color="gray")
    assert gray[:, :, 0].tolist() == [[0, 255, 128], [1, 1, 2]]


def test_integer_pixels_beyond_sixteen_bits_are_refused():
    wide = Image.fromarray(np.full((4, 4), 70_000, dtype=np.int32))
    with pytest.raises(BadImage, match="32-bit pixels beyond 16 bits"):
        decode_image(encode(wide, "TIFF"), color="gray")


def test_floating_point_pixels_are_refused():
    real = Image.fromarray(np.full((4, 4), 0.5, dtype=np.float32))
    with pytest.raises(BadImage, match="floating-point pixels"):
        decode_image(encode(real, "TIFF"), color="gray")


def test_cmyk_is_converted_to_rgb():
    # No ink is white, full cyan alone takes the red away.
    ink = np.zeros((8, 8, 4), dtype=np.uint8)
    ink[:, 4:, 0] = 255
    image = Image.frombytes("CMYK", (8, 8), ink.tobytes())
    pixels = decode_image(encode(image, "TIFF"), color="rgb")
    assert pixels[0, 0].tolist() == [255, 255, 255]
    assert pixels[0, 7].tolist() == [0, 255, 255]
    jpeg = decode_image(encode(image, "JPEG", quality=100), color="rgb").astype(int)
    assert np.abs(jpeg - pixels.astype(int)).max() <= 8


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparent_pixels_become_white(mode):
    image = Image.new(mode, (4, 4), (0, 0, 0, 0) if mode == "RGBA" else (0, 0))
    image.putpixel((0, 0), (0, 0, 0, 255) if mode == "RGBA" else (0, 255))
    gray = decode_image(encode(image), color="gray")[:, :, 0]
    assert gray[0, 0] == 0
    assert (gray.reshape(-1)[1:] == 255).all()


def test_half_transparent_black_is_middle_gray():
    # 128/255 black over white leaves 255 - 128 = 127.
    image = Image.new("RGBA", (4, 4), (0, 0, 0, 128))
    assert (decode_image(encode(image), color="gray") == 127).all()


def test_a_palette_with_a_transparent_entry_becomes_white_there():
    image = Image.new("P", (4, 4), 0)
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.putpixel((1, 0), 1)
    pixels = decode_image(encode(image, transparency=0), color="rgb")
    assert pixels[0, 0].tolist() == [255, 255, 255]
    assert pixels[0, 1].tolist() == [200, 100, 50]


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP"])
def test_of_an_animation_the_first_frame_is_read(kind):
    frames = [Image.new("RGB", (6, 6), color) for color in ("red", "lime")]
    options = {"save_all": True, "append_images": frames[1:]}
    if kind == "WEBP":
        options["lossless"] = True
    pixels = decode_image(encode(frames[0], kind, **options), color="rgb")
    assert (pixels == [255, 0, 0]).all()


def test_exif_orientation_is_applied():
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: shown upright after a quarter turn clockwise
    content = encode(Image.fromarray(PHOTO), "PNG", exif=exif)
    assert np.array_equal(decode_image(content, color="rgb"), np.rot90(PHOTO, k=-1))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "PPM"])
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_truncated_files_are_named_so(kind, share):
    content = encode(Image.fromarray(PHOTO), kind)
    with pytest.raises(BadImage, match="is truncated"):
        decode_image(content[: int(share * len(content))], color="rgb")


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "GIF", "AVIF"])
def test_a_file_cut_in_its_header_is_damaged_and_named_by_its_kind(kind):
    content = encode(Image.fromarray(PHOTO), kind)[:20]
    with pytest.raises(BadImage, match=f"begins like {kind},"):
        decode_image(content, color="rgb")


@pytest.mark.parametrize("content", [b"<html>not found</html>", b"%!PS-Adobe-3.0 EPSF-3.0", b"\0"])
def test_what_is_no_image_is_refused(content):
    with pytest.raises(BadImage, match="is not an image of a known format"):
        decode_image(content, color="rgb")


@pytest.mark.parametrize("side", [9_000, 12_000, 60_000])
def test_decompression_bombs_are_refused_before_decoding(side):
    # 81, 144 and 3600 million pixels: above our limit, Pillow's warning and Pillow's error.
    with pytest.raises(BadImage, match=r"is a decompression bomb: .*limit of 80000000 pixels"):
        decode_image(png_header(side, side), color="gray")


@pytest.mark.parametrize(("width", "height"), [(1, 1), (1, 50), (50, 1)])
def test_images_of_one_pixel_a_side_are_too_small(width, height):
    content = encode(Image.new("L", (width, height)))
    with pytest.raises(BadImage, match=f"too small: {width} x {height} px"):
        decode_image(content, color="gray")


def test_two_pixels_a_side_are_enough():
    assert decode_image(encode(Image.new("L", (2, 2))), color="gray").shape == (2, 2, 1)


def test_extreme_aspects_are_refused_and_the_limit_itself_is_not():
    with pytest.raises(BadImage, match="too long and thin: 210 x 10 px"):
        decode_image(encode(Image.new("L", (210, 10))), color="gray")
    assert decode_image(encode(Image.new("L", (10, 200))), color="gray").shape == (200, 10, 1)


def test_a_large_jpeg_is_decoded_small_but_never_below_what_is_enough():
    content = encode(Image.new("RGB", (800, 600), "red"), "JPEG")
    assert decode_image(content, color="rgb", enough_px=140).shape == (150, 200, 3)
    assert decode_image(content, color="rgb", enough_px=301).shape == (600, 800, 3)
    assert decode_image(content, color="rgb").shape == (600, 800, 3)


def test_want_of_memory_is_not_taken_for_a_bad_image(monkeypatch):
    def fail(image, color):
        raise MemoryError

    monkeypatch.setattr(image_decoding, "_to_array", fail)
    with pytest.raises(MemoryError):
        decode_image(encode(Image.new("L", (4, 4))), color="gray")


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP"]),
    place=st.floats(0, 0.999),
    value=st.integers(0, 255),
    keep=st.floats(0.01, 1),
)
def test_damaged_files_give_pixels_or_a_bad_image_and_nothing_else(kind, place, value, keep):
    content = bytearray(encode(Image.fromarray(PHOTO[:12, :12]), kind))
    content[int(place * len(content))] = value
    # Any other exception than BadImage passes through and fails the test.
    with contextlib.suppress(BadImage):
        pixels = decode_image(bytes(content[: max(1, int(keep * len(content)))]), color="rgb")
        assert pixels.ndim == 3
        assert pixels.shape[2] == 3
