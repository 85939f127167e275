"""The program: `softshare`, and `python -m softshare`."""

import os
import signal
from types import FrameType

from softshare._util.signals import USUAL
from softshare._util.words import STOPPED


def main() -> int:
    """Run the command line and return the exit status. A Ctrl-C or SIGTERM while it is loaded ends it with one line."""
    listens = [number for number, handler in USUAL.items() if signal.getsignal(number) is handler]
    for number in listens:
        signal.signal(number, _stop)
    from softshare.cli import main as command_line

    for number in listens:
        signal.signal(number, USUAL[number])
    return command_line()


def _stop(number: int, frame: FrameType | None) -> None:
    """End at once: an exception in the middle of an import can become any other one. Nothing is open yet."""
    os.write(2, f"softshare: {STOPPED}\n".encode())
    os._exit(128 + number)


if __name__ == "__main__":
    raise SystemExit(main())
