"""Files of the front through the storage of the study: from the machine that made them to the one that sums up.

A second study of the storage holds them, one trial for each file. Its text is in pieces, because a database may limit
the length of a text.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from softshare._util.files import read_bytes
from softshare._util.run_folder import MODEL, RESULT, write_pair
from softshare.tune.storages import Storage, trial_id

if TYPE_CHECKING:
    import optuna

PIECE = 3 << 13  # bytes, as base64 a text that MySQL takes
MOST_SENT = 1 << 26  # bytes of a file: one that is larger stays on the machine that made it
SENT = "sent"  # attribute of a trial: the number of its file in the other study


def is_beaten(values: Sequence[float], study: optuna.Study) -> bool:
    """Whether a complete trial is at least as good in both. Then the front has no place for these values any more."""
    others = (t.values for t in study.get_trials(deepcopy=False) if t.state.name == "COMPLETE")
    return any(all(a <= b for a, b in zip(other, values, strict=True)) for other in others)


def send(study: optuna.Study, storage: Storage, trial: optuna.Trial, folder: Path) -> bool:
    """Put the pair of a trial's folder into the storage. Whether it is small enough."""
    import optuna

    file, result = read_bytes(folder / MODEL), read_bytes(folder / RESULT)
    if len(file) > MOST_SENT:
        return False
    text = base64.b64encode(file).decode()
    size = PIECE // 3 * 4
    pieces = [text[k : k + size] for k in range(0, len(text), size)]
    attributes = {"result": result.decode(), "pieces": len(pieces), **{str(k): p for k, p in enumerate(pieces)}}
    files = _files(study, storage)
    done = optuna.trial.TrialState.FAIL  # it has no values
    files.add_trial(optuna.create_trial(state=done, user_attrs={**attributes, "of": trial.number}))
    trial.set_user_attr(SENT, max(t.number for t in files.get_trials() if t.user_attrs["of"] == trial.number))
    return True


def fetch(study: optuna.Study, storage: Storage, number: int, folder: Path) -> bool:
    """Write the pair of a trial into a folder. Whether the storage has it."""
    sent = study.get_trials(deepcopy=False)[number].user_attrs.get(SENT)
    if not isinstance(sent, int):
        return False
    found = storage.get_trial(trial_id(_files(study, storage), storage, sent)).user_attrs
    text = "".join(found[str(k)] for k in range(found["pieces"]))
    write_pair(folder, base64.b64decode(text), found["result"].encode())
    return True


def _files(study: optuna.Study, storage: Storage) -> optuna.Study:
    import optuna

    name = f"{study.study_name}: files"
    return optuna.create_study(storage=storage, study_name=name, load_if_exists=True)
