//! Heap allocations of our own layers in a steady state: none for each frame, group and viewer.
//!
//! Its own binary, since it counts through the global allocator. Counted at none: `wire`, `model`
//! and `session` from ingest to write, over fake streams. Counted apart, against a number that is
//! only recorded: turns of the whole shard, with quinn-proto and the copy of each received datagram
//! that it wants. Outside: set-up, warm-up, the peers. What grows with the length of a run would be
//! a container that is not emptied, since the cache cycles throughout.
#![expect(unsafe_code, reason = "an allocator that counts can only be told so")]

#[path = "rig/mod.rs"]
mod rig;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use rig::{Rig, Shape, Whole};

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged; counting touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    // SAFETY: as `System`, whose contract the caller upholds.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that is ending has no counter any more; what it allocates is nobody's.
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller upholds `alloc`'s contract, which is `System`'s too.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: as `System`, whose contract the caller upholds.
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `System` with this layout, by `alloc` and `realloc`.
        unsafe { System.dealloc(pointer, layout) }
    }

    // SAFETY: as `System`, whose contract the caller upholds.
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        // SAFETY: as for `dealloc`; the caller upholds the rest of the contract.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Groups that fill the cache and cycle it some times.
const WARM: u64 = 200;

/// Allocations of `groups` groups in our own layers.
fn ours(shape: Shape, groups: u64) -> u64 {
    let mut rig = Rig::new(shape);
    rig.write(WARM);
    rig.play();
    rig.write(groups);
    let before = COUNT.get();
    rig.play();
    let after = COUNT.get();
    rig.check();
    after - before
}

/// Allocations of the whole shard for a hundred frames that are delivered, the simulated net's copy
/// of each message taken off.
fn whole(shape: Shape, groups: u64) -> u64 {
    let mut whole = Whole::new(shape);
    whole.play(WARM / 4);
    whole.measure(|| COUNT.get());
    whole.play(groups);
    let (counted, copies) = whole.check();
    let count = counted - copies;
    let frames = groups * shape.group * shape.viewers as u64;
    println!("{shape:?}: {count} allocations for {frames} frames delivered");
    count * 100 / frames
}

#[test]
fn counting_counts() {
    let before = COUNT.get();
    drop(std::hint::black_box(vec![1u8; 100]));
    assert_eq!(COUNT.get() - before, 1);
}

#[test]
fn frames_of_a_long_group_to_256_viewers_allocate_nothing() {
    assert_eq!(ours(Shape { viewers: 256, size: 1200, group: 60, arrivals: 60 }, 20), 0);
}

#[test]
fn a_group_for_each_frame_to_256_viewers_allocates_nothing() {
    assert_eq!(ours(Shape { viewers: 256, size: 1200, group: 1, arrivals: 1 }, 500), 0);
}

#[test]
fn small_frames_in_packets_to_16_viewers_allocate_nothing() {
    assert_eq!(ours(Shape { viewers: 16, size: 64, group: 256, arrivals: 15 }, 100), 0);
}

#[test]
fn small_frames_one_a_turn_to_16_viewers_allocate_nothing() {
    assert_eq!(ours(Shape { viewers: 16, size: 64, group: 256, arrivals: 256 }, 100), 0);
}

#[test]
fn one_viewer_allocates_nothing() {
    assert_eq!(ours(Shape { viewers: 1, size: 1200, group: 60, arrivals: 60 }, 100), 0);
    assert_eq!(ours(Shape { viewers: 1, size: 1200, group: 1, arrivals: 1 }, 500), 0);
}

#[test]
fn ingest_alone_allocates_nothing() {
    assert_eq!(ours(Shape { viewers: 0, size: 1200, group: 60, arrivals: 60 }, 100), 0);
    assert_eq!(ours(Shape { viewers: 0, size: 20_000, group: 60, arrivals: 960 }, 20), 0);
}

#[test]
fn the_whole_allocates_no_more_than_recorded() {
    let long = Shape { viewers: 16, size: 1200, group: 60, arrivals: 60 };
    assert!(whole(long, 10) <= 180);
    assert!(whole(Shape { group: 1, arrivals: 1, ..long }, 200) <= 450);
}
