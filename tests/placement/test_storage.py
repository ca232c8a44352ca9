"""Where weights are kept, and what is refused."""

import pytest

from evenshard.placement.storage import (
    COMPUTE_KERNELS,
    FUSED,
    FUSED_UVM,
    FUSED_UVM_CACHING,
    HOST,
    KEY_VALUE,
    Storage,
    storages_of,
)
from evenshard.utils.errors import BadConfig


def test_kernels_say_where_weights_are() -> None:
    on_device = {one for one in COMPUTE_KERNELS if Storage(one).is_on_device}
    on_host = {one for one in COMPUTE_KERNELS if Storage(one).is_on_host}
    cached = {one for one in COMPUTE_KERNELS if Storage(one).is_cached}
    assert on_device == {FUSED}
    assert on_host == {FUSED_UVM, FUSED_UVM_CACHING, HOST}
    assert cached == {FUSED_UVM_CACHING, KEY_VALUE}


def test_a_storage_is_written_in_a_word() -> None:
    assert str(Storage()) == "fused"
    assert str(Storage(FUSED_UVM_CACHING, 0.2)) == "fused_uvm_caching 0.2"


def test_only_caches_have_several_sizes() -> None:
    assert [storage.load_factor for storage in storages_of(KEY_VALUE, (0.1, 0.4))] == [0.1, 0.4]
    assert storages_of(HOST, (0.1, 0.4)) == (Storage(HOST),)


@pytest.mark.parametrize(
    ("kernel", "load_factor", "what"),
    [
        ("uvm", 1.0, "compute kernel is 'uvm'"),
        (FUSED_UVM_CACHING, 0.0, "load_factor"),
        (FUSED_UVM_CACHING, 1.5, "load_factor"),
        (FUSED_UVM, 0.5, "no cache"),
    ],
)
def test_what_makes_no_sense_is_refused(kernel: str, load_factor: float, what: str) -> None:
    with pytest.raises(BadConfig, match=what):
        Storage(kernel, load_factor)
