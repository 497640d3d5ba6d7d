"""How an image's axes look, whoever draws on them."""

from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Style = Literal["solid", "dash", "dot"]
DASHES: Final[dict[Style, Any]] = {"solid": "-", "dash": (0, (5, 2)), "dot": (0, (1, 1.5))}
INK: Final = "#222222"
FAINT: Final = "#dddddd"


def dress(
    axes: "Axes", title: str, x_title: str, y_title: str, size: float = 9, lines: Literal["x", "y"] = "y"
) -> None:
    """Titles, and faint lines behind what is drawn instead of a frame around it."""
    axes.set_xlabel(x_title, fontsize=size, color=INK)
    axes.set_ylabel(y_title, fontsize=size, color=INK)
    axes.set_title(title, fontsize=size, loc="left", color=INK)
    axes.tick_params(which="both", labelsize=size - 1, colors=INK, length=0)
    axes.grid(axis=lines, color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
