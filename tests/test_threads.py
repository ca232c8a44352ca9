"""One thread inside the block, as many as before after it, whatever happens."""

from __future__ import annotations

import pytest
import torch

from evenshard.threads import one_thread


def test_one_thread_inside_and_as_before_afterwards() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        with pytest.raises(ValueError), one_thread():
            raise ValueError
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
