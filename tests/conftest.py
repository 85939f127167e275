"""What all tests share."""

from __future__ import annotations

import torch

# Tests run in two processes; two threads in each would fight over two cores, many times slower than one each.
torch.set_num_threads(1)
