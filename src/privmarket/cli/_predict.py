"""`privmarket predict`: a trained model on new rows."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privmarket._files import check_writable, write_atomically
from privmarket._lazy import late, require
from privmarket.cli._options import Json, note, print_json

if TYPE_CHECKING:
    from privmarket.simulation import _model_file as model_files
else:
    model_files = late("privmarket.simulation._model_file")


def predict(
    model: Annotated[Path, typer.Argument(help="The .safetensors file; its .json card lies beside it.")],
    rows: Annotated[Path, typer.Argument(help="New rows with the columns that the model was trained on.")],
    out: Annotated[Path | None, typer.Option(help="Write the predictions here (CSV) instead of to stdout.")] = None,
    network: Annotated[
        str | None, typer.Option("--model", help="file.py:build, where the network is your own.")
    ] = None,
    json: Json = False,
) -> None:
    """Apply a model that `privmarket federate --model-out` wrote to new rows of a table.

    Gives one line per row: the prediction and, for classes, the probability of each. Rows go through the same
    scales and categories as in training; the label may be missing.

    [bold]Example[/bold]

      privmarket predict model.safetensors new.csv --out predictions.csv
    """
    check_writable(out, "--out")
    require("torch", "federated")
    saved = model_files.load_model(model, network)
    predictions, shares = saved.predict_file(rows)
    header = ["row", "prediction", *(f"probability of {name}" for name in saved.classes)]
    lines = [
        [
            number + 1,
            _shown(value.item()),
            *([] if shares is None else [round(float(share), 6) for share in shares[number]]),
        ]
        for number, value in enumerate(predictions)
    ]
    if json:
        print_json({"columns": header, "rows": lines})
        return
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(lines)
    if out is None:
        print(text.getvalue(), end="")
    else:
        write_atomically(out, text.getvalue())
        note(f"written: {out}, {len(lines)} predictions")


def _shown(prediction: object) -> object:
    """A class as it is; a number with the seven digits that float32 has."""
    return float(f"{prediction:.7g}") if isinstance(prediction, float) else prediction
