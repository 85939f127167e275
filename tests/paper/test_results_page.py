"""The results page: rows against figures computed by hand, and the files that it is written to."""

from __future__ import annotations

import dataclasses
import types
from pathlib import Path
from typing import Any

import pytest

from softshare.cli import main
from softshare.errors import ConfigError, FormatError, NotAvailableError
from softshare.paper import pareto
from softshare.paper.pages import load_results, wanted_files
from softshare.paper.pareto import is_current, pareto_data
from softshare.paper.published import PUBLISHED
from softshare.paper.results_page import BEGIN, END, points, render_page, render_summary, replace_summary, spread
from softshare.result import Result, frontier
from softshare.zoo.experiments import EXPERIMENTS

CONFIG = {"version": 1, "prior": {"components": 4}, "retrain": {"tau": 0.05, "seed": 0, "capture": False}}
N = 266_610


def result(seed: int = 0, n_bytes: int = 5_000, error: float = 1.8, **changes: Any) -> Result:
    config = {**CONFIG, "retrain": {**CONFIG["retrain"], "seed": seed}}  # type: ignore[dict-item]
    made = Result(
        schema=1,
        experiment="lenet-300-100",
        method="softshare",
        dataset="MNIST",
        seed=seed,
        error_before=1.5,
        error_after=error,
        n_weights=N,
        n_nonzero=2_666,
        n_components=5,
        file_bytes=n_bytes,
        ratio=4 * N / n_bytes,
        han_bytes=2 * n_bytes,
        han_ratio=2 * N / n_bytes,
        entropy_bytes=6_000.0,
        complexity_bytes=7_000.0,
        error_bits=1.0,
        seconds=1.0,
        device="cpu",
        versions={},
        config=config,
    )
    return dataclasses.replace(made, **changes)


def with_settings(made: Result, **settings: Any) -> Result:
    return dataclasses.replace(made, config={**made.config, "train": settings})


THREE = [result(0, 5_000, 1.8), result(1, 5_100, 1.9), result(2, 5_200, 2.0)]


def rows(text: str, starting: str) -> list[list[str]]:
    """The cells of every table row whose first cell starts with this."""
    cells = [[c.strip() for c in line.strip("|").split(" | ")] for line in text.splitlines() if line.startswith("|")]
    return [line for line in cells if line[0].startswith(starting)]


# Points


def test_seeds_of_the_same_settings_are_one_point() -> None:
    """They stay one point if they differ only in speed, or in the weights that they start from."""
    (point,) = points(reversed(THREE))
    assert [r.seed for r in point.results] == [0, 1, 2]
    assert point.n_bytes == 5_100
    assert point.ratio == 4 * N / 5_100
    assert point.error_after == pytest.approx(1.9)
    captured = dataclasses.replace(THREE[1], config={**CONFIG, "retrain": {"tau": 0.05, "seed": 1, "capture": True}})
    assert len(points([THREE[0], captured])) == 1

    def given(made: Result, name: str, digest: str) -> Result:
        return dataclasses.replace(made, config={**made.config, "pretrain": {"weights": name, "sha256": digest}})

    own = [given(made, "pretrained.safetensors", str(made.seed)) for made in THREE]
    assert len(points(own)) == 1
    assert len(points([*own, given(result(0), "other.safetensors", "0")])) == 2


def test_other_settings_methods_data_and_experiments_are_other_points() -> None:
    others = [
        with_settings(result(n_bytes=4_000), tau=0.1),
        result(method="deep-compression"),
        result(dataset="MNIST (half)"),
        result(experiment="lenet-5-caffe"),
    ]
    assert len(points([result(), *others])) == 5


def test_points_are_ordered_by_experiment_then_by_bytes() -> None:
    results = [
        result(experiment="zzz"),
        result(experiment="wrn-16-4"),
        result(n_bytes=9_000, method="b"),
        with_settings(result(n_bytes=1_000, method="c"), augment=True),
        result(n_bytes=2_000, method="a"),
    ]
    found = [(p.first.experiment, p.first.method) for p in points(results)]
    lenets = [("lenet-300-100", m) for m in ("a", "b", "c")]
    assert found == [*lenets, ("wrn-16-4", "softshare"), ("zzz", "softshare")]
    assert render_page(results) == render_page(results[::-1])


def test_one_seed_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"softshare: expected one result per seed and setting, got seeds \[0, 0\]"):
        points([result(), result(n_bytes=6_000)])


# Rows


def test_spread() -> None:
    assert spread([5_060], ",.0f") == "5,060"
    assert spread([5_060, 5_160], ",.0f") == "5,110 (5,060 to 5,160)"
    assert spread([5_000, 5_100, 5_200], ",.0f") == "5,100 ± 100"
    assert spread([1, 2, 3, 4], ",.0f") == "2 ± 1"


def test_a_row_of_three_seeds() -> None:
    text = render_page(THREE)
    density, ratio = f"{100 * 2_666 / N:.2f}", f"{4 * N / 5_100:.1f}"
    han = f"10,200 ± 200 ({4 * N / 10_200:.1f})"
    expected = ["softshare", "3 (0, 1, 2)", "1.50 -> 1.90 ± 0.10", "5,100 ± 100", ratio, han, density, "-"]
    assert rows(text, "softshare") == [expected]
    assert "266,610 parameters, 1,066,440 bytes as float32." in text
    assert "### MNIST, without augmentation" in text
    assert "with augmentation" not in text


def test_one_seed_has_no_spread_and_two_have_a_range() -> None:
    ((_, seeds, error, *_),) = rows(render_page(THREE[:1]), "softshare")
    assert (seeds, error) == ("one seed (0)", "1.50 -> 1.80")
    ((_, seeds, error, *_),) = rows(render_page(THREE[:2]), "softshare")
    assert (seeds, error) == ("2 (0, 1)", "1.50 -> 1.85 (1.80 to 1.90)")


def test_augmented_results_have_their_own_table_and_switches_are_named() -> None:
    plain = with_settings(result(), augment=False, hard_from=0.2, distill=None, from_scratch=False)
    augmented = with_settings(result(n_bytes=4_000), augment=True, hard_from=1.0)
    text = render_page([plain, augmented])
    without, _, with_augmentation = text.partition("### MNIST, with augmentation")
    assert [row[-1] for row in rows(without, "softshare")] == ["hard_from 0.2"]
    assert [row[-1] for row in rows(with_augmentation, "softshare")] == ["augment"]


def test_the_own_accounting_of_a_baseline_is_below_the_table() -> None:
    ratios = (50.0, 52.0, 54.0)
    surgery = [result(seed, method="dns", published_ratio=ratio) for seed, ratio in enumerate(ratios)]
    deep = result(n_bytes=30_000, method="deep-compression", published_ratio=40.04)
    text = render_page([*THREE, *surgery, deep])
    said = [line for line in text.splitlines() if line.startswith("As its own paper counts")]
    assert said == [
        "As its own paper counts, the ratio of dns is 52.0 ± 2.0: all weights over those that are not zero.",
        "As its own paper counts, the ratio of deep-compression is 40.0: 4 bytes for each weight over the coded "
        "weights and float32 codebooks; no biases, no header.",
    ]
    assert "its own paper" not in render_page(THREE)


def test_published_rows_name_their_accounting() -> None:
    text = render_page([result(), result(experiment="lenet-5-caffe")])
    first, _, second = text.partition("## lenet-5-caffe")
    expected = ["1.89 -> 1.94", "~16.6 KB", "64", "4.3", "(b) estimated bits, weights only", "-"]
    assert rows(first, "Soft weight-sharing, the paper") == [["Soft weight-sharing, the paper (2017)", *expected]]
    assert rows(first, "Dynamic Network Surgery")[0][2:6] == ["-", "56", "1.8", "(a) count of non-zero weights"]
    assert rows(first, "Entropy-penalized")[0][1:4] == ["1.6 -> 1.9", "8.56 KB", "124"]
    assert len(rows(second, "MIRACLE")) == 4
    assert len(rows(second, "pruning, fine-tuning and NNCodec")) == 2
    assert not rows(first, "MIRACLE")


def test_an_experiment_without_published_results() -> None:
    text = render_page([result(experiment="my-net", method="a|b")])
    assert "## my-net" in text
    assert "Published\n" not in text
    assert "| a\\|b |" in text


def test_published_figures_are_consistent() -> None:
    """Size and ratio are two roundings of one figure. The paper's rows are those of the experiments."""
    n_weights = {name: sum(p.numel() for p in e.make_model().parameters()) for name, e in EXPERIMENTS.items()}
    for row in PUBLISHED:
        assert (row.kilobytes is None) == (row.accounting == "a")
        if row.n_bytes is not None and "another network" not in row.note:
            assert 4 * n_weights[row.experiment] / row.n_bytes == pytest.approx(row.ratio, rel=0.03), row
    for name, experiment in EXPERIMENTS.items():
        if (paper := experiment.paper) is None:
            continue
        found = next(r for r in PUBLISHED if r.experiment == name and "the paper" in r.who)
        told = found.error_before, found.error_after, found.nonzero_percent, found.ratio
        assert told == (paper.error_before, paper.error_after, paper.nonzero_percent, paper.ratio)


# The README


def summary_of(*results: Result) -> list[list[str]]:
    return [row[1:] for row in rows(render_summary(results), "lenet")]


def test_the_summary_has_our_file_beside_the_papers() -> None:
    paper, ours = summary_of(*THREE)
    assert paper == [
        "Soft weight-sharing, the paper (2017)",
        "1.89 -> 1.94",
        "~16.6 KB",
        "64",
        "estimated bits, weights only",
    ]
    size, ratio = "5,100 ± 100 bytes", f"{4 * N / 5_100:.1f}"
    assert ours == ["**softshare**, 3 seeds", "1.50 -> 1.90 ± 0.10", size, ratio, "real bytes"]


def test_the_summary_takes_the_smallest_file_at_about_the_papers_error() -> None:
    """The paper has 1.94%. At most 0.05 points more are allowed."""
    near, far = result(n_bytes=4_000, error=1.98, method="near"), result(n_bytes=3_000, error=2.0, method="far")
    rival = result(n_bytes=2_000, error=1.5, method="dns")
    augmented = with_settings(result(n_bytes=1_000, error=1.5, method="other"), augment=True)
    assert summary_of(*THREE, near, far, rival, augmented)[1][0] == "**near**, one seed"
    assert summary_of(result(error=2.5, method="worse"), far)[1][0] == "**far**, one seed"  # none is near: the lowest
    assert not rows(render_summary([result(experiment="my-net")]), "my-net")


def test_only_the_text_between_the_markers_is_replaced() -> None:
    text = replace_summary(f"before\n{BEGIN}\nold\n{END}\nafter\n", "new")
    assert text == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    assert replace_summary(text, "new") == text
    assert replace_summary("no markers\n", "new") == "no markers\n"
    with pytest.raises(ConfigError, match="expected <!-- /results --> after"):
        replace_summary(f"{BEGIN}\nold\n", "new")


# Plots


def test_plot_data() -> None:
    augmented = with_settings(result(n_bytes=4_000, error=1.7), augment=True)
    rival = dataclasses.replace(result(n_bytes=3_000, error=1.6), method="dns")
    data = pareto_data("lenet-300-100", points([*THREE, augmented, rival]))
    assert data.ours == {
        "softshare": [(5_000, 1.8), (5_100, 1.9), (5_200, 2.0)],
        "softshare, augmented": [(4_000, 1.7)],
        "dns": [(3_000, 1.6)],
    }
    assert data.frontiers == {"our frontier": [(5_100, pytest.approx(1.9))], "our frontier, augmented": [(4_000, 1.7)]}
    assert data.published["Entropy-penalized reparameterization (2019)"] == [(8_560, 1.9)]
    assert data.published["pruning, fine-tuning and NNCodec 2.1.3 (measured, one seed)"] == [
        (14_300, 1.95),
        (9_840, 2.24),
    ]
    estimated = ("the paper (2017)", "Deep Compression", "Surgery")
    assert not any(name in label for name in estimated for label in data.published)


def test_frontier() -> None:
    values = [(3.0, 1.0), (1.0, 3.0), (2.0, 3.0), (2.0, 2.0), (4.0, 1.0)]
    assert frontier(values) == [(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)]
    assert frontier([]) == []


def test_a_plot_is_recognised_by_its_figures() -> None:
    data, other = (pareto_data("lenet-300-100", points([r])) for r in (result(), result(n_bytes=5_001)))
    png = b"\x89PNG...." + data.digest.encode() + b"...."
    assert is_current(png, data)
    assert not is_current(png, other)


@pytest.mark.slow
def test_a_plot_drawn_by_matplotlib() -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'softshare[report]'")
    data = pareto_data("lenet-300-100", points(THREE))
    png = pareto.draw_pareto(data)
    assert png.startswith(b"\x89PNG")
    assert is_current(png, data)


def test_without_matplotlib_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pareto, "can_draw", lambda: False)
    with pytest.raises(NotAvailableError, match=r"pip install 'softshare\[report\]'"):
        pareto.draw_pareto(pareto_data("lenet-300-100", points(THREE)))


# Files and the command


def keep(root: Path, made: Result) -> None:
    folder = root / "results/lenet-300-100/softshare" / f"seed-{made.seed}"
    folder.mkdir(parents=True)
    made.save(folder / "result.json")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with three results and a README."""
    for made in THREE:
        keep(tmp_path, made)
    (tmp_path / "README.md").write_text(f"# A\n\n{BEGIN}\n{END}\n\nmore\n")
    return tmp_path


@pytest.fixture(autouse=True)
def drawing(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """Replaces matplotlib: `on` says whether it is installed, and `drawn` lists what was drawn."""
    state = types.SimpleNamespace(on=False, drawn=[])

    def draw(data: pareto.Pareto) -> bytes:
        state.drawn.append(data.experiment)
        return b"PNG " + data.digest.encode()

    for module in ("softshare.paper.pages", "softshare.report.style"):  # the command asks the second
        monkeypatch.setattr(f"{module}.can_draw", lambda: state.on)
    monkeypatch.setattr("softshare.paper.pages.draw_pareto", draw)
    return state


def command(root: Path, *options: str) -> int:
    return main(["results", str(root / "results"), "--root", str(root), *options])


def test_the_command_writes_page_and_readme(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(root) == 0
    assert (root / "docs/results.md").read_text() == render_page(THREE)
    assert (root / "README.md").read_text() == f"# A\n\n{BEGIN}\n{render_summary(THREE)}\n{END}\n\nmore\n"
    text = capsys.readouterr().out
    assert "results.md written" in text
    assert "matplotlib" in text
    assert command(root) == 0
    assert "All is current." in capsys.readouterr().out


def test_check_writes_nothing(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (root / "README.md").read_text()
    assert command(root, "--check") == 1
    assert "results.md is not what the results give" in capsys.readouterr().out
    assert not (root / "docs").exists()
    assert (root / "README.md").read_text() == before
    assert command(root) == 0
    assert command(root, "--check") == 0


def test_check_finds_changes_by_hand_and_new_results(root: Path) -> None:
    for changed in ("docs/results.md", "README.md"):
        assert command(root) == 0
        (root / changed).write_text((root / changed).read_text().replace("5,100 ± 100", "4,100 ± 100"))
        assert command(root, "--check") == 1
    assert command(root) == 0
    keep(root, result(3, 5_300))
    assert command(root, "--check") == 1


def test_figures_in_prose_are_filled_and_checked(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begin, end = "<!-- = results/lenet-300-100/softshare mean(file_bytes) -->", "<!-- / -->"
    (root / "docs").mkdir()
    page = root / "docs" / "page.md"
    page.write_text(f"Files of {begin}0{end} bytes.\n")
    assert command(root, "--check") == 1
    assert "page.md is not what the results give" in capsys.readouterr().out
    assert command(root) == command(root, "--check") == 0
    assert page.read_text() == f"Files of {begin}5,100{end} bytes.\n"
    page.write_text("Files of <!-- = results/none rows --><!-- / -->.\n")
    assert command(root, "--check") == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "page.md: results/none rows: expected rows in results/none, found none" in error


def test_a_readme_without_markers_does_not_change(root: Path) -> None:
    (root / "README.md").write_text("# A\n")
    assert command(root) == 0
    assert (root / "README.md").read_text() == "# A\n"
    (root / "README.md").unlink()
    assert command(root, "--check") == 0


def test_plots_are_drawn_once_and_shown_only_while_current(root: Path, drawing: types.SimpleNamespace) -> None:
    drawing.on = True
    link = "](results-lenet-300-100.png)"
    assert command(root, "--check") == 1
    assert not drawing.drawn
    assert command(root) == command(root) == command(root, "--check") == 0
    assert drawing.drawn == ["lenet-300-100"]
    assert link in (root / "docs/results.md").read_text()

    drawing.on = False  # another machine: the plot is still current
    assert command(root, "--check") == 0
    keep(root, result(3, 5_300))
    assert command(root) == 0
    assert link not in (root / "docs/results.md").read_text()

    drawing.on = True
    assert command(root) == command(root, "--check") == 0
    assert drawing.drawn == ["lenet-300-100"] * 2
    assert link in (root / "docs/results.md").read_text()


def test_nothing_to_show_is_bad_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        load_results(tmp_path / "none")
    (tmp_path / "results").mkdir()
    assert command(tmp_path) == 2
    assert "found none" in capsys.readouterr().err
    (tmp_path / "results/notes.json").write_text("{}")  # only result.json is a result
    assert command(tmp_path) == 2
    assert "expected folders that hold result.json, found none" in " ".join(capsys.readouterr().err.split())
    (tmp_path / "results/result.json").write_text("{}")
    with pytest.raises(FormatError, match=r"result\.json is not a result"):
        load_results(tmp_path / "results")
    assert not (tmp_path / "docs").exists()


def test_a_folder_that_cannot_be_made(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "docs").write_text("a file")
    assert command(root) == 2
    assert "cannot write to the folder" in capsys.readouterr().err


def test_wanted_files_are_a_function_of_the_results(root: Path) -> None:
    wanted = wanted_files(load_results(root / "results"), root, draw=False)
    assert {path.name for path in wanted} == {"results.md", "README.md"}
    assert wanted == wanted_files(load_results(root / "results")[::-1], root, draw=False)
