"""What simplifying did, in a user's words: which layers, and why. One line for many layers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from softshare.network.chains import Link

MOST_NAMES = 4  # that one message lists


def done(
    links: Sequence[Link],
    removed: Mapping[str, int],  # units that did nothing, by the layer that computes them
    moved: Collection[str],  # the layers whose units are in another order
    saved: int,  # bytes
) -> str:
    """What became of the units between pairs of layers."""
    changed = [link for link in links if removed.get(link.source) or link.source in moved]
    if not saved or not changed:
        return f"{_between(links)}: no unit was removed or moved, because that would save no byte"
    n, of = sum(removed.values()), sum(link.n_units for link in changed)
    said = [f"{n:,} of {of:,} units did nothing and {'was' if n == 1 else 'were'} removed"] if n else []
    if moved:
        said.append("the rest were sorted" if n else f"the {of:,} units were sorted")
    return f"{_between(changed)}: {', and '.join(said)}; this saves {saved:,} byte{'s' if saved > 1 else ''}"


def left_alone(reasons: Mapping[str, str]) -> list[str]:
    """One message for each reason, with the layers that it concerns."""
    layers: dict[str, list[str]] = {}
    for layer, reason in reasons.items():
        layers.setdefault(reason, []).append(layer)
    return [f"{_listed(names)}: units left as they are, because {reason}" for reason, names in layers.items()]


def _between(links: Sequence[Link]) -> str:
    return f"between {_listed([f'{link.source} and {link.target}' for link in links])}"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
