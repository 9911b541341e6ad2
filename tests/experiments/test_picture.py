"""Image files of any kind become what the network has seen, and say how."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from torchtagi.experiments.data.picture import PictureError, read_picture


@pytest.fixture
def seven(digits):
    return digits.test.to_uint8(digits.test.images[:1])[0, 0].numpy()


def saved(tmp_path, image, name="image.png", **options):
    image.save(tmp_path / name, **options)
    return tmp_path / name


def test_a_digit_of_the_set_is_taken_as_it_is(tmp_path, seven):
    picture = read_picture(saved(tmp_path, Image.fromarray(seven)), 1, 28)
    assert picture.steps == []
    assert np.array_equal(picture.image[0, 0].numpy(), seven)


def test_dark_on_light_is_inverted(tmp_path, seven):
    picture = read_picture(saved(tmp_path, Image.fromarray(255 - seven)), 1, 28)
    assert np.array_equal(picture.image[0, 0].numpy(), seven)
    assert "inverted" in picture.steps[0]


@pytest.mark.parametrize("invert", [False, True])
@pytest.mark.parametrize("size", [(224, 224), (500, 500), (14, 14)])
def test_any_size_comes_back_to_the_sets_own_box_and_centre(tmp_path, digits, size, invert):
    likeness = []
    for original in digits.test.to_uint8(digits.test.images[:40])[:, 0].numpy():
        image = Image.fromarray(255 - original if invert else original).resize(size, Image.Resampling.BICUBIC)
        found = read_picture(saved(tmp_path, image), 1, 28).image[0, 0].numpy()
        likeness.append(np.corrcoef(found.ravel(), original.ravel())[0, 1])
    assert np.mean(likeness) > (0.94 if min(size) > 28 else 0.83)


def test_place_and_shape_of_the_field_do_not_matter(tmp_path, seven):
    big = Image.fromarray(seven).resize((112, 112), Image.Resampling.BICUBIC)
    results = []
    for at in ((0, 0), (300, 40), (150, 180)):
        field = Image.new("L", (420, 300))
        field.paste(big, at)
        results.append(read_picture(saved(tmp_path, field), 1, 28).image)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    rows = results[0][0, 0].numpy().astype(float).sum(1)
    assert (rows * np.arange(28)).sum() / rows.sum() == pytest.approx(14, abs=0.6)


@pytest.mark.parametrize(("ink", "ground"), [(0, "white"), (255, "black")])
def test_transparency(tmp_path, ink, ground):
    image = Image.new("RGBA", (100, 100), (0, 0, 0, 0))
    ImageDraw.Draw(image).line((50, 20, 50, 80), fill=(ink, ink, ink, 255), width=8)
    picture = read_picture(saved(tmp_path, image), 1, 28)
    assert f"laid its transparent parts on {ground}" in picture.steps
    stroke = picture.image[0, 0].numpy()
    assert stroke[14, 14] == 255
    assert stroke[:, :10].max() == 0, "a light stroke on black, whatever the ink"


def test_colours(tmp_path):
    image = Image.new("RGB", (90, 60), (250, 240, 200))
    ImageDraw.Draw(image).line((45, 10, 45, 50), fill=(30, 30, 180), width=6)
    picture = read_picture(saved(tmp_path, image), 1, 28)
    assert picture.steps[0] == "turned colours to grey"
    assert picture.image[0, 0, 14, 14] == 255
    assert picture.image[0, 0, 14, 3] == 0


def test_sixteen_bits_and_faint_ink(tmp_path, seven):
    deep = saved(tmp_path, Image.fromarray(seven.astype(np.uint16) * 257))
    picture = read_picture(deep, 1, 28)
    assert np.array_equal(picture.image[0, 0].numpy(), seven)
    assert picture.steps == ["brought it to 256 grey levels"]
    faint = saved(tmp_path, Image.fromarray((60 + seven // 3).astype(np.uint8)))
    picture = read_picture(faint, 1, 28)
    assert picture.steps == ["stretched its contrast"]
    assert np.abs(picture.image[0, 0].numpy().astype(int) - seven).max() <= 4


def test_palette_bilevel_and_frames(tmp_path, seven):
    bilevel = Image.fromarray(seven).point(lambda level: 255 * (level > 100)).convert("1")
    assert read_picture(saved(tmp_path, bilevel), 1, 28).image.max() == 255
    frames = [Image.fromarray(seven), Image.fromarray(255 - seven)]
    path = saved(tmp_path, frames[0], "a.gif", save_all=True, append_images=frames[1:])
    assert "first of 2 frames" in read_picture(path, 1, 28).steps[0]


def test_photographs_are_turned_upright(tmp_path, seven):
    image = Image.fromarray(np.rot90(seven, 1).copy())
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: show it rotated by 90° clockwise
    picture = read_picture(saved(tmp_path, image, exif=exif), 1, 28)
    assert "turned it upright" in picture.steps
    assert np.array_equal(picture.image[0, 0].numpy(), seven)


def test_an_empty_field_is_said_to_be_one(tmp_path):
    picture = read_picture(saved(tmp_path, Image.new("L", (50, 40), 200)), 1, 28)
    assert "found no digit" in picture.steps[0]
    assert picture.image.max() == 0


def test_colour_networks_get_the_central_square(tmp_path):
    image = Image.new("RGB", (100, 50), (255, 0, 0))
    ImageDraw.Draw(image).rectangle((25, 0, 74, 49), fill=(0, 0, 255))
    picture = read_picture(saved(tmp_path, image), 3, 32)
    assert picture.image.shape == (1, 3, 32, 32)
    assert picture.image[0, 2, 16, 16] == 255
    assert picture.image[0, 0, 16, 16] == 0
    assert "100 × 50" in picture.steps[0]


def test_what_is_no_image(tmp_path, seven, monkeypatch):
    text = tmp_path / "digit.png"
    text.write_text("not a picture")
    with pytest.raises(PictureError, match=r"digit\.png is not an image file"):
        read_picture(text, 1, 28)
    with pytest.raises(PictureError, match="there is no file"):
        read_picture(tmp_path / "none.png", 1, 28)
    with pytest.raises(PictureError, match="is a folder"):
        read_picture(tmp_path, 1, 28)
    whole = saved(tmp_path, Image.fromarray(seven).resize((300, 300)), "whole.png")
    whole.write_bytes(whole.read_bytes()[:400])
    with pytest.raises(PictureError, match="cannot be read"):
        read_picture(whole, 1, 28)
    huge = saved(tmp_path, Image.new("1", (400, 400)), "huge.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(PictureError, match="too large"):
        read_picture(huge, 1, 28)
