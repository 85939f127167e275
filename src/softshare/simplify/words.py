"""What simplifying did, in a user's words: which layers, and why. One line for many layers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from softshare._util.words import listed
from softshare.network.chains import Link


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


def folded_norms(names: Sequence[str], saved: int) -> list[str]:
    """What became of the batch norms, if there are any."""
    if not names or not saved:
        return ["batch norm not folded, because that would save no byte"] if names else []
    return [f"{listed(names)}: batch norm folded; this saves {saved:,} byte{'s' if saved > 1 else ''}"]


def cleared_units(n_dead: int, n_units: int, saved: int) -> list[str]:
    """What became of the units that nothing reads, if there are any."""
    if not saved:
        return []
    was = "was" if n_dead == 1 else "were"
    return [
        f"{n_dead:,} of {n_units:,} units are read by no layer and {was} cleared; this saves {saved:,} "
        f"byte{'s' if saved > 1 else ''}"
    ]


def left_alone(reasons: Mapping[str, str], fate: str = "units left as they are") -> list[str]:
    """One message for each reason, with the layers that it concerns."""
    layers: dict[str, list[str]] = {}
    for layer, reason in reasons.items():
        layers.setdefault(reason, []).append(layer)
    return [f"{listed(names)}: {fate}, because {reason}" for reason, names in layers.items()]


def _between(links: Sequence[Link]) -> str:
    return f"between {listed([f'{link.source} and {link.target}' for link in links])}"
