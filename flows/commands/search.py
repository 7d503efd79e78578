"""dml index, search and serve: find similar images in any folder with a study's model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.export import ArmOption, SeedOption
from flows.commands.terminal import (
    DEFAULT_PARAMS,
    ParamsOption,
    ProfileOption,
    SetOption,
    StudyArgument,
    say,
)

if TYPE_CHECKING:
    from dml_core.retrieval.folder_index import FolderIndex
    from dml_core.retrieval.updating import IndexChanges
    from tasks.study import StudyContext

NUM_LISTED = 20
"""Unreadable files that are listed; the rest are counted."""
FolderOption = Annotated[
    Path | None, typer.Option(help="Which indexed folder, if there are several.")
]
TopOption = Annotated[int, typer.Option(help="Number of nearest images.", min=1, max=1000)]
commands = typer.Typer()


@commands.command()
def index(
    study: StudyArgument,
    folder: Annotated[Path, typer.Argument(help="A folder of images, with all below it.")],
    params: ParamsOption = DEFAULT_PARAMS,
    set_: SetOption = None,
    profile: ProfileOption = None,
    arm: ArmOption = None,
    seed: SeedOption = None,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Embed all images anew, with the present model.")
    ] = False,
    exact_below: Annotated[
        int | None,
        typer.Option(
            help="From this number of images on, search a graph (HNSW); by default 100,000.", min=1
        ),
    ] = None,
) -> None:
    """Embed a folder of images for searching; again, only new and changed images are embedded."""
    from dml_core.retrieval.vector_index import EXACT_BELOW
    from tasks.report_page.tables import make_command
    from tasks.search.indexes import build_index
    from tasks.step_progress import shown_step

    context = _load(study, profile, params, set_)
    with shown_step("indexing") as progress:
        made, changes = build_index(
            context,
            folder,
            arm=arm,
            seed=seed,
            rebuild=rebuild,
            exact_below=exact_below or EXACT_BELOW,
            on_progress=progress.count,
            on_step=progress.say,
        )
    _describe_index(made, changes)
    searching = make_command(context.request, "search", "PICTURE")
    say(f"search it: {searching}, or on a page: {make_command(context.request, 'serve')}")


@commands.command()
def search(
    study: StudyArgument,
    pictures: Annotated[list[Path], typer.Argument(help="Image files to search for.")],
    params: ParamsOption = DEFAULT_PARAMS,
    set_: SetOption = None,
    profile: ProfileOption = None,
    folder: FolderOption = None,
    top: TopOption = 10,
    output: Annotated[
        Path | None, typer.Option(help="The page; by default results/STUDY/search/page.html.")
    ] = None,
) -> None:
    """Print the nearest indexed images of pictures, and write a page that shows them."""
    from tasks.search.indexes import open_index, search_folder
    from tasks.search.page import write_search_page
    from tasks.step_progress import shown_step

    context = _load(study, profile, params, set_)
    with shown_step("loading the model"):
        opened = open_index(context, folder)
    found = opened.search_files(pictures, top)
    for picture, neighbors in zip(pictures, found, strict=True):
        say(f"{picture}:")
        for rank, each in enumerate(neighbors, start=1):
            say(f"{rank:4d}  {opened.show_score(each.score)}  {each.path}")
    target = output or search_folder(context) / "page.html"
    write_search_page(
        target,
        title=context.request.folder_name,
        queries=pictures,
        found=found,
        index=opened.index,
        show_score=opened.show_score,
    )
    say(f"shown in {target}")


@commands.command()
def serve(
    study: StudyArgument,
    params: ParamsOption = DEFAULT_PARAMS,
    set_: SetOption = None,
    profile: ProfileOption = None,
    folder: FolderOption = None,
    port: Annotated[int, typer.Option(help="0 takes a free one.", min=0, max=65535)] = 0,
) -> None:
    """Serve a page on this machine: drop a picture in, see the nearest indexed images."""
    from tasks.search.indexes import open_index
    from tasks.search.server import serve_index
    from tasks.step_progress import shown_step

    context = _load(study, profile, params, set_)
    with shown_step("loading the model"):
        opened = open_index(context, folder)

    def announce(address: str) -> None:
        say(f"{len(opened.index):,} images of {opened.index.root}, model {opened.name}")
        say(f"open {address}")
        say("for this machine only; end it with Ctrl-C")

    serve_index(opened, title=context.request.folder_name, port=port, on_ready=announce)
    say("stopped")


def _load(study: str, profile: str | None, params: Path, set_: list[str] | None) -> "StudyContext":
    from tasks.study import StudyRequest, load_context

    return load_context(
        StudyRequest(study=study, profile=profile, params=str(params), overrides=tuple(set_ or ()))
    )


def _describe_index(made: "FolderIndex", changes: "IndexChanges") -> None:
    say(
        f"{len(made):,} images of {made.root} are indexed: {changes.added:,} new, "
        f"{changes.changed:,} changed, {changes.removed:,} removed, {changes.kept:,} as before"
    )
    if made.vectors is not None and made.vectors.kind == "hnsw":
        share = f"{100 * made.vectors.recall:.1f} %"
        say(f"searched by a graph (HNSW), which finds {share} of the true nearest 10")
    else:
        say("searched exactly")
    if made.unreadable:
        say(f"{len(made.unreadable):,} files cannot be read:")
        for path in sorted(made.unreadable)[:NUM_LISTED]:
            say(f"  {path} {made.unreadable[path][1]}")
        if len(made.unreadable) > NUM_LISTED:
            say(f"  and {len(made.unreadable) - NUM_LISTED:,} more")
    if changes.listing.ignored:
        kinds = sorted(changes.listing.ignored.items(), key=lambda item: -item[1])[:5]
        listed = ", ".join(f"{kind} ({count:,})" for kind, count in kinds)
        say(f"files that are no images are ignored: {listed}")
    if changes.listing.links:
        say(f"links to folders are not followed: {', '.join(changes.listing.links[:5])}")
