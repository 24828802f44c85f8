"""How the plots of the examples look: one width, letters for a phone.

A phone shows a plot some 360 pixels wide. In a figure of five inches, letters
of ten points are then still ten pixels high, if panels stand below each other.
"""

WIDTH = 5.0  # inches
DOTS = 150  # per inch

# Bands behind the medians.
FAINT = {"alpha": 0.2, "linewidth": 0}


def new_figure(panels=1, height=3.3, **given):
    """A figure of panels below each other, and the list of their axes.

    Args:
        panels: integer.
        height: float, inches of a panel.
        given: arguments of Matplotlib's `subplots`.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, panels * height), layout="constrained")
    axes = figure.subplots(panels, squeeze=False, **given)[:, 0]
    for one in axes:
        one.grid(alpha=0.3)
        one.spines[["top", "right"]].set_visible(False)
    return figure, list(axes)


def legend_below(figure, axes, columns=2):
    """Name the lines of a panel below the figure, where it covers none."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
    )


def save(figure, path):
    figure.savefig(path, dpi=DOTS)


def class_name(unit):
    """The layer's name as users write it, for a name such as "rotrnn"."""
    from keras_linrec.models.units import UNITS

    return "LSTM" if unit == "lstm" else UNITS[unit].__name__
