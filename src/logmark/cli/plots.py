"""Pictures of the past: the lag of each group over time, with the resets that our own tools made."""

from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from pathlib import Path

from logmark.cli.tables import count
from logmark.errors import UserError
from logmark.escaping import escape
from logmark.offsets.lag.annotations import Annotation
from logmark.offsets.lag.history import History

_POINTS_MAX = 600
_NAMED_MAX = 20


def draw_lag(
    path: Path,
    history: History,
    groups: Collection[str],
    annotations: Iterable[Annotation],
    *,
    since_ms: int,
    topics: Collection[str] | None = None,
) -> str:
    """Draws one line for each group into an .svg or .png file, and says what was drawn."""
    if path.suffix.lower() not in (".svg", ".png"):
        raise UserError(f"{path} is neither an .svg nor a .png file. Nothing was drawn.")
    series = history.totals(groups, since_ms=since_ms, points_max=_POINTS_MAX, topics=topics)
    if not series:
        raise UserError(
            f"The history {history.path} has no sample of these groups since {_time(since_ms):%Y-%m-%d %H:%M} UTC. "
            "Nothing was drawn; choose an earlier --since."
        )
    _draw(path, series, [one for one in annotations if one.group in series])
    samples = max(len(points) for points in series.values())
    return f"{count(len(series), 'group')} over {count(samples, 'sample')}"


def _draw(path: Path, series: dict[str, list[tuple[int, int]]], annotations: list[Annotation]) -> None:
    try:
        # An extra, which only plots need.
        from matplotlib import figure as figures
        from matplotlib import rc_context, ticker
    except ImportError:
        raise UserError(
            "Plots are drawn by matplotlib, which is not installed. Nothing was drawn; "
            "`pip install 'logmark[plot]'` brings it."
        ) from None

    # A picture with the same content has the same bytes.
    with rc_context({"svg.hashsalt": "logmark", "svg.fonttype": "none"}):
        figure = figures.Figure(figsize=(11, 5.5), layout="constrained")
        axes = figure.add_subplot()
        largest = sorted(series, key=lambda group: max(lag for _, lag in series[group]), reverse=True)
        for number, group in enumerate(largest):
            times = [_days(at_ms) for at_ms, _ in series[group]]
            label = escape(group) if number < _NAMED_MAX else None
            style = "." if len(times) == 1 else "-"
            lags, gid = [lag for _, lag in series[group]], f"lag {escape(group)}"
            axes.plot(times, lags, style, label=label, linewidth=1.4, gid=gid)
        first, last = min(p[0][0] for p in series.values()), max(p[-1][0] for p in series.values())
        for one in {one.id: one for one in annotations if first <= one.at_ms <= last}.values():
            at = _days(one.at_ms)
            axes.axvline(at, color="black", linestyle=":", linewidth=1, gid=f"change {one.id}")
            axes.annotate(
                escape(f"{one.group}: {one.text}"), (at, 1), xycoords=("data", "axes fraction"), rotation=90,
                va="top", ha="right", fontsize=7,
            )  # fmt: skip
        axes.xaxis_date(UTC)
        axes.set_ylabel("lag in records")
        axes.set_xlabel("UTC")
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(ticker.MaxNLocator(integer=True))
        axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.grid(alpha=0.3)
        more = len(series) - _NAMED_MAX
        axes.legend(loc="upper left", fontsize=8, title=f"and {more} more" if more > 0 else None)
        try:
            figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix.lower() == ".svg" else {})
        except OSError as error:
            raise UserError(f"{path} cannot be written: {error.strerror or error}. Nothing was drawn.") from None


def _time(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def _days(at_ms: int) -> float:
    """Days since 1970, as matplotlib counts them."""
    return at_ms / 86_400_000
