"""`python -m softshare` is the command line."""

from softshare.cli import main

raise SystemExit(main())
