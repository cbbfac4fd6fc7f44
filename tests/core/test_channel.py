"""Hand-offs: absolute positions, a structural end, a cursor for each reader, and tensors that go when all have passed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_runtime.channel import Channel, Reader
from omni_runtime.work import TensorRef


def ref(index: int) -> TensorRef:
    return TensorRef("x", 1, "think", "hidden", index)


def test_pushing_again_changes_nothing() -> None:
    channel = Channel()
    channel.push(0, (1, 2))
    channel.push(0, (1, 2, 3))
    channel.push(1, (2,))
    assert channel.items == [1, 2, 3]
    assert channel.tail == 3


def test_a_gap_is_a_bug() -> None:
    channel = Channel()
    with pytest.raises(AssertionError, match="gap: items start at 1, the channel ends at 0"):
        channel.push(1, (1,))


def test_the_end_is_a_state_and_its_first_reason_stays() -> None:
    channel = Channel()
    reader = Reader(channel)
    channel.push(0, (1,))
    assert not reader.ended
    channel.close("done")
    channel.close("again")
    assert channel.closed == "done"
    assert reader.ended
    assert reader.available == 1, "what came before the end can still be read"
    channel.push(0, (1,))  # a duplicate is harmless
    with pytest.raises(AssertionError, match="1 items after the end"):
        channel.push(1, (2,))


def test_peeking_consumes_nothing() -> None:
    channel = Channel()
    reader = Reader(channel)
    channel.push(0, (1, 2, 3))
    assert (reader.peek(2), reader.peek(), reader.peek(9), reader.available) == ((1, 2), (1, 2, 3), (1, 2, 3), 3)
    reader.take(2)
    assert (reader.peek(2), reader.available) == ((3,), 1)
    with pytest.raises(AssertionError, match="takes 2 of 1"):
        reader.take(2)


@pytest.mark.parametrize(
    ("capacity", "waiting", "filled"), [(None, 9, False), (2, 1, False), (2, 2, True), (2, 3, True), (1, 0, False)]
)
def test_filled(capacity: int | None, waiting: int, filled: bool) -> None:
    channel = Channel()
    reader = Reader(channel, capacity=capacity)
    channel.push(0, (0, *range(waiting)))
    reader.take(1)
    assert reader.filled is filled


def test_tensors_go_when_the_slowest_reader_has_passed() -> None:
    channel = Channel(device=True)
    fast, slow = Reader(channel), Reader(channel)
    refs = tuple(map(ref, range(4)))
    assert channel.push(0, refs) == []
    fast.take(3)
    assert channel.collect() == []
    slow.take(2)
    assert channel.collect() == list(refs[:2])
    assert channel.collect() == [], "once"
    assert channel.held() == list(refs[2:])
    slow.detach()
    assert channel.collect() == [refs[2]]
    fast.detach()
    assert channel.collect() == [refs[3]]
    assert channel.held() == []


def test_a_full_reader_keeps_everything_until_it_lets_go() -> None:
    channel = Channel(device=True)
    whole = Reader(channel, full=True)
    channel.push(0, (ref(0), ref(1)))
    channel.close("done")
    assert channel.collect() == []
    whole.detach()
    assert channel.collect() == [ref(0), ref(1)]


def test_nobody_reads_on_so_new_tensors_go_at_once() -> None:
    channel = Channel(device=True)
    Reader(channel).detach()
    assert channel.push(0, (ref(0),)) == [ref(0)]
    assert channel.held() == []


def test_host_items_stay() -> None:
    channel = Channel()
    reader = Reader(channel)
    channel.push(0, (1, 2))
    reader.take(2)
    assert channel.collect() == []
    assert channel.held() == []
    assert channel.items == [1, 2]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(moves=st.lists(st.tuples(st.sampled_from(["push", "take", "detach"]), st.integers(0, 2), st.integers(0, 3)), max_size=30))
def test_every_tensor_is_given_back_once_and_never_before_it_was_read(moves: list[tuple[str, int, int]]) -> None:
    channel = Channel(device=True)
    readers = [Reader(channel, full=n == 2) for n in range(3)]
    back: list[TensorRef] = []
    for what, who, n in moves:
        reader = readers[who]
        if what == "push":
            back += channel.push(channel.tail, tuple(map(ref, range(channel.tail, channel.tail + n))))
        elif what == "take" and not reader.full and n <= reader.available:
            reader.take(n)
            back += channel.collect()
        elif what == "detach":
            reader.detach()
            back += channel.collect()
        needed = min([0 if r.full else r.cursor for r in readers if r.attached], default=channel.tail)
        assert back == list(map(ref, range(needed))), "in order, all that nobody needs and no more"
        assert channel.held() == list(map(ref, range(needed, channel.tail)))
