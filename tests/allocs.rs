//! Heap allocations of our own layers in a steady state: none for each frame, group and viewer.
//!
//! Its own binary, since it counts through the global allocator. What is counted: `wire`, `model`
//! and `session` from ingest to write, over fake streams. What is not: quinn-proto and the copy of
//! a received datagram, which the whole relay is measured with in `benches/icount.rs`.
#![expect(unsafe_code, reason = "an allocator that counts can only be told so")]

#[path = "rig/mod.rs"]
mod rig;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use rig::{Rig, Shape};

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

/// Allocations of `groups` groups after a warm-up that fills and cycles the cache.
fn steady(shape: Shape, groups: u64) -> u64 {
    let mut rig = Rig::new(shape);
    for _ in 0..200 {
        rig.group();
    }
    let before = COUNT.get();
    for _ in 0..groups {
        rig.group();
    }
    let after = COUNT.get();
    rig.check();
    after - before
}

#[test]
fn counting_counts() {
    let before = COUNT.get();
    drop(std::hint::black_box(vec![1u8; 100]));
    assert_eq!(COUNT.get() - before, 1);
}

#[test]
fn frames_of_a_long_group_to_256_viewers_allocate_nothing() {
    let shape = Shape { viewers: 256, size: 1200, group: 60, arrivals: 60 };
    assert_eq!(steady(shape, 50), 0);
}

#[test]
fn a_group_for_each_frame_to_256_viewers_allocates_nothing() {
    let shape = Shape { viewers: 256, size: 1200, group: 1, arrivals: 1 };
    assert_eq!(steady(shape, 500), 0);
}

#[test]
fn small_frames_in_packets_to_16_viewers_allocate_nothing() {
    let shape = Shape { viewers: 16, size: 64, group: 256, arrivals: 15 };
    assert_eq!(steady(shape, 50), 0);
}

#[test]
fn small_frames_one_a_turn_to_16_viewers_allocate_nothing() {
    let shape = Shape { viewers: 16, size: 64, group: 256, arrivals: 256 };
    assert_eq!(steady(shape, 50), 0);
}

#[test]
fn one_viewer_allocates_nothing() {
    let shape = Shape { viewers: 1, size: 1200, group: 60, arrivals: 60 };
    assert_eq!(steady(shape, 50), 0);
}
