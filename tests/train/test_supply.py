"""The batches of a run: in passes or in steps, over several passes or a part of one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from softshare._util.user_code import length_of
from softshare.config import RetrainConfig
from softshare.errors import ConfigError
from softshare.train.supply import Supply

LETTERS = ["a", "b", "c"]


class Unsized:
    """Gives each of its passes in turn, the last one again and again."""

    def __init__(self, *passes: list[str]) -> None:
        self.passes, self.n = passes, 0

    def __iter__(self) -> Iterator[str]:
        self.n += 1
        return iter(self.passes[min(self.n, len(self.passes)) - 1])


def played(supply: Supply, looks: int) -> list[tuple[list[str], list[float]]]:
    """The batches up to each look, and the progress before each batch."""
    found = [list(supply.until(look)) for look in range(1, looks + 1)]
    return [([batch for batch, _ in part], [progress for _, progress in part]) for part in found]


def test_steps_over_several_passes() -> None:
    """25 steps and 10 looks: 2 or 3 steps to each. A look may fall within a pass of 3 batches."""
    config = RetrainConfig(steps=25)
    supply = Supply(LETTERS, config)
    parts = played(supply, config.looks)
    assert [len(batches) for batches, _ in parts] == [2, 3] * 5
    assert "".join(b for batches, _ in parts for b in batches) == ("abc" * 9)[:25]
    assert [p for _, progress in parts for p in progress] == [step / 25 for step in range(25)]
    assert supply.steps_per_look == 3


def test_steps_over_a_part_of_a_pass() -> None:
    """No batch is drawn twice, and none that is not used."""
    drawn: list[str] = []

    class Long:
        def __iter__(self) -> Iterator[str]:
            for k in range(1000):
                drawn.append(str(k))
                yield drawn[-1]

    config = RetrainConfig(steps=12)
    assert [b for batches, _ in played(Supply(Long(), config), config.looks) for b in batches] == drawn
    assert drawn == [str(k) for k in range(12)]


def test_epochs_are_whole_passes() -> None:
    supply = Supply(LETTERS, RetrainConfig(epochs=2))
    (first, early), (second, late) = played(supply, 2)
    assert first == second == LETTERS
    assert early + late == pytest.approx([step / 6 for step in range(6)])
    assert supply.steps_per_look == 3


def test_in_the_first_pass_of_unknown_length_progress_rises_and_stays_below_the_next() -> None:
    supply = Supply(Unsized(LETTERS), RetrainConfig(epochs=2))
    assert supply.steps_per_look is None
    (_, first), (_, second) = played(supply, 2)
    assert first == sorted(first)
    assert first[0] == 0
    assert first[-1] < 0.5
    assert second == pytest.approx([3 / 6, 4 / 6, 5 / 6])
    assert supply.steps_per_look == 3


@pytest.mark.parametrize("config", [RetrainConfig(steps=10), RetrainConfig(epochs=2)], ids=["steps", "epochs"])
@pytest.mark.parametrize(
    ("passes", "message"),
    [
        (([],), r"got none\."),
        ((LETTERS, []), r"got none in pass 2\. It must give its batches each time it is iterated"),
    ],
    ids=["first", "second"],
)
def test_an_empty_pass_is_refused(config: RetrainConfig, passes: tuple[list[str], ...], message: str) -> None:
    with pytest.raises(ConfigError, match=f"Task.train: expected at least one batch, {message}"):
        played(Supply(Unsized(*passes), config), config.looks)


def test_the_batch_size_is_the_mean_over_a_pass() -> None:
    """7 examples in 3 batches. Without a length it is that of the last batch, until a pass has ended."""
    batches = list(torch.zeros(7, 2).split(3))
    sized = Supply(batches, RetrainConfig(steps=10))
    assert sized.batch_size(7) == pytest.approx(7 / 3)

    class Stream:
        def __iter__(self) -> Iterator[Tensor]:
            return iter(batches)

    unsized, sizes = Supply(Stream(), RetrainConfig(steps=10)), []
    for _ in unsized.until(1):
        sizes.append(unsized.batch_size(7))
    for _ in range(3):
        next(unsized._stream)
    assert sizes == [3]
    assert unsized.batch_size(7) == pytest.approx(7 / 3)


def test_the_batches_of_a_shuffled_loader_differ_from_pass_to_pass() -> None:
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(torch.arange(12)), batch_size=4, shuffle=True)
    supply = Supply(loader, RetrainConfig(steps=6))
    batches = [batch[0] for look in range(1, 7) for batch, _ in supply.until(look)]
    first, second = torch.cat(batches[:3]), torch.cat(batches[3:])
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(12))
    assert first.tolist() != second.tolist()


def test_a_length_that_is_unknown_is_none() -> None:
    assert length_of(LETTERS) == 3
    assert length_of(Unsized(LETTERS)) is None
    assert length_of(DataLoader(_Stream(), batch_size=2)) is None


class _Stream(torch.utils.data.IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.zeros(4))


def test_a_generator_goes_on_where_it_was_at_the_end_of_a_pass() -> None:
    """A run of a search that begins after it draws from the same generator."""

    def loader() -> DataLoader[tuple[Tensor, ...]]:
        own = torch.Generator().manual_seed(3)
        return DataLoader(TensorDataset(torch.arange(12.0)), 4, sampler=RandomSampler(range(12), generator=own))

    config, whole = RetrainConfig(epochs=1), loader()
    before = Supply(whole, config)
    list(before.until(1))
    state, again = before.state_dict(), loader()
    Supply(again, config).load_state_dict(state)
    assert torch.equal(torch.cat([b[0] for b in again]), torch.cat([b[0] for b in whole]))
