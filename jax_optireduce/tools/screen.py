"""Output of the verbs: 80 columns, tables of one style, plain text without a terminal.

Rich writes colours to a terminal alone. The width is the same everywhere, so a page can
quote an output.
"""

import rich.console
import rich.table

# Chosen: the width of a terminal by default, in characters.
WIDTH = 80


def show(shown: rich.console.RenderableType, style: str = "") -> None:
    """Prints a text as it is, without markup, or a table; wraps words at 80 columns."""
    console = rich.console.Console(
        width=WIDTH, highlight=False, markup=False, emoji=False
    )
    with console.capture() as captured:
        console.print(shown, style=style)
    # Rich fills the last column of a table with spaces.
    lines = captured.get().splitlines()
    print("\n".join(line.rstrip() for line in lines), flush=True)


def table(
    *columns: str, left: int = 0, widths: tuple[int, ...] = ()
) -> rich.table.Table:
    """Returns a table without rows.

    Args:
      columns: headings; a line break separates a heading and its unit.
      left: number of columns, the first ones, that are aligned to the left.
      widths: of the columns, in characters, for tables that are printed row by row;
        () for the width of the content.
    """
    padding = (0, 1 if widths else 2, 0, 0)
    made = rich.table.Table(box=None, pad_edge=False, padding=padding)
    for at, heading in enumerate(columns):
        made.add_column(
            heading,
            justify="left" if at < left else "right",
            width=widths[at] if widths else None,
            no_wrap=True,
        )
    return made
