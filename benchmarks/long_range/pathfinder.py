"""Pathfinder: does a dashed path join the two circles of a picture?

Linsley et al. 2018, arXiv 1805.08315; 32 x 32 pixels in Long Range Arena, arXiv
2011.04006. Two long dashed paths and short ones that distract. Class 1: the circles lie
at both ends of one long path. Class 0: at an end of each.

The paths are drawn before it is known which ends get a circle, so that the classes
differ in no number of dashes, paths, circles or bright pixels. The first dash of the
second path is the last dash of the first path, mirrored in the line of its first dash:
both circles and the dashes at them are in one class the mirror image of what they are
in the other. Only what lies between tells.

Dashes keep `margin` free pixels to all dashes and circles but their neighbours on a
path: paths that do not are thrown away whole, and with them the picture where none of
`PATHS` finds room. As `margin` is more than `gap`, no path crosses another or touches
itself.
"""

import dataclasses

import numpy as np
from PIL import Image, ImageDraw

# Pixels are drawn so many times larger, and shrunk.
FINE = 8
# Discs that stand for a dash are so many pixels apart at most.
SPACING = 1.0
# Paths drawn at once, of which one must fit, and pictures begun until one has room.
PATHS, PICTURES = 32, 2000


@dataclasses.dataclass(frozen=True)
class Style:
    """How pictures look; lengths are in pixels.

    Attributes:
        num_dashes: int, dashes of each of the two long paths.
        num_distractors: int, short paths.
        distractor_dashes: int, dashes of each of them.
        dash: float, the length of a dash.
        gap: float, between two dashes of a path.
        max_turn: float, radians that a dash turns at most from the one before.
        margin: float, free pixels between what does not belong together.
        width: float, of a dash.
        radius: float, of a circle.
        brightness: int up to 255, of dashes and circles on black.
    """

    num_dashes: int
    num_distractors: int
    distractor_dashes: int
    dash: float
    gap: float
    max_turn: float
    margin: float
    width: float
    radius: float
    brightness: int = 255

    def __post_init__(self):
        least = dict(num_dashes=2, num_distractors=0, distractor_dashes=1)
        for name, least_value in least.items():
            if getattr(self, name) < least_value:
                raise ValueError(
                    f"{name} must be an int of at least {least_value}. Received: "
                    f"{name}={getattr(self, name)}"
                )
        for name in ("dash", "gap", "width", "radius"):
            if getattr(self, name) <= 0:
                raise ValueError(
                    f"{name} must be positive. Received: {name}={getattr(self, name)}"
                )
        if not self.gap < self.margin:
            raise ValueError(
                f"margin must be more than gap={self.gap}, or paths could cross. "
                f"Received: margin={self.margin}"
            )
        if not 0 < self.brightness <= 255:
            raise ValueError(
                f"brightness must be an int from 1 to 255. Received: brightness="
                f"{self.brightness}"
            )


# By the side of a picture.
STYLES = {
    16: Style(
        num_dashes=4,
        num_distractors=1,
        distractor_dashes=2,
        dash=2.0,
        gap=1.0,
        max_turn=1.1,
        margin=1.5,
        width=1.0,
        radius=1.25,
    ),
    32: Style(
        num_dashes=6,
        num_distractors=3,
        distractor_dashes=2,
        dash=2.75,
        gap=1.5,
        max_turn=0.7,
        margin=2.25,
        width=1.0,
        radius=1.8,
    ),
    64: Style(
        num_dashes=9,
        num_distractors=6,
        distractor_dashes=3,
        dash=3.5,
        gap=2.0,
        max_turn=0.7,
        margin=3.0,
        width=1.25,
        radius=2.2,
    ),
}


def draw(size, random, batch_size, **changes):
    """Draws pictures and whether their circles are joined.

    Args:
        size: int, 16, 32 or 64, the side of a picture.
        random: `np.random.Generator`.
        batch_size: positive int B.
        **changes: attributes of `Style` that are to differ from those of `size`.

    Returns:
        int32 `(B, size * size)`, pixels 0 to 255 in raster order; int32 `(B, 1)`,
        classes; float32 `(B, 1)`, ones.
    """
    if size not in STYLES:
        raise ValueError(f"size must be one of {list(STYLES)}. Received: size={size}")
    if batch_size < 1:
        raise ValueError(
            f"batch_size must be a positive int. Received: batch_size={batch_size}"
        )
    style = dataclasses.replace(STYLES[size], **changes)
    y = random.integers(2, size=(batch_size, 1), dtype=np.int32)
    x = np.empty((batch_size, size * size), np.int32)
    for row, joined in enumerate(y[:, 0]):
        paths = place(size, style, random)
        x[row] = picture(size, style, paths, circles(paths, joined)).ravel()
    return x, y, np.ones((batch_size, 1), np.float32)


def place(size, style, random):
    """Paths with room for circles at the ends of the first two.

    Returns:
        List of arrays `(dashes, 2, 2)`, the two ends `(x, y)` of every dash.
    """
    for _ in range(PICTURES):
        room = Room(size, style)
        first = room.path(anywhere(size, random), style.num_dashes, random, True)
        if first is None:
            continue
        begun = np.tile(mirror(first[-1, ::-1], first[0]), (PATHS, 1, 1))
        paths = [first, room.path(begun, style.num_dashes, random, True)]
        while paths[-1] is not None and len(paths) < 2 + style.num_distractors:
            begun = anywhere(size, random)
            paths.append(room.path(begun, style.distractor_dashes, random))
        if paths[-1] is not None:
            return paths
    raise ValueError(
        f"A picture must have room for its paths. None of {PICTURES:,} had: ask for "
        f"fewer or shorter dashes. Received: size={size}, {style}"
    )


def anywhere(size, random):
    """Points to begin at and points to go to."""
    starts = random.uniform(0, size, (PATHS, 2))
    return np.stack(
        [starts, starts + direction(random.uniform(0, 2 * np.pi, PATHS))], 1
    )


class Room:
    """What is taken of a picture, as discs."""

    def __init__(self, size, style):
        self.size, self.style = size, style
        self.centres, self.radii = np.empty((0, 2)), np.empty(0)

    def path(self, begun, num_dashes, random, circled=False):
        """Takes the room of the first path that fits; `None` where none does."""
        paths = extended(begun, num_dashes, self.style, random)
        centres, radii = discs(paths, self.style, circled)
        fits = (centres >= radii[:, np.newaxis]).all(axis=(1, 2))
        fits &= (centres <= self.size - radii[:, np.newaxis]).all(axis=(1, 2))
        dash = np.repeat(np.arange(num_dashes), len(radii) // num_dashes)
        strangers = np.abs(dash[:, np.newaxis] - dash) > 1
        for path in np.flatnonzero(fits):
            found = centres[path], radii
            itself = free(*found, *found)[strangers]
            others = free(*found, self.centres, self.radii)
            if min(itself.min(initial=np.inf), others.min(initial=np.inf)) >= (
                self.style.margin
            ):
                self.centres = np.concatenate([self.centres, found[0]])
                self.radii = np.concatenate([self.radii, found[1]])
                return paths[path]


def extended(begun, num_dashes, style, random):
    """Paths `(K, num_dashes, 2, 2)` from a point towards another, `begun`."""
    towards = begun[:, 1] - begun[:, 0]
    turns = random.uniform(-style.max_turn, style.max_turn, (len(begun), num_dashes))
    turns[:, 0] = np.arctan2(towards[:, 1], towards[:, 0])
    along = direction(turns.cumsum(axis=1))
    # in the middle of a gap the path turns
    half = style.gap / 2
    steps = (style.dash + half) * along[:, :-1] + half * along[:, 1:]
    starts = np.concatenate([begun[:, :1], steps], axis=1).cumsum(axis=1)
    return np.stack([starts, starts + style.dash * along], axis=2)


def discs(paths, style, circled):
    """Discs that cover paths, and the circles at their ends.

    Returns:
        Centres `(K, discs, 2)`, dash by dash, and radii `(discs,)`.
    """
    along = np.linspace(0, 1, int(np.ceil(style.dash / SPACING)) + 1)[:, np.newaxis]
    starts, ends = paths[:, :, :1], paths[:, :, 1:]
    centres = ((1 - along) * starts + along * ends).reshape(len(paths), -1, 2)
    radii = np.full(centres.shape[1], style.width / 2)
    if circled:
        radii[[0, -1]] = style.radius
    return centres, radii


def free(centres, radii, other_centres, other_radii):
    """What is free between two discs each, `(discs, other discs)`."""
    across = centres[:, np.newaxis] - other_centres
    distances = np.hypot(across[..., 0], across[..., 1])
    return distances - radii[:, np.newaxis] - other_radii


def direction(angle):
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1)


def mirror(points, line):
    """Points on the other side of the line through two points."""
    along = (line[1] - line[0]) / np.linalg.norm(line[1] - line[0])
    steps = points - line[0]
    return line[0] + 2 * (steps @ along)[:, np.newaxis] * along - steps


def circles(paths, joined):
    """The centres of both circles."""
    return paths[0][0, 0], paths[0][-1, 1] if joined else paths[1][0, 0]


def picture(size, style, paths, centres):
    """uint8 `(size, size)`."""
    canvas = Image.new("L", (FINE * size, FINE * size))
    pen = ImageDraw.Draw(canvas)
    for start, end in FINE * np.concatenate(paths):
        pen.line((*start, *end), style.brightness, round(FINE * style.width))
    for centre in FINE * np.array(centres):
        reach = FINE * style.radius
        pen.ellipse((*(centre - reach), *(centre + reach)), style.brightness)
    return np.asarray(canvas.reduce(FINE))
