"""`privmarket register`: a register of sellers, which signs who is in a round's secure sum."""

from __future__ import annotations

__extra__ = "client"  # named where a package is missing: `privmarket._lazy`

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privmarket._counted import counted
from privmarket._files import in_words
from privmarket._lazy import late
from privmarket.cli._options import note
from privmarket.errors import ConfigurationError, PrivmarketError

if TYPE_CHECKING:
    from privmarket import secagg
else:
    secagg = late("privmarket.secagg")

app = typer.Typer(help="Keep a register of sellers: it signs who is in a round's secure sum.", no_args_is_help=True)
Folder = Annotated[Path, typer.Argument(help="The register's folder.")]


@app.command("init")
def init(folder: Folder) -> None:
    """Make a register, and print its public key, which sellers write into their policies: register = "…".

    Keep the folder on a machine that the server's operator does not run.

    [bold]Example[/bold]

      privmarket register init sellers-register
    """
    made = secagg.SellerRegister.make(folder)
    note(f"the register's secret key is in {folder / 'key'}; sellers name this public key in their policies:")
    print(made.public_key.hex())


@app.command("add")
def add(
    folder: Folder,
    key: Annotated[str, typer.Argument(help="The seller's public key, as `privmarket seller init` printed it.")],
    name: Annotated[str, typer.Argument(help="Who that is.")],
) -> None:
    """Register a seller, once you have made sure that the key is that party's: one key per party.

    [bold]Examples[/bold]

      privmarket register init sellers-register

      privmarket register add sellers-register PUBLIC_KEY "North clinic"
    """
    found = secagg.SellerRegister(folder)
    found.add(key, name)
    print(f"{folder} has {counted(len(found.sellers()), 'seller')}")


@app.command("sign")
def sign(
    folder: Folder,
    roster: Annotated[Path, typer.Argument(help="Who was awarded: a file that `secagg.Roster.to_json` wrote.")],
) -> None:
    """Sign the roster of a round, if all of its members are registered and no other was signed for that round.

    [bold]Example[/bold]

      privmarket register sign sellers-register roster.json
    """
    try:
        asked = secagg.Roster.from_json(roster.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{roster}: {in_words(error)}", "give the file of a roster") from error
    except PrivmarketError as error:
        raise ConfigurationError(f"{roster}: {error.message}", error.hint) from error
    print(secagg.SellerRegister(folder).sign(asked).hex())


@app.command("show")
def show(folder: Folder) -> None:
    """List the registered sellers, and the register's public key.

    [bold]Examples[/bold]

      privmarket register init sellers-register

      privmarket register show sellers-register
    """
    found = secagg.SellerRegister(folder)
    sellers = {key.hex(): name for key, name in found.sellers().items()}
    print(f"public key {found.public_key.hex()}, {counted(len(sellers), 'seller')}")
    for key, name in sellers.items():
        print(f"{key}  {name}")
