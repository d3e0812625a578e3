"""``trmcloud data``: the data sets that recipes stand on, without a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from trmcloud.cli import options
from trmcloud.cli.views.json_output import print_answer, print_document
from trmcloud.cli.views.text import DataProgress, fields, table
from trmcloud.core.catalog.datasets import DataSet
from trmcloud.core.errors import DataError
from trmcloud.core.spec.spec import DataSource
from trmcloud.operations import views
from trmcloud.operations.plans.preparing import pinned_source, ready_data
from trmcloud.operations.sending.data import (
    check_folder,
    is_prepared,
    need_data_extra,
    resolve_source,
)
from trmcloud.operations.views import filled
from trmcloud.operations.words import count
from trmcloud.wiring import build_context
from trmcloud.wiring_plans import build_planner, check_data_files, data_set, data_sets, recipes

app = options.make_group(
    "List and show data sets, prepare them, and check that they are available.",
    "trmcloud data list",
)

Source = Annotated[
    str, typer.Argument(help="Name of a data set, an address, or a path.", metavar="NAME|URL|PATH")
]


@app.command("list")
def show_all(as_json: options.Json = False) -> None:
    """List all named data sets, and the recipes that train on them.

    Example: trmcloud data list
    """
    used = _used_by()
    sets = data_sets()
    if as_json:
        print_document(views.DataSets(data_sets=tuple(_row(each, used) for each in sets)))
        return
    header = ("name", "what it is", "size", "licence", "recipes")
    lines = [
        (
            each.name,
            each.title,
            size_of(each),
            each.licence.partition(" (")[0],
            ", ".join(used.get(each.name, ())) or "–",
        )
        for each in sets
    ]
    print("\n".join(table(header, lines)))
    print("train on one with --data NAME · trmcloud data show NAME")


@app.command("show")
def show_one(
    name: Annotated[str, typer.Argument(help="Name of a data set.", metavar="NAME")],
    as_json: options.Json = False,
) -> None:
    """Show the address, files and licence of a data set.

    Example: trmcloud data show fineweb-edu
    """
    found = data_set(name)
    if as_json:
        print_document(views.DataSets(data_sets=(_row(found, _used_by()),)))
        return
    rows = [
        ("name", found.name),
        ("what it is", found.title),
        ("layout", _layout_of(found)),
        ("size", size_of(found)),
        ("files", _files_of(found)),
        ("validation", found.validation or "its end, as large as the recipe's validation_fraction"),
        ("address", found.base_url or "none: no download"),
        ("hashes", f"known for {len(found.sha256)} of its files" if found.sha256 else "none known"),
        ("licence", found.licence),
        ("page", found.page),
        ("recipes", ", ".join(_used_by().get(name, ())) or "none by default: --data " + name),
        ("made", DataSource(name, found).where_and_why(rented=True).partition(": made ")[2]),
    ]
    print("\n".join(fields([row for row in rows if row[1]])))


@app.command("get")
def get(
    source: Source,
    recipe: Annotated[
        str, typer.Option(help="Recipe (name or TOML file) whose tokenizer is used.")
    ] = "trm",
    tokens: Annotated[
        int, typer.Option(min=1, help="Training tokens to prepare, from a set of shards.")
    ] = 1_000_000,
    as_json: options.Json = False,
) -> None:
    """Prepare data on this machine for a recipe; the same command continues where it stopped.

    Example: trmcloud data get gsm8k --recipe trm --tokens 100000
    """
    need_data_extra()
    inputs = build_planner().inputs
    wished = inputs.recipe(recipe)
    settings = wished.resolve(next(iter(wished.phases)), hardware="local", gpus=1)
    context = build_context()
    progress = DataProgress()
    named = inputs.data_source(resolve_source(source, settings))
    found = pinned_source(context, inputs, named, progress)
    folder, train, validation = ready_data(context, found, settings, progress, tokens=tokens)
    made = views.DataReady(
        name=found.name, train_tokens=train, validation_tokens=validation, folder=str(folder)
    )
    counted = f"{train:,} tokens to train on, {validation:,} to validate on"
    print_answer(made, (f"{found.name}: {counted}", f"  folder {folder}"), as_json=as_json)


@app.command("check")
def check(
    source: Source,
    whole: Annotated[
        bool,
        typer.Option("--all", help="Check every file, not only the first, last and validation."),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Check that data is available: that its files answer with their length (and hash, if known)
    and have the columns; or that a prepared folder matches its records.

    Example: trmcloud data check fineweb-edu
    """
    folder = Path(source).expanduser()
    if is_prepared(folder):
        results = check_folder(folder)
    else:
        found = build_planner().inputs.data_source(resolve_source(source))
        if found.data_set is None or not found.data_set.is_remote:
            whole_here = views.DataChecked(source=source, passed=True, checks=())
            line = f"✔ {found.name}: all of it is on this machine"
            return print_answer(whole_here, [line], as_json=as_json)
        results = check_data_files(found.data_set, whole=whole)
    if as_json:
        rows = tuple(
            views.CheckRow(code=each.name, passed=each.good, message=each.detail)
            for each in results
        )
        passed = all(row.passed for row in rows)
        print_document(views.DataChecked(source=source, passed=passed, checks=rows))
        raise typer.Exit(0 if passed else DataError.exit_code)
    bad = 0
    for result in results:
        bad += not result.good
        print(f"{'✔' if result.good else '✘'} {result.name:<34} {result.detail}", flush=True)
    if bad:
        raise DataError(
            f"{bad} of its files cannot be used",
            where=source,
            next_step="try again later, or set a mirror in TRMCLOUD_DATA_HOSTS",
        )


def _row(found: DataSet, used: Mapping[str, Sequence[str]]) -> views.DataSetRow:
    return filled(
        views.DataSetRow,
        found,
        address=found.base_url,
        size_bytes=found.shard_count * found.shard_bytes,
        shards=found.shard_count,
        hashes=len(found.sha256),
        recipes=tuple(used.get(found.name, ())),
    )


def size_of(data_set: DataSet) -> str:
    """``100.2B tokens, 182 GB``, as far as it is known."""
    words = []
    if data_set.tokens:
        words.append(f"{count(data_set.tokens)} tokens")
    size = data_set.shard_count * data_set.shard_bytes
    if size:
        words.append(f"{size / 1e9:,.0f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB")
    return ", ".join(words) or "not known"


def _layout_of(data_set: DataSet) -> str:
    if data_set.layout == "parquet":
        return f"parquet, text in column {data_set.column!r}"
    if data_set.layout == "jsonl":
        return f"jsonl, text in field {' and '.join(data_set.fields)}"
    return data_set.layout


def _files_of(data_set: DataSet) -> str:
    names = list(data_set.shard_names())
    if len(names) < 2:
        return names[0] if names else ""
    return f"{len(names):,}: {names[0]} … {names[-1]}"


def _used_by() -> dict[str, list[str]]:
    """The recipes that train on each data set where nothing else is said."""
    used: dict[str, list[str]] = {}
    for recipe in recipes():
        for data in {recipe.data_of(phase) for phase in recipe.phases}:
            used.setdefault(data, []).append(recipe.name)
    return used
