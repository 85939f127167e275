"""What importing costs, and which way imports point."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import softshare

SRC = Path(softshare.__file__).parent

# The route, upstream first. A module may import from those before it and from its own line.
ROUTE = [
    ["compiled", "errors"],
    ["fields", "files", "hyperpriors", "target"],
    ["config"],
    ["batchnorm", "checkpoint", "task", "weights"],
    ["distill"],
    ["kernels.mixture"],
    ["kernels.mixture_numba", "kernels.mixture_triton", "kernels.mixture_table", "kernels.sample"],
    ["kernels.assign_torch", "kernels.choice"],
    ["kernels.assign"],
    # all but the first are loaded by name, when chosen
    ["kernels", "kernels.assign_numba", "kernels.assign_triton", "kernels.table_numba", "kernels.table_triton"],
    ["prior"],
    ["hard", "rate"],
    ["step"],
    ["retrain"],
    ["merge", "phases", "steer"],
    ["chains", "quantize"],
    ["codebook", "fit", "trim"],
    [
        "codec",
        *(
            f"codec.{name}"
            for name in [
                "bits",
                "compiled",
                "logistic",
                "rangecoder",
                "symbols",
                "wire",
                "header",
                "huffman",
                "han",
                "model",
                "fast",
                "adaptive",
                "planes",
                "info",
                "rest",
                "shared",
                "container",
            ]
        ),
    ],
    ["datafree", "export", "symmetries"],
    ["budget"],
    ["shrink", "structured"],
    ["route"],
    ["evaluate", "integrations", "integrations.sharing"],
    ["integrations.huggingface", "integrations.lightning"],
    ["task_template"],  # a user's file: it sees the package from outside
    ["baselines.config", "baselines.kmeans", "baselines.layers"],
    ["baselines.masks", "baselines.sharing", "baselines.tasks"],
    ["baselines.deep_compression", "baselines.dns"],
    ["baselines.accounting"],
    ["baselines"],
    ["hooks", "zoo", "zoo.cifar10", "zoo.datasets", "zoo.models", "zoo.experiments", "zoo.published", "zoo.recipes"],
    ["options", "runs", "search", "verify"],
    ["report"],
    ["report.frames", "report.tensorboard"],
    ["report.run", "report.style"],
    [
        *(
            f"report.{name}"
            for name in [
                "account",
                "curves",
                "dynamics",
                "film",
                "filters",
                "hyperpriors",
                "masks",
                "sizes",
                "storage",
                "weights",
            ]
        )
    ],
    ["report.figures"],
    ["report.page"],
    ["report.live", "report.write"],
    ["reproduce", "results", "study"],
    ["pareto"],
    ["page", "samplers", "trials"],
    ["tables", "trial_plots"],
    ["study_files"],
    ["study_report", "tune"],
    ["cli_tasks"],
    ["cli_files", "cli_init", "cli_results", "cli_run", "cli_tune", "cli_weights"],
    ["cli_compress"],
    ["cli"],
    ["__main__"],
]
RANK = {module: rank for rank, line in enumerate(ROUTE) for module in line}

# The one import against the stream: `prior.quantize()` ends a user's own loop in one word.
EXCEPTIONS = {("prior", "route")}


# Loaded by what needs them, and by nothing else.
OPTIONAL = ("lightning", "matplotlib", "numba", "optuna", "pytorch_lightning", "transformers", "triton")


def module_name(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path) -> set[str]:
    """The softshare modules a file imports, inside functions too; imports for type checkers only do not count."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.removeprefix("softshare.") for name in names if name.startswith("softshare.")} & set(RANK)


MODULES = {module_name(path): path for path in SRC.rglob("*.py") if module_name(path)}


def test_every_module_has_its_place() -> None:
    assert set(MODULES) == set(RANK)


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_point_upstream(module: str) -> None:
    for other in imported(MODULES[module]):
        assert RANK[other] <= RANK[module] or (module, other) in EXCEPTIONS, f"{module} imports {other}"


def test_the_exception_is_still_one() -> None:
    for module, other in EXCEPTIONS:
        assert other in imported(MODULES[module])


def test_import_is_lean() -> None:
    """Neither heavy optional packages nor torch itself are loaded by `import softshare` alone."""
    code = "import sys, softshare; print(*sorted(m for m in sys.modules if '.' not in m))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "softshare" in loaded
    assert not {"torch", "numpy", "rich", "safetensors", "typer", *OPTIONAL} & set(loaded)


def test_the_public_names_load_no_optional_package_and_no_gpu() -> None:
    code = (
        "import sys, softshare, torch\n"
        "for name in softshare.__all__: getattr(softshare, name)\n"
        "assert not torch.cuda.is_initialized()\n"
        "print(*sorted(m for m in sys.modules if '.' not in m))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"rich", "typer", *OPTIONAL} & set(loaded)


def test_public_names() -> None:
    assert softshare.__all__ == sorted(softshare.__all__)
    for name in softshare.__all__:
        assert getattr(softshare, name).__module__.startswith("softshare.")
    assert callable(softshare.compress)  # and not a module of that name
    assert set(dir(softshare)) >= set(softshare.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        softshare.nothing  # noqa: B018
