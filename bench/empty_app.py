"""An empty Typer app with rich help: what any command line on Typer costs at least."""

import typer

app = typer.Typer(rich_markup_mode="rich")


@app.command()
def nothing(name: str = typer.Option("you", help="A name.")) -> None:
    """Do nothing, and say so."""
    print("nothing")


@app.command()
def little() -> None:
    """Do little."""


app()
