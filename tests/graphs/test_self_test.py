"""The self-test of graphs: each planted fault is found, and without one there is none.

On a CPU, the graphs are a stand-in's (node_list.py). On a GPU they are real, and harmless ones.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch", reason="no torch here: tests/test_graphs.py has one")

import node_list

from rocm_autopatch.graphs import self_test

CPU = torch.device("cpu")
# Each fault, and a part that must find it.
FOUND_BY = {
    "stale memset": "memset",
    "stale host copy": "host copy",
    "truncated": "many nodes",
    "stale pointers": "pointers",
    "second replay": "replays",
    "poisoned": "side stream",
}


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> type[node_list.NodeList]:
    """The class of the stand-in; what a test sets in it is gone afterwards."""

    class Own(node_list.NodeList):
        pass

    monkeypatch.setattr(self_test, "GraphRecorder", Own)
    return Own


def parts_of(faults: list[str]) -> set[str]:
    return {fault.partition(":")[0] for fault in faults}


def test_unharmed(recorder: type[node_list.NodeList]) -> None:
    assert self_test.find_faults(CPU) == []
    # It has looked: each part has a graph, and replays it more than once.
    assert len(recorder.recorded) == len(self_test._PARTS)
    assert recorder.replays >= 2 * len(self_test._PARTS)
    sizes = sorted(len(nodes) for nodes in recorder.recorded)
    assert sizes[-2] >= 250
    assert any(node.is_memset for nodes in recorder.recorded for node in nodes)


def test_each_fault_is_known() -> None:
    assert {*FOUND_BY} == {*node_list.PLANTED}
    assert {*FOUND_BY.values()} == {*self_test._PARTS}


@pytest.mark.parametrize("fault", FOUND_BY)
def test_planted(recorder: type[node_list.NodeList], fault: str) -> None:
    recorder.planted = fault
    faults = self_test.find_faults(CPU)
    assert FOUND_BY[fault] in parts_of(faults), faults
    for one in faults:
        count, _, rest = one.partition(": ")[2].partition(" of ")
        assert 0 < int(count) <= int(rest.split()[0])


def test_a_memset_says_how_many_values_are_stale(recorder: type[node_list.NodeList]) -> None:
    recorder.planted = "stale memset"
    (memset, pointers) = self_test.find_faults(CPU)
    assert memset.endswith("values are stale")
    # _foreach_zero_ is there, too.
    assert pointers.startswith("pointers: ")


def test_an_exception_is_a_fault_of_its_part(recorder: type[node_list.NodeList]) -> None:
    recorder.raised = RuntimeError("HIP error: operation not permitted\nsecond line")
    faults = self_test.find_faults(CPU)
    said = "RuntimeError: HIP error: operation not permitted"
    assert faults == [f"{part}: {said}" for part in self_test._PARTS]


def test_a_device_without_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(device: torch.device) -> None:
        raise RuntimeError("no HIP-capable device is detected")

    monkeypatch.setattr(self_test, "GraphRecorder", refuse)
    said = self_test.find_faults(CPU)
    assert said == ["streams: RuntimeError: no HIP-capable device is detected"]


@pytest.mark.usefixtures("recorder")
def test_the_program_s_own_state_stays() -> None:
    random, dtype = torch.get_rng_state(), torch.get_default_dtype()
    collects = gc.isenabled()
    with torch.enable_grad():
        assert self_test.find_faults(CPU) == []
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
    with torch.inference_mode():
        assert self_test.find_faults(CPU) == []
        assert torch.is_inference_mode_enabled()
    assert torch.equal(random, torch.get_rng_state())
    assert (torch.get_default_dtype(), gc.isenabled()) == (dtype, collects)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
class TestOnTheGPU:
    def test_unharmed(self) -> None:
        device = torch.device("cuda", torch.cuda.current_device())
        one = torch.randn(8, device=device)
        assert self_test.find_faults(device) == []  # Its kernels are loaded from now on.
        torch.cuda.empty_cache()
        stream, random = torch.cuda.current_stream(), torch.cuda.get_rng_state()
        in_use, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        assert self_test.find_faults(torch.device("cuda")) == []
        assert torch.cuda.current_stream() == stream
        assert torch.equal(torch.cuda.get_rng_state(), random)
        assert torch.cuda.memory_allocated() == in_use
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() == reserved
        del one

    def test_a_capture_that_breaks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def wait(device: torch.device, recorder: self_test.GraphRecorder) -> list[str]:
            one = torch.zeros(1, device=device)

            def function() -> None:
                if torch.cuda.is_current_stream_capturing():
                    torch.cuda.current_stream().synchronize()
                one.add_(1)

            recorder.record_graph(function)
            return []

        monkeypatch.setitem(self_test._PARTS, "many nodes", wait)
        (fault,) = self_test.find_faults(torch.device("cuda"))
        assert fault.startswith("many nodes: ")
        # The generator draws, and graphs can be captured.
        assert torch.rand(2, device="cuda").sum() > 0
        monkeypatch.undo()
        assert self_test.find_faults(torch.device("cuda")) == []
