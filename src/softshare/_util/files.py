"""Files are written completely or not at all. A file that cannot be read raises an error with its name."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from softshare.errors import ConfigError, FormatError


def write_atomic(path: str | os.PathLike[str], data: bytes | Iterable[bytes]) -> int:
    """Write a temporary file beside `path`, flush it to disk and rename it. Returns the size in bytes."""
    temporary = Path(path).parent / f".{secrets.token_hex(8)}.tmp"
    try:
        with temporary.open("xb") as file:
            size = sum(file.write(part) for part in ([data] if isinstance(data, bytes) else data))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise ConfigError(f"cannot write {os.fspath(path)}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):  # after a success it is already renamed
            temporary.unlink()
    return size


def make_folder(folder: Path) -> None:
    """Make a folder and its parents. An existing folder is fine."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write to the folder {folder}: {error.strerror or error}") from error


def require_writable(folder: Path) -> None:
    """Make the folder and check that it can be written to: now, not after hours of work."""
    make_folder(folder)
    probe = folder / ".writable"
    write_atomic(probe, b"")
    probe.unlink()


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise cannot_read(path, error) from error


def cannot_read(path: str | os.PathLike[str], error: OSError) -> ConfigError:
    return ConfigError(f"cannot read {os.fspath(path)}: {error.strerror or error}")


def no_safetensors(path: str | os.PathLike[str], error: Exception) -> FormatError:
    hint = "A .pt or .pth file must be saved again with safetensors.torch.save_file(model.state_dict(), ...)"
    return FormatError(f"{os.fspath(path)} is not a safetensors file ({error}). {hint}")
